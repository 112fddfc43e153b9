"""validate: each broken rule is named with its file and row, whoever wrote the file."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from manifests import edit_manifest
from support import chat, config_of, mill_serially, write_jsonl
from workloads import clone

from flows.cli.main import main
from schemas.errors import ConfigError, IntegrityError
from schemas.run import RunManifest
from schemas.sft import (
    METADATA_COUNT,
    METADATA_PACK_SIZE,
    METADATA_TOKENIZER,
    METADATA_VERSION,
    METADATA_VOCABULARY,
)
from schemas.validation import ValidateConfig
from schemas.verdict import Verdict
from tasks.outputs.validate import validate_path

OURS = {
    METADATA_VERSION: b"1",
    METADATA_PACK_SIZE: b"8",
    METADATA_COUNT: b"runtime",
    METADATA_TOKENIZER: b"0" * 64,
    METADATA_VOCABULARY: b"100",
}
STORED = {**OURS, METADATA_COUNT: b"stored"}
FOREIGN: dict[bytes, bytes] = {}

TYPES = {
    "input_ids": pa.list_(pa.int32()),
    "loss_mask": pa.list_(pa.uint8()),
    "seq_start_id": pa.list_(pa.int32()),
}
Bin = tuple[Any, Any, Any]
GOOD: Bin = ([5, 6, 7, 8, 9], [0, 1, 0, 1, 0], [0, 3])


def write_shard(
    path: Path, bins: list[Bin], metadata: dict[bytes, bytes], types: dict[str, pa.DataType] | None = None
) -> Path:
    schema = pa.schema(list({**TYPES, **(types or {})}.items()), metadata=metadata)
    columns = [
        pa.array(list(column), field.type)
        for column, field in zip(zip(*bins, strict=True), schema, strict=True)
    ]
    pq.write_table(pa.Table.from_arrays(columns, schema=schema), path)
    return path


def faults_of(verdict: Verdict) -> list[tuple[str, str, str, int]]:
    return [(fault.level, fault.where, fault.rule, fault.count) for fault in verdict.faults]


BROKEN: dict[str, tuple[Bin, dict[bytes, bytes], list[str]]] = {
    "mask longer than ids": (([5, 6], [1, 0, 0], [0]), OURS, ["mask_length"]),
    "mask shorter than ids": (([5, 6, 7], [1, 0], [0]), OURS, ["mask_length"]),
    "three starts for two tokens": (([5, 6], [1, 0], [0, 1, 2]), OURS, ["starts_inside"]),
    "no token, one start": (([], [], [0]), OURS, ["not_empty"]),
    "nothing at all": (([], [], []), OURS, ["not_empty", "has_sequences"]),
    "no start": (([5, 6], [1, 0], []), OURS, ["has_sequences"]),
    "unsorted starts": (([5, 6, 7, 8], [0, 0, 0, 0], [0, 3, 2]), OURS, ["starts_increase"]),
    "the same start twice": (([5, 6, 7, 8], [0, 0, 0, 0], [0, 2, 2]), OURS, ["starts_increase"]),
    "a negative start": (([5, 6, 7, 8], [0, 0, 0, 0], [0, -1]), OURS, ["starts_increase"]),
    "first start not 0": (([5, 6, 7, 8], [0, 0, 0, 0], [1, 3]), OURS, ["starts_at_0"]),
    "a mask of 2": (([5, 6], [2, 0], [0]), OURS, ["mask_binary"]),
    "the mask ends in 1": (([5, 6], [1, 1], [0]), OURS, ["mask_ends_with_0"]),
    "an inner sequence's mask ends in 1": (([5, 6, 7], [1, 1, 0], [0, 2]), OURS, ["mask_ends_with_0"]),
    "an id out of the vocabulary": (([5, 100], [1, 0], [0]), OURS, ["ids_in_vocabulary"]),
    "a negative id": (([5, -1], [1, 0], [0]), OURS, ["ids_not_negative"]),
    "a negative id in a foreign file": (([5, -1], [1, 0], [0]), FOREIGN, ["ids_not_negative"]),
    "runtime length over the pack size": (([5] * 10, [0] * 10, [0]), OURS, ["fits_pack_size"]),
    "stored length over the pack size": (([5] * 9, [0] * 9, [0]), STORED, ["fits_pack_size"]),
    "a null mask": (([5, 6], None, [0]), OURS, ["no_nulls"]),
    "a null id": (([5, None], [1, 0], [0]), OURS, ["no_nulls"]),
    "two faults in one row": (([5, 200], [3, 0], [0]), OURS, ["mask_binary", "ids_in_vocabulary"]),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_row_is_named_with_its_rule(case: str, tmp_path: Path) -> None:
    bad, metadata, rules = BROKEN[case]
    shard = write_shard(tmp_path / "shard.parquet", [GOOD, GOOD, bad, GOOD], metadata)
    verdict = validate_path(shard)
    assert faults_of(verdict) == [("error", f"{shard}:2", rule, 1) for rule in rules]
    assert not verdict.ok


@pytest.mark.parametrize(
    ("metadata", "good"),
    [
        (OURS, ([5] * 9, [0] * 9, [0])),
        (OURS, ([5] * 10, [0] * 10, [0, 4])),
        (STORED, ([5] * 8, [0] * 8, [0])),
        (OURS, ([0, 99], [0, 0], [0, 1])),
        (FOREIGN, ([2**31 - 1], [0], [0])),
    ],
)
def test_the_limits_themselves_are_allowed(metadata: dict[bytes, bytes], good: Bin, tmp_path: Path) -> None:
    verdict = validate_path(write_shard(tmp_path / "shard.parquet", [good], metadata))
    assert verdict.ok and verdict.faults == ()
    assert (verdict.counts["bins"], verdict.counts["tokens"]) == (1, len(good[0]))


def test_a_mask_that_ends_in_1_is_only_a_warning_in_files_of_others(tmp_path: Path) -> None:
    shard = write_shard(tmp_path / "shard.parquet", [GOOD, ([5, 6], [1, 1], [0])], FOREIGN)
    verdict = validate_path(shard)
    assert faults_of(verdict) == [("warning", f"{shard}:1", "mask_ends_with_0", 1)]
    assert verdict.ok


def test_rows_are_counted_over_the_whole_file(tmp_path: Path) -> None:
    bins = [GOOD] * 3000
    for row in (1030, 1031, 2500):
        bins[row] = ([5, 6], [7, 0], [0])
    bins[2048] = ([5, 6], [1, 0], [1])
    # A null does not hide what else is wrong around it.
    bins[1029] = (None, [0], [0])
    shard = write_shard(tmp_path / "shard.parquet", bins, OURS)
    verdict = validate_path(shard)
    assert sorted(faults_of(verdict)) == [
        ("error", f"{shard}:1029", "no_nulls", 1),
        ("error", f"{shard}:1030", "mask_binary", 3),
        ("error", f"{shard}:2048", "starts_at_0", 1),
    ]
    assert verdict.counts["bins"] == 3000


def test_random_damage_is_found_in_the_row_that_was_damaged(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    for attempt in range(40):
        bins = []
        for _ in range(50):
            length = int(rng.integers(2, 9))
            starts = np.unique(np.append(0, rng.integers(0, length, 3)))
            mask = rng.integers(0, 2, length)
            mask[np.append(starts[1:], length) - 1] = 0
            bins.append((rng.integers(0, 100, length).tolist(), mask.tolist(), starts.tolist()))
        row = int(rng.integers(0, 50))
        ids, mask_list, starts_list = (list(column) for column in bins[row])
        kind = int(rng.integers(0, 5))
        if kind == 0:
            ids[int(rng.integers(0, len(ids)))] = 100 + attempt
        elif kind == 1:
            mask_list[int(rng.integers(0, len(ids)))] = 2
        elif kind == 2:
            mask_list.append(0)
        elif kind == 3:
            starts_list.append(len(ids))
        else:
            mask_list[-1] = 1
        shard = write_shard(tmp_path / "shard.parquet", bins, OURS)
        assert validate_path(shard).ok
        bins[row] = (ids, mask_list, starts_list)
        verdict = validate_path(write_shard(shard, bins, OURS))
        assert {fault.where for fault in verdict.errors} == {f"{shard}:{row}"}


# Columns of other kinds.


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        ("input_ids", pa.list_(pa.string())),
        ("input_ids", pa.list_(pa.float32())),
        ("loss_mask", pa.list_(pa.bool_())),
        ("seq_start_id", pa.int32()),
        ("input_ids", pa.list_(pa.list_(pa.int32()))),
    ],
    ids=str,
)
def test_a_column_of_a_wrong_type_is_named(column: str, kind: pa.DataType, tmp_path: Path) -> None:
    names = {**TYPES, column: kind}
    table = pa.table({name: pa.array([], names[name]) for name in names})
    pq.write_table(table, tmp_path / "shard.parquet")
    verdict = validate_path(tmp_path / "shard.parquet")
    assert faults_of(verdict) == [("error", str(tmp_path / "shard.parquet"), "schema", 1)]
    # Arrow and Parquet name the field inside a list differently.
    assert verdict.faults[0].detail.startswith(f"{column!r} is ")
    assert str(kind).replace("item", "element") in verdict.faults[0].detail.replace("item", "element")


def test_missing_and_repeated_columns_are_named(tmp_path: Path) -> None:
    ids, mask, _ = (pa.array([column], kind) for column, kind in zip(GOOD, TYPES.values(), strict=True))
    pq.write_table(
        pa.Table.from_arrays([ids, mask, mask], ["input_ids", "loss_mask", "loss_mask"]),
        tmp_path / "s.parquet",
    )
    verdict = validate_path(tmp_path / "s.parquet")
    assert [(fault.rule, fault.detail.split("'")[1]) for fault in verdict.faults] == [
        ("schema", "loss_mask"),
        ("schema", "seq_start_id"),
    ]


@pytest.mark.parametrize(
    "types",
    [
        {name: pa.large_list(pa.int64()) for name in TYPES},
        {name: pa.list_(pa.uint32()) for name in TYPES},
        {name: pa.list_(pa.uint64()) for name in TYPES},
        {"loss_mask": pa.list_(pa.int8())},
    ],
)
@pytest.mark.parametrize("metadata", [OURS, FOREIGN])
def test_other_integers_and_large_lists_are_held_to_the_same_rules(
    types: dict[str, pa.DataType], metadata: dict[bytes, bytes], tmp_path: Path
) -> None:
    shard = tmp_path / "shard.parquet"
    assert validate_path(write_shard(shard, [GOOD] * 3, metadata, types)).faults == ()
    bad: list[Bin] = [
        GOOD,
        ([5, 6, 7, 8], [0, 0, 0, 0], [0, 3, 2]),
        ([5, 6], [2, 0], [0]),
        ([5, 6], [0, 0], [0, 2]),
    ]
    verdict = validate_path(write_shard(shard, bad, metadata, types))
    assert {(fault.where, fault.rule) for fault in verdict.errors} == {
        (f"{shard}:1", "starts_increase"),
        (f"{shard}:2", "mask_binary"),
        (f"{shard}:3", "starts_inside"),
    }


def test_a_negative_mask_is_no_mask(tmp_path: Path) -> None:
    types = {"loss_mask": pa.list_(pa.int8())}
    shard = write_shard(tmp_path / "s.parquet", [GOOD, ([5, 6, 7], [1, -1, 0], [0])], FOREIGN, types)
    assert faults_of(validate_path(shard)) == [("error", f"{shard}:1", "mask_binary", 1)]


def test_extra_columns_are_accepted(tmp_path: Path) -> None:
    shard = write_shard(tmp_path / "shard.parquet", [GOOD] * 2, OURS)
    table = pq.read_table(shard)
    extended = table.add_column(0, "source", pa.array(["a", None])).append_column(
        "n", pa.array([None, [None]])
    )
    pq.write_table(extended, shard)
    verdict = validate_path(shard)
    assert verdict.faults == () and verdict.counts["bins"] == 2


def test_sliced_row_groups_are_read_rightly(tmp_path: Path) -> None:
    bins: list[Bin] = [GOOD, ([1], [0], [0])] * 700
    bins[1399] = ([1, 2], [1, 1], [0])
    schema = pa.schema(list(TYPES.items()), metadata=OURS)
    columns = [
        pa.array(list(column), field.type)
        for column, field in zip(zip(*bins, strict=True), schema, strict=True)
    ]
    with pq.ParquetWriter(tmp_path / "s.parquet", schema) as writer:
        writer.write_table(pa.Table.from_arrays(columns, schema=schema), row_group_size=100)
    verdict = validate_path(tmp_path / "s.parquet")
    assert faults_of(verdict) == [("error", f"{tmp_path / 's.parquet'}:1399", "mask_ends_with_0", 1)]


# Whole files.


@pytest.mark.parametrize("key", [METADATA_PACK_SIZE, METADATA_VOCABULARY, METADATA_COUNT])
def test_metadata_that_cannot_be_read_is_a_fault(key: bytes, tmp_path: Path) -> None:
    shard = write_shard(tmp_path / "shard.parquet", [GOOD], {**OURS, key: b"many"})
    assert faults_of(validate_path(shard)) == [("error", str(shard), "metadata", 1)]


@pytest.mark.parametrize("keep", [0, 3, 100, -1, -9, -200])
def test_a_truncated_file_is_not_readable(keep: int, tmp_path: Path) -> None:
    shard = write_shard(tmp_path / "shard.parquet", [GOOD] * 50, OURS)
    shard.write_bytes(shard.read_bytes()[:keep])
    assert faults_of(validate_path(shard)) == [("error", str(shard), "readable", 1)]


def test_a_folder_must_have_one_pack_size(tmp_path: Path) -> None:
    write_shard(tmp_path / "a.parquet", [GOOD], OURS)
    write_shard(tmp_path / "b.parquet", [GOOD, GOOD], OURS)
    verdict = validate_path(tmp_path)
    assert verdict.ok and verdict.kind == "folder"
    assert verdict.counts == {"files": 2, "bins": 3, "sequences": 6, "tokens": 15, "trained_tokens": 6}
    write_shard(tmp_path / "b.parquet", [GOOD], {**OURS, METADATA_PACK_SIZE: b"16"})
    bad = write_shard(tmp_path / "sub.parquet", [([5], [1], [0])], OURS)
    verdict = validate_path(tmp_path)
    assert faults_of(verdict) == [
        ("error", f"{bad}:0", "mask_ends_with_0", 1),
        ("error", str(tmp_path), "one_pack_size", 1),
    ]
    assert "8, 16" in verdict.faults[1].detail


# A run.


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory, small_tokenizer: Path) -> Path:
    """An output folder with one run of two data sets and some rejects; clone it before changing it."""
    folder = tmp_path_factory.mktemp("packed")
    chats = [chat(f"Number {i}?", f"It is {i}. " * (i % 7 + 1)) for i in range(200)]
    write_jsonl(folder / "a.jsonl", [*chats, b"{", b"{", {"messages": []}])
    write_jsonl(folder / "b.jsonl", chats[::3])
    datasets = [{"name": name, "path": str(folder / f"{name}.jsonl")} for name in "ab"]
    changes = {"storage": {"shard_tokens": 1500}, "splits": {"train": 0.8, "valid": 0.2, "test": 0}}
    mill_serially(config_of(folder / "out", folder, small_tokenizer, datasets=datasets, **changes))
    return folder / "out"


@pytest.fixture
def run(packed: Path, tmp_path: Path) -> Path:
    """The folder of a run to be damaged."""
    return (clone(packed, tmp_path / "out") / "latest").resolve()


def test_a_run_is_valid_by_all_its_names(run: Path) -> None:
    output = run.parent.parent
    manifest = RunManifest.model_validate_json((run / "manifest.json").read_bytes())
    totals = {name: manifest.statistics[name] for name in ("bins", "sequences", "tokens", "trained_tokens")}
    for name in (output, output / "latest", run):
        for full in (True, False):
            verdict = validate_path(name, full)
            assert (verdict.ok, verdict.kind, verdict.path) == (True, "run", str(run))
            assert verdict.counts["files"] == len(manifest.outputs)
            assert not full or verdict.counts.items() >= totals.items()
    train = validate_path(output / "splits" / "train")
    assert train.ok and train.kind == "folder"
    expected = sum(counts["tokens"] for counts in manifest.statistics["splits"]["train"].values())
    assert train.counts["tokens"] == expected
    shard = next((run / "datasets").rglob("*.parquet"))
    assert validate_path(shard).ok and validate_path(shard).kind == "file"


def shards_of(run: Path) -> list[Path]:
    return sorted((run / "datasets").rglob("*.parquet"))


def test_missing_and_truncated_shards_are_all_named(run: Path) -> None:
    lost, cut = shards_of(run)[:2]
    lost.unlink()
    os.truncate(cut, cut.stat().st_size - 10)
    quick = validate_path(run, full=False)
    found = [(fault.where, fault.rule) for fault in quick.errors]
    assert found == [
        (str(lost), "missing_output"),
        (str(cut), "changed_output"),
        (str(run / "blend.json"), "blend"),
    ]
    full = {(fault.where, fault.rule) for fault in validate_path(run).errors}
    assert full == {*found, (str(cut), "readable"), (str(run / "manifest.json"), "totals")}


def test_a_changed_byte_shows_at_the_full_level(run: Path) -> None:
    shard = shards_of(run)[1]
    data = bytearray(shard.read_bytes())
    # In the footer's free text: every row still reads.
    at = data.index(b"parquet-cpp-arrow")
    data[at : at + 7] = b"PARQUET"
    shard.write_bytes(data)
    assert validate_path(run, full=False).ok
    assert faults_of(validate_path(run)) == [("error", str(shard), "changed_output", 1)]


def test_a_manifest_with_another_size_is_found(run: Path) -> None:
    path = next(record for record in json.loads((run / "manifest.json").read_bytes())["outputs"])["path"]
    edit_manifest(run, lambda manifest: manifest["outputs"][0].update(bytes=1))
    for full in (True, False):
        assert faults_of(validate_path(run, full)) == [("error", str(run / path), "changed_output", 1)]


def test_links_that_lead_elsewhere_are_found(run: Path) -> None:
    links = sorted((run / "splits" / "train").iterdir())
    target = links[1].readlink()
    links[0].unlink()
    links[0].symlink_to(target)
    links[2].unlink()
    assert faults_of(validate_path(run, full=False)) == [
        ("error", str(link), "missing_output", 1) for link in (links[0], links[2])
    ]


def test_blends_that_lead_nowhere_are_found(run: Path) -> None:
    blend = json.loads((run / "blend.json").read_bytes())
    blend["train"][1] += "x"
    blend["valid"][0] = "0"
    (run / "blend.json").write_text(json.dumps(blend))
    verdict = validate_path(run, full=False)
    details = [fault.detail for fault in verdict.faults if fault.rule == "blend"]
    assert details == [f"{blend['train'][1]} does not lead to a shard", "a weight is not greater than 0"]
    (run / "blend.json").write_text("[]")
    rules = [(fault.where, fault.rule) for fault in validate_path(run, full=False).faults]
    assert (str(run / "blend.json"), "blend") in rules


def test_totals_that_disagree_are_named(run: Path) -> None:
    edit_manifest(run, lambda manifest: manifest["statistics"].update(tokens=7))
    verdict = validate_path(run)
    assert faults_of(verdict) == [("error", str(run / "manifest.json"), "totals", 1)]
    assert "tokens: 7 in the manifest" in verdict.faults[0].detail


def test_a_ledger_that_the_reject_files_do_not_bear_out_is_found(run: Path) -> None:
    def forget(manifest: dict[str, Any]) -> None:
        manifest["ledger"]["rejected"]["invalid_json"] -= 1
        manifest["ledger"]["rows_used"] += 1

    edit_manifest(run, forget)
    for full in (True, False):
        assert faults_of(validate_path(run, full)) == [("error", str(run / "manifest.json"), "ledger", 1)]


def test_a_ledger_that_does_not_add_up_is_found(run: Path) -> None:
    edit_manifest(run, lambda manifest: manifest["ledger"].update(rows_in=1))
    assert faults_of(validate_path(run)) == [("error", str(run / "manifest.json"), "ledger", 1)]


def test_a_reject_file_that_cannot_be_read_is_found(run: Path) -> None:
    reject = next((run / "rejects").iterdir())
    reject.write_bytes(b"PAR1")
    rules = {(fault.where, fault.rule) for fault in validate_path(run).faults}
    assert rules == {(str(reject), "changed_output"), (str(reject), "readable")}


def test_a_run_without_a_good_manifest_is_not_a_folder_of_shards(run: Path) -> None:
    manifest = run / "manifest.json"
    manifest.write_text("{")
    assert faults_of(validate_path(run)) == [("error", str(manifest), "bad_manifest", 1)]
    manifest.unlink()
    for name in (run, run.parent.parent / "latest", run.parent.parent):
        assert faults_of(validate_path(name)) == [("error", str(manifest), "no_manifest", 1)]


# The command line.


def test_the_command_prints_each_fault_and_exits_with_3(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["validate", str(run)]) == 0
    assert capsys.readouterr().out.endswith("\nvalid\n")
    bad = write_shard(tmp_path / "bad.parquet", [GOOD, *[([5, 6], [9, 0], [0])] * 3], OURS)
    assert main(["validate", str(bad)]) == 3
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{bad}: file, 1 files, 4 bins, 5 sequences, 11 tokens, 5 trained_tokens"
    assert lines[1].startswith(f"  error: {bad}:1: mask_binary: ") and lines[1].endswith(" (3 rows)")
    assert lines[2:] == ["NOT VALID"]
    assert main(["validate", str(bad), "--json"]) == 3
    verdict = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert verdict["ok"] is False
    assert (verdict["faults"][0]["where"], verdict["faults"][0]["rule"]) == (f"{bad}:1", "mask_binary")


def test_the_quick_level_reads_no_rows_of_a_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = bytearray(shards_of(run)[0].read_bytes())
    data[len(data) // 3] ^= 255
    shards_of(run)[0].write_bytes(data)
    assert main(["validate", str(run), "--level", "quick"]) == 0
    assert main(["validate", str(run), "--level", "full"]) == 3
    assert "changed_output" in capsys.readouterr().out


def test_what_cannot_be_validated_is_a_usage_error(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    output = run.parent.parent
    (output / "latest").unlink()
    shutil.rmtree(run)
    for path, message in (
        (tmp_path / "nowhere", "nothing is there"),
        (tmp_path / "empty", "neither a run (manifest.json) nor anything that gristmill makes or reads"),
        (output, "there is no published run in this output folder yet"),
    ):
        assert main(["validate", str(path)]) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"gristmill: [missing_path] {path}: ") and message in error
        assert error.count("\n") == 1


# The flow.


def test_the_flow_returns_the_verdict(prefect_api: str, run: Path) -> None:
    from flows.validate import validate
    from tasks.runtime.settings import run_settings

    with run_settings():
        for level in ("quick", "full"):
            result = validate(ValidateConfig.parse({"path": str(run), "level": level}))
            assert Verdict.model_validate(result) == validate_path(run, full=level == "full")
        lost = shards_of(run)[0]
        lost.unlink()
        with pytest.raises(IntegrityError, match="and 1 more fault") as caught:
            validate(ValidateConfig(path=str(run), level="quick"))
        assert (caught.value.code, caught.value.where) == ("invalid", str(lost))
        with pytest.raises(ConfigError, match="nothing is there"):
            validate(ValidateConfig(path=str(run / "nowhere")))


def test_the_flows_form_explains_every_field() -> None:
    properties = ValidateConfig.model_json_schema()["properties"]
    assert set(properties) == {"path", "level"}
    for name, field in properties.items():
        assert field["title"] and field["description"], name
    assert properties["level"]["default"] == "full"
    with pytest.raises(ConfigError, match="did you mean 'level'"):
        ValidateConfig.parse({"path": "x", "levl": "quick"})
