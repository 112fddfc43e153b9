from __future__ import annotations

import os
import subprocess
import sys
from enum import StrEnum
from pathlib import PurePosixPath

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.canonical import canonical_hash, canonical_json


class Colour(StrEnum):
    RED = "red"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"b": 1, "a": 2}, b'{"a":2,"b":1}'),
        ({3, 1, 2}, b"[1,2,3]"),
        (("x", None, True), b'["x",null,true]'),
        (1.0, b"1"),
        (0.5, b"0.5"),
        (Colour.RED, b'"red"'),
        (PurePosixPath("a/b"), b'"a/b"'),
        ({4.0: "float key", 3: "int key"}, b'{"3":"int key","4.0":"float key"}'),
        ("é\ud800", b'"\\u00e9\\ud800"'),
    ],
)
def test_canonical_form(value: object, expected: bytes) -> None:
    assert canonical_json(value) == expected


def test_values_without_a_canonical_form_are_refused() -> None:
    with pytest.raises(TypeError, match="bytes has no canonical form"):
        canonical_json({"key": b"raw"})
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical_json(float("nan"))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


# Hypothesis warns when another test has replaced the state of `random`; that is no concern of this one.
@pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisDeprecationWarning")
@settings(derandomize=True)
@given(json_values)
def test_key_order_never_matters(value: object) -> None:
    def reversed_keys(item: object) -> object:
        if isinstance(item, dict):
            return {key: reversed_keys(item[key]) for key in reversed(list(item))}
        return [reversed_keys(x) for x in item] if isinstance(item, list) else item

    assert canonical_hash(value) == canonical_hash(reversed_keys(value))


def test_equal_under_every_hash_seed() -> None:
    code = "from schemas.canonical import canonical_hash; print(canonical_hash({'s': {'a','b','c','d'}, 't': 1.5}))"
    hashes = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in range(3)
    }
    assert len(hashes) == 1
