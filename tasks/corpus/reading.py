"""Reading columns of a source file in small batches.

512 rows a batch with a 1 MiB read buffer and no pre-buffering stays within 1.1x of raw decompression and needs
a few megabytes whatever the row group's size; `dataset.to_batches` would keep whole row groups.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from schemas.errors import InputError

_BATCH_ROWS = 512
_BUFFER_BYTES = 1 << 20


def iter_columns(
    path: str, name: str, groups: Iterable[int], columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """The given columns of the given row groups, in order, in batches of at most 512 rows.

    Args:
        name: what errors call the file.

    Raises:
        InputError: `bad_parquet`: a page is damaged; `unreadable`: the file cannot be read.
    """
    try:
        with (
            open(path, "rb") as source,  # noqa: PTH123 - `path` is a string
            pq.ParquetFile(
                source, buffer_size=_BUFFER_BYTES, pre_buffer=False, page_checksum_verification=True
            ) as file,
        ):
            batches = file.iter_batches(
                _BATCH_ROWS, row_groups=list(groups), columns=list(columns), use_threads=False
            )
            for batch in batches:
                # In the order asked for, whatever the file's.
                yield batch.select(list(columns))
    except (OSError, pa.ArrowException) as error:
        code = "unreadable" if isinstance(error, OSError) and error.errno is not None else "bad_parquet"
        raise InputError(
            f"the Parquet file cannot be read to its end: {error}; fetch or write it again",
            code=code,
            where=name,
        ) from error
