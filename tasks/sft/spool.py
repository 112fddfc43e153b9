"""The token spool: tokenized sequences for any packing, memory-mapped and bounded in memory.

A spool is a set of little-endian files in its stage folder, with sequences in input order:

=================  =======================  =====================================================
file               content                  meaning
=================  =======================  =====================================================
`tokens.i32`       int32[tokens]            all sequences, one after another
`loss_mask.u8`     uint8[tokens]            shifted: entry j says whether token j + 1 is trained
`offsets.npy`      int64[sequences + 1]     where each sequence starts in the two files above
`seq_row.npy`      int32[sequences]         which row each sequence came from; non-decreasing
`row_file.npy`     int32[rows]              index into the receipt's `files`
`row_number.npy`   int64[rows]              0-based line or row in that file
`row_digest.npy`   uint64[rows, 2]          digest of the conversation, for deduplication
`row_group.npy`    uint64[rows]             digest of what decides the split
=================  =======================  =====================================================

The spool does not depend on the split, the pack size or anything later, so changing those reuses it.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schemas.errors import IntegrityError
from schemas.run import FileRecord
from tasks.packing.arrays import lengths_to_offsets
from tasks.storage.arrays import read_array, write_array
from tasks.storage.atomic import AtomicFile
from tasks.storage.reading import file_bytes, map_file

TOKENS = "tokens.i32"
LOSS_MASK = "loss_mask.u8"
_ARRAYS = ("offsets", "seq_row", "row_file", "row_number", "row_digest", "row_group")


@dataclass(frozen=True)
class Rows:
    """The origin of a batch of rows; see the module's table for shapes and dtypes."""

    file: NDArray[np.int32]
    number: NDArray[np.int64]
    digest: NDArray[np.uint64]
    group: NDArray[np.uint64]


class SpoolWriter:
    """Appends batches of sequences to a spool; nothing is visible before `finish`.

    Args:
        folder: the stage folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with contextlib.ExitStack() as stack:
            self._tokens = stack.enter_context(AtomicFile(folder / TOKENS))
            self._mask = stack.enter_context(AtomicFile(folder / LOSS_MASK))
            self._stack = stack.pop_all()
        self._lengths: list[NDArray[np.int64]] = []
        self._seq_rows: list[NDArray[np.int32]] = []
        self._rows: list[Rows] = []
        self._num_rows = 0

    def append(
        self,
        tokens: NDArray[np.int32],
        loss_mask: NDArray[np.uint8],
        lengths: NDArray[np.int64],
        seq_row: NDArray[np.int32],
        rows: Rows,
    ) -> None:
        """Add sequences; `seq_row` counts from the first row of this batch."""
        self._tokens.write(np.ascontiguousarray(tokens, dtype="<i4"))
        self._mask.write(np.ascontiguousarray(loss_mask))
        self._lengths.append(lengths)
        self._seq_rows.append(seq_row + np.int32(self._num_rows))
        self._rows.append(rows)
        self._num_rows += len(rows.number)

    def finish(self, root: Path) -> list[FileRecord]:
        """Commit every file, and return their records relative to `root`."""
        self._stack.close()
        lengths = _concatenate(self._lengths, np.int64)
        arrays = {
            "offsets": lengths_to_offsets(lengths),
            "seq_row": _concatenate(self._seq_rows, np.int32),
            "row_file": _concatenate([rows.file for rows in self._rows], np.int32),
            "row_number": _concatenate([rows.number for rows in self._rows], np.int64),
            "row_digest": _concatenate([rows.digest for rows in self._rows], np.uint64, (0, 2)),
            "row_group": _concatenate([rows.group for rows in self._rows], np.uint64),
        }
        records = [self._tokens.record(root), self._mask.record(root)]
        records += [write_array(self._folder / f"{name}.npy", arrays[name], root) for name in _ARRAYS]
        return records

    def __enter__(self) -> SpoolWriter:
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self._stack.__exit__(*exc_info)


def _concatenate(parts: list[Any], dtype: Any, empty: tuple[int, ...] = (0,)) -> Any:
    return np.concatenate(parts).astype(dtype, copy=False) if parts else np.zeros(empty, dtype)


class Spool:
    """A spool opened for reading.

    Attributes:
        offsets, seq_row, row_file, row_number, row_digest, row_group: as in the module's table.
        tokens: int32[tokens], loss_mask: uint8[tokens]; memory-mapped.

    Raises:
        IntegrityError: `broken_spool`, the files disagree about the number of tokens.
    """

    def __init__(self, folder: Path) -> None:
        self.offsets, self.seq_row, self.row_file, self.row_number, self.row_digest, self.row_group = (
            read_array(folder / f"{name}.npy") for name in _ARRAYS
        )
        self._maps: list[mmap.mmap] = []
        self.tokens: NDArray[np.int32] = self._map(folder / TOKENS, "<i4")
        self.loss_mask: NDArray[np.uint8] = self._map(folder / LOSS_MASK, "u1")
        if not len(self.tokens) == len(self.loss_mask) == int(self.offsets[-1]):
            raise IntegrityError(
                f"spool files disagree: {len(self.tokens)} tokens, {len(self.loss_mask)} mask entries, "
                f"{int(self.offsets[-1])} according to the offsets; delete the stage folder and run again",
                code="broken_spool",
                where=str(folder),
            )

    def _map(self, path: Path, dtype: str) -> NDArray[Any]:
        if file_bytes(path) == 0:
            return np.zeros(0, dtype)
        mapped = map_file(path)
        self._maps.append(mapped)
        return np.frombuffer(mapped, dtype=dtype)

    def release_pages(self) -> None:
        """Release mapped pages: scattered reads would otherwise keep the whole spool resident."""
        for mapped in self._maps:
            if hasattr(mmap, "MADV_DONTNEED"):
                mapped.madvise(mmap.MADV_DONTNEED)


@contextlib.contextmanager
def open_spools(folders: list[Path]) -> Iterator[list[Spool]]:
    """Open several spools; their maps are dropped with the last array that uses them."""
    spools = [Spool(folder) for folder in folders]
    try:
        yield spools
    finally:
        for spool in spools:
            spool.release_pages()
