"""Read what a message says of itself: whether it may be trained, and whether it says anything at all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tasks.run.rejects import RowRejected
from tasks.sft.chat.template import REASONING_FIELDS, Message

_FLAGS = ("train", "weight")
_ALLOWED: dict[str, dict[Any, bool]] = {
    # JSON has no other way to write a flag in a column of texts.
    "train": {True: True, False: False, "true": True, "false": False},
    "weight": {1: True, 0: False},
}
# An assistant message with any of these has something to train without a text.
_BESIDES_TEXT = ("tool_calls", "function_call", *REASONING_FIELDS)


def without_flags(messages: list[Message]) -> tuple[list[Message], list[bool]]:
    """Remove the `train` and `weight` keys, and return whether each message may be trained.

    A message is trained unless one of its flags forbids it.

    Raises:
        RowRejected: `bad_train`: `train` is not true or false; `bad_weight`: `weight` is not 0 or 1.

    >>> without_flags([{"role": "assistant", "content": "Hi", "weight": 0}])
    ([{'role': 'assistant', 'content': 'Hi'}], [False])
    """
    if not any("train" in message or "weight" in message for message in messages):
        return messages, [True] * len(messages)
    flags = []
    for place, message in enumerate(messages):
        # All of them are read before any decides, so that none goes unchecked.
        said = [_flag(message[key], key, place) for key in _FLAGS if message.get(key) is not None]
        flags.append(all(said))
    plain = [{key: value for key, value in message.items() if key not in _FLAGS} for message in messages]
    return plain, flags


def _flag(value: Any, key: str, place: int) -> bool:
    try:
        return _ALLOWED[key][value]
    except (KeyError, TypeError):  # a list cannot be looked up
        allowed = "0 or 1" if key == "weight" else "true or false"
        raise RowRejected(
            f"bad_{key}", f"{key} of message {place} is {repr(value)[:80]}; allowed: {allowed}"
        ) from None


def empty_answers(messages: Sequence[Message]) -> Iterator[int]:
    """Yield the number of each assistant message without a text, tool calls or reasoning that may be trained.

    >>> list(empty_answers([{"role": "user", "content": ""}, {"role": "assistant", "content": " "}]))
    [1]
    """
    for place, message in enumerate(messages):
        if message["role"] == "assistant" and not any(message.get(key) in (False, "false") for key in _FLAGS):
            content = message.get("content")
            if (not content or content.isspace()) and not any(map(message.get, _BESIDES_TEXT)):
                yield place
