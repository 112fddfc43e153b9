"""Text columns of every kind, the row filter and the id column, against plain pyarrow and hashlib."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support import published_digests, sample_serially

from flows.cli.main import main
from schemas.corpus import SampleCorpusConfig
from schemas.errors import ConfigError, InputError
from tasks.corpus.sources.where import matches
from tasks.outputs.validate import validate_path

Row = dict[str, Any]
STRINGS = (pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string()))
BYTES = (pa.binary(), pa.large_binary(), pa.binary_view())


def made_rows(count: int, seed: int = 0) -> list[Row]:
    rng = random.Random(seed)
    return [
        {
            "text": f"document {n} é {'x' * rng.randrange(40)}",
            "language": rng.choice(["en", "de", None]),
            "stars": rng.randrange(4),
            "score": rng.choice([1.0, 1.5, None]),
            "fork": rng.choice([True, False]),
            "tags": rng.choice([["a"], ["a", "b"], [], None]),
        }
        for n in range(count)
    ]


def write_rows(path: Path, rows: list[Row], text: pa.DataType = STRINGS[0]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pylist([{**row, "text": None} for row in rows])
    values = [row["text"] for row in rows]
    if text in BYTES:
        values = [value.encode() if isinstance(value, str) else value for value in values]
    if pa.types.is_dictionary(text):
        column = pa.array(values, pa.string()).dictionary_encode()
    else:
        column = pa.array(values, text)
    index = table.schema.get_field_index("text")
    pq.write_table(table.set_column(index, "text", column), path, row_group_size=11)


def config_of(root: Path, count: int, **changes: Any) -> SampleCorpusConfig:
    dataset = {"name": "web", "source": str(root / "in"), "buckets": {"b": {"count": count}}}
    dataset |= changes.pop("dataset", {})
    return SampleCorpusConfig.parse(
        {"output_dir": str(root / "out"), "datasets": {"web": dataset}, **changes}
    )


def expected(files: dict[str, list[Row]], count: int, keep: Any = lambda row: True) -> list[tuple[str, str]]:
    """Id and text of the documents that a bucket keeps, in file and row order."""
    rows = []
    for name in sorted(files):
        for number, row in enumerate(files[name]):
            document = f"b#{name}#{number}"
            digest = hashlib.md5(f"42_{document}".encode()).digest()[:8]  # noqa: S324 - the rule is MD5
            if isinstance(row["text"], str) and keep(row):
                rows.append((int.from_bytes(digest, "big"), name, number, document, row["text"]))
    kept = sorted(sorted(rows)[:count], key=lambda item: item[1:3])
    return [(document, text) for _, _, _, document, text in kept]


def sampled(root: Path, *columns: str) -> list[tuple[Any, ...]]:
    files = sorted((root / "out" / "latest").glob("train-*.parquet"))
    rows = [row for file in files for row in pq.read_table(file).to_pylist()]
    return [tuple(row[column] for column in columns) for row in rows]


@pytest.mark.parametrize("kind", [*STRINGS, *BYTES], ids=str)
def test_texts_of_every_type(tmp_path: Path, kind: pa.DataType) -> None:
    files = {"a.parquet": made_rows(60), "c/b.parquet": made_rows(45, seed=1)}
    files["a.parquet"][7]["text"] = None
    for name, rows in files.items():
        write_rows(tmp_path / "in" / "b" / name, rows, kind)
    config = config_of(tmp_path, 50, id_column=True, max_reject_fraction=0.2)
    manifest, _ = sample_serially(config)
    assert sampled(tmp_path, "id", "text") == expected(files, 50)
    schema = pq.read_schema(next((tmp_path / "out" / "latest").glob("train-*")))
    assert (schema.field("text").type, schema.field("id").type) == (pa.string(), pa.string())
    assert manifest.ledger.rejected == {"null_text": 1}
    assert validate_path(tmp_path / "out").ok


@pytest.mark.parametrize("kind", BYTES, ids=str)
def test_bytes_that_are_no_text_are_rejected(tmp_path: Path, kind: pa.DataType) -> None:
    rows = made_rows(40)
    for number, bad in ((3, b"\xff"), (4, b"ab\xc3"), (11, b"\xed\xa0\x80"), (39, None)):
        rows[number]["text"] = bad
    write_rows(tmp_path / "in" / "b" / "a.parquet", rows, kind)
    config = config_of(tmp_path, 100, id_column="doc", max_reject_fraction=0.2)
    manifest, _ = sample_serially(config)
    assert sampled(tmp_path, "doc", "text") == expected({"a.parquet": rows}, 100)
    assert manifest.ledger.rejected == {"invalid_utf8": 3, "null_text": 1}
    [file] = (tmp_path / "out" / "latest" / "rejects").glob("*.parquet")
    listed = pq.read_table(file).to_pylist()
    assert [(row["row"], row["reason"]) for row in listed] == [
        (3, "invalid_utf8"), (4, "invalid_utf8"), (11, "invalid_utf8"), (39, "null_text"),
    ]  # fmt: skip
    assert validate_path(tmp_path / "out").ok


@pytest.mark.parametrize("kind", STRINGS, ids=str)
def test_texts_of_a_string_column_may_be_no_utf8(tmp_path: Path, kind: pa.DataType) -> None:
    """Arrow neither checks such a column when it reads it nor writes its own checks into a footer."""
    texts = pa.array([b"ok", b"ab\xc3", b"good"]).view(pa.string())
    plain = pa.types.is_dictionary(kind)
    (tmp_path / "in" / "b").mkdir(parents=True)
    column = texts.dictionary_encode() if plain else texts.cast(kind)
    pq.write_table(pa.table({"text": column}), tmp_path / "in" / "b" / "a.parquet")
    with pytest.raises(
        InputError, match="'text' is of type string, but this row is not valid UTF-8"
    ) as caught:
        sample_serially(config_of(tmp_path, 9))
    assert (caught.value.code, caught.value.where) == ("invalid_utf8", "a.parquet:1")
    for changes in ({"on_error": "skip"}, {"min_characters": 1}):
        manifest, _ = sample_serially(config_of(tmp_path, 9, max_reject_fraction=0.5, **changes))
        assert sampled(tmp_path, "text") == [("ok",), ("good",)]
        assert manifest.ledger.rejected == {"invalid_utf8": 1}
        assert validate_path(tmp_path / "out").ok


def test_ids_of_a_renamed_file_have_its_new_name(tmp_path: Path) -> None:
    write_rows(tmp_path / "in" / "b" / "a.parquet", made_rows(2))
    sample_serially(config_of(tmp_path, 9, id_column=True))
    (tmp_path / "in" / "b" / "a.parquet").rename(tmp_path / "in" / "b" / "c.parquet")
    sample_serially(config_of(tmp_path, 9, id_column=True))
    assert sampled(tmp_path, "id") == [("b#c.parquet#0",), ("b#c.parquet#1",)]
    assert validate_path(tmp_path / "out").ok


def test_files_of_equal_content_have_ids_of_their_own(tmp_path: Path) -> None:
    for name in ("a", "c"):
        write_rows(tmp_path / "in" / "b" / f"{name}.parquet", made_rows(2))
    sample_serially(config_of(tmp_path, 9, id_column=True, max_rows=2))
    names = ["b#a.parquet#0", "b#a.parquet#1", "b#c.parquet#0", "b#c.parquet#1"]
    assert [document for (document,) in sampled(tmp_path, "id")] == names
    assert validate_path(tmp_path / "out").ok


def test_without_ids_all_rows_of_a_renamed_file_are_not_written_again(tmp_path: Path) -> None:
    write_rows(tmp_path / "in" / "b" / "a.parquet", made_rows(2))
    sample_serially(config_of(tmp_path, 9))
    (tmp_path / "in" / "b" / "a.parquet").rename(tmp_path / "in" / "b" / "c.parquet")
    _, serial = sample_serially(config_of(tmp_path, 9))
    assert "write" not in [task for task, _ in serial.executed]


def test_kept_columns_may_be_views(tmp_path: Path) -> None:
    table = pa.table({"text": ["a", "b", "c"] * 20})
    views = table.append_column("url", pa.array([f"u{n}" for n in range(60)], pa.string_view()))
    (tmp_path / "in" / "b").mkdir(parents=True)
    pq.write_table(views, tmp_path / "in" / "b" / "1.parquet")
    pq.write_table(
        views.set_column(1, "url", views["url"].cast(pa.string())), tmp_path / "in" / "b" / "2.parquet"
    )
    sample_serially(config_of(tmp_path, 50, dataset={"keep_columns": ["url"]}, id_column=True))
    for document, url in sampled(tmp_path, "id", "url"):
        assert url == f"u{document.rpartition('#')[2]}"


@pytest.mark.parametrize("kind", [pa.string(), pa.string_view()], ids=str)
def test_the_text_column_may_be_kept_under_its_own_name(tmp_path: Path, kind: pa.DataType) -> None:
    (tmp_path / "in" / "b").mkdir(parents=True)
    table = pa.table({"url": ["u", "v"], "body": pa.array(["x", "y"], kind)})
    pq.write_table(table, tmp_path / "in" / "b" / "a.parquet")
    dataset = {"text_column": "body", "keep_columns": ["body", "url"]}
    sample_serially(config_of(tmp_path, 9, dataset=dataset))
    assert sampled(tmp_path, "text", "body", "url") == [("x", "x", "u"), ("y", "y", "v")]
    sample_serially(config_of(tmp_path, 9, dataset={"text_column": "body"}, id_column="body"))
    assert sampled(tmp_path, "text", "body") == [("x", "b#a.parquet#0"), ("y", "b#a.parquet#1")]
    assert validate_path(tmp_path / "out").ok


FILTERS: list[tuple[dict[str, Any], Any]] = [
    ({"language": "en"}, lambda row: row["language"] == "en"),
    ({"stars": 3}, lambda row: row["stars"] == 3),
    ({"score": 1}, lambda row: row["score"] == 1.0),
    ({"fork": True}, lambda row: row["fork"]),
    ({"tags": "b"}, lambda row: "b" in (row["tags"] or [])),
    ({"language": "de", "fork": False}, lambda row: row["language"] == "de" and not row["fork"]),
]


@pytest.mark.parametrize(("where", "keep"), FILTERS, ids=[str(where) for where, _ in FILTERS])
def test_the_row_filter_comes_before_selection(tmp_path: Path, where: dict[str, Any], keep: Any) -> None:
    files = {"a.parquet": made_rows(120), "b.parquet": made_rows(80, seed=1)}
    files["a.parquet"][5]["text"] = None
    for name, rows in files.items():
        write_rows(tmp_path / "in" / "b" / name, rows)
    everything = sum(keep(row) for rows in files.values() for row in rows)
    smaller: set[tuple[Any, ...]] = set()
    for count in (5, 20, 500):
        config = config_of(tmp_path, count, dataset={"where": where}, id_column=True)
        manifest, _ = sample_serially(config)
        found = sampled(tmp_path, "id", "text")
        assert found == expected(files, count, keep)
        # A larger count keeps all earlier rows.
        assert smaller <= set(found)
        smaller = set(found)
        assert manifest.ledger.filtered == 200 - everything
        assert validate_path(tmp_path / "out").ok
    assert sum(manifest.ledger.rejected.values()) == keep(files["a.parquet"][5])


def test_a_filter_that_keeps_all_gives_the_same_shards(tmp_path: Path) -> None:
    rows = [{**row, "language": "en"} for row in made_rows(50)]
    write_rows(tmp_path / "in" / "b" / "a.parquet", rows)
    plain, _ = sample_serially(config_of(tmp_path, 20))
    before = published_digests(tmp_path / "out" / "latest")
    filtered, _ = sample_serially(config_of(tmp_path, 20, dataset={"where": {"language": "en"}}))
    after = published_digests(tmp_path / "out" / "latest")
    assert plain.run_hash != filtered.run_hash
    shards = [name for name in before if name.startswith("train-")]
    assert shards and [before[name] for name in shards] == [after[name] for name in shards]


def test_filters_that_keep_nothing_are_named(tmp_path: Path) -> None:
    write_rows(tmp_path / "in" / "b" / "a.parquet", made_rows(3))
    config = config_of(tmp_path, 9, dataset={"where": {"language": "fr"}}, max_characters=99)
    with pytest.raises(InputError) as caught:
        sample_serially(config)
    assert '(where: {"language": "fr"}, max_characters: 99) is left: 3 filtered of 3' in caught.value.message


def test_validate_proves_the_filter_and_the_ids(tmp_path: Path) -> None:
    write_rows(tmp_path / "in" / "b" / "a.parquet", made_rows(60))
    config = config_of(tmp_path, 15, dataset={"where": {"fork": True}}, id_column=True)
    sample_serially(config)
    [shard] = (tmp_path / "out" / "latest").resolve().glob("train-*")
    table = pq.read_table(shard)
    ids = table["id"].to_pylist()
    changed = table.set_column(
        table.schema.get_field_index("id"), "id", pa.array(["b#a.parquet#0", *ids[1:]])
    )
    shard.unlink()
    pq.write_table(changed if ids[0] != "b#a.parquet#0" else table.slice(1), shard)
    verdict = validate_path(tmp_path / "out")
    assert any("id is not what the hash rule selects" in fault.detail for fault in verdict.faults)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"dataset": {"where": {"nothing": 1}}}, "no column 'nothing'"),
        ({"dataset": {"where": {"struct": 1}}}, "the column 'struct' of where is struct"),
        ({"dataset": {"text_column": "stars"}}, "the text column 'stars' is int64, not string or binary"),
    ],
)
def test_columns_that_cannot_be_used(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    rows = [{**row, "struct": {"a": 1}} for row in made_rows(5)]
    write_rows(tmp_path / "in" / "b" / "a.parquet", rows)
    with pytest.raises(InputError, match=says):
        sample_serially(config_of(tmp_path, 3, **changes))


@pytest.mark.parametrize(
    "changes",
    [{"id_column": "text"}, {"id_column": ""}, {"id_column": "url", "dataset": {"keep_columns": ["url"]}}],
)
def test_the_name_of_the_id_column_must_be_free(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="id_column"):
        config_of(tmp_path, 3, **changes)


def test_one_true_and_text_are_different() -> None:
    batch = pa.record_batch(
        {
            "int": [1, 0, None],
            "bool": [True, False, None],
            "text": ["1", "true", None],
            "small": pa.array([1, 2, 3], pa.uint8()),
        }
    )
    assert matches(batch, {"int": 1}).tolist() == [True, False, False]
    assert matches(batch, {"int": True}).tolist() == matches(batch, {"bool": 1}).tolist() == [False] * 3
    assert matches(batch, {"text": "1"}).tolist() == [True, False, False]
    assert matches(batch, {"text": 1}).tolist() == matches(batch, {"small": 300}).tolist() == [False] * 3
    assert matches(batch, {}).tolist() == [True] * 3


def test_rows_read_at_once_do_not_matter(tmp_path: Path) -> None:
    write_rows(tmp_path / "in" / "b" / "a.parquet", made_rows(60), BYTES[0])
    digests = []
    for batch_rows in (1, 7, 50_000):
        config = config_of(tmp_path, 30, batch_rows=batch_rows, output_dir=str(tmp_path / f"out{batch_rows}"))
        sample_serially(config)
        digests.append(published_digests(tmp_path / f"out{batch_rows}" / "latest"))
    assert digests[0] == digests[1] == digests[2]


def test_options_of_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The run is complete, so that the command only finds it: by the number of rows that the option names."""
    write_rows(tmp_path / "in" / "b" / "a.parquet", made_rows(60))
    config = config_of(tmp_path, 30)
    manifest, _ = sample_serially(config.model_copy(update={"max_rows": 7}))
    raw = config.model_dump(mode="json", exclude_defaults=True)
    (tmp_path / "config.yaml").write_text(json.dumps(raw))
    options = ["--max-rows", "7", "--io-workers", "1", "--batch-size", "5", "--workers", "1", "--json"]
    assert main(["sample-corpus", str(tmp_path / "config.yaml"), *options]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["run_hash"] == manifest.run_hash and found["cached"] is True
    for option, field in (
        ("--max-rows", "max_rows"),
        ("--io-workers", "io_workers"),
        ("--batch-size", "batch_rows"),
    ):
        assert main(["sample-corpus", str(tmp_path / "config.yaml"), option, "0"]) == 2
        assert field in capsys.readouterr().err
    assert main(["train-tokenizer", str(tmp_path / "config.yaml"), "--max-rows", "7"]) == 2
