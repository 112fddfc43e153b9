"""Crafted inputs: files that a hostile or careless program may leave, drawn from a seed.

`crafted_files(seed, count)` yields them; each is a name, whose ending says the format, and bytes. Some of their rows
are usable, others are not; some files are none of what their names say.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

KINDS = ("jsonl", "json", "csv", "parquet")
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "": lambda data: data,
    ".gz": lambda data: gzip.compress(data, mtime=0),
    ".bz2": bz2.compress,
    ".zst": lambda data: pa.Codec("zstd").compress(data, asbytes=True),
}


@dataclass(frozen=True)
class Crafted:
    """A file: its name, its content, and in words what was done to it."""

    name: str
    content: bytes
    what: str


def crafted_files(
    seed: int, count: int, good: Callable[[int], dict[str, Any]], endings: tuple[str, ...]
) -> Iterator[Crafted]:
    """Yield `count` files, the same ones for the same seed.

    Args:
        good: makes a usable row of a flow.
        endings: those that the flow reads, such as `.jsonl.gz`.
    """
    rng = random.Random(seed)
    for number in range(count):
        ending = endings[number % len(endings)]
        kind, _, packing = ending.removeprefix(".").partition(".")
        rows = [good(n) for n in range(rng.randint(1, 6))]
        if kind == "parquet":
            content, what = _parquet(rng, rows)
        else:
            content, what = _text(rng, kind, rows)
            content = PACKERS[f".{packing}" if packing else ""](content)
        content, damage = _damaged(rng, content)
        yield Crafted(f"{number:04}{ending}", content, " and ".join(filter(None, (what, damage))))


def _deep(brackets: bytes) -> bytes:
    return brackets * 100_000


_LINES: dict[str, bytes] = {
    "invalid UTF-8": b'{"a": "\xff\xfe"}',
    "overlong UTF-8": b'{"a": "\xc0\x80"}',
    "a byte order mark": b"\xef\xbb\xbf{}",
    "UTF-16": '{"a": 1}'.encode("utf-16"),
    "a lone surrogate": b'{"a": "\\ud800"}',
    "a lone surrogate as a key": b'{"\\udfff": 1}',
    "a surrogate in UTF-8": b'{"a": "\xed\xa0\x80"}',
    "NUL bytes": b'{"a": "\x00"}',
    "only NUL": b"\x00" * 64,
    "an escaped NUL": b'{"a": "\\u0000"}',
    "duplicate keys": b'{"a": 1, "a": 2}',
    "100,000 arrays": _deep(b"["),
    "100,000 arrays, closed": _deep(b"[") + _deep(b"]"),
    "100,000 objects": _deep(b'{"a":'),
    "2,000 objects": b'{"a":' * 2000 + b"1" + b"}" * 2000,
    "a huge integer": b'{"a": 1' + b"0" * 400 + b"}",
    "thousands of digits": b'{"a": 1' + b"0" * 5000 + b"}",
    "beyond int64": b'{"a": 18446744073709551616}',
    "a huge float": b'{"a": 1e400}',
    "NaN": b'{"a": NaN}',
    "Infinity": b'{"a": -Infinity}',
    "a bare value": b"17",
    "null": b"null",
    "an array": b"[{}]",
    "an empty object": b"{}",
    "half a row": b'{"a": ',
    "single quotes": b"{'a': 1}",
    "a comment": b'// {"a": 1}',
    "spaces": b"   \t ",
    "nothing": b"",
    "a form feed": b"\x0c{}",
    "a lone carriage return": b'{"a":\r1}\r{}',
    "an open quote": b'"abc',
    "many commas": b"," * 1000,
    "a formula": b"=1+1,@x",
    "escape sequences": b'{"a": "\x1b[31m"}',
    "long text": b'{"a": "' + b"x" * 300_000 + b'"}',
}  # fmt: skip

_VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    2**63,
    2**64,
    10**400,
    1e308,
    -1e-320,
    "",
    "\0",
    "inf",
    "-inf",
    "nan",
    "1e400",
    "9" * 400,
    "\u202e",
    "\U0010ffff",
    "x" * 70_000,
    [],
    {},
    [[[[[]]]]],
    {"a": {"b": None}},
    [None],
    "0001-01-01",
    "9999-12-31T23:59:60Z",
    "::1%eth0",
    "256.0.0.1",
)


def _spoiled(rng: random.Random, row: dict[str, Any]) -> tuple[dict[str, Any], str]:
    row = json.loads(json.dumps(row))
    key = rng.choice(sorted(row))
    holder: Any = row
    inside = row[key]
    if isinstance(inside, list) and inside and isinstance(inside[0], dict) and rng.random() < 0.7:
        holder = rng.choice(inside)
        key = rng.choice(sorted(holder))
    if rng.random() < 0.2:
        del holder[key]
        return row, f"no {key}"
    value = rng.choice(_VALUES)
    holder[key] = value
    return row, f"{key} is {str(value)[:20]!r}"


def _text(rng: random.Random, kind: str, rows: list[dict[str, Any]]) -> tuple[bytes, str]:
    told: list[str] = []
    if rng.random() < 0.7:
        place = rng.randrange(len(rows))
        rows[place], what = _spoiled(rng, rows[place])
        told.append(what)
    if kind == "csv":
        lines = _csv_lines(rows)
    else:
        lines = [json.dumps(row, ensure_ascii=rng.random() < 0.5).encode("utf-8", "replace") for row in rows]
    for _ in range(rng.randint(0, 2)):
        what = rng.choice(sorted(_LINES))
        lines.insert(rng.randint(0, len(lines)), _LINES[what])
        told.append(what)
    if kind == "json":
        return b"[" + rng.choice((b",", b",\n", b" , ")).join(lines) + rng.choice(
            (b"]", b"]\n", b"", b"]]")
        ), ", ".join(told)
    end = rng.choice((b"\n", b"\r\n", b"\n\n", b"\r"))
    if rng.random() < 0.3:
        # Mixed line ends.
        ends = [rng.choice((b"\n", b"\r\n", b"\n\r\n")) for _ in lines]
        return b"".join(line + end for line, end in zip(lines, ends, strict=True)), ", ".join(told)
    start = rng.choice((b"", b"", b"\xef\xbb\xbf"))
    return start + end.join(lines) + rng.choice((b"", end)), ", ".join(told)


def _csv_lines(rows: list[dict[str, Any]]) -> list[bytes]:
    names = list(dict.fromkeys(key for row in rows for key in row))
    cells = [[str(row.get(name, "")) for name in names] for row in rows]
    return [",".join(line).encode("utf-8", "replace") for line in [names, *cells]]


def _parquet(rng: random.Random, rows: list[dict[str, Any]]) -> tuple[bytes, str]:
    buffer = io.BytesIO()
    what = ""
    try:
        if rng.random() < 0.6:
            rows[0], what = _spoiled(rng, rows[0])
        table = pa.Table.from_pylist(rows)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        key = rng.choice(sorted(rows[-1]))
        table, what = pa.table({key: pa.array([b"\xff", None], pa.binary())}), "bytes"
    names = table.column_names
    if names and rng.random() < 0.2:
        table, what = pa.concat_tables([table]).append_column(names[0], table.column(0)), "a column twice"
    pq.write_table(
        table,
        buffer,
        row_group_size=rng.choice((1, 2, 1000)),
        compression=rng.choice(("snappy", "zstd", "gzip", "none")),
        use_dictionary=rng.random() < 0.5,
        data_page_version=rng.choice(("1.0", "2.0")),
    )
    return buffer.getvalue(), what


def _damaged(rng: random.Random, content: bytes) -> tuple[bytes, str]:
    chance = rng.random()
    if chance < 0.6 or not content:
        return content, ""
    place = rng.randrange(len(content))
    if chance < 0.7:
        return content[:place], f"cut at {place}"
    if chance < 0.8:
        data = bytearray(content)
        for at in range(place, min(place + rng.choice((1, 4, 40)), len(data))):
            data[at] ^= rng.randrange(1, 256)
        return bytes(data), f"bytes changed at {place}"
    if chance < 0.85:
        return content + rng.randbytes(30), "random bytes at its end"
    if chance < 0.9:
        return rng.randbytes(200), "only random bytes"
    return PACKERS[rng.choice((".gz", ".zst", ".bz2"))](content), "compressed under another name"
