"""Values and bytes that are almost right: changes that a seed decides."""

from __future__ import annotations

import copy
from random import Random
from typing import Any

# What JSON can say; a writer may refuse some of it.
_NUMBERS = (0, -1, 1, 2**31, 2**53 + 1, 2**63, -(2**63), 2**64, 10**30, -0.0, 0.5, 1e308, 1e-320)
_WORDS = [
    "/",
    "..",
    "../../x",
    "~",
    "nan",
    "null",
    "1e5",
    "0x10",
    "1:00:00",
    "{{7*7}}",
    "%s%n",
    "<|im_end|>",
    "<|endoftext|>",
]
_TEXTS = ("", " ", "\0", "\ud800", "\ufeff", "\u202e", "\x1b[31m", "a" * 5000, "é" * 300, "🙂👨‍👩‍👧" * 50)
_NESTED = ([], {}, [None], [[]], [{}], {"": None}, {"a": {"b": {"c": []}}}, [1, "a", None, {}], ["x"] * 300)
_REST = (None, True, False, float("nan"), float("inf"), float("-inf"), {"__class__": "x"})
HOSTILE: tuple[Any, ...] = (*_NUMBERS, *_WORDS, *_TEXTS, *_NESTED, *_REST)
_BYTES = (b"\0", b"\n", b"\r", b'"', b"\\", b"{", b"]", b"\xff\xfe", b"\xef\xbb\xbf", b"9" * 400)


def hostile(rng: Random) -> Any:
    """One of them, or something deep."""
    if rng.random() < 0.05:
        value: Any = "deep"
        for _ in range(rng.choice((5, 60, 400))):
            value = [value] if rng.random() < 0.5 else {"a": value}
        return value
    return copy.deepcopy(rng.choice(HOSTILE))


def mutate_value(rng: Random, value: Any) -> Any:
    """A copy with one place changed: replaced, removed, doubled, renamed or added to."""
    value = copy.deepcopy(value)
    places = list(_places(value))
    if not places or rng.random() < 0.02:
        return hostile(rng)
    holder, key = rng.choice(places)
    how = rng.random()
    if how < 0.6:
        holder[key] = hostile(rng)
    elif how < 0.75:
        del holder[key]
    elif isinstance(holder, list):
        holder.insert(rng.randint(0, len(holder)), rng.choice((hostile(rng), copy.deepcopy(holder[key]))))
    elif how < 0.88:
        holder[str(hostile(rng))] = holder.pop(key)
    else:
        holder[key] = [holder[key]] if rng.random() < 0.5 else str(holder[key])
    return value


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Each key and index of a value; of long lists a few."""
    found: list[tuple[Any, Any]] = []
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            keys: list[Any] = list(one)
        elif isinstance(one, list):
            keys = list(range(len(one)))
        else:
            continue
        # Ten thousand entries of a vocabulary would leave nothing for the rest.
        if len(keys) > 40:
            keys = keys[:: len(keys) // 20]
        found += [(one, key) for key in keys]
        waiting += [one[key] for key in keys]
    return found


def mutate_bytes(rng: Random, data: bytes) -> bytes:
    """Flip, cut, insert, repeat, swap or overwrite; once or a few times."""
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        data = _changed(rng, data)
    return data


def _changed(rng: Random, data: bytes) -> bytes:
    at = rng.randint(0, len(data))
    size = rng.choice((1, 1, 4, 64, len(data) // 4 + 1))
    before, piece, behind = data[:at], data[at : at + size], data[at + size :]
    return rng.choice(
        (
            lambda: before + bytes([(piece or b"\0")[0] ^ 1 << rng.randrange(8)]) + data[at + 1 :],
            lambda: before,
            lambda: piece + behind,
            lambda: before + behind,
            lambda: before + rng.randbytes(min(size, 4096)) + behind,
            lambda: before + rng.choice(_BYTES) + data[at:],
            lambda: before + piece * rng.choice((2, 9)) + behind,
            lambda: data + data,
            lambda: data[at:] + before,
            lambda: b"",
            lambda: data.decode("latin-1").encode("utf-16"),
        )
    )()
