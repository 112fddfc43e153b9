"""Special tokens typed by a user must not become special tokens.

Before rendering, each occurrence of a special token inside message content is replaced by one private-use
character; after rendering, that character is a place where the literal text is encoded without special-token
recognition. The template sees content of the same shape, and no text can forge a turn.

What counts: special tokens everywhere; in messages the model did not write, also other added tokens that the
template itself prints (such as `<tool_call>`). An assistant may write those, and must learn to.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable
from typing import Any

from tasks.store.rejects import RowRejected

_FIRST = 0x100000
# All of supplementary private use area B: our own marks and stand-ins live there.
_RESERVED = "\U00100000-\U0010fffd"
_STAND_INS = 0x8000


class Escaper:
    """Replaces special tokens in content by stand-ins.

    Args:
        special: tokens that never may come from content.
        control: tokens that may come from assistant content only.
    """

    def __init__(self, special: Iterable[str], control: Iterable[str] = ()) -> None:
        self._assistant = _pattern(special)
        self._others = _pattern({*special, *control})

    def escape(
        self, messages: list[dict[str, Any]], tools: list[Any] | None
    ) -> tuple[list[dict[str, Any]], list[Any] | None, list[str]]:
        """The conversation with stand-ins, and the literal text of each stand-in.

        Returns the arguments themselves and an empty list when there is nothing to escape.

        >>> Escaper(["<eos>"]).escape([{"role": "user", "content": "a<eos>"}], None)[0][0]["content"]
        'a\\U00100000'
        """
        # Nearly all rows end here; to look takes a third of the time of replacing nothing.
        patterns = [self._pattern_of(message) for message in messages]
        if not any(map(_holds, messages, patterns)) and (tools is None or not _holds(tools, self._others)):
            return messages, tools, []
        literals: dict[str, int] = {}

        def stand_in(match: re.Match[str]) -> str:
            if match[0] not in literals and len(literals) == _STAND_INS:
                raise RowRejected("unescapable", f"more than {_STAND_INS} different special texts in one row")
            return chr(_FIRST + literals.setdefault(match[0], len(literals)))

        escaped = [
            # The role is one of ours, and what a template compares it with: some vocabularies hold "user".
            _map_strings(message, pattern, stand_in) | {"role": message["role"]}
            for message, pattern in zip(messages, patterns, strict=True)
        ]
        escaped_tools = None if tools is None else _map_strings(tools, self._others, stand_in)
        if not literals:
            return messages, tools, []
        return escaped, escaped_tools, list(literals)

    def _pattern_of(self, message: dict[str, Any]) -> re.Pattern[str]:
        return self._assistant if message["role"] == "assistant" else self._others


def literal_index(character: str) -> int | None:
    """Which literal a character of the rendered text stands for, or `None` for ordinary text."""
    index = ord(character) - _FIRST
    return index if 0 <= index < _STAND_INS else None


def _pattern(tokens: Iterable[str]) -> re.Pattern[str]:
    """Matches the longest of `tokens` at a place, or one reserved character.

    It begins with one class of characters, which `re` looks for in a tight loop, and goes on with a tree: to try
    800 tokens one by one at every character took 12x as long as encoding the text.
    """
    rests: dict[str, list[str]] = {}
    for token in sorted({token for token in tokens if token.strip()}):
        rests.setdefault(token[0], []).append(token[1:])
    first = "".join(map(re.escape, rests))
    branches = [f"(?<={re.escape(start)}){_tree(rest)}" for start, rest in rests.items()]
    return re.compile(f"[{first}{_RESERVED}](?:{'|'.join([*branches, f'(?<=[{_RESERVED}])'])})")


def _tree(texts: list[str]) -> str:
    """A regular expression for the longest of the sorted `texts` that matches.

    >>> _tree(["", "ab", "ac", "b"])
    '(?:a(?:b|c)|b|)'
    """
    prefix = os.path.commonprefix([texts[0], texts[-1]])  # noqa: RUF071 - of characters, not of folders
    rests = [text[len(prefix) :] for text in texts]
    if len(rests) == 1:
        return re.escape(prefix)
    groups = [_tree([*group]) for start, group in itertools.groupby(rests, lambda rest: rest[:1]) if start]
    # The end comes last: a longer token is preferred.
    ends = [""] if "" in rests else []
    return f"{re.escape(prefix)}(?:{'|'.join(groups + ends)})"


def _holds(value: Any, pattern: re.Pattern[str]) -> bool:
    """Whether `pattern` is in any text that `_map_strings` would change."""
    if isinstance(value, str):
        return pattern.search(value) is not None
    if isinstance(value, dict):
        # Keys too, and all at once: a template may print them.
        if pattern.search("\0".join(value)) is not None:
            return True
        value = value.values()
    elif not isinstance(value, list):
        return False
    for item in value:  # noqa: SIM110 - a generator would double the time a message takes
        if _holds(item, pattern):
            return True
    return False


def _map_strings(value: Any, pattern: re.Pattern[str], replace: Any) -> Any:
    if isinstance(value, str):
        return pattern.sub(replace, value)
    if isinstance(value, dict):
        # Keys as well: templates print tool arguments and schemas as JSON.
        return {
            pattern.sub(replace, key): _map_strings(item, pattern, replace) for key, item in value.items()
        }
    if isinstance(value, list):
        return [_map_strings(item, pattern, replace) for item in value]
    return value
