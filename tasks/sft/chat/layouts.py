"""Say what a row lacks for the dialect that fits it best, so that a misnamed field is found at the first row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from schemas.sft_fields import FieldMapping

# Dialects of two fields, as they are called in a sentence.
_PAIRS = (("a prompt/completion", "prompt", "completion"), ("an alpaca", "instruction", "output"))


def describe_missing(row: Mapping[str, Any], fields: FieldMapping) -> str:
    """Describe what a row that fits no dialect lacks, with its keys and a remedy.

    The dialect that fits best is the one of which the row has a field. Without any, a list of objects is probably the
    list of messages under another name.

    >>> print(describe_missing({"instruction": "Add.", "response": "2"}, FieldMapping()))
    'output' is missing; keys of the row: instruction, response; with 'instruction' it looks like an alpaca row: if \
'output' has another name there, set fields.output
    """
    keys = f"keys of the row: {listed_keys(row)}"
    for dialect, *pair in _PAIRS:
        names = {field: getattr(fields, field) for field in pair}
        lacking = [field for field in pair if row.get(names[field]) is None]
        if len(lacking) == 1:
            [field] = lacking
            there = next(names[other] for other in pair if other != field)
            return (
                f"{_state(names[field], row)}; {keys}; with {there!r} it looks like {dialect} row: if "
                f"{names[field]!r} has another name there, set fields.{field}"
            )
    similar = next((key for key, value in row.items() if _is_messages(value)), None)
    if similar is not None:
        remedy = f"if {similar!a} is the list of messages, set fields.messages"
    else:
        pairs = ", or ".join(
            " and ".join(repr(getattr(fields, field)) for field in pair) for _, *pair in _PAIRS
        )
        remedy = f"needed: {fields.messages!r}, 'conversations', {pairs}"
    listed = next((name for name in (fields.messages, "conversations") if name in row), fields.messages)
    return f"{_state(listed, row)}; {keys}; {remedy}"


def _state(name: str, row: Mapping[str, Any]) -> str:
    return f"{name!r} is {'null' if name in row else 'missing'}"


def listed_keys(value: Mapping[str, Any], limit: int = 20) -> str:
    """List the keys of an object, shortened.

    >>> listed_keys({"a": 1, "b": 2}), listed_keys({})
    ('a, b', 'none')
    """
    keys = [ascii(key)[1:-1][:40] for key in value]
    return ", ".join(keys[:limit]) + (", …" if len(keys) > limit else "") if keys else "none"


def _is_messages(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict)
