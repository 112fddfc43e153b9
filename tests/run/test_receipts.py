from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from schemas.errors import IntegrityError
from schemas.run import FileRecord, Receipt, RowLedger
from tasks.run.receipts import (
    Verify,
    check_receipt,
    encode_receipt,
    format_record,
    load_receipt,
    parse_record,
    receipt_key,
    record_path,
    save_receipt,
    verify_files,
)

STAGE = "0123456789abcdef"
DATA = b"0123456789"
KEY = receipt_key(STAGE, "pack", 3)


def receipt_of(*paths: str, **changes: Any) -> Receipt:
    digest = hashlib.sha256(DATA).hexdigest()
    files = tuple(FileRecord(path=path, bytes=len(DATA), sha256=digest) for path in paths)
    fields: dict[str, Any] = {"task": "pack", "stage": STAGE, "part": 3, "files": files}
    return Receipt(**(fields | changes))


FULL = receipt_of(
    "stages/x/a.bin",
    ledger=RowLedger(rows_in=3, rows_used=2, rejected={"no_messages": 1}),
    statistics={"fill": 0.125, "lengths": [1, 2**40], "name": '日本 😀 "\\', "none": None},
)


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """An output directory with one file and its receipt."""
    (tmp_path / "stages/x").mkdir(parents=True)
    (tmp_path / "stages/x/a.bin").write_bytes(DATA)
    save_receipt(tmp_path, FULL)
    return tmp_path


def test_record_round_trip() -> None:
    assert parse_record(format_record(FULL)) == FULL


def test_prefect_reads_our_record_as_a_hit(output: Path) -> None:
    from prefect.filesystems import LocalFileSystem
    from prefect.results import ResultStore

    from tasks.runtime.serializer import ReceiptSerializer

    store = ResultStore(
        result_storage=LocalFileSystem(basepath=str(output)),
        serializer=ReceiptSerializer(),
        cache_result_in_memory=False,
    )
    assert store.exists(KEY)
    assert store.read(KEY).result == FULL


def test_we_read_what_prefect_writes(tmp_path: Path) -> None:
    from prefect.filesystems import LocalFileSystem
    from prefect.results import ResultStore

    from tasks.runtime.serializer import ReceiptSerializer

    store = ResultStore(
        result_storage=LocalFileSystem(basepath=str(tmp_path)), serializer=ReceiptSerializer()
    )
    store.write(FULL, key=KEY)
    assert parse_record((tmp_path / KEY).read_bytes()) == FULL
    assert load_receipt(tmp_path, KEY, Verify.OFF) == FULL


def _edited(**changes: Any) -> bytes:
    """Our record with top-level keys replaced; `metadata` is merged."""
    record = json.loads(format_record(FULL))
    record["metadata"] |= changes.pop("metadata", {})
    return json.dumps(record | changes).encode()


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(_edited(metadata={"serializer": {"type": "pickle"}}), id="pickle"),
        pytest.param(_edited(metadata={"serializer": {"type": "compressed"}}), id="other-serializer"),
        pytest.param(
            _edited(metadata={"serializer": {"type": "gristmill-receipt", "picklelib": "x"}}), id="options"
        ),
        pytest.param(_edited(metadata={"serializer": "gristmill-receipt"}), id="serializer-by-name"),
        # Prefect moves this one over metadata.serializer.
        pytest.param(_edited(serializer={"type": "pickle"}), id="old-format"),
        pytest.param(
            format_record(FULL).replace(b'"serializer":', b'"serializer":{"type":"pickle"},"serializer":'),
            id="repeated-key",
        ),
        pytest.param(_edited(metadata={"expiration": "2020-01-01T00:00:00Z"}), id="expiration"),
        pytest.param(_edited(metadata={"more": 1}), id="unknown-metadata"),
        pytest.param(_edited(result=None), id="no-result"),
        pytest.param(_edited(result={"format": 1}), id="result-not-text"),
        pytest.param(_edited(result=encode_receipt(FULL).decode() * 2), id="two-receipts"),
        pytest.param(_edited(result="[]"), id="no-receipt"),
        pytest.param(
            _edited(result=encode_receipt(FULL).decode().replace('"format":1', '"format":2')), id="format"
        ),
        pytest.param(
            _edited(result=encode_receipt(FULL).decode().replace('"rows_in":3', '"rows_in":4')), id="ledger"
        ),
        pytest.param(format_record(FULL).decode().encode("utf-16"), id="utf-16"),
        pytest.param(b"[" * 100_000, id="deep"),
        pytest.param(b"null", id="null"),
        pytest.param(b"", id="empty"),
    ],
)
def test_foreign_record_is_refused(output: Path, data: bytes) -> None:
    with pytest.raises(IntegrityError) as caught:
        parse_record(data)
    assert caught.value.code == "foreign_record"
    (output / KEY).write_bytes(data)
    assert load_receipt(output, KEY, Verify.OFF) is None


def test_record_torn_anywhere_is_refused() -> None:
    data = format_record(FULL)
    for cut in range(len(data)):
        with pytest.raises(IntegrityError):
            parse_record(data[:cut])


@pytest.mark.parametrize("value", [float("nan"), float("inf"), (1, 2), {1: 2}, {1}, object(), "\ud83d"])
def test_statistics_that_json_would_change_are_refused(value: Any) -> None:
    with pytest.raises(IntegrityError) as caught:
        encode_receipt(receipt_of(statistics={"value": value}))
    assert caught.value.code == "not_json"


def _delete(path: Path) -> None:
    path.unlink()


def _replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _truncate(path: Path) -> None:
    path.write_bytes(DATA[:-1])


def _flip(path: Path) -> None:
    path.write_bytes(DATA[:-1] + b"X")


@pytest.mark.parametrize(
    ("damage", "level", "code"),
    [
        (_delete, Verify.SIZE, "missing_output"),
        (_delete, Verify.SHA256, "missing_output"),
        (_delete, Verify.OFF, None),
        (_replace_by_folder, Verify.SIZE, "missing_output"),
        (_truncate, Verify.SIZE, "changed_output"),
        (_truncate, Verify.SHA256, "changed_output"),
        (_truncate, Verify.OFF, None),
        (_flip, Verify.SIZE, None),
        (_flip, Verify.SHA256, "changed_output"),
    ],
)
def test_verification(output: Path, damage: Any, level: Verify, code: str | None) -> None:
    path = output / "stages/x/a.bin"
    assert load_receipt(output, KEY, level) == FULL
    damage(path)
    if code is None:
        verify_files(FULL, output, level)
        assert load_receipt(output, KEY, level) == FULL
        return
    with pytest.raises(IntegrityError) as caught:
        verify_files(FULL, output, level)
    assert (caught.value.code, caught.value.where) == (code, str(path))
    assert load_receipt(output, KEY, level) is None


def test_verification_says_what_it_expected_and_found(output: Path) -> None:
    (output / "stages/x/a.bin").write_bytes(DATA * 1000)
    with pytest.raises(IntegrityError, match="expected 10 bytes, found 10,000"):
        verify_files(FULL, output, Verify.SIZE)


@pytest.mark.parametrize("path", ["../outside", "/etc/hostname", "stages/../../outside", "a\0b"])
@pytest.mark.parametrize("level", list(Verify))
def test_paths_stay_inside(tmp_path: Path, path: str, level: Verify) -> None:
    output = tmp_path / "output"
    output.mkdir()
    (tmp_path / "outside").write_bytes(DATA)
    with pytest.raises(IntegrityError) as caught:
        verify_files(receipt_of(path), output, level)
    assert caught.value.code == "foreign_record"


def test_absent_receipt(tmp_path: Path) -> None:
    assert check_receipt(tmp_path, KEY, Verify.SIZE) is None
    assert load_receipt(tmp_path / "missing", KEY, Verify.SIZE) is None


def test_receipt_under_another_name_does_not_count(output: Path) -> None:
    other = receipt_key(STAGE, "pack", 4)
    (output / KEY).rename(output / other)
    assert load_receipt(output, other, Verify.SIZE) is None


def test_moved_output_directory_keeps_its_receipts(output: Path, tmp_path: Path) -> None:
    moved = output.rename(tmp_path.with_name(tmp_path.name + "-moved"))
    assert load_receipt(moved, KEY, Verify.SHA256) == FULL


@pytest.mark.parametrize(
    "key",
    [
        receipt_key("../../x", "pack", 0),
        receipt_key("a/b", "pack", 0),
        receipt_key(STAGE, "..", -1),
        receipt_key(STAGE, "pa ck", 0),
        receipt_key(STAGE, "", 0),
        "/" + KEY,
        KEY + "\n",
    ],
)
def test_bad_key_is_refused(tmp_path: Path, key: str) -> None:
    with pytest.raises(IntegrityError) as caught:
        record_path(tmp_path, key)
    assert caught.value.code == "bad_key"


def test_large_part_numbers_have_a_key(tmp_path: Path) -> None:
    assert record_path(tmp_path, receipt_key(STAGE, "pack", 2**31)).name == "pack-2147483648.json"


def test_saving_leaves_one_file(output: Path) -> None:
    save_receipt(output, FULL)
    assert [path.name for path in (output / KEY).parent.iterdir()] == ["pack-000003.json"]


def test_import_is_cheap() -> None:
    code = "import sys, tasks.run.receipts; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"prefect", "numpy", "pyarrow", "duckdb"} & set(loaded)
