"""Drift: which changes count, by how much, and in which direction."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from schemas.alarms import PackAlarms, RejectAlarms, RowAlarms
from schemas.errors import IntegrityError
from schemas.run import RowLedger, RunManifest
from tasks.run.drift import Drift, Measure, check_drift, compare, fill_share, last_published
from tasks.run.layout import MANIFEST, run_folder
from tasks.run.manifest import format_manifest, sealed
from tasks.storage.atomic import swap_symlink, write_file


def statistics(fill: float | None) -> dict[str, Any]:
    if fill is None:
        return {}
    return {"splits": {"train": {"a": {"bins": 10, "packing_efficiency": 100 * fill}}}}


def ledger(rows: int, rejected: int = 0, not_selected: int = 0) -> RowLedger:
    used = rows - rejected - not_selected
    reasons = {"bad": rejected} if rejected else {}
    return RowLedger(rows_in=rows, rows_used=used, not_selected=not_selected, rejected=reasons)


def manifest(rows: RowLedger, fill: float | None = None, run_hash: str = "0" * 16) -> RunManifest:
    return RunManifest(
        flow="pack-sft",
        run_hash=run_hash,
        outputs=(),
        ledger=rows,
        statistics=statistics(fill),
        stages={},
        versions={},
        environment={},
    )


BOUNDS = PackAlarms(max_row_change=0.5, max_reject_increase=0.02, max_fill_drop=0.02)


@pytest.mark.parametrize(
    ("before", "now", "fills", "exceeded"),
    [
        (ledger(100), ledger(100), (0.98, 0.98), []),
        # Rows: relative, up and down; exactly at the bound is within it.
        (ledger(100), ledger(150), (0.98, 0.98), []),
        (ledger(100), ledger(151), (0.98, 0.98), ["rows in", "rows used"]),
        (ledger(100), ledger(49), (0.98, 0.98), ["rows in", "rows used"]),
        # As many rows used, of far more read.
        (ledger(100), ledger(200, not_selected=100), (0.98, 0.98), ["rows in"]),
        # Rejects: points, only upwards. 0.12 - 0.1 is a little more than 0.02 in binary.
        (ledger(100, 10), ledger(100, 12), (0.98, 0.98), []),
        (ledger(100, 10), ledger(100, 13), (0.98, 0.98), ["rejected share"]),
        (ledger(100, 40), ledger(100), (0.98, 0.98), ["rows used"]),
        # Fill: points, only downwards.
        (ledger(100), ledger(100), (0.98, 0.961), []),
        (ledger(100), ledger(100), (0.98, 0.95), ["fill of the bins"]),
        (ledger(100), ledger(100), (0.5, 0.98), []),
        (ledger(100), ledger(100), (None, None), []),
        # A fill that only one of them has is not compared.
        (ledger(100), ledger(100), (0.98, None), []),
        (ledger(100), ledger(100), (None, 0.5), []),
        # Nothing before: no change to speak of.
        (ledger(0), ledger(100), (None, None), []),
    ],
)
def test_what_is_out_of_bounds(
    before: RowLedger, now: RowLedger, fills: tuple[float | None, float | None], exceeded: list[str]
) -> None:
    drift = compare(manifest(before, fills[0]), now, statistics(fills[1]), BOUNDS)

    assert [measure.name for measure in drift.measures if measure.exceeded] == exceeded
    if not exceeded:
        check_drift(drift)
        return
    with pytest.raises(IntegrityError) as caught:
        check_drift(drift)
    error = caught.value
    assert (error.code, error.exit_code) == ("drift", 3)
    assert all(name in error.message for name in exceeded)
    assert "\n" not in str(error) and "--set alarms=null" in error.message


@pytest.mark.parametrize(
    ("change", "bound", "exceeded"),
    [
        (0.25, 0.25, False),
        # A millionth is what binary fractions may cost, and no more.
        (0.2500005, 0.25, False),
        (0.2500009, 0.25, False),
        (0.2500011, 0.25, True),
        (0.250002, 0.25, True),
        (0.0, 0.0, False),
        (0.0000011, 0.0, True),
        (-1.0, 0.0, False),
        (9.0, None, False),
        (None, 0.0, False),
        (None, None, False),
    ],
)
def test_a_bound_holds_to_a_millionth(change: float | None, bound: float | None, exceeded: bool) -> None:
    assert Measure("rows in", 1, 2, False, change, bound, "max_row_change").exceeded is exceeded


def test_every_measure_of_both_runs() -> None:
    drift = compare(manifest(ledger(200, 50), 0.75), ledger(100, 10), statistics(0.5), BOUNDS)

    assert drift == Drift(
        "0" * 16,
        (
            Measure("rows in", 200, 100, False, 0.5, 0.5, "max_row_change"),
            Measure("rows used", 150, 90, False, 0.4, 0.5, "max_row_change"),
            Measure("rejected share", 0.25, 0.1, True, -0.15, 0.02, "max_reject_increase"),
            Measure("fill of the bins", 0.75, 0.5, True, 0.25, 0.02, "max_fill_drop"),
        ),
    )
    no_rows = compare(manifest(ledger(0)), ledger(0), {}, None)
    assert no_rows.measures == (
        Measure("rows in", 0, 0, False, None, None, "max_row_change"),
        Measure("rows used", 0, 0, False, None, None, "max_row_change"),
        Measure("rejected share", 0, 0, True, 0, None, "max_reject_increase"),
    )


def test_a_first_run_has_nothing_to_drift_from() -> None:
    check_drift(None)


def test_the_message_says_what_changed_by_how_much_and_what_is_allowed() -> None:
    drift = compare(manifest(ledger(1000, 10), run_hash="ab" * 8), ledger(2500, 200), {}, BOUNDS)

    with pytest.raises(IntegrityError) as caught:
        check_drift(drift)

    assert caught.value.where == "alarms.max_row_change"
    assert caught.value.message.startswith(
        "rows in went from 1,000 to 2,500 (150.0%, max_row_change allows 50.0%); "
        "rows used went from 990 to 2,300 (132.3%, max_row_change allows 50.0%); "
        "rejected share went from 1.00% to 8.00% (7.00 points, max_reject_increase allows 2), "
        "since the last published run abababababababab; nothing was published"
    )


@pytest.mark.parametrize(
    ("alarms", "exceeded"),
    [
        (None, []),
        (RowAlarms(max_row_change=None), []),
        (RowAlarms(), ["rows in"]),
        (RejectAlarms(max_row_change=None), ["rejected share"]),
        (PackAlarms(max_row_change=None, max_reject_increase=None), ["fill of the bins"]),
    ],
)
def test_only_bounds_that_are_set_count(alarms: RowAlarms | None, exceeded: list[str]) -> None:
    drift = compare(manifest(ledger(100), 0.9), ledger(1000, 900), statistics(0.1), alarms)

    assert [measure.name for measure in drift.measures if measure.exceeded] == exceeded


def test_fill_is_weighted_by_bins() -> None:
    splits = {
        "train": {
            "a": {"bins": 98, "packing_efficiency": 99.0},
            "b": {"bins": 1, "packing_efficiency": 99.0},
        },
        "valid": {"a": {"bins": 1, "packing_efficiency": 9.0}},
    }

    assert fill_share({"splits": splits}) == pytest.approx(0.981)
    assert fill_share({"splits": {}}) is None


def publish(root: Path, run: RunManifest, content: bytes | None = None) -> None:
    folder = run_folder(root, run.run_hash)
    write_file(folder / MANIFEST, content if content is not None else format_manifest(sealed(run)))
    swap_symlink(root / "latest", f"runs/{run.run_hash}")


def test_the_last_published_run_is_what_latest_names(tmp_path: Path) -> None:
    old, new = manifest(ledger(1), run_hash="a" * 16), manifest(ledger(2), run_hash="b" * 16)
    assert last_published(tmp_path, old.run_hash) is None
    publish(tmp_path, old)

    assert last_published(tmp_path, new.run_hash) == sealed(old)
    # A run that was published before is not held up, whatever `latest` says now.
    publish(tmp_path, new)
    assert last_published(tmp_path, old.run_hash) is None


def test_a_damaged_last_run_is_an_error(tmp_path: Path) -> None:
    publish(tmp_path, manifest(ledger(1), run_hash="a" * 16), b"{")
    with pytest.raises(IntegrityError):
        last_published(tmp_path, "b" * 16)

    swap_symlink(tmp_path / "latest", "runs/gone")
    with pytest.raises(IntegrityError):
        last_published(tmp_path, "b" * 16)
