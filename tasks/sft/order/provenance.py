"""Say of every sequence of a shard which row it came from.

`provenance/{data set}/{hash}/{split}/shard_000000.parquet`, one row for each sequence, in the order of the shard:

=========  ==========================  ===============================================================
column     type                        meaning
=========  ==========================  ===============================================================
`bin`      int32                       which bin of the shard
`start`    int32                       first token of the sequence in the bin; `stop`: the one after its last, without
                                       padding
`file`     dictionary<string>          input file, as in the ledger
`row`      int64                       0-based line or row of the file
`turn`     int32                       which of the row's sequences, where a row has several
`skipped`  int32                       tokens of that sequence that lie before this piece of it
=========  ==========================  ===============================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from schemas.run import FileRecord
from tasks.packing.arrays import lengths_to_offsets
from tasks.sft.order.fit import Pieces
from tasks.storage.atomic import AtomicFile
from tasks.storage.parquet import parquet_writer


class Placed(Protocol):
    """Pieces in bins; see `tasks.sft.pack`."""

    @property
    def pieces(self) -> Pieces: ...
    @property
    def stored(self) -> NDArray[np.int64]: ...
    @property
    def items(self) -> NDArray[np.int64]: ...
    @property
    def offsets(self) -> NDArray[np.int64]: ...


def write_provenance(
    path: Path, root: Path, source_files: Sequence[Sequence[str]], kept: NDArray[Any], plan: Placed
) -> FileRecord:
    """Write the provenance of a shard; return its record relative to `root`.

    Args:
        source_files: for each part, the input files its rows name.
        kept: `SEQUENCE[n]`, what the pieces are pieces of.
    """
    begins = lengths_to_offsets(plan.stored[plan.items])
    per_bin = np.diff(plan.offsets)
    start = begins[:-1] - np.repeat(begins[plan.offsets[:-1]], per_bin)
    pieces = plan.pieces
    origin = kept[pieces.sequence[plan.items]]
    names, codes = _files(source_files, origin)
    table = pa.table(
        {
            "bin": np.repeat(np.arange(len(per_bin), dtype=np.int32), per_bin),
            "start": start.astype(np.int32),
            "stop": (start + pieces.length[plan.items]).astype(np.int32),
            "file": pa.DictionaryArray.from_arrays(codes, pa.array(names, pa.string())),
            "row": origin["row"].astype(np.int64),
            "turn": origin["turn"].astype(np.int32),
            "skipped": pieces.skipped[plan.items].astype(np.int32),
        }
    )
    with AtomicFile(path) as file, parquet_writer(file, table.schema, compression="zstd") as writer:
        writer.write_table(table, row_group_size=1 << 16)
    return file.record(root)


def _files(
    source_files: Sequence[Sequence[str]], origin: NDArray[Any]
) -> tuple[list[str], NDArray[np.int32]]:
    """Return the distinct files, in the order of the parts, and which of them each sequence came from."""
    places = origin["part"].astype(np.int64) << 32 | origin["file"]
    found, which = np.unique(places, return_inverse=True)
    named = [source_files[place >> 32][place & 0xFFFFFFFF] for place in found.tolist()]
    # A file that was cut into parts has a place in each.
    numbers = {name: number for number, name in enumerate(dict.fromkeys(named))}
    return list(numbers), np.array([numbers[name] for name in named], np.int32)[which]
