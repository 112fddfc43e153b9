"""The whole sample against a plain reference: hashlib, a sort, and rows as Python objects."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support import published_digests, sample_serially

from schemas.corpus import SampleCorpusConfig
from schemas.errors import ConfigError, InputError
from tasks.corpus.inventory import take_inventory
from tasks.outputs.validate import validate_path


def write_bucket(
    folder: Path,
    files: dict[str, list[str | None]],
    *,
    column: str = "text",
    group: int = 7,
    **extra: list[Any],
) -> None:
    for name, texts in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        columns = {column: pa.array(texts, pa.string()), "id": list(range(len(texts)))}
        pq.write_table(pa.table(columns), path, row_group_size=group)


def texts(prefix: str, count: int) -> list[str]:
    return [f"{prefix} document {i} " + "x" * (i % 13) for i in range(count)]


def reference(folder: Path, bucket: str, seed: int, count: int, column: str = "text") -> list[str]:
    """The texts a bucket keeps, in file and row order."""
    rows = []
    paths = sorted(
        (p for p in folder.rglob("*.parquet")), key=lambda p: p.relative_to(folder).as_posix().encode()
    )
    for index, path in enumerate(paths):
        name = path.relative_to(folder).as_posix()
        for row, text in enumerate(pq.read_table(path).column(column).to_pylist()):
            message = f"{seed}_{bucket}#{name}#{row}".encode()
            digest = int.from_bytes(hashlib.md5(message).digest()[:8], "big")  # noqa: S324 - the rule is MD5
            rows.append((digest, index, row, text))
    kept = sorted(rows)[:count]
    return [text for _, _, _, text in sorted(kept, key=lambda item: item[1:3])]


def config_of(root: Path, counts: dict[Any, int], **changes: Any) -> SampleCorpusConfig:
    dataset = {
        "name": "Web",
        "source": str(root / "in"),
        "buckets": {k: {"count": n} for k, n in counts.items()},
    }
    dataset |= changes.pop("dataset", {})
    return SampleCorpusConfig.parse(
        {"output_dir": str(root / "out"), "datasets": {"web": dataset}, **changes}
    )


def sampled(root: Path) -> list[dict[str, Any]]:
    files = sorted((root / "out" / "latest").glob("train-*.parquet"))
    return [row for file in files for row in pq.read_table(file).to_pylist()]


@pytest.fixture
def nested(tmp_path: Path) -> Path:
    """One nested bucket with bare names that collide, an empty file and many row groups; one flat bucket."""
    write_bucket(
        tmp_path / "in" / "3",
        {"a/part.parquet": texts("a", 40), "b/part.parquet": texts("b", 23), "b/c/part.parquet": texts("c", 1),
         "b/empty.parquet": [], "z.parquet": texts("z", 60)},
    )  # fmt: skip
    write_bucket(tmp_path / "in" / "4.0", {"one.parquet": texts("one", 30), "two.parquet": texts("two", 30)})
    return tmp_path


@pytest.mark.parametrize("seed", [42, 0, -5])
@pytest.mark.parametrize("count", [0, 1, 62, 123, 124, 500])
def test_a_sample_is_exactly_the_smallest_hashes(nested: Path, seed: int, count: int) -> None:
    manifest, _ = sample_serially(config_of(nested, {3: count, 4.0: 10}, random_seed=seed))
    rows = sampled(nested)
    for bucket, wanted in (("3", count), ("4.0", 10)):
        kept = [row["text"] for row in rows if row["source_bucket"] == bucket]
        assert kept == reference(nested / "in" / bucket, bucket, seed, wanted)
    assert {row["source_dataset"] for row in rows} == {"Web"}
    assert [row["source_bucket"] for row in rows] == sorted(row["source_bucket"] for row in rows)
    assert manifest.ledger.rows_in == 184
    assert manifest.ledger.rows_used == len(rows) == min(count, 124) + 10
    verdict = validate_path(nested / "out")
    assert verdict.ok, verdict.faults


def test_a_damaged_page_of_a_shard_is_a_finding(nested: Path) -> None:
    manifest, _ = sample_serially(config_of(nested, {3: 100}))
    shard = min((nested / "out" / "latest").glob("*.parquet"))
    content = bytearray(shard.read_bytes())
    content[200] ^= 1
    shard.write_bytes(content)
    assert pq.read_metadata(shard).num_rows == manifest.ledger.rows_used
    faults = validate_path(nested / "out").faults
    assert "readable" in {fault.rule for fault in faults if Path(fault.where).name == shard.name}, faults


def test_shards_are_numbered_and_bounded(nested: Path) -> None:
    manifest, _ = sample_serially(config_of(nested, {3: 100, 4.0: 60}, max_rows=4))
    names = sorted(path.name for path in (nested / "out" / "latest").glob("*.parquet"))
    count = len(names)
    assert names == [f"train-{i:05d}-of-{count:05d}.parquet" for i in range(count)]
    rows = [pq.read_metadata(nested / "out" / "latest" / name).num_rows for name in names]
    assert max(rows) <= 4
    assert sum(rows) == 160 == manifest.statistics["sampled"]
    assert [row["text"] for row in sampled(nested)][:100] == reference(nested / "in" / "3", "3", 42, 100)


def test_sampling_info_is_counted_from_disk(nested: Path) -> None:
    sample_serially(config_of(nested, {3: 500, "4.0": 7}))
    info = json.loads((nested / "out" / "latest" / "sampling_info.json").read_text())
    assert info == {
        "total_requested": 507,
        "total_sampled": 131,
        "random_seed": 42,
        "sources": {
            "web": {
                "name": "Web",
                "source": str(nested / "in"),
                "requested": 507,
                "sampled": 131,
                "buckets": {"3": {"requested": 500, "sampled": 124}, "4.0": {"requested": 7, "sampled": 7}},
            }
        },
    }


def test_samples_are_nested(nested: Path) -> None:
    sample_serially(config_of(nested, {3: 30}))
    small = {row["text"] for row in sampled(nested)}
    sample_serially(config_of(nested, {3: 31}))
    large = {row["text"] for row in sampled(nested)}
    assert small < large
    assert len(large) == 31


def test_only_what_a_change_touches_is_made_again(nested: Path) -> None:
    sample_serially(config_of(nested, {3: 200, 4.0: 10}, max_rows=20))
    _, again = sample_serially(config_of(nested, {3: 200, 4.0: 10}, max_rows=20))
    assert again.executed == []
    _, counted = sample_serially(config_of(nested, {3: 200, 4.0: 11}, max_rows=20))
    assert [task for task, _ in counted.executed] == ["select", "write", "validate"]
    write_bucket(nested / "in" / "3", {"zz.parquet": texts("new", 5)})
    _, grown = sample_serially(config_of(nested, {3: 200, 4.0: 11}, max_rows=20))
    assert [task for task, _ in grown.executed] == ["inventory", "select", "write", "validate"]
    after = published_digests(nested / "out" / "latest")
    fresh = config_of(nested, {3: 200, 4.0: 11}, max_rows=20, output_dir=str(nested / "fresh"))
    sample_serially(fresh)
    assert published_digests(nested / "fresh" / "latest") == after


def test_null_texts_are_rejected_and_replaced_by_the_next_smallest(tmp_path: Path) -> None:
    mixed: list[str | None] = [None if i % 3 == 0 else f"text {i}" for i in range(90)]
    write_bucket(tmp_path / "in" / "b", {"a.parquet": mixed, "b.parquet": texts("b", 20)})
    manifest, _ = sample_serially(config_of(tmp_path, {"b": 50}, max_reject_fraction=0.3))
    assert len(sampled(tmp_path)) == 50
    assert manifest.ledger.rejected == {"null_text": 30}
    assert manifest.ledger.not_selected == 30
    [path] = (tmp_path / "out" / "latest" / "rejects").iterdir()
    rejects = pq.read_table(path).to_pylist()
    assert [(r["source_file"], r["row"]) for r in rejects] == [("a.parquet", i) for i in range(0, 90, 3)]
    assert validate_path(tmp_path / "out").ok


def test_length_filters_apply_before_selection(tmp_path: Path) -> None:
    words = ["é" * (i % 20) for i in range(100)]
    write_bucket(tmp_path / "in" / "b", {"a.parquet": words})
    manifest, _ = sample_serially(config_of(tmp_path, {"b": 1000}, min_characters=5, max_characters=8))
    assert [row["text"] for row in sampled(tmp_path)] == [word for word in words if 5 <= len(word) <= 8]
    assert manifest.ledger.filtered == 80
    sample_serially(config_of(tmp_path, {"b": 7}, min_characters=5, max_characters=8))
    assert len(sampled(tmp_path)) == 7
    assert validate_path(tmp_path / "out").ok


def test_the_text_column_follows_the_name_or_the_configuration(tmp_path: Path) -> None:
    write_bucket(tmp_path / "in" / "b", {"a.parquet": texts("code", 5)}, column="content")
    sample_serially(config_of(tmp_path, {"b": 5}, dataset={"name": "My-GitHub-Code"}))
    assert [row["text"] for row in sampled(tmp_path)] == texts("code", 5)
    sample_serially(config_of(tmp_path, {"b": 4}, dataset={"text_column": "content", "keep_columns": ["id"]}))
    assert [set(row) for row in sampled(tmp_path)] == [{"text", "source_dataset", "source_bucket", "id"}] * 4


def test_a_glob_of_ones_own(tmp_path: Path) -> None:
    write_bucket(tmp_path / "in" / "b", {"keep/a.parquet": texts("a", 5), "leave/b.parquet": texts("b", 5)})
    sample_serially(config_of(tmp_path, {"b": 50}, dataset={"glob": "keep/*.parquet"}))
    assert [row["text"] for row in sampled(tmp_path)] == reference(
        tmp_path / "in" / "b" / "keep", "b", 42, 50
    )


def test_files_may_store_texts_in_different_ways(tmp_path: Path) -> None:
    folder = tmp_path / "in" / "b"
    write_bucket(folder, {"a.parquet": texts("a", 5)})
    pq.write_table(pa.table({"text": pa.array(texts("b", 5), pa.large_string())}), folder / "b.parquet")
    pq.write_table(pa.table({"text": pa.array(texts("c", 5)).dictionary_encode()}), folder / "c.parquet")
    sample_serially(config_of(tmp_path, {"b": 50}))
    assert [row["text"] for row in sampled(tmp_path)] == texts("a", 5) + texts("b", 5) + texts("c", 5)


@pytest.fixture
def spoilt(tmp_path: Path) -> Path:
    """A hundred files: one truncated, one without a text column, one that is no Parquet."""
    folder = tmp_path / "in" / "b"
    write_bucket(folder, {f"f{i:03d}.parquet": texts(f"f{i}", 10) for i in range(100)})
    whole = (folder / "f010.parquet").read_bytes()
    (folder / "f010.parquet").write_bytes(whole[: len(whole) // 2])
    write_bucket(folder, {"f020.parquet": texts("x", 10)}, column="body")
    (folder / "f030.parquet").write_bytes(b"not parquet at all")
    return tmp_path


def test_files_that_cannot_be_used_are_all_named_before_anything_is_written(spoilt: Path) -> None:
    with pytest.raises(InputError) as caught:
        sample_serially(config_of(spoilt, {"b": 50}))
    for name in ("f010.parquet", "f020.parquet", "f030.parquet"):
        assert name in caught.value.message
    assert "3 files" in caught.value.message
    assert not (spoilt / "out" / "runs").exists()
    written = {path.name for path in (spoilt / "out" / "stages").rglob("*") if path.is_file()}
    assert written <= {"fingerprints.json", "inventory-000000.json"}


def test_skipped_files_are_counted_and_listed(spoilt: Path) -> None:
    manifest, _ = sample_serially(config_of(spoilt, {"b": 5000}, on_error="skip"))
    assert len(sampled(spoilt)) == 970
    assert manifest.ledger.rejected == {"missing_column": 1, "unreadable_file": 2}
    info = json.loads((spoilt / "out" / "latest" / "sampling_info.json").read_text())
    skipped = info["sources"]["web"]["buckets"]["b"]["skipped_files"]
    assert [(s["file"], s["reason"]) for s in skipped] == [
        ("f010.parquet", "unreadable_file"),
        ("f020.parquet", "missing_column"),
        ("f030.parquet", "unreadable_file"),
    ]
    assert validate_path(spoilt / "out").ok


def test_a_page_damaged_behind_a_good_footer_is_left_out_under_skip(tmp_path: Path) -> None:
    folder = tmp_path / "in" / "b"
    write_bucket(folder, {"a.parquet": texts("a", 50), "b.parquet": texts("b", 50)})
    data = bytearray((folder / "a.parquet").read_bytes())
    data[40:60] = bytes(20)
    (folder / "a.parquet").write_bytes(data)
    with pytest.raises(InputError) as caught:
        sample_serially(config_of(tmp_path, {"b": 500}))
    assert caught.value.where == "a.parquet"
    assert not (tmp_path / "out" / "latest").exists()
    sample_serially(config_of(tmp_path, {"b": 500}, on_error="skip"))
    assert [row["text"] for row in sampled(tmp_path)] == texts("b", 50)


def test_missing_buckets_are_all_named(nested: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        sample_serially(config_of(nested, {3: 1, "nope": 1, "neither": 1}))
    assert "nope" in caught.value.message and "neither" in caught.value.message
    manifest, _ = sample_serially(config_of(nested, {3: 1, "nope": 1}, on_error="skip"))
    assert manifest.ledger.rejected == {"missing_bucket": 1}


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"output_format": "csv"}, "output_format"),
        ({"max_rows": 0}, "max_rows"),
        ({"dataset": {"buckets": {"../x": {"count": 1}}}}, "datasets.web.buckets"),
        ({"dataset": {"buckets": {}}}, "datasets.web"),
        ({"dataset": {"keep_columns": ["text"]}}, "datasets.web.keep_columns"),
        ({"min_characters": 9, "max_characters": 3}, ""),
    ],
)
def test_bad_configurations(tmp_path: Path, change: dict[str, Any], where: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config_of(tmp_path, {"b": 1}, **change)
    assert caught.value.where == where


def test_the_configuration_of_todays_users_loads() -> None:
    config = SampleCorpusConfig.parse(
        {
            "random_seed": 42,
            "output_format": "parquet",
            "output_dir": "out",
            "workers": 8,
            "io_workers": 16,
            "batch_rows": 50_000,
            "datasets": {
                "web": {
                    "name": "fineweb",
                    "source": "in",
                    "samples": 8,
                    "buckets": {4.0: {"count": 5}, 3: {"count": 3}},
                },
                "code": {
                    "name": "GitHub",
                    "source": "in",
                    "samples": 1,
                    "stars_filter": {"10": {"count": 1}},
                },
                "both": {
                    "name": "x",
                    "source": "in",
                    "buckets": {"a": {"count": 1}},
                    "stars_filter": {"b": {"count": 2}},
                },
            },
        }
    )
    assert config.datasets["web"].counts == {"4.0": 5, "3": 3}
    assert config.datasets["code"].text == "content"
    assert config.datasets["both"].counts == {"a": 1}


def test_the_bytes_do_not_depend_on_where_or_when(nested: Path) -> None:
    sample_serially(config_of(nested, {3: 50, 4.0: 20}, workers=1))
    sample_serially(
        config_of(nested, {3: 50, 4.0: 20}, workers=7, io_workers=3, output_dir=str(nested / "again"))
    )
    assert published_digests(nested / "out" / "latest") == published_digests(nested / "again" / "latest")


def test_an_input_that_changes_under_the_run_leaves_no_receipt_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_bucket(tmp_path / "in" / "b", {"a.parquet": texts("old", 20)})
    sample_serially(config_of(tmp_path, {"b": 5}))
    old = published_digests(tmp_path / "out" / "latest")
    path = tmp_path / "in" / "b" / "a.parquet"
    original, stat = path.read_bytes(), path.stat()

    def changed_first(config: SampleCorpusConfig, identity: Any, look: Any) -> Any:
        found = take_inventory(config, identity, look)
        write_bucket(path.parent, {"a.parquet": texts("new", 20)})
        return found

    with monkeypatch.context() as patch:
        patch.setattr("flows.sample_corpus.take_inventory", changed_first)
        with pytest.raises(InputError) as caught:
            sample_serially(config_of(tmp_path, {"b": 6}))
    assert caught.value.code == "input_changed"
    assert published_digests(tmp_path / "out" / "latest") == old
    path.write_bytes(original)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    sample_serially(config_of(tmp_path, {"b": 6}))
    assert [row["text"] for row in sampled(tmp_path)] == reference(tmp_path / "in" / "b", "b", 42, 6)
