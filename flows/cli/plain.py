"""Print one line of JSON for scripts: strict JSON, whatever the values are."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from schemas.report import Figure

# Parts of an inspection that only a terminal shows.
_SHOWN_ONLY = {"texts", "upright", "numeric"}


def print_json(value: Any) -> None:
    """Print a value as one line of JSON.

    A reader may stop at `NaN` and `Infinity`, which JSON does not have: they are null.
    """
    print(json.dumps(plain(value), allow_nan=False), flush=True)


def plain(value: Any) -> Any:
    """Return a value as JSON has it: numbers for what was formatted, null for what is not a number, hex for bytes.

    >>> plain({"rtt": [float("nan"), 1.5], "key": b"\\xff"})
    {'rtt': [None, 1.5], 'key': 'ff'}
    """
    if isinstance(value, Figure):
        return plain(value.number)
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value) if field.name not in _SHOWN_ONLY]
        return {name: plain(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, str | int) else str(value)
