"""Write a bucketed Parquet corpus from the Python installation: its code and its documentation."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.demo.docstrings import docstring_chats, library_sources
from tasks.storage.atomic import AtomicFile

_ROWS_A_FILE = 200
_ROWS_A_GROUP = 50


def write_corpus(folder: Path) -> dict[str, dict[str, int]]:
    """Write `code/{modules,packages}` (column `content`) and `docs/{topics,docstrings}` (column `text`).

    Returns:
        Rows by corpus and bucket.
    """
    code: dict[str, list[str]] = {"modules": [], "packages": []}
    for name, source in library_sources():
        code["packages" if "." in name else "modules"].append(source)
    docs = {"topics": _topics(), "docstrings": _docstrings()}
    rows: dict[str, dict[str, int]] = {}
    for corpus, column, buckets in (("code", "content", code), ("docs", "text", docs)):
        rows[corpus] = {
            bucket: _write(folder / corpus / bucket, column, texts) for bucket, texts in buckets.items()
        }
    return rows


def _topics() -> list[str]:
    """Return the language reference that `help()` prints."""
    from pydoc_data.topics import topics

    return [topics[name] for name in sorted(topics)]


def _docstrings() -> list[str]:
    texts = []
    for row in docstring_chats():
        messages = row["messages"]
        if isinstance(messages, list):
            texts.append(str(messages[-1]["content"]))
    return texts


def _write(folder: Path, column: str, texts: Iterable[str]) -> int:
    # Sources may contain lone surrogates, which Parquet cannot store.
    clean = [text for text in texts if text.isprintable() or _encodes(text)]
    for number, start in enumerate(range(0, len(clean), _ROWS_A_FILE)):
        table = pa.table({column: clean[start : start + _ROWS_A_FILE]})
        with AtomicFile(folder / f"part-{number:04d}.parquet") as file:
            pq.write_table(
                table, pa.PythonFile(file, mode="w"), row_group_size=_ROWS_A_GROUP, compression="zstd"
            )
    return len(clean)


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
