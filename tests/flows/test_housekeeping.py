"""runs and prune: what goes is what nothing needs, and published data stays as it was."""

from __future__ import annotations

import json
import os
import resource
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import Cli
from support import chat, config_of, mill_serially, published_digests, run_serially, write_jsonl

from tasks.outputs.validate import validate_path
from tasks.run.prune import find_unneeded, list_runs, remove

DAY_S = 86_400


def pack(folder: Path, tokenizer: Path, size: int) -> str:
    source = folder / "chats.jsonl"
    if not source.exists():
        write_jsonl(source, [chat(f"Question {n}?", f"Answer {n}.") for n in range(30)])
    manifest, _ = mill_serially(config_of(folder / "out", source, tokenizer, pack={"size": size}))
    return manifest.run_hash


def age(folder: Path, days: float) -> None:
    """Make everything in a folder so many days older than now."""
    then = time.time() - days * DAY_S
    for path in [folder, *folder.rglob("*")]:
        if not path.is_symlink():
            os.utime(path, (then, then))


def disk(folder: Path) -> int:
    inodes = {
        (s.st_dev, s.st_ino): s.st_size
        for p in folder.rglob("*")
        if p.is_file() and not p.is_symlink()
        for s in [p.lstat()]
    }
    return sum(inodes.values())


def stages(out: Path) -> set[str]:
    return {path.name for path in (out / "stages").iterdir() if path.is_dir()}


def test_old_runs_and_their_own_stages_go(cli: Cli, tmp_path: Path, small_tokenizer: Path) -> None:
    out = tmp_path / "out"
    old = pack(tmp_path, small_tokenizer, 128)
    shared = stages(out)
    age(out, 10)
    new = pack(tmp_path, small_tokenizer, 256)
    age(out, 9)
    # Of two runs of one age, the order of their hashes would decide which is the newer.
    age(out / "runs" / old, 10)
    digests, before = published_digests(out / "runs" / new), disk(out)

    told = cli("prune", out, "--dry-run", "--json")
    assert disk(out) == before and (out / "runs" / old).is_dir()
    outcome = cli("prune", out, "--json")
    assert outcome.code == 0, outcome.err
    found = json.loads(outcome.out)
    assert found == {**json.loads(told.out), "dry_run": False}
    assert found["runs"] == [old] and set(found["stages"]) < shared
    assert disk(out) == before - found["freed_bytes"]
    assert published_digests(out / "runs" / new) == digests and validate_path(out).ok
    assert json.loads(cli("prune", out, "--json").out)["stages"] == []

    # The spool that both runs share is still there; only the old shards are made again.
    _, serial = mill_serially(config_of(out, tmp_path / "chats.jsonl", small_tokenizer, pack={"size": 128}))
    assert {task for task, _ in serial.executed} == {"pack", "validate"}


def test_what_is_kept(tmp_path: Path, small_tokenizer: Path) -> None:
    out = tmp_path / "out"
    hashes = []
    for number, size in enumerate((64, 128, 256)):
        hashes.append(pack(tmp_path, small_tokenizer, size))
        manifest = out / "runs" / hashes[-1] / "manifest.json"
        then = time.time() - (10 - number) * DAY_S
        os.utime(manifest, (then, then))
    (out / "latest").unlink()
    (out / "latest").symlink_to(f"runs/{hashes[0]}")
    assert [run.manifest.run_hash for run in list_runs(out)] == hashes[::-1]
    assert [run.latest for run in list_runs(out)] == [False, False, True]

    def goes(keep: int, days: float) -> list[str]:
        found = find_unneeded(out, keep, days * DAY_S, time.time())
        return sorted(folder.name for folder in found.runs)

    assert goes(0, 0) == sorted(hashes[1:])
    assert goes(1, 0) == [hashes[1]]
    assert goes(2, 0) == []
    assert goes(0, 8.5) == [hashes[1]]
    assert goes(0, 9.5) == []
    # Stages were made just now, whatever their runs' age.
    assert find_unneeded(out, 0, 3600, time.time()).stages == ()


@pytest.mark.parametrize("how", ["cut short", "huge"])
def test_a_run_whose_manifest_is_damaged_is_listed(
    tmp_path: Path, small_tokenizer: Path, how: str, cli: Cli
) -> None:
    out = tmp_path / "out"
    run_hash = pack(tmp_path, small_tokenizer, 128)
    with (out / "runs" / run_hash / "manifest.json").open("r+b") as file:
        file.truncate(50 if how == "cut short" else 1 << 30)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    listed = cli("runs", out)
    assert listed.code == 0 and f"damaged run {run_hash}: the manifest " in listed.out
    assert ("is larger than 128 MiB" in listed.out) == (how == "huge")
    assert json.loads(cli("runs", out, "--json").out) == {"runs": [], "damaged": [run_hash]}
    verdict = cli("validate", out)
    assert verdict.code == 3 and "bad_manifest" in verdict.out
    # In kB: of a file of 1 GiB.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 640 << 10


def test_a_stage_that_a_run_uses_again_is_young(tmp_path: Path, small_tokenizer: Path) -> None:
    out = tmp_path / "out"
    run_hash = pack(tmp_path, small_tokenizer, 128)
    (out / "runs" / run_hash / "manifest.json").unlink()
    (out / "latest").unlink()
    age(out, 10)
    assert set(stages(out)) == {path.name for path in find_unneeded(out, 1, DAY_S, time.time()).stages}
    pack(tmp_path, small_tokenizer, 128)
    (out / "runs" / run_hash / "manifest.json").unlink()
    assert find_unneeded(out, 1, DAY_S, time.time()).stages == ()


def test_a_run_that_never_became_complete_goes_when_it_is_old(tmp_path: Path, small_tokenizer: Path) -> None:
    out = tmp_path / "out"
    run_hash = pack(tmp_path, small_tokenizer, 128)
    torn = out / "runs" / "0123456789abcdef"
    torn.mkdir()
    (torn / "config.json").write_text("{}")
    assert find_unneeded(out, 1, DAY_S, time.time()).runs == ()
    age(torn, 2)
    unneeded = find_unneeded(out, 1, DAY_S, time.time())
    assert unneeded.runs == (torn,)
    remove(out, unneeded)
    assert not torn.exists() and (out / "runs" / run_hash).is_dir()


def test_spilled_files_go_with_their_stage_and_nothing_else_does(tmp_path: Path) -> None:
    rows = np.arange(60)
    table: dict[str, Any] = {
        "event_time": pa.array(rows * 10**9).cast(pa.timestamp("us")),
        "src_addr": [f"10.0.0.{n % 6}" for n in rows],
        "dst_addr": ["192.0.2.1"] * 60,
        "ip_version": pa.array([4] * 60, pa.int8()),
        "rtt": pa.array(rows + 1.0, pa.float32()),
    }
    pq.write_table(pa.table(table), tmp_path / "m.parquet")
    out, spill = tmp_path / "out", tmp_path / "spill"
    raw = {"input": str(tmp_path / "m.parquet"), "output_dir": str(out), "spill_dir": str(spill)}
    manifest, _ = run_serially("build-probe-rows", raw)
    spilled = [path for path in spill.rglob("*") if path.is_file()]
    assert spilled
    other = tmp_path / "mine.txt"
    other.write_text("mine")
    [stage] = {path.parent.name for path in spilled}
    (out / "stages" / stage / "link").symlink_to(other)
    # As earlier versions recorded spilled files; and what names files that are not the stage's.
    linked = spill / "stages" / stage / "run-000009.spill"
    linked.write_text("")
    (out / "stages" / stage / linked.name).symlink_to(linked)
    for name, content in (
        ("mine.txt.elsewhere", json.dumps({"path": str(other), "bytes": 4, "sha256": "0" * 64})),
        ("torn.elsewhere", "{"),
    ):
        (out / "stages" / stage / name).write_text(content)
    assert set(find_unneeded(out, 1, 0, time.time() + 1).spills) == set()
    (out / "latest").unlink()
    (out / "runs" / manifest.run_hash / "manifest.json").unlink()
    unneeded = find_unneeded(out, 0, 0, time.time() + 1)
    assert unneeded.spills == (*spilled, linked)
    assert unneeded.freed_bytes >= sum(path.stat().st_size for path in spilled)
    remove(out, unneeded)
    assert not any(path.exists() for path in (*spilled, linked))
    assert other.read_text() == "mine" and stages(out) == set()


def test_a_damaged_run_is_kept_and_named(cli: Cli, tmp_path: Path, small_tokenizer: Path) -> None:
    out = tmp_path / "out"
    run_hash = pack(tmp_path, small_tokenizer, 128)
    (out / "runs" / run_hash / "manifest.json").write_text("{")
    age(out, 10)
    before = stages(out)
    for options in ((), ("--dry-run",)):
        outcome = cli("prune", out, "--keep", "0", *options)
        assert outcome.code == 0, outcome.err
        assert f"kept run {run_hash}, which is damaged, and all stages: repair it by running" in outcome.out
    found = json.loads(cli("prune", out, "--json").out)
    assert (found["damaged"], found["runs"], found["stages"]) == ([run_hash], [], [])
    assert stages(out) == before
    assert pack(tmp_path, small_tokenizer, 128) == run_hash
    assert json.loads(cli("prune", out, "--json").out)["damaged"] == [] and validate_path(out).ok


def test_runs_are_listed(cli: Cli, tmp_path: Path, small_tokenizer: Path) -> None:
    run_hash = pack(tmp_path, small_tokenizer, 128)
    [run] = json.loads(cli("runs", tmp_path / "out", "--json").out)["runs"]
    assert (run["run_hash"], run["latest"], run["rows_in"], run["rows_used"]) == (run_hash, True, 30, 30)
    shown = cli("runs", tmp_path / "out").out
    assert run_hash in shown and "(latest)" in shown


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        (("runs", "{tmp}"), "{tmp}"),
        (("prune", "{tmp}"), "{tmp}"),
        (("prune", "{out}", "--keep", "-1"), "--keep"),
        (("prune", "{out}", "--min-age", "week"), "--min-age"),
    ],
)
def test_what_cannot_be_done(
    cli: Cli, tmp_path: Path, small_tokenizer: Path, arguments: tuple[str, ...], where: str
) -> None:
    pack(tmp_path, small_tokenizer, 128)
    names = {"tmp": str(tmp_path), "out": str(tmp_path / "out")}
    outcome = cli(*(argument.format(**names) for argument in arguments))
    assert outcome.code == 2 and where.format(**names) in outcome.message


def test_a_run_that_became_the_latest_since_stays(tmp_path: Path, small_tokenizer: Path) -> None:
    out = tmp_path / "out"
    old = pack(tmp_path, small_tokenizer, 128)
    pack(tmp_path, small_tokenizer, 256)
    found = find_unneeded(out, keep=1, min_age_s=0, now_s=time.time() + 1)
    assert [folder.name for folder in found.runs] == [old]
    digests = published_digests(out / "runs" / old)
    # A driver whose run this is, and who finds it complete.
    pack(tmp_path, small_tokenizer, 128)
    remove(out, found)
    assert (out / "latest").resolve().name == old
    assert published_digests(out / "latest") == digests
    assert validate_path(out).ok


def test_what_a_killed_writer_left_in_a_stage_that_is_kept_goes_when_it_is_old(
    tmp_path: Path, small_tokenizer: Path
) -> None:
    out = tmp_path / "out"
    pack(tmp_path, small_tokenizer, 128)
    [stage, *_] = sorted(stages(out))
    left = [
        out / "stages" / stage / ".tmp-part-000000.parquet.host.1-1",
        (out / "latest").resolve() / ".tmp-manifest.json.host.1-1",
    ]
    for path in left:
        path.write_text("half")
    found = find_unneeded(out, keep=1, min_age_s=DAY_S, now_s=time.time())
    assert not found.leftovers
    found = find_unneeded(out, keep=1, min_age_s=DAY_S, now_s=time.time() + 2 * DAY_S)
    assert set(found.leftovers) == set(left) and not found.runs and not found.stages
    remove(out, found)
    assert not any(path.exists() for path in left)
    assert validate_path(out).ok
