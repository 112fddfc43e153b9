from __future__ import annotations

import pickle

import pytest

from schemas.errors import ConfigError, GristmillError, InputError, IntegrityError, StorageError
from schemas.run import RowLedger


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
