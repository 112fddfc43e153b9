"""Read and write receipts on disk, in the form Prefect persists results, without Prefect.

A record is one JSON object, the form Prefect 3.8 writes when no separate metadata storage is set::

    {"metadata": {"storage_key": "...", "expiration": null, "serializer": {"type": "gristmill-receipt"},
                  "prefect_version": "3.8.8", "storage_block_id": null},
     "result": "{\"format\":1,\"task\":\"pack\", ...}"}

Prefect obeys the serializer a record names, and "pickle" runs code, so only exactly this form with
our serializer is a receipt here: unknown keys are refused (Prefect moves a top-level `serializer`, its old
format, over the one in `metadata`), and so are repeated ones (two parsers may pick different values).
`storage_key` is the path at the time of writing. It is never read, so a moved output directory keeps its hits.
"""

from __future__ import annotations

import contextlib
import json
import re
import stat
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Any, Literal
from uuid import UUID

from pydantic import ValidationError

from schemas.errors import IntegrityError
from schemas.run import RECEIPT_FORMAT, FileRecord, Receipt, Record
from tasks.run import elsewhere
from tasks.storage.atomic import storage_errors
from tasks.storage.links import refuse_links
from tasks.storage.names import touch_folder
from tasks.storage.reading import read_bytes, sha256_of_file, status

SERIALIZER_TYPE = "gristmill-receipt"

_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
_KEY = re.compile(rf"stages/{_NAME}/receipts/{_NAME}-[0-9]{{6,}}\.json")


class Verify(StrEnum):
    """How closely the files of a receipt are checked before it is accepted."""

    SIZE = "size"
    SHA256 = "sha256"
    OFF = "off"


class _SerializerForm(Record):
    type: Literal["gristmill-receipt"]


class _MetadataForm(Record):
    storage_key: str | None = None
    # Our results never expire. Prefect treats an expired record as a miss, so it must not be a hit here.
    expiration: None = None
    serializer: _SerializerForm
    prefect_version: str = ""
    storage_block_id: UUID | None = None


class _RecordForm(Record):
    metadata: _MetadataForm
    result: str


def receipt_key(stage: str, task: str, part: int) -> str:
    """Return the path of a receipt relative to the output directory; also Prefect's cache key.

    >>> receipt_key("0123456789abcdef", "pack", 7)
    'stages/0123456789abcdef/receipts/pack-000007.json'
    """
    return f"stages/{stage}/receipts/{task}-{part:06d}.json"


def record_path(output_dir: Path, key: str) -> Path:
    """Return the file of a receipt key.

    Raises:
        IntegrityError: code `bad_key`; the key does not have the form of `receipt_key`.
    """
    if not _KEY.fullmatch(key):
        raise IntegrityError(
            f"{key!r} is not a valid receipt key; allowed: stages/{{stage}}/receipts/{{task}}-{{part:06d}}.json with "
            "names of letters, digits, '_', '.' and '-'",
            code="bad_key",
        )
    return output_dir / key


def encode_receipt(receipt: Receipt) -> bytes:
    """Encode a receipt as JSON that reads back as an equal receipt.

    Raises:
        IntegrityError: code `not_json`; the statistics hold something JSON would change (a tuple, NaN, a
            numpy number, a key that is not a string), so a cached run would see other values than the first.
    """
    try:
        data = receipt.model_dump_json().encode()
        same = decode_receipt(data) == receipt
    except (ValueError, IntegrityError):
        same = False
    if not same:
        raise IntegrityError(
            f"the receipt of {receipt.task!r} part {receipt.part} does not survive JSON; its statistics may "
            "hold only str, int, finite float, bool, None, list and dict with str keys",
            code="not_json",
        )
    return data


def decode_receipt(data: bytes | str) -> Receipt:
    """Decode the output of `encode_receipt`.

    Raises:
        IntegrityError: code `foreign_record`; this is not exactly one receipt of the current format.
    """
    try:
        receipt = Receipt.model_validate_json(data)
    except (ValidationError, IntegrityError) as error:
        raise _foreign(f"its result is not a receipt ({_first_line(error)})") from None
    if receipt.format != RECEIPT_FORMAT:
        raise _foreign(f"its receipt has format {receipt.format}, this version reads {RECEIPT_FORMAT}")
    return receipt


def parse_record(data: bytes) -> Receipt:
    """Read the receipt in a persisted record.

    Raises:
        IntegrityError: code `foreign_record`; it is torn, or was not written by our serializer.
    """
    try:
        plain = json.loads(data.decode("utf-8"), object_pairs_hook=_without_repeats)
        form = _RecordForm.model_validate(plain)
    except (ValueError, RecursionError) as error:
        raise _foreign(_first_line(error)) from None
    return decode_receipt(form.result)


def format_record(receipt: Receipt) -> bytes:
    """Format a record that Prefect reads back as a hit.

    Raises:
        IntegrityError: code `not_json`, see `encode_receipt`.
    """
    metadata = {
        "storage_key": receipt_key(receipt.stage, receipt.task, receipt.part),
        "expiration": None,
        "serializer": {"type": SERIALIZER_TYPE},
        "storage_block_id": None,
    }
    record = {"metadata": metadata, "result": encode_receipt(receipt).decode()}
    return json.dumps(record, separators=(",", ":")).encode()


def verify_files(receipt: Receipt, output_dir: Path, level: Verify) -> None:
    """Check that the files of a receipt exist as it describes them, and those that they record to be elsewhere.

    `size` costs one stat per file and finds missing and truncated files; `sha256` reads them and finds flipped
    bits; `off` checks only the paths.

    Raises:
        IntegrityError: code `missing_output` or `changed_output`, with the file, what was expected and
            what was found; `foreign_record` when a path leaves `output_dir`.
        StorageError: a file exists but cannot be accessed.
    """
    for file in receipt.files:
        relative = PurePosixPath(file.path)
        if relative.is_absolute() or ".." in relative.parts or "\0" in file.path:
            raise _foreign(f"it names the file {file.path!r}, outside the output directory")
        if level is not Verify.OFF:
            _verify_file(file, output_dir / relative, level)
            if relative.suffix == elsewhere.SUFFIX:
                with storage_errors(output_dir / relative, "read"):
                    named = elsewhere.read_elsewhere(output_dir / relative)
                _verify_file(named, Path(named.path), level)


def _verify_file(file: FileRecord, path: Path, level: Verify) -> None:
    with storage_errors(path, "read"):
        try:
            found = status(path)
        except (FileNotFoundError, NotADirectoryError):
            found = None
        if found is None or not stat.S_ISREG(found.st_mode):
            raise IntegrityError(
                f"an output is missing: expected {file.bytes:,} bytes, found no file",
                code="missing_output",
                where=str(path),
            )
        if found.st_size != file.bytes:
            raise IntegrityError(
                f"an output changed: expected {file.bytes:,} bytes, found {found.st_size:,}",
                code="changed_output",
                where=str(path),
            )
        if level is Verify.SHA256:
            digest = sha256_of_file(path)
            if digest != file.sha256:
                raise IntegrityError(
                    f"an output changed: expected sha256 {file.sha256}, found {digest}",
                    code="changed_output",
                    where=str(path),
                )


def check_receipt(output_dir: Path, key: str, verify: Verify) -> Receipt | None:
    """Read and verify the receipt under `key`; return None if there is none.

    Raises:
        IntegrityError: the record is foreign or torn, belongs to other work, or its files do not verify.
        StorageError: it cannot be read.
        ConfigError: `foreign_output`: its folder is reached through a link.
    """
    path = record_path(output_dir, key)
    refuse_links(path.parent)
    if path.is_symlink():
        # Prefect would write the next record to where it leads.
        raise _foreign("it is a symbolic link")
    with storage_errors(path, "read"):
        try:
            data = read_bytes(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
    receipt = parse_record(data)
    if receipt_key(receipt.stage, receipt.task, receipt.part) != key:
        raise _foreign(f"it is the receipt of {receipt.task!r} part {receipt.part}, stage {receipt.stage!r}")
    verify_files(receipt, output_dir, verify)
    # `prune` keeps stages that were used recently. A folder that cannot be written cannot be pruned either.
    with contextlib.suppress(OSError):
        touch_folder(path.parent.parent)
    return receipt


def _foreign(reason: str) -> IntegrityError:
    return IntegrityError(
        f"a result record was not written by Gristmill or is damaged: {reason}", code="foreign_record"
    )


def _first_line(error: Exception) -> str:
    if isinstance(error, ValidationError):
        fault = error.errors(include_url=False)[0]
        return f"{'.'.join(str(part) for part in fault['loc'])}: {fault['msg']}"
    return str(error).partition("\n")[0]


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    plain = dict(pairs)
    if len(plain) != len(pairs):
        raise ValueError("a key is repeated")
    return plain
