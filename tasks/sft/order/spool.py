"""The token spool of a part: its sequences in the order of their positions (see `tasks.spool` for the file).

An item is a token and its flag in one number: `token | trained << 31`. Equal conversations of a part share their
items. The spool depends on neither the seed nor the splits, the pack size nor anything later: they change without it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from schemas.run import FileRecord
from tasks.run.layout import stage_folder
from tasks.sft.order.positions import positions
from tasks.spool.reader import SpoolReader, open_spool
from tasks.spool.writer import SpoolWriter

SPOOL = "part-000000.spool"
RECORD = np.dtype(
    [
        ("position", "<u8"),
        ("digest", "<u8", 2),  # of the conversation
        ("start", "<u8"),
        ("row", "<u8"),  # 0-based number in its file
        ("length", "<u4"),
        ("file", "<u4"),  # index into the receipt's `source_files`
        ("turn", "<u4"),  # which of the row's sequences
    ]
)
ITEM = np.dtype("<u4")
TRAINED = np.uint32(1 << 31)
TOKEN = np.uint32(TRAINED - 1)


@dataclass(frozen=True)
class Rows:
    """The origin of a batch of rows.

    Attributes:
        file: int64[rows], index of the row's file; `number`: int64[rows], its 0-based number there.
        digest: uint64[rows, 2], of the conversation.
        group: uint64[rows], digest of the group, or `None` if the data set has no groups.
    """

    file: NDArray[np.int64]
    number: NDArray[np.int64]
    digest: NDArray[np.uint64]
    group: NDArray[np.uint64] | None


class TokenSpoolWriter:
    """Appends batches of sequences to the spool of a stage folder; nothing is visible before `finish`."""

    def __init__(self, folder: Path) -> None:
        self._spool = SpoolWriter(folder / SPOOL, RECORD, ITEM, same=("digest", "turn"))

    def append(
        self,
        tokens: NDArray[np.int32],
        trained: NDArray[np.uint8],
        lengths: NDArray[np.int64],
        seq_row: NDArray[np.int32],
        turns: NDArray[np.int64],
        rows: Rows,
    ) -> None:
        """Add sequences.

        Args:
            tokens: int32[tokens], one sequence after another; trained: uint8[tokens], 1 where the token is trained.
            lengths: int64[sequences].
            seq_row: int32[sequences], which of `rows` each came from; turns: which of the row's sequences it is.
        """
        records = np.zeros(len(lengths), RECORD)
        records["position"] = positions(rows.digest[:, 0], rows.group, rows.number)[seq_row]
        records["digest"] = rows.digest[seq_row]
        records["row"] = rows.number[seq_row]
        records["file"] = rows.file[seq_row]
        records["length"] = lengths
        records["turn"] = turns
        self._spool.append(records, tokens.astype(ITEM) | (trained.astype(ITEM) << np.uint32(31)))

    def finish(self, root: Path) -> list[FileRecord]:
        """Commit the spool, and return its record relative to `root`."""
        return [self._spool.finish(root)]

    def __enter__(self) -> TokenSpoolWriter:
        self._spool.__enter__()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._spool.__exit__(*exc_info)


@contextlib.contextmanager
def open_spools(root: Path, stages: Sequence[str]) -> Iterator[Generator[SpoolReader]]:
    """Open the spools of these stages one after the other, each closed before the next."""

    def each() -> Generator[SpoolReader]:
        for stage in stages:
            with open_spool(stage_folder(root, stage) / SPOOL, RECORD, ITEM) as spool:
                yield spool

    with contextlib.closing(each()) as spools:
        yield spools
