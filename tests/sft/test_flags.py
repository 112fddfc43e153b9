"""What a message says of itself: train, weight, and empty answers."""

from __future__ import annotations

from typing import Any

import pytest

from tasks.run.rejects import RowRejected
from tasks.sft.chat.flags import empty_answers, without_flags


def answer(**keys: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": "A", **keys}


@pytest.mark.parametrize(
    ("keys", "trained"),
    [
        ({"weight": 1}, True),
        ({"weight": 0}, False),
        ({"weight": 1.0}, True),
        ({"weight": 0.0}, False),
        ({"train": True}, True),
        ({"train": False}, False),
        ({"train": "true"}, True),
        ({"train": "false"}, False),
        ({"train": True, "weight": 0}, False),
        ({"train": False, "weight": 1}, False),
    ],
)
def test_flags(keys: dict[str, Any], trained: bool) -> None:
    assert without_flags([answer(**keys), answer()]) == ([answer(), answer()], [trained, True])


@pytest.mark.parametrize("weight", [-1, 2, 0.5, float("nan"), "0", "1", [], {}, [0], "no"])
def test_a_weight_is_0_or_1(weight: Any) -> None:
    with pytest.raises(RowRejected, match=r"weight of message 1 is .*; allowed: 0 or 1") as caught:
        without_flags([answer(), answer(weight=weight)])
    assert caught.value.reason == "bad_weight"


@pytest.mark.parametrize("train", ["no", "", "False", 2, -1, 0.5, [], {}])
def test_train_is_true_or_false(train: Any) -> None:
    with pytest.raises(RowRejected, match=r"train of message 0 is .*; allowed: true or false") as caught:
        without_flags([answer(train=train)])
    assert caught.value.reason == "bad_train"


@pytest.mark.parametrize(
    ("message", "empty"),
    [
        (answer(), False),
        (answer(content=""), True),
        (answer(content=" \n\u3000"), True),
        (answer(content="", tool_calls=[{"name": "f"}]), False),
        (answer(content="", tool_calls=[]), True),
        (answer(content="", reasoning_content="Hm."), False),
        ({"role": "assistant", "tool_calls": [{"name": "f"}]}, False),
        ({"role": "user", "content": ""}, False),
        ({"role": "tool", "content": ""}, False),
    ],
)
def test_empty_answers(message: dict[str, Any], empty: bool) -> None:
    assert list(empty_answers([answer(), message])) == [1] * empty
