"""Canonical form and hashes: the same settings give the same 16 hex digits on every machine.

The canonical form is JSON with sorted keys, no spaces, ASCII escapes and no NaN. Sets become sorted
lists, paths become POSIX text, enums their value. Two forms are equal if and only if their bytes are.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import PurePath
from typing import Any

HASH_DIGITS = 16


def _plain(value: Any) -> Any:
    if value is None or (isinstance(value, bool | int | str) and not isinstance(value, Enum)):
        return value
    if isinstance(value, Enum):
        return _plain(value.value)
    if isinstance(value, float):
        # 1.0 and 1 are the same setting, and YAML writes either.
        return int(value) if value.is_integer() else value
    if isinstance(value, PurePath):
        return value.as_posix()
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return sorted((_plain(item) for item in value), key=lambda item: json.dumps(item, sort_keys=True))
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [_plain(item) for item in value]
    raise TypeError(
        f"a {type(value).__name__} has no canonical form; allowed: JSON types, sets, paths, enums"
    )


def canonical_json(value: Any) -> bytes:
    """Return `value` as canonical JSON.

    Raises:
        TypeError: a value has a type without a canonical form.
        ValueError: a float is NaN or infinite.

    >>> canonical_json({"b": {2, 1}, "a": 1.0})
    b'{"a":1,"b":[1,2]}'
    """
    text = json.dumps(
        _plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    )
    return text.encode("ascii")


def canonical_hash(value: Any) -> str:
    """Return the first 16 hex digits of the SHA-256 of the canonical form.

    >>> canonical_hash({"pack_size": 4096})
    'c3cd387c68d79646'
    """
    return hashlib.sha256(canonical_json(value)).hexdigest()[:HASH_DIGITS]
