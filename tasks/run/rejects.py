"""Record rejected rows: the reason, and the file that lists them.

A reject file is Parquet with `source_file string, row int64, reason string, detail string`; `row` is the
0-based line of a text file, or row of a Parquet file. It exists only if something was rejected.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from schemas.run import FileRecord, Receipt
from tasks.storage.atomic import AtomicFile, storage_errors
from tasks.storage.names import remove_path

# The reject file of a job, in its stage folder; and the folder of a run that publishes them.
REJECTS = "rejects.parquet"
_STEM = "rejects"
REJECTS_FOLDER = "rejects"

_DETAIL_CHARACTERS = 500
_FLUSH_ROWS = 50_000


class RowRejected(Exception):  # noqa: N818 - a verdict on one row, caught per row; not a failure of the run
    """One input row cannot be used; it goes to `rejects/` with this reason, and the run continues.

    Args:
        reason: stable `snake_case` key that ledgers count by.
        detail: what is wrong and where in the row, for people.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}"


def reject_files(receipt: Receipt) -> Iterator[FileRecord]:
    """Return the reject file of a job, if it rejected a row."""
    return (record for record in receipt.files if PurePosixPath(record.path).name.startswith(_STEM))


def rejects_of(part: int) -> str:
    """Return the name of the reject file of a job that shares its stage folder with others.

    >>> rejects_of(7)
    'rejects-000007.parquet'
    """
    return f"{_STEM}-{part:06d}.parquet"


def reject_links(named: Iterable[tuple[str, Receipt]]) -> dict[str, FileRecord]:
    """Map each published name, `rejects/{name}.parquet`, to its reject file.

    Args:
        named: each receipt with a name, such as `{source}-{part:06d}`.
    """
    return {
        f"{REJECTS_FOLDER}/{name}.parquet": record
        for name, receipt in named
        for record in reject_files(receipt)
    }


def numbered(source: str, receipts: Iterable[Receipt]) -> Iterator[tuple[str, Receipt]]:
    """Name the receipts of one source: `{source}-{part:06d}`."""
    return ((f"{source}-{part:06d}", receipt) for part, receipt in enumerate(receipts))


class RejectWriter:
    """Collect rejected rows and write them in batches; memory stays bounded even if every row is bad.

    Args:
        path: the reject file.

    Attributes:
        rows: number of rows added.
    """

    def __init__(self, path: Path) -> None:
        self.rows = 0
        self._path = path
        self._rows: list[tuple[str, int, str, str]] = []
        self._file: AtomicFile | None = None
        self._writer: Any = None

    def add(self, source_file: str, row: int, reason: str, detail: str) -> None:
        """Add one rejected row."""
        self.rows += 1
        # A lone surrogate in the detail (an unknown role, say) cannot be stored as UTF-8.
        safe = detail[:_DETAIL_CHARACTERS].encode("utf-8", "backslashreplace").decode()
        self._rows.append((source_file, row, reason, safe))
        if len(self._rows) >= _FLUSH_ROWS:
            self._flush()

    def finish(self, root: Path) -> list[FileRecord]:
        """Commit the file, unless it is empty; return its record relative to `root`."""
        self._flush()
        if self._file is None:
            # The file of an earlier attempt, killed before its receipt, must not be mistaken for this one's.
            with storage_errors(self._path, "remove"):
                remove_path(self._path)
            return []
        self._writer.close()
        self._file.commit()
        return [self._file.record(root)]

    def _flush(self) -> None:
        if not self._rows:
            return
        import pyarrow as pa

        from tasks.storage.parquet import parquet_writer

        schema = pa.schema(
            [
                ("source_file", pa.string()),
                ("row", pa.int64()),
                ("reason", pa.string()),
                ("detail", pa.string()),
            ]
        )
        columns = zip(*self._rows, strict=True)
        table = pa.table([list(column) for column in columns], schema=schema)
        if self._file is None:
            self._file = AtomicFile(self._path)
            self._writer = parquet_writer(self._file, schema, compression="zstd")
        self._writer.write_table(table)
        self._rows = []

    def __enter__(self) -> RejectWriter:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is not None and self._file is not None:
            from tasks.storage.parquet import discard_parquet

            discard_parquet(self._writer, self._file)
