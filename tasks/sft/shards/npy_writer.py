"""Write packed bins to a legacy `.npy` shard, as `numpy.save` does with an object array of dicts of Python lists.

The pickle is assembled from opcodes, a block of bins at a time: numpy lays out numbers of one, two or four bytes, and
no Python numbers are created, whereas `numpy.save` needs 36 bytes of memory per token. The only module it names is
`numpy.core.multiarray`, which every numpy resolves. Metadata follow the pickle, where `numpy.load` stops reading.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schemas.run import FileRecord
from schemas.sft import METADATA_SHA256, StorageFormat
from tasks.packing.arrays import lengths_to_offsets
from tasks.sft.shards.bin_writer import CountedWriter
from tasks.sft.shards.bins import Bins
from tasks.sft.shards.npy_reader import COLUMNS, TRAILER
from tasks.sft.shards.shard import ShardMetadata
from tasks.storage.atomic import AtomicFile

_BLOCK_BINS = 64
# Protocol 3, `_reconstruct(ndarray, (0,), b"b")`, then its state `(1, (num_bins,), dtype("O8"), False, [`.
_BEGIN = b"\x80\x03cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85C\x01b\x87R(K\x01J"
_DTYPE = (
    b"\x85cnumpy\ndtype\nX\x02\x00\x00\x00O8\x89\x88\x87R(K\x03X\x01\x00\x00\x00|NNN"
    b"J\xff\xff\xff\xffJ\xff\xff\xff\xffK?tb\x89]"
)
_END = b"tb."


class NpyShardWriter(CountedWriter):
    """See `BinWriter`.

    Args:
        path: the shard file.
        num_bins: bins that will be written; below 2^31.
        metadata: stored after the pickle.
    """

    def __init__(self, path: Path, num_bins: int, metadata: ShardMetadata) -> None:
        super().__init__(StorageFormat.NPY, metadata, num_bins, _BLOCK_BINS)
        self._keys = [
            b"X" + len(name).to_bytes(4, "little") + name.encode() + b"q" + bytes([index])
            for index, name in enumerate(COLUMNS)
        ]
        self._file = AtomicFile(path)
        header = {"descr": "|O", "fortran_order": False, "shape": (num_bins,)}
        np.lib.format.write_array_header_1_0(self._file, header)
        self._file.write(_BEGIN + num_bins.to_bytes(4, "little", signed=True) + _DTYPE)

    def _write(self, bins: Bins) -> None:
        columns = [
            _opcodes(bins.input_ids, bins.token_offsets),
            _opcodes(bins.loss_mask, bins.token_offsets),
            _opcodes(bins.seq_starts, bins.seq_offsets),
        ]
        pieces: list[Any] = []
        for rows in zip(*columns, strict=True):
            pieces.append(b"}(")
            for key, row in zip(self._keys, rows, strict=True):
                pieces += (key, b"](", row, b"e")
            # Append rows one by one, so that the block size never affects the file.
            pieces.append(b"ua")
            # Key names are written once; later rows take them from the memo.
            self._keys = [b"h" + bytes([index]) for index in range(len(COLUMNS))]
        self._file.write(b"".join(pieces))

    def _commit(self) -> dict[str, Any]:
        self._file.write(_END)
        keys = {**self._metadata.keys(), METADATA_SHA256: self._file.sha256()}
        self._file.write(TRAILER + json.dumps(keys).encode() + b"\n")
        self._file.commit()
        return {}

    def records(self, root: Path) -> tuple[FileRecord, ...]:
        """Return the record of the shard file, relative to `root`."""
        return (self._file.record(root),)

    def _discard(self) -> None:
        self._file.discard()


def _opcodes(values: NDArray[Any], offsets: NDArray[np.int64]) -> list[memoryview]:
    """Encode each bin's numbers as BININT1, BININT2 and BININT opcodes."""
    # Choose the shortest opcode for each number, as pickle itself does, to keep the file small.
    narrow = (values >= 0) & (values < 1 << 8)
    middle = (values >= 0) & (values < 1 << 16) & ~narrow
    sizes = np.where(narrow, 2, np.where(middle, 3, 5))
    starts = lengths_to_offsets(sizes)
    out = np.empty(int(starts[-1]), np.uint8)
    # One scatter per opcode and byte: no step of the loop depends on the number of tokens.
    for opcode, chosen, dtype in (
        (b"K", narrow, "<u1"),
        (b"M", middle, "<u2"),
        (b"J", ~narrow & ~middle, "<i4"),
    ):
        at = starts[:-1][chosen]
        out[at] = opcode[0]
        numbers = values[chosen].astype(dtype)
        raw = numbers.view(np.uint8).reshape(len(numbers), numbers.itemsize)
        for byte in range(numbers.itemsize):
            out[at + 1 + byte] = raw[:, byte]
    view = memoryview(out.data)
    return [view[low:high] for low, high in itertools.pairwise(starts[offsets].tolist())]
