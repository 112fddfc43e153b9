"""A run that drifts from the last published one is held back; what was published stays."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import Cli, write_config
from support import chat, published_digests, run_serially, write_jsonl

from flows.cli.registry import FLOWS
from schemas.errors import ConfigError, IntegrityError
from tasks.outputs.validate import validate_path


@dataclass(frozen=True)
class Case:
    """A flow, inputs that drift, and the alarm that must notice.

    Attributes:
        write: writes the inputs below a folder; the flag says whether they have drifted.
        raw: the configuration, given the folder and a tokenizer.
    """

    flow: str
    write: Callable[[Path, bool], object]
    raw: Callable[[Path, Path], dict[str, Any]]
    alarms: dict[str, float | None]
    field: str


def write_chats(folder: Path, drifted: bool) -> None:
    rows: list[Any] = [chat(f"ask {i}", f"answer {i}") for i in range(40)]
    write_jsonl(folder / "chats.jsonl", rows + [b"{"] * 20 * drifted)


def write_long_chats(folder: Path, drifted: bool) -> None:
    """Chats that fit a bin of 64 tokens three at a time; then ones that leave half of it empty."""
    # 17 tokens, then 37: well above the 32 of which two would fill a bin.
    answer = "word " * 12 if drifted else "a " * 4
    write_jsonl(folder / "chats.jsonl", [chat("ask", answer)] * 64)


def pack_config(folder: Path, tokenizer: Path) -> dict[str, Any]:
    return {
        "datasets": [{"name": "chats", "path": str(folder / "chats.jsonl")}],
        "tokenizer": {"path": str(tokenizer)},
        "pack": {"size": 64},
        "splits": {"train": 1, "valid": 0, "test": 0},
        "max_reject_fraction": 1,
    }


def write_texts(folder: Path, drifted: bool) -> None:
    texts: list[str | None] = [f"document {i} about {i * i}" for i in range(100)]
    if drifted:
        texts[::3] = [None] * len(texts[::3])
    (folder / "a").mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"text": pa.array(texts, pa.string())}), folder / "a" / "part.parquet")


def sample_config(folder: Path, tokenizer: Path) -> dict[str, Any]:
    buckets = {"a": {"count": 30}}
    return {
        "datasets": {"web": {"name": "web", "source": str(folder), "buckets": buckets}},
        "max_reject_fraction": 1,
    }


def write_fewer_texts(folder: Path, drifted: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    texts = [f"document {i} about {i * i}" for i in range(50 if drifted else 100)]
    pq.write_table(pa.table({"text": texts}), folder / "part.parquet")


def tokenizer_config(folder: Path, tokenizer: Path) -> dict[str, Any]:
    return {"sample": str(folder), "vocabulary_size": 300}


def write_measurements(folder: Path, drifted: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    start = datetime.datetime(2024, 5, 1)
    rows = [
        {
            "event_time": start + datetime.timedelta(seconds=i),
            "src_addr": f"192.0.2.{i % 30}",
            "dst_addr": "198.51.100.7",
            "ip_version": 4,
            "rtt": float("nan") if drifted and i % 4 == 0 else 12.5,
        }
        for i in range(300)
    ]
    pq.write_table(pa.Table.from_pylist(rows), folder / "part.parquet")


def probes_config(folder: Path, tokenizer: Path) -> dict[str, Any]:
    return {"input": str(folder), "max_reject_fraction": 1}


CASES = {
    "rejects of chats": Case(
        "pack-sft",
        write_chats,
        pack_config,
        {"max_reject_increase": 0.1, "max_row_change": None},
        "max_reject_increase",
    ),
    "fill of bins": Case(
        "pack-sft",
        write_long_chats,
        pack_config,
        {"max_fill_drop": 0.1, "max_row_change": None},
        "max_fill_drop",
    ),
    "rejected texts": Case("sample-corpus", write_texts, sample_config, {}, "max_reject_increase"),
    "a smaller sample": Case("train-tokenizer", write_fewer_texts, tokenizer_config, {}, "max_row_change"),
    "failed probes": Case("build-probe-rows", write_measurements, probes_config, {}, "max_reject_increase"),
}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.getLogger("gristmill").setLevel(logging.ERROR)
    yield
    logging.getLogger("gristmill").setLevel(logging.NOTSET)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_drifted_run_is_held_back_until_it_is_accepted(
    case: Case, small_tokenizer: Path, tmp_path: Path
) -> None:
    inputs, output = tmp_path / "in", tmp_path / "out"
    raw = {**case.raw(inputs, small_tokenizer), "output_dir": str(output), "alarms": case.alarms}
    case.write(inputs, False)
    # The first run has nothing to be compared with.
    first, _ = run_serially(case.flow, raw)
    before = published_digests(output / "latest")
    case.write(inputs, True)

    with pytest.raises(IntegrityError) as caught:
        run_serially(case.flow, raw)

    error = caught.value
    assert (error.code, error.exit_code, error.where) == ("drift", 3, f"alarms.{case.field}")
    assert first.run_hash in error.message
    assert (output / "latest").readlink() == Path(f"runs/{first.run_hash}")
    assert published_digests(output / "latest") == before
    assert [path.name for path in (output / "runs").iterdir() if path.is_dir()] == [first.run_hash]

    accepted, serial = run_serially(case.flow, {**raw, "alarms": None})
    assert serial.executed == []
    assert (output / "latest").readlink() == Path(f"runs/{accepted.run_hash}")
    assert validate_path(output).ok
    # From now on, it is what later runs are compared with.
    again, _ = run_serially(case.flow, raw)
    assert again.run_hash == accepted.run_hash != first.run_hash


def test_alarms_do_not_change_what_a_run_is(small_tokenizer: Path, tmp_path: Path) -> None:
    write_chats(tmp_path, False)
    raw = pack_config(tmp_path, small_tokenizer)

    without, _ = run_serially("pack-sft", {**raw, "output_dir": str(tmp_path / "a")})
    with_alarms, _ = run_serially("pack-sft", {**raw, "output_dir": str(tmp_path / "b"), "alarms": {}})

    assert without.run_hash == with_alarms.run_hash
    assert without.outputs == with_alarms.outputs


def test_going_back_to_a_run_that_was_published_is_no_drift(small_tokenizer: Path, tmp_path: Path) -> None:
    inputs, output = tmp_path / "in", tmp_path / "out"
    raw = {**pack_config(inputs, small_tokenizer), "output_dir": str(output), "alarms": {}}
    write_chats(inputs, False)
    good, _ = run_serially("pack-sft", raw)
    write_chats(inputs, True)
    run_serially("pack-sft", {**raw, "alarms": None})

    write_chats(inputs, False)
    again, _ = run_serially("pack-sft", raw)

    assert again.run_hash == good.run_hash
    assert (output / "latest").readlink() == Path(f"runs/{good.run_hash}")


def test_a_damaged_last_run_holds_a_run_back_only_if_there_are_alarms(
    small_tokenizer: Path, tmp_path: Path
) -> None:
    inputs, output = tmp_path / "in", tmp_path / "out"
    raw = {**pack_config(inputs, small_tokenizer), "output_dir": str(output)}
    write_chats(inputs, False)
    run_serially("pack-sft", raw)
    (output / "latest" / "manifest.json").write_text("{")
    write_chats(inputs, True)

    with pytest.raises(IntegrityError, match="cannot be read") as caught:
        run_serially("pack-sft", {**raw, "alarms": {}})
    assert caught.value.code == "drift"
    assert "--set alarms=null" in caught.value.message and "\n" not in caught.value.message

    manifest, _ = run_serially("pack-sft", raw)
    assert (output / "latest").readlink() == Path(f"runs/{manifest.run_hash}")


def test_the_command_line_says_why_and_force_does_not_help(
    cli: Cli, small_tokenizer: Path, tmp_path: Path
) -> None:
    inputs, output = tmp_path / "in", tmp_path / "out"
    alarms = {"max_reject_increase": 0.1, "max_row_change": None}
    raw = {**pack_config(inputs, small_tokenizer), "output_dir": str(output), "alarms": alarms}
    config = write_config(tmp_path / "config.yaml", raw)
    write_chats(inputs, False)
    assert cli("pack-sft", config).code == 0
    write_chats(inputs, True)

    for arguments in ((), ("--force",)):
        held = cli("pack-sft", config, *arguments)
        assert held.code == 3
        assert "[drift] alarms.max_reject_increase: rejected share went from 0.00% to 33.33%" in held.err
        assert "since the last published run" in held.err.splitlines()[-1]
    accepted = cli("pack-sft", config, "--set", "alarms=null")

    assert accepted.code == 0
    assert str(output / "runs") in accepted.out and "report.html" in accepted.out


@pytest.mark.parametrize("flow", FLOWS, ids=lambda flow: flow.name)
def test_a_flow_has_the_alarms_that_make_sense_for_it(flow: Any, tmp_path: Path) -> None:
    case = next(case for case in CASES.values() if case.flow == flow.name)
    raw = {**case.raw(tmp_path, tmp_path), "output_dir": str(tmp_path)}
    fields = {
        "pack-sft": {"max_row_change", "max_reject_increase", "max_fill_drop"},
        "sample-corpus": {"max_row_change", "max_reject_increase"},
        "build-probe-rows": {"max_row_change", "max_reject_increase"},
        "train-tokenizer": {"max_row_change", "max_reject_increase"},
    }[flow.name]

    assert flow.parse(raw).alarms is None
    assert set(flow.parse({**raw, "alarms": {}}).alarms.model_dump()) == fields
    with pytest.raises(ConfigError) as caught:
        flow.parse({**raw, "alarms": {"max_row_change": -1}})
    assert caught.value.where == "alarms.max_row_change"
    with pytest.raises(ConfigError) as caught:
        flow.parse({**raw, "alarms": {"max_row_chnage": 1}})
    assert caught.value.code == "unknown_key"
