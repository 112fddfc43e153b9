from __future__ import annotations

import pickle
from typing import Any

import pytest
from pydantic import ValidationError

from schemas.errors import ConfigError, GristmillError, InputError, IntegrityError, StorageError
from schemas.run import FileRecord, Receipt, RowLedger, RunManifest


def test_a_ledger_that_does_not_add_up_cannot_exist() -> None:
    with pytest.raises(IntegrityError) as caught:
        RowLedger(rows_in=3, rows_used=1, rejected={"bad": 1})
    assert caught.value.code == "ledger"
    assert "3 rows in, 2 accounted for" in caught.value.message


def test_ledgers_add_and_chain() -> None:
    first = RowLedger(rows_in=10, rows_used=7, filtered=1, rejected={"bad": 2})
    second = RowLedger(rows_in=5, rows_used=5)
    total = RowLedger.total([first, second])
    assert (total.rows_in, total.rows_used, total.rejected) == (15, 12, {"bad": 2})
    chained = total.then(RowLedger(rows_in=12, rows_used=9, duplicates=2, rejected={"bad": 1}))
    assert chained == RowLedger(rows_in=15, rows_used=9, filtered=1, duplicates=2, rejected={"bad": 3})


def test_a_stage_must_receive_what_the_one_before_handed_on() -> None:
    with pytest.raises(IntegrityError, match="received 6 rows"):
        RowLedger(rows_in=7, rows_used=7).then(RowLedger(rows_in=6, rows_used=6))


@pytest.mark.parametrize("kind", [ConfigError, InputError, StorageError, IntegrityError])
def test_errors_cross_process_boundaries_whole(kind: type[GristmillError]) -> None:
    error = kind("what failed", code="some_code", where="file:3")
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert (type(again), again.as_dict(), again.exit_code) == (kind, error.as_dict(), error.exit_code)
    assert str(error) == "[some_code] file:3: what failed"


TERMS = ("rows_used", "not_selected", "filtered", "duplicates")
DIGEST = "0123456789abcdef" * 4


@pytest.mark.parametrize("term", TERMS)
def test_every_term_accounts_for_a_row(term: str) -> None:
    assert RowLedger(rows_in=2, **{term: 2}).accounted == 2
    for wrong in (1, 3):
        with pytest.raises(IntegrityError, match=f"2 rows in, {wrong} accounted for"):
            RowLedger(rows_in=2, **{term: wrong})


def test_every_reason_accounts_for_its_rows() -> None:
    ledger = RowLedger(
        rows_in=10, rows_used=1, not_selected=2, filtered=1, duplicates=1, rejected={"a": 2, "b": 3}
    )
    assert (ledger.rows_rejected, ledger.accounted) == (5, 10)
    assert RowLedger() == RowLedger(
        rows_in=0, rows_used=0, not_selected=0, filtered=0, duplicates=0, rejected={}
    )
    assert (RowLedger().rows_rejected, RowLedger().accounted) == (0, 0)


def test_a_ledger_that_does_not_add_up_tells_all_its_terms() -> None:
    with pytest.raises(IntegrityError) as caught:
        RowLedger(rows_in=9, rows_used=1, not_selected=2, filtered=3, duplicates=4, rejected={"a": 5})
    assert caught.value.message == (
        "the row ledger does not add up: 9 rows in, 15 accounted for (used 1, not selected 2, filtered 3, "
        "duplicates 4, rejected {'a': 5})"
    )


@pytest.mark.parametrize("term", ["rows_in", *TERMS])
def test_rows_are_not_negative(term: str) -> None:
    with pytest.raises(ValidationError) as caught:
        RowLedger(**{term: -1})
    assert [fault["loc"] for fault in caught.value.errors()] == [(term,)]


def test_the_total_adds_every_term_and_sorts_the_reasons() -> None:
    ledgers = [
        RowLedger(rows_in=15, rows_used=5, not_selected=4, filtered=3, duplicates=2, rejected={"z": 1}),
        RowLedger(
            rows_in=115, rows_used=50, not_selected=40, filtered=10, duplicates=2, rejected={"z": 6, "a": 7}
        ),
        RowLedger(rows_in=3, rejected={"a": 3}),
    ]
    total = RowLedger.total(iter(ledgers))
    assert total == RowLedger(
        rows_in=133, rows_used=55, not_selected=44, filtered=13, duplicates=4, rejected={"a": 10, "z": 7}
    )
    assert list(total.rejected) == ["a", "z"]
    assert RowLedger.total([]) == RowLedger()


def test_a_chain_keeps_what_each_stage_left_out() -> None:
    first = RowLedger(
        rows_in=100, rows_used=40, not_selected=30, filtered=20, duplicates=6, rejected={"z": 3, "m": 1}
    )
    later = RowLedger(
        rows_in=40, rows_used=10, not_selected=9, filtered=8, duplicates=7, rejected={"m": 4, "a": 2}
    )
    chained = first.then(later)
    assert chained == RowLedger(
        rows_in=100,
        rows_used=10,
        not_selected=39,
        filtered=28,
        duplicates=13,
        rejected={"a": 2, "m": 5, "z": 3},
    )
    assert list(chained.rejected) == ["a", "m", "z"]
    assert first.rejected == {"z": 3, "m": 1}
    assert RowLedger().then(RowLedger()) == RowLedger()


@pytest.mark.parametrize("rows_in", [6, 8])
def test_a_chain_that_loses_or_gains_rows_is_refused(rows_in: int) -> None:
    with pytest.raises(IntegrityError) as caught:
        RowLedger(rows_in=7, rows_used=7).then(RowLedger(rows_in=rows_in, rows_used=rows_in))
    assert caught.value.code == "ledger"
    assert caught.value.message == f"a stage received {rows_in} rows, but the stage before it passed on 7"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"bytes": -1}, "bytes"),
        ({"sha256": DIGEST[:-1]}, "sha256"),
        ({"sha256": DIGEST + "0"}, "sha256"),
        ({"sha256": DIGEST.upper()}, "sha256"),
        ({"sha256": DIGEST[:-1] + "g"}, "sha256"),
        ({"mtime": 1}, "mtime"),
    ],
)
def test_a_file_record_is_a_size_and_a_digest(change: dict[str, Any], field: str) -> None:
    good: dict[str, Any] = {"path": "a", "bytes": 0, "sha256": DIGEST}
    assert FileRecord(**good).bytes == 0
    with pytest.raises(ValidationError) as caught:
        FileRecord(**(good | change))
    assert [fault["loc"] for fault in caught.value.errors()] == [(field,)]


def test_a_receipt_needs_little_and_is_frozen() -> None:
    """Records of format 1 are on people's disks: another number needs code that reads them."""
    receipt = Receipt(task="pack", stage="x", part=0)
    assert receipt.model_dump() == {
        "format": 1,
        "task": "pack",
        "stage": "x",
        "part": 0,
        "files": (),
        "ledger": None,
        "statistics": {},
    }
    for change in ({"part": -1}, {"parts": 1}):
        with pytest.raises(ValidationError):
            Receipt(**{"task": "pack", "stage": "x", "part": 0, **change})
    with pytest.raises(ValidationError, match="frozen"):
        receipt.part = 1


def test_a_manifest_says_its_format() -> None:
    manifest = RunManifest(
        flow="f",
        run_hash="h",
        outputs=(),
        ledger=RowLedger(),
        statistics={},
        stages={},
        versions={},
        environment={},
    )
    assert (manifest.format, manifest.notes, manifest.manifest_sha256) == (2, (), "")
