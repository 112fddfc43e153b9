"""Loose files of every kind, whoever wrote them: told apart, validated, inspected; mixed folders are refused."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import Cli
from loose_files import FILES, documents, kind_of, rejects, tokenizer, write
from manifests import publish_by_hand

from flows.cli.registry import FLOWS
from schemas.errors import ConfigError, GristmillError, InputError
from tasks.outputs.convert import convert_shards
from tasks.outputs.domains import DOMAINS
from tasks.outputs.finding import find_outputs
from tasks.outputs.inspect import inspect_path, query_path
from tasks.outputs.validate import validate_path
from tasks.tokenizer.loading import load_tokenizer

COUNTS = {
    "packed bins": {"files": 1, "bins": 5},
    "sampled documents": {"shards": 1, "rows": 3},
    "probe rows": {"shards": 1, "records": 3, "measurements": 12},
    "tokenizer": {"files": 1, "tokens": 3},
    "rejected rows": {"reject_files": 1, "rejected_rows": 3},
}


def test_the_table_has_every_flow_once() -> None:
    assert {domain.flow for domain in DOMAINS if domain.flow} == {entry.name for entry in FLOWS} - {
        "validate"
    }
    for column in ("kind", "flow"):
        values = [getattr(domain, column) for domain in DOMAINS]
        assert len(set(values)) == len(values)


@pytest.mark.parametrize("place", ["file", "folder", "folder below"])
@pytest.mark.parametrize("name", FILES)
def test_a_loose_file_is_what_it_is_wherever_it_lies(name: str, place: str, tmp_path: Path) -> None:
    path = file = write(tmp_path / "data" / "deep", name)
    if place != "file":
        path = file.parent if place == "folder" else file.parent.parent
    domain, outputs = find_outputs(path)
    assert (domain.kind, outputs.kind, outputs.files) == (kind_of(name), kind_of(name), (file,))
    verdict = validate_path(path)
    assert verdict.ok and verdict.path == str(path), verdict.faults
    assert verdict.kind == ("file" if place == "file" else "folder")
    assert COUNTS[kind_of(name)].items() <= verdict.counts.items()
    assert inspect_path(path, rows=1).kind == kind_of(name)
    if name == "tokenizer":
        with pytest.raises(ConfigError, match="no rows to query"):
            query_path(path, "SELECT 1")
    else:
        assert query_path(path, "SELECT 1").rows == ((1,),)


@pytest.mark.parametrize("name", FILES)
def test_only_packed_bins_are_converted(name: str, tmp_path: Path) -> None:
    path = write(tmp_path / "data", name)
    if kind_of(name) == "packed bins":
        assert convert_shards(path.parent, tmp_path / "out.parquet").total("bins") == 5
        return
    for source in (path, path.parent):
        with pytest.raises(
            ConfigError, match=f"these are {name}; only packed bins can be converted"
        ) as caught:
            convert_shards(source, tmp_path / "out.parquet")
        assert caught.value.code == "not_packed" and not (tmp_path / "out.parquet").exists()


@pytest.mark.parametrize("pair", list(itertools.combinations(FILES, 2)), ids=" and ".join)
def test_a_folder_of_two_kinds_is_one_clear_error(pair: tuple[str, str], tmp_path: Path) -> None:
    for name in pair:
        write(tmp_path / "data" / name, name)
    kinds = sorted({kind_of(name) for name in pair})
    data = tmp_path / "data"
    if len(kinds) == 1:
        assert validate_path(data).counts["files"] == 2
        return
    if "rejected rows" in kinds:
        # Every flow has them beside what it makes.
        verdict = validate_path(data)
        [other] = set(kinds) - {"rejected rows"}
        assert verdict.ok and (COUNTS["rejected rows"] | COUNTS[other]).items() <= verdict.counts.items()
        assert find_outputs(data)[1].rejects == (data / "rejected rows" / "r.parquet",)
        return
    for look in (
        validate_path,
        find_outputs,
        inspect_path,
        lambda path: convert_shards(path, tmp_path / "x.npy"),
    ):
        with pytest.raises(ConfigError) as caught:
            look(data)
        assert (caught.value.code, caught.value.where) == ("mixed_outputs", str(data))
        assert (
            caught.value.message
            == f"this folder holds {' and '.join(kinds)}; name the files or the folder of one kind"
        )


def test_the_command_line_says_valid_and_not_valid(cli: Cli, tmp_path: Path) -> None:
    path = documents(tmp_path / "d.parquet")
    outcome = cli("validate", path)
    assert (outcome.code, outcome.out) == (0, f"{path}: file, 1 shards, 3 rows\nvalid\n")
    rejects(path, row=pa.array(["0", "1", "2"]))
    outcome = cli("validate", path)
    assert outcome.code == 3 and "schema: 'row' is string, expected int64" in outcome.out
    tokenizer(tmp_path / "tokenizer.json")
    documents(path)
    outcome = cli("validate", tmp_path)
    assert outcome.code == 2 and outcome.message.startswith(f"[mixed_outputs] {tmp_path}: this folder holds ")


DICTIONARY = pa.DictionaryArray.from_arrays(pa.array([0, 0, None]), pa.array(["web"]))
BAD_DOCUMENTS: dict[str, tuple[dict[str, Any], list[tuple[str, str, int]]]] = {
    "no bucket": ({"source_bucket": None}, [("schema", "'source_bucket' is missing", 1)]),
    "numbers for text": ({"text": [1, 2, 3]}, [("schema", "'text' is int64, expected string", 1)]),
    "two null texts": ({"text": [None, "x", None]}, [("no_nulls", "'text' is null", 2)]),
    "a null in a dictionary": ({"source_dataset": DICTIONARY}, [("no_nulls", "'source_dataset' is null", 1)]),
    "bytes that are no UTF-8": (
        {"text": pa.Array.from_buffers(pa.string(), 3, pa.array([b"ok", b"\xff\xfe", b"\xc3"]).buffers())},
        [("utf8", "'text' is not valid UTF-8", 2)],
    ),
}


@pytest.mark.parametrize("case", BAD_DOCUMENTS)
def test_faults_of_a_sample_shard_are_named(case: str, tmp_path: Path) -> None:
    columns, expected = BAD_DOCUMENTS[case]
    path = documents(tmp_path / "d.parquet", ("a", "b", "c"), **columns)
    verdict = validate_path(path)
    assert [(fault.rule, fault.count) for fault in verdict.errors] == [(rule, n) for rule, _, n in expected]
    assert all(said in fault.detail for (_, said, _), fault in zip(expected, verdict.errors, strict=True))
    rows = {"two null texts": ":0", "a null in a dictionary": ":2", "bytes that are no UTF-8": ":1"}
    assert {fault.where for fault in verdict.errors} == {f"{path}{rows.get(case, '')}"}


def test_rows_are_numbered_over_the_whole_shard(tmp_path: Path) -> None:
    texts = ["x"] * 5000
    for row in (3000, 3001, 4999):
        texts[row] = None  # type: ignore[call-overload]
    path = documents(tmp_path / "d.parquet", texts)
    [fault] = validate_path(path).faults
    assert (fault.where, fault.count) == (f"{path}:3000", 3)


@pytest.mark.parametrize("kind", [pa.large_string(), pa.dictionary(pa.int32(), pa.string())], ids=str)
def test_text_of_other_tools_may_be_stored_otherwise(kind: pa.DataType, tmp_path: Path) -> None:
    path = documents(tmp_path / "d.parquet", pa.array(["a", "b", "c"]).cast(kind), extra=[None, 1, 2])
    assert validate_path(path).faults == ()


@pytest.mark.parametrize(
    ("columns", "rule", "said"),
    [
        ({"detail": None}, "schema", "'detail' is missing"),
        ({"row": pa.array([1.5, 2, 3])}, "schema", "'row' is double, expected int64"),
        ({"reason": pa.array([None, "a", "b"])}, "no_nulls", "'reason' is null"),
        ({"row": pa.array([1, None, 3])}, "no_nulls", "'row' is null"),
    ],
)
def test_faults_of_a_reject_file_are_named(
    columns: dict[str, Any], rule: str, said: str, tmp_path: Path
) -> None:
    path = rejects(tmp_path / "r.parquet", **columns)
    [fault] = validate_path(path).errors
    assert fault.rule == rule and said in fault.detail and fault.where.startswith(str(path))


@pytest.mark.parametrize(
    ("vocabulary", "said"),
    [
        ({"<unk>": 0, "a": 2}, "no token has the id 1; ids must run from 0 to 1"),
        ({"<unk>": 1, "a": 2}, "no token has the id 0"),
        ({"<unk>": 0, "a": 1, "b": 1}, "2 tokens share the id 1"),
        ({"<unk>": 0, "a": 2, "b": 2}, "no token has the id 1"),
    ],
)
def test_ids_of_a_tokenizer_run_from_0_without_a_gap(
    vocabulary: dict[str, int], said: str, tmp_path: Path
) -> None:
    path = tokenizer(tmp_path / "tokenizer.json", vocabulary)
    for place in (path, tmp_path):
        [fault] = validate_path(place).errors
        assert (fault.where, fault.rule) == (str(path), "vocabulary") and said in fault.detail


def test_real_tokenizers_are_valid(small_tokenizer: Path, deepseek: Path) -> None:
    for folder in (small_tokenizer, deepseek):
        verdict = validate_path(folder)
        assert verdict.ok and verdict.counts["tokens"] >= 2_000, verdict.faults


@pytest.mark.parametrize("content", ["{", "{}", '{"model": {}}', ""])
def test_a_tokenizer_that_does_not_load(content: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    [fault] = validate_path(tmp_path).errors
    assert fault.rule == "readable" and "not a readable tokenizer" in fault.detail
    with pytest.raises(InputError, match="not a readable tokenizer"):
        inspect_path(tmp_path)


def test_a_pipe_with_the_name_of_a_tokenizer_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "tokenizer.json")
    with pytest.raises(InputError, match=r"not a readable tokenizer: .* a pipe or a device"):
        load_tokenizer(tmp_path / "tokenizer.json")


def test_several_tokenizers_are_validated_and_not_inspected_together(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        tokenizer(tmp_path / name / "tokenizer.json")
    assert validate_path(tmp_path).counts == {"files": 2, "tokens": 6}
    with pytest.raises(ConfigError, match=r"found a/tokenizer.json, b/tokenizer.json; name one"):
        inspect_path(tmp_path)


# Files whose kind is not certain.


def junk(path: Path) -> Path:
    pq.write_table(pa.table({"temperature": [20.5]}), path)
    return path


def cut_short(path: Path) -> Path:
    documents(path)
    path.write_bytes(path.read_bytes()[:-40])
    return path


@pytest.mark.parametrize(
    ("make", "rule", "error"),
    [(junk, "schema", ConfigError), (cut_short, "readable", InputError)],
    ids=["unknown columns", "cut short"],
)
@pytest.mark.parametrize("beside", [None, "sampled documents", "packed Parquet", "rejected rows"])
def test_a_file_that_is_nothing_known_is_a_fault_of_its_folder(
    make: Callable[[Path], Path], rule: str, error: type[GristmillError], beside: str | None, tmp_path: Path
) -> None:
    bad = make(tmp_path / "x.parquet")
    path = bad if beside is None else tmp_path
    if beside is not None:
        write(tmp_path / "good", beside)
    verdict = validate_path(path)
    assert {fault.rule for fault in verdict.errors} == {rule}
    assert {fault.where for fault in verdict.errors} == {str(bad)}
    with pytest.raises(error):
        inspect_path(path)


def test_a_file_with_some_of_the_columns_is_judged_as_what_it_is_most_like(tmp_path: Path) -> None:
    path = documents(tmp_path / "d.parquet", source_dataset=None, source_bucket=None)
    details = [fault.detail for fault in validate_path(path).errors]
    assert details == [
        "the column 'source_dataset' is missing or repeated",
        "the column 'source_bucket' is missing or repeated",
    ]
    [fault] = validate_path(junk(tmp_path / "d.parquet")).errors
    assert (
        "columns temperature do not match anything that gristmill makes: packed bins have input_ids"
        in fault.detail
    )


@pytest.mark.parametrize("name", ["notes.txt", "data.bin"])
def test_a_file_of_no_kind_is_a_usage_error(cli: Cli, name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("notes")
    for command in ("validate", "inspect"):
        outcome = cli(command, tmp_path / name)
        assert outcome.code == 2 and "neither makes nor reads files like this" in outcome.message
    # Beside others it is nobody's business.
    documents(tmp_path / "d.parquet")
    assert validate_path(tmp_path).counts == {"shards": 1, "rows": 3}


def test_runs_below_a_folder_are_named_not_counted_several_times(tmp_path: Path) -> None:
    (tmp_path / "out" / "runs" / "0123456789abcdef").mkdir(parents=True)
    documents(tmp_path / "out" / "runs" / "0123456789abcdef" / "train-00000-of-00001.parquet")
    publish_by_hand(tmp_path / "out", "sample-corpus")
    for path in (tmp_path, tmp_path / "out" / "runs"):
        for look in (validate_path, inspect_path):
            with pytest.raises(ConfigError, match="is in this folder") as caught:
                look(path)
            assert caught.value.code == "run_below"
    assert inspect_path(tmp_path / "out").kind == "sampled documents"


def test_a_run_of_an_unknown_flow(tmp_path: Path) -> None:
    run = publish_by_hand(tmp_path / "out", "bake-bread")
    verdict = validate_path(tmp_path / "out")
    assert [(fault.rule, fault.where) for fault in verdict.errors] == [("flow", str(run / "manifest.json"))]
    with pytest.raises(ConfigError, match="unknown flow 'bake-bread'; known: build-probe-rows, pack-sft"):
        inspect_path(tmp_path / "out")
    shutil.rmtree(run)
    with pytest.raises(ConfigError, match="no published run in this output folder yet"):
        inspect_path(tmp_path / "out")
