"""Rows of every format: values, row numbers, faults, and files that break off or are damaged."""

from __future__ import annotations

import datetime
import decimal
import gzip
import json
import random
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from inputs.cutting import cut

from schemas.errors import GristmillError, InputError
from tasks.inputs import readers as module
from tasks.inputs.files import InputFile
from tasks.inputs.readers import BATCH_ROWS, RowFault, read_rows
from tasks.inputs.segments import Segment, format_of

Rows = list[tuple[int, Any]]


def read(path: Path, part_bytes: int = 1 << 40, columns: list[str] | None = None) -> Rows:
    """All rows of a file, through its segments."""
    segments = cut([InputFile(path, path.name, path.stat().st_size)], part_bytes)
    rows = [row for segment in segments for batch in read_rows(segment, columns) for row in batch]
    return [(row, ("fault", value.reason) if isinstance(value, RowFault) else value) for row, value in rows]


def read_bytes(folder: Path, content: bytes, name: str = "f.jsonl") -> Rows:
    (folder / name).write_bytes(content)
    return read(folder / name)


def zstd(content: bytes) -> bytes:
    compressed: bytes = pa.Codec("zstd").compress(content, asbytes=True)
    return compressed


def zstd_stream(content: bytes) -> bytes:
    """A frame that does not say how long its content is, as a pipe writes it."""
    sink = pa.BufferOutputStream()
    stream = pa.CompressedOutputStream(sink, "zstd")
    stream.write(content)
    stream.close()
    compressed: bytes = sink.getvalue().to_pybytes()
    return compressed


COMPRESS = {
    "f.jsonl.gz": lambda content: gzip.compress(content, mtime=0),
    "f.jsonl.zst": zstd,
    "piped.jsonl.zst": zstd_stream,
}
FAULT = {
    reason: ("fault", reason)
    for reason in ("invalid_json", "invalid_utf8", "lone_surrogate", "not_an_object")
}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", []),
        (b"\n", []),
        (b'{"a":1}\n', [(0, {"a": 1})]),
        (b'{"a":1}', [(0, {"a": 1})]),
        (b'{"a":1}\n\n \t\n{"b":2}', [(0, {"a": 1}), (3, {"b": 2})]),
        (b'{"a":1}\r\n\r\n{"b":2}\r\n', [(0, {"a": 1}), (2, {"b": 2})]),
        (b'\xef\xbb\xbf{"a":1}\n{"b":2}\n', [(0, {"a": 1}), (1, {"b": 2})]),
        (b"\xef\xbb\xbf", []),
        (b"\xef\xbb\xbf\r\n{}", [(1, {})]),
        (b'{}\n\xef\xbb\xbf{"a":1}\n', [(0, {}), (1, FAULT["invalid_json"])]),
        (b'{"a":\n{"b":2}\n', [(0, FAULT["invalid_json"]), (1, {"b": 2})]),
        (b'{"a":1}{"b":2}\n', [(0, FAULT["invalid_json"])]),
        (b'{"a":NaN}\n{"a":-Infinity}\n{"a":1e999}\n', [(i, FAULT["invalid_json"]) for i in range(3)]),
        (b'{"a":"\x01"}\n', [(0, FAULT["invalid_json"])]),
        (b'{"a":' + b"9" * 5000 + b"}\n", [(0, FAULT["invalid_json"])]),
        (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n{}", [(0, FAULT["invalid_json"]), (1, {})]),
        (b"\xff\n", [(0, FAULT["invalid_utf8"])]),
        (b'{"a":"caf\xe9"}\n{}', [(0, FAULT["invalid_utf8"]), (1, {})]),
        (b'{"a":"\xed\xa0\x80"}\n', [(0, FAULT["invalid_utf8"])]),
        (b'{"a":"\\ud800"}\n', [(0, FAULT["lone_surrogate"])]),
        (b'{"a":["\\udc00\\ud800"]}\n', [(0, FAULT["lone_surrogate"])]),
        (b'{"\\ud83d":1}\n', [(0, FAULT["lone_surrogate"])]),
        (b'{"a":"\\ud83d\\ude00"}\n', [(0, {"a": "\U0001f600"})]),
        (b'[1]\n"x"\nnull\n1\ntrue\n', [(i, FAULT["not_an_object"]) for i in range(5)]),
        (b'{"a":"\xe2\x80\xa8\xc2\x85"}\n', [(0, {"a": "\u2028\u0085"})]),
        (b'{"a":18446744073709551615}', [(0, {"a": 2**64 - 1})]),
        # Beyond 64 bits a whole number is a double.
        (b'{"a":18446744073709551616}', [(0, {"a": 2.0**64})]),
        (b'{"a":1,"a":2}', [(0, {"a": 2})]),
    ],
)
def test_jsonl(tmp_path: Path, content: bytes, expected: Rows) -> None:
    assert read_bytes(tmp_path, content) == expected
    for name, compress in COMPRESS.items():
        assert read_bytes(tmp_path, compress(content), name) == expected


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (b'{"a": NaN}', RowFault("invalid_json", "NaN is not JSON")),
        (b'{"a"}', RowFault("invalid_json", "Expecting ':' delimiter: line 1 column 5 (char 4)")),
        (b'{"\xff"}', RowFault("invalid_utf8", "byte 0xff at byte 2 of the line: invalid start byte")),
        (b"[]", RowFault("not_an_object", "the line is an array, not an object")),
    ],
)
def test_fault_details(tmp_path: Path, line: bytes, fault: RowFault) -> None:
    (tmp_path / "f.jsonl").write_bytes(line)
    segment = Segment(str(tmp_path / "f.jsonl"), "f.jsonl", "jsonl", 0, len(line), 7, len(line))
    assert list(read_rows(segment)) == [[(7, fault)]]


def random_jsonl(rng: random.Random) -> bytes:
    """Lines good, bad, blank, long and short, with every line end."""
    kinds = [
        lambda: json.dumps({"k": rng.randint(0, 9), "t": "é" * rng.choice([0, 3, 400])}).encode(),
        lambda: json.dumps({"t": "häuser"}, ensure_ascii=False).encode(),
        lambda: b"",
        lambda: b"  ",
        lambda: b"{",
        lambda: b'{"a":"\xff"}',
        lambda: b'{"a":"\\ud800"}',
        lambda: b"3",
    ]
    lines = [rng.choice(kinds)() for _ in range(rng.randint(0, 300))]
    bom = rng.choice([b"", b"\xef\xbb\xbf"])
    ends = [rng.choice([b"\n", b"\r\n"]) for _ in lines]
    content = bom + b"".join(line + end for line, end in zip(lines, ends, strict=True))
    return content if rng.random() < 0.5 else content.removesuffix(b"\n")


@pytest.mark.parametrize("seed", range(25))
def test_any_cut_gives_the_rows_of_the_whole_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    rng = random.Random(seed)
    content = random_jsonl(rng)
    path = tmp_path / "f.jsonl"
    whole = read_bytes(tmp_path, content)
    # The oracle: physical lines, one by one.
    physical = content.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    assert [row for row, _ in whole] == [row for row, line in enumerate(physical) if line.strip()]
    for row, value in whole:
        if isinstance(value, dict):
            assert value == json.loads(physical[row])
    monkeypatch.setattr(module, "CHUNK_BYTES", rng.choice([1, 7, 100, 5000]))
    for part_bytes in (1, 10, 333, 5000, len(content) + 1):
        assert read(path, part_bytes) == whole
    for name, compress in COMPRESS.items():
        assert read_bytes(tmp_path, compress(content), name) == whole


def test_batches(tmp_path: Path) -> None:
    content = b'{"a":1}\n' * 1000
    (tmp_path / "f.jsonl").write_bytes(content)
    (segment,) = cut([InputFile(tmp_path / "f.jsonl", "f.jsonl", len(content))], len(content))
    batches = list(read_rows(segment))
    assert [len(batch) for batch in batches] == [BATCH_ROWS, BATCH_ROWS, BATCH_ROWS, 1000 - 3 * BATCH_ROWS]
    assert [row for batch in batches for row, _ in batch] == list(range(1000))


@pytest.mark.parametrize("name", ["f.jsonl", *COMPRESS])
def test_long_lines_are_read_and_batches_stay_small(tmp_path: Path, name: str) -> None:
    line = json.dumps({"t": "x" * 2_000_000}).encode() + b"\n"
    content = COMPRESS.get(name, bytes)(line * 12)
    (tmp_path / name).write_bytes(content)
    segments = cut([InputFile(tmp_path / name, name, len(content))], 1 << 40)
    batches = [[(row, len(value["t"])) for row, value in batch] for s in segments for batch in read_rows(s)]
    assert [row for batch in batches for row in batch] == [(i, 2_000_000) for i in range(12)]
    assert max(map(len, batches)) <= 3


def test_an_endless_line_is_a_fault_and_is_not_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_LINE_BYTES", 1 << 20)
    path = tmp_path / "f.jsonl"
    with path.open("wb") as file:
        file.write(b'{"a":1}\n')
        for _ in range(40):
            file.write(b"x" * (1 << 20))
        file.write(b'\n{"a":2}\n' + b"y" * (3 << 20))
    tracemalloc.start()
    try:
        rows = read(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    too_long = ("fault", "line_too_long")
    assert rows == [(0, {"a": 1}), (1, too_long), (2, {"a": 2}), (3, too_long)]
    assert peak < 8 << 20


def test_a_line_of_exactly_the_limit_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = json.dumps({"t": "x" * 100}).encode()
    for chunk_bytes in (1, 50, 1000):
        monkeypatch.setattr(module, "CHUNK_BYTES", chunk_bytes)
        monkeypatch.setattr(module, "MAX_LINE_BYTES", len(line))
        assert read_bytes(tmp_path, line + b"\n" + line) == [(i, {"t": "x" * 100}) for i in range(2)]
    monkeypatch.setattr(module, "MAX_LINE_BYTES", len(line) - 1)
    assert [value for _, value in read_bytes(tmp_path, line + b"\n" + line)] == [
        ("fault", "line_too_long")
    ] * 2


# Compressed text.

LINES = b"".join(b'{"row":%d,"text":"%s"}\n' % (i, bytes([97 + i % 26]) * (i % 7)) for i in range(30))
ROWS = [(i, {"row": i, "text": chr(97 + i % 26) * (i % 7)}) for i in range(30)]


@pytest.mark.parametrize("name", COMPRESS)
def test_several_members_are_one_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    compress = COMPRESS[name]
    # Members end inside lines, and some are empty, as bgzip writes its last one.
    pieces = [LINES[:1], b"", LINES[1:200], LINES[200:201], LINES[201:], b""]
    content = b"".join(map(compress, pieces))
    for chunk_bytes in (1, 13, 1 << 18):
        monkeypatch.setattr(module, "CHUNK_BYTES", chunk_bytes)
        assert read_bytes(tmp_path, content, name) == ROWS


@pytest.mark.parametrize("name", COMPRESS)
def test_many_members_over_read_buffers(tmp_path: Path, name: str) -> None:
    rng = random.Random(4)
    texts = [rng.randbytes(rng.choice([0, 10, 30_000, 32_757, 32_768])).hex() for _ in range(60)]
    content = b"".join(COMPRESS[name](json.dumps({"t": text}).encode() + b"\n") for text in texts)
    assert read_bytes(tmp_path, content, name) == [(i, {"t": text}) for i, text in enumerate(texts)]


def test_zstd_skippable_frames_are_skipped(tmp_path: Path) -> None:
    skippable = b"\x50\x2a\x4d\x18\x04\x00\x00\x00abcd"
    content = skippable + zstd(LINES[:100]) + skippable + zstd(LINES[100:]) + skippable
    assert read_bytes(tmp_path, content, "f.jsonl.zst") == ROWS


def error_of(path: Path) -> GristmillError:
    with pytest.raises(GristmillError) as caught:
        read(path)
    assert isinstance(caught.value, InputError)
    assert caught.value.where == str(path)
    return caught.value


@pytest.mark.parametrize("name", COMPRESS)
def test_a_cut_at_any_byte_is_noticed(tmp_path: Path, name: str) -> None:
    first, second = COMPRESS[name](LINES[:300]), COMPRESS[name](LINES[300:])
    content = first + second
    path = tmp_path / name
    for length in range(len(content)):
        path.write_bytes(content[:length])
        if length == len(first):
            # Between two members nothing tells that one is missing.
            *whole, cut_line = read(path)
            assert whole == ROWS[: len(whole)]
            assert cut_line == (len(whole), FAULT["invalid_json"])
        else:
            assert error_of(path).code == "truncated_input", length
    path.write_bytes(content)
    assert read(path) == ROWS


@pytest.mark.parametrize(("name", "code"), [("f.jsonl.gz", "bad_gzip"), ("f.jsonl.zst", "bad_zstd")])
def test_damaged_compressed_text(tmp_path: Path, name: str, code: str) -> None:
    path = tmp_path / name
    for content in (LINES, b"\0" * 50, COMPRESS[name](LINES) + b"this is no member"):
        path.write_bytes(content)
        assert error_of(path).code == code
    content = COMPRESS[name](LINES)
    outcomes = set()
    for index in range(len(content)):
        flipped = bytearray(content)
        flipped[index] ^= 0xFF
        path.write_bytes(flipped)
        try:
            outcomes.add(("read", read(path) == ROWS))
        except InputError as error:
            outcomes.add((error.code, True))
    assert (code, True) in outcomes
    # A flipped length can look like a cut, and the gzip header has bytes that do not matter. A gzip member
    # always has a checksum; this zstd frame has none, as only some writers add one.
    harmless = {("truncated_input", True), ("read", True)}
    assert outcomes - {(code, True)} - harmless <= ({("read", False)} if code == "bad_zstd" else set())


@pytest.mark.parametrize("name", COMPRESS)
def test_empty_files(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"")
    assert error_of(path).code == "truncated_input"
    path.write_bytes(COMPRESS[name](b""))
    assert read(path) == []


@pytest.mark.parametrize("name", ["f.jsonl", "f.jsonl.gz", "f.jsonl.zst", "f.parquet"])
@pytest.mark.parametrize("path", ["/nowhere/at/all", "/proc/self/mem"])
def test_unreadable_files(name: str, path: str) -> None:
    # The first page of a process's memory cannot be read on Linux.
    if path.startswith("/proc") and not Path(path).exists():
        pytest.skip("no /proc here")
    segment = Segment(path, name, format_of(name), 0, 100, 0, 100)
    with pytest.raises(InputError) as caught:
        list(read_rows(segment))
    assert caught.value.where == path
    # Its size is 0, which is all that a compressed file needs to be refused.
    empty = path.startswith("/proc") and ".jsonl." in name
    assert caught.value.code == ("truncated_input" if empty else "unreadable")


# Parquet.


def write_parquet(path: Path, table: pa.Table, **options: Any) -> Path:
    pq.write_table(table, path, **options)
    return path


CHATS: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}], "id": 1},
    {
        "messages": [
            {"role": "user", "content": "Weather?"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "c", "function": {"name": "w", "arguments": {"city": "Bonn"}}}],
            },
            {"role": "tool", "content": "sunny", "tool_call_id": "c"},
            {"role": "assistant", "content": "Sunny.", "train": False},
        ],
        "id": 2,
    },
    {
        "messages": [
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": "d", "function": {"name": "t", "arguments": {"zone": "UTC", "content": "x"}}}
                ],
            },
            {"role": "assistant", "content": ""},
        ],
        "id": None,
    },
    {"messages": [], "id": 4},
    {"messages": None, "id": 5},
]


@pytest.mark.parametrize("part_bytes", [1, 1 << 40])
@pytest.mark.parametrize("row_group_size", [1, 2, 100])
def test_parquet_gives_back_what_json_had(tmp_path: Path, row_group_size: int, part_bytes: int) -> None:
    path = write_parquet(tmp_path / "f.parquet", pa.Table.from_pylist(CHATS), row_group_size=row_group_size)
    # Structs have all keys of all rows; what was not there must not come back, and a null content must.
    assert read(path, part_bytes) == list(enumerate(CHATS))


def test_parquet_rows_are_numbered_over_batches_and_row_groups(tmp_path: Path) -> None:
    table = pa.table({"i": range(2000)})
    path = write_parquet(tmp_path / "f.parquet", table, row_group_size=700)
    assert read(path, 1) == read(path) == [(i, {"i": i}) for i in range(2000)]
    segments = cut([InputFile(path, "f.parquet", path.stat().st_size)], 1 << 40)
    assert all(len(batch) <= BATCH_ROWS for batch in read_rows(segments[0]))


def test_parquet_columns(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "f.parquet", pa.table({"a": [1, 2], "b": ["x", None]}))
    assert read(path, columns=["b", "c"]) == [(0, {"b": "x"}), (1, {"b": None})]
    assert read(path, columns=["c"]) == [(0, {}), (1, {})]


def test_parquet_values_are_plain_json(tmp_path: Path) -> None:
    utc = datetime.UTC
    moment = datetime.datetime(2024, 2, 3, 4, 5, 6, 700, utc)
    columns = {
        "null": pa.nulls(1),
        "bool": pa.array([True]),
        "int": pa.array([2**63], pa.uint64()),
        "float": pa.array([1.5]),
        "nan": pa.array([float("nan")]),
        "infinity": pa.array([float("-inf")]),
        "half": pa.array([0.5], pa.float16()),
        "text": pa.array(["ä"], pa.large_string()),
        "bytes": pa.array(["ä".encode()]),
        "blob": pa.array([b"\xff\x00"]),
        "fixed": pa.array([b"ab"], pa.binary(2)),
        "date": pa.array([datetime.date(2024, 2, 3)]),
        "time": pa.array([datetime.time(4, 5, 6)], pa.time32("s")),
        "naive": pa.array([datetime.datetime(2024, 2, 3, 4, 5, 6)], pa.timestamp("s")),
        "zoned": pa.array([moment], pa.timestamp("us", "Europe/Berlin")),
        "nanos": pa.array([1], pa.timestamp("ns", "UTC")),
        "duration": pa.array([datetime.timedelta(seconds=2)], pa.duration("ms")),
        "decimal": pa.array([decimal.Decimal("12.30")], pa.decimal128(10, 2)),
        "dictionary": pa.array(["x"]).dictionary_encode(),
        "map": pa.array([[("k", 1), ("gone", None)]], pa.map_(pa.string(), pa.int64())),
        "fixed_list": pa.array([[1, 2]], pa.list_(pa.int64(), 2)),
        "large_list": pa.array([[None, "x"]], pa.large_list(pa.string())),
        "struct": pa.array([{"a": None, "content": None, "b": {"c": None}}]),
        "deep": pa.array([[[{"content": None, "d": decimal.Decimal("1.0")}]]]),
        "values": pa.array([[{"from": "gpt", "value": None, "weight": None}]]),
    }
    path = write_parquet(tmp_path / "f.parquet", pa.table(columns))
    expected = {
        "null": None,
        "bool": True,
        "int": 2**63,
        "float": 1.5,
        "nan": None,
        "infinity": None,
        "half": 0.5,
        "text": "ä",
        "bytes": "ä",
        "blob": {"base64": "/wA="},
        "fixed": "ab",
        "date": "2024-02-03",
        "time": "04:05:06.000",
        "naive": "2024-02-03 04:05:06.000",
        "zoned": "2024-02-03 04:05:06.000700Z",
        "nanos": "1970-01-01 00:00:00.000000001Z",
        "duration": 2000,
        "decimal": "12.30",
        "dictionary": "x",
        "map": {"k": 1},
        "fixed_list": [1, 2],
        "large_list": [None, "x"],
        "struct": {"b": {}},
        "deep": [[{"d": "1.0"}]],
        "values": [{"from": "gpt", "value": None}],
    }
    ((row, value),) = read(path)
    assert row == 0
    assert value == expected
    json.dumps(value, allow_nan=False)


def test_parquet_nulls_at_every_level(tmp_path: Path) -> None:
    kind = pa.list_(pa.struct([("a", pa.list_(pa.int64())), ("m", pa.map_(pa.string(), pa.int64()))]))
    rows = [
        [{"a": [1, None], "m": [("k", 1)]}, None],
        None,
        [],
        [{"a": None, "m": None}, {"a": [], "m": []}],
        [{"a": [3], "m": None}],
    ]
    expected = [[{"a": [1, None], "m": {"k": 1}}, None], None, [], [{}, {"a": [], "m": {}}], [{"a": [3]}]]
    table = pa.table({"x": pa.array(rows * 200, kind)})
    path = write_parquet(tmp_path / "f.parquet", table, row_group_size=333)
    assert [value["x"] for _, value in read(path)] == expected * 200


def test_sliced_arrays_convert_as_whole_ones() -> None:
    table = pa.Table.from_pylist(CHATS * 3)
    (batch,) = table.to_batches()
    whole = module._batch_values(batch)
    assert whole == CHATS * 3
    for start in range(batch.num_rows):
        assert module._batch_values(batch.slice(start, 4)) == whole[start : start + 4]


def test_parquet_strings_that_are_not_utf8_are_faults_of_their_row(tmp_path: Path) -> None:
    texts = [b"good", b"caf\xe9", "süß".encode(), b"\xed\xa0\x80"] * 100
    raw = pa.array(texts, pa.binary())
    text = pa.StringArray.from_buffers(len(raw), raw.buffers()[1], raw.buffers()[2])
    lists = pa.ListArray.from_arrays(
        pa.array(range(401), pa.int32()), pa.StructArray.from_arrays([text], ["content"])
    )
    path = write_parquet(tmp_path / "f.parquet", pa.table({"messages": lists, "i": range(400)}))
    rows = read(path)
    assert [row for row, _ in rows] == list(range(400))
    for row, value in rows:
        if row % 2:
            assert value == FAULT["invalid_utf8"]
        else:
            assert value == {"messages": [{"content": texts[row].decode()}], "i": row}


@pytest.mark.parametrize("compression", ["zstd", "snappy", "none"])
def test_damaged_parquet(tmp_path: Path, compression: str) -> None:
    path = tmp_path / "f.parquet"
    table = pa.Table.from_pylist([{"messages": [{"role": "user", "content": f"q{i}"}]} for i in range(500)])
    pq.write_table(table, path, row_group_size=100, compression=compression, write_page_checksum=True)
    content = path.read_bytes()
    rows = read(path)
    rng = random.Random(1)
    for length in (0, 4, 100, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:length])
        assert error_of(path).code == "bad_parquet"
    refused = 0
    for _ in range(150):
        flipped = bytearray(content)
        flipped[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        path.write_bytes(flipped)
        try:
            # Only what nobody reads (statistics, the writer's name) may be damaged without notice.
            assert read(path) == rows
        except InputError as error:
            assert error.code == "bad_parquet"
            refused += 1
    assert refused > 75


def test_parquet_truncated_after_it_was_cut(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "f.parquet", pa.table({"a": range(1000)}), row_group_size=100)
    segments = cut([InputFile(path, "f.parquet", path.stat().st_size)], 1)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InputError) as caught:
        list(read_rows(segments[3]))
    assert caught.value.code == "bad_parquet"


def test_a_big_row_group_takes_bounded_memory(tmp_path: Path) -> None:
    rng = random.Random(2)
    table = pa.table({"text": [rng.randbytes(1000).hex() for _ in range(20_000)]})
    path = write_parquet(tmp_path / "f.parquet", table, row_group_size=20_000, use_dictionary=False)
    del table
    segments = cut([InputFile(path, "f.parquet", path.stat().st_size)], 1 << 40)
    pool = pa.default_memory_pool()
    before = pool.bytes_allocated()
    peak = rows = 0
    for batch in read_rows(segments[0]):
        peak = max(peak, pool.bytes_allocated() - before)
        rows += len(batch)
    assert rows == 20_000
    assert peak < 12 << 20  # of 40 MB of text


def test_an_abandoned_reader_closes_its_file(tmp_path: Path) -> None:
    for name, content in (("f.jsonl", b"{}\n" * 1000), ("f.jsonl.gz", gzip.compress(b"{}\n" * 1000))):
        (tmp_path / name).write_bytes(content)
        (segment,) = cut([InputFile(tmp_path / name, name, len(content))], 1 << 30)
        rows: Iterator[Any] = read_rows(segment)
        assert len(next(rows)) == BATCH_ROWS
        del rows  # an open file would be a ResourceWarning, and warnings are errors
