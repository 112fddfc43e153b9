from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support import load_receipt, save_receipt

from schemas.errors import IntegrityError, StorageError
from schemas.run import FileRecord, Receipt, RowLedger
from tasks.run.receipts import (
    Verify,
    check_receipt,
    encode_receipt,
    format_record,
    parse_record,
    receipt_key,
    record_path,
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


def test_a_record_keeps_its_bytes() -> None:
    """What is on people's disks: other bytes are read by no version that is out."""
    receipt = receipt_of("stages/x/a.bin", part=7, statistics={"bins": 2})
    assert format_record(receipt) == (
        b'{"metadata":{"storage_key":"stages/0123456789abcdef/receipts/pack-000007.json","expiration":null,'
        b'"serializer":{"type":"gristmill-receipt"},"storage_block_id":null},"result":"'
        b'{\\"format\\":1,\\"task\\":\\"pack\\",\\"stage\\":\\"0123456789abcdef\\",\\"part\\":7,\\"files\\":['
        b'{\\"path\\":\\"stages/x/a.bin\\",\\"bytes\\":10,\\"sha256\\":'
        b'\\"84d89877f0d4041efb6bf91a16f0248f2fd573e6af05c19f96bedb9f882f7882\\"}],\\"ledger\\":null,'
        b'\\"statistics\\":{\\"bins\\":2}}"}'
    )


@pytest.mark.parametrize(
    ("part", "name"),
    [(0, "pack-000000.json"), (999_999, "pack-999999.json"), (10**6, "pack-1000000.json")],
)
def test_keys_of_parts(part: int, name: str) -> None:
    assert receipt_key("x", "pack", part) == f"stages/x/receipts/{name}"
    assert record_path(Path("/out"), receipt_key("x", "pack", part)) == Path(f"/out/stages/x/receipts/{name}")


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("stages/x/receipts/pack-12345.json", "stages/x/receipts/pack-12345.json"),
        ("stages/x/receipts/pack-000000.jsonx", "allowed: stages/{stage}/receipts/{task}-{part:06d}.json"),
        ("x/stages/x/receipts/pack-000000.json", "names of letters, digits"),
        ("stages/.x/receipts/pack-000000.json", "'stages/.x/receipts/pack-000000.json'"),
    ],
)
def test_what_is_wrong_with_a_key_is_told(tmp_path: Path, key: str, says: str) -> None:
    with pytest.raises(IntegrityError) as caught:
        check_receipt(tmp_path, key, Verify.OFF)
    assert caught.value.code == "bad_key"
    assert says in caught.value.message


def put(root: Path, key: str, data: bytes) -> Path:
    path = root / key
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("changed", [{"stage": "f" * 16}, {"task": "plan"}, {"part": 4}])
def test_a_receipt_of_other_work_is_refused(tmp_path: Path, changed: dict[str, Any]) -> None:
    fields: dict[str, Any] = {"stage": STAGE, "task": "pack", "part": 3}
    put(tmp_path, KEY, format_record(receipt_of(**changed)))
    with pytest.raises(IntegrityError) as caught:
        check_receipt(tmp_path, KEY, Verify.OFF)
    fields |= changed
    assert caught.value.code == "foreign_record"
    told = f"{fields['task']!r} part {fields['part']}, stage {fields['stage']!r}"
    assert told in caught.value.message


def test_a_receipt_that_is_used_keeps_its_stage_from_being_pruned(tmp_path: Path) -> None:
    put(tmp_path, KEY, format_record(receipt_of("a")))
    stage = tmp_path / "stages" / STAGE
    os.utime(stage, (1_000_000, 1_000_000))
    # One that does not hold keeps nothing.
    with pytest.raises(IntegrityError):
        check_receipt(tmp_path, KEY, Verify.SIZE)
    assert stage.stat().st_mtime == 1_000_000
    assert check_receipt(tmp_path, KEY, Verify.OFF) == receipt_of("a")
    assert abs(stage.stat().st_mtime - time.time()) < 60


def test_a_file_where_a_folder_should_be_holds_no_receipt(tmp_path: Path) -> None:
    (tmp_path / "stages").write_bytes(b"in the way")
    assert check_receipt(tmp_path, KEY, Verify.OFF) is None
    with pytest.raises(IntegrityError) as caught:
        verify_files(receipt_of("stages/x/a.bin"), tmp_path, Verify.SIZE)
    assert caught.value.code == "missing_output"
    assert "expected 10 bytes, found no file" in caught.value.message


def test_what_cannot_be_read_is_an_error_and_no_miss(tmp_path: Path) -> None:
    (tmp_path / KEY).mkdir(parents=True)
    with pytest.raises(StorageError) as caught:
        check_receipt(tmp_path, KEY, Verify.OFF)
    assert caught.value.where == str(tmp_path / KEY)
    assert caught.value.message.startswith("cannot read: ")
    loop = tmp_path / "loop"
    loop.symlink_to("loop")
    with pytest.raises(StorageError) as caught:
        verify_files(receipt_of("loop"), tmp_path, Verify.SIZE)
    assert caught.value.where == str(loop)
    assert caught.value.message.startswith("cannot read: ")


def test_every_file_of_a_receipt_is_looked_at(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(DATA)
    receipt = receipt_of("a", "b")
    with pytest.raises(IntegrityError) as caught:
        verify_files(receipt, tmp_path, Verify.SIZE)
    assert caught.value.where == str(tmp_path / "b")
    (tmp_path / "b").symlink_to("a")
    verify_files(receipt, tmp_path, Verify.SHA256)
    (tmp_path / "a").write_bytes(b"X" + DATA[1:])
    verify_files(receipt, tmp_path, Verify.SIZE)
    with pytest.raises(IntegrityError) as caught:
        verify_files(receipt, tmp_path, Verify.SHA256)
    found = hashlib.sha256(b"X" + DATA[1:]).hexdigest()
    expected = hashlib.sha256(DATA).hexdigest()
    assert f"expected sha256 {expected}, found {found}" in caught.value.message


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", ": Expecting value: line 1 column 1 (char 0)"),
        # The first of several faults.
        (b"{}", ": metadata: Field required"),
        (_edited(metadata={"more": 1}), ": metadata.more: Extra inputs are not permitted"),
        (_edited(result="[]"), ": Input should be an object"),
        (
            _edited(result=encode_receipt(FULL).decode().replace('"format":1', '"format":2')),
            "format 2, this version reads 1",
        ),
        (
            _edited(result=encode_receipt(FULL).decode().replace('"rows_in":3', '"rows_in":4')),
            ": 4 rows in, 3 accounted for",
        ),
        (
            format_record(FULL).replace(b'"result":', b'"result":"x","result":'),
            ": a key is repeated",
        ),
    ],
)
def test_a_foreign_record_says_what_is_wrong_with_it(data: bytes, says: str) -> None:
    with pytest.raises(IntegrityError) as caught:
        parse_record(data)
    assert says in caught.value.message
    assert "\n" not in caught.value.message


def test_statistics_that_json_would_change_name_the_job() -> None:
    with pytest.raises(IntegrityError, match="the receipt of 'pack' part 3 does not survive JSON"):
        encode_receipt(receipt_of(statistics={"value": (1, 2)}))


def test_what_prefect_may_add_to_a_record_is_accepted() -> None:
    """Its version and the block it was stored by; both say nothing about the receipt."""
    for added in (
        {"prefect_version": "3.8.8"},
        {"storage_block_id": "00000000-0000-0000-0000-000000000001"},
        {"storage_key": "elsewhere"},
        {"storage_key": None},
    ):
        assert parse_record(_edited(metadata=added)) == FULL
    record = json.loads(format_record(FULL))
    del record["metadata"]["storage_key"], record["metadata"]["expiration"]
    assert parse_record(json.dumps(record).encode()) == FULL
