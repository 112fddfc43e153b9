"""Cut files into pieces of any size, as a run cuts them into pieces of a mebibyte and more."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tasks.inputs import parts, survey
from tasks.inputs.files import InputFile
from tasks.inputs.segments import Segment, format_of, segments_of
from tasks.inputs.survey import FileContent, blocks_of, content_of, survey_here


def look(file: InputFile, piece_bytes: int, block_pieces: int = 3) -> FileContent:
    """What a survey finds in a file that is cut every so many bytes and read in blocks of so many pieces."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "SMALLEST_PIECE", piece_bytes)
        patch.setattr(parts, "LARGEST_PIECE", piece_bytes)
        patch.setattr(survey, "BLOCK_BYTES", piece_bytes * block_pieces)
        path = str(file.path)
        return content_of(path, file.bytes, survey_here(blocks_of(path, file.bytes)))


def cut(files: Sequence[InputFile], piece_bytes: int, block_pieces: int = 3) -> list[Segment]:
    """The pieces of files."""
    return [
        segment
        for file in files
        for segment in segments_of(file, format_of(file.name), look(file, piece_bytes, block_pieces).cuts)
    ]
