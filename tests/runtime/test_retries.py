"""Storage that hiccups is tried again; nothing else is."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sample_work import Job, make

from schemas.errors import ConfigError, InputError, IntegrityError, StorageError
from tasks.runtime.retries import is_transient


def storage_error(number: int | None) -> StorageError:
    error = StorageError("cannot write", where="x")
    error.__cause__ = OSError(number, "x") if number is not None else None
    return error


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.ESTALE, errno.ETIMEDOUT])
def test_storage_that_may_recover(number: int) -> None:
    assert is_transient(storage_error(number))


@pytest.mark.parametrize(
    "error",
    [
        storage_error(errno.EACCES),
        storage_error(errno.EROFS),
        storage_error(None),
        OSError(errno.EIO, "x"),
        ConfigError("x"),
        InputError("x"),
        IntegrityError("x"),
        None,
    ],
)
def test_what_fails_the_same_way_every_time(error: object) -> None:
    assert not is_transient(error)


@pytest.mark.parametrize(
    ("make_error", "tries"),
    [(lambda: storage_error(errno.ENOSPC), 3), (lambda: InputError("bad"), 1)],
)
def test_a_task_run_is_tried_again(
    prefect_api: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make_error: Callable[[], Exception],
    tries: int,
) -> None:
    from prefect import flow, task

    from tasks.run.receipts import Verify
    from tasks.runtime import mapping

    monkeypatch.setitem(mapping.RETRIES, "retry_delay_seconds", [0.01] * 3)
    seen: list[int] = []

    @task(name="flaky")
    def flaky(job: Any) -> Any:
        seen.append(len(seen))
        if len(seen) < 3:
            raise make_error()
        return make(job)

    @flow(name="retrying", persist_result=False)
    def retrying() -> int:
        each = mapping.each_with_receipts(tmp_path, Verify.SIZE)
        return len(each(flaky, [Job(0, str(tmp_path), str(tmp_path / "trace"))]))

    if tries == 3:
        assert retrying() == 1
    else:
        with pytest.raises(InputError):
            retrying()
    assert len(seen) == tries
