"""Prevent special tokens in message content from becoming special tokens.

Before rendering, each occurrence of a special token inside message content is replaced by one private-use
character; after rendering, that character marks where the literal text is encoded without special-token
recognition. The template sees content of the same shape, and no text can forge a turn.

Special tokens are escaped everywhere; in messages that the model did not write, so are other added tokens that
the template itself prints (such as `<tool_call>`). An assistant may write those, and must learn to.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable
from typing import Any

from tasks.run.rejects import RowRejected

_FIRST = 0x100000
# All of supplementary private use area B: it has our own marks and stand-ins.
_RESERVED = "\U00100000-\U0010fffd"
_STAND_INS = 0x8000


class Escaper:
    """Replaces special tokens in content by stand-ins.

    Args:
        special: tokens that may never come from content.
        control: tokens that may only come from assistant content.
    """

    def __init__(self, special: Iterable[str], control: Iterable[str] = ()) -> None:
        self._assistant = _Special(special)
        self._others = _Special({*special, *control})

    def escape(
        self, messages: list[dict[str, Any]], tools: list[Any] | None
    ) -> tuple[list[dict[str, Any]], list[Any] | None, list[str]]:
        """Replace special tokens by stand-ins, and list the literal text of each stand-in.

        Returns the arguments themselves and an empty list if there is nothing to escape.

        Raises:
            RowRejected: `unescapable`, the row has too many different special texts.

        >>> Escaper(["<eos>"]).escape([{"role": "user", "content": "a<eos>"}], None)[0][0]["content"]
        'a\\U00100000'
        """
        # Nearly all rows return here: searching takes a third of the time of a replacement that finds nothing.
        special = [self._special_in(message) for message in messages]
        if not any(map(_holds, messages, special)) and (tools is None or not _holds(tools, self._others)):
            return messages, tools, []
        literals: dict[str, int] = {}

        def stand_in(match: re.Match[str]) -> str:
            if match[0] not in literals and len(literals) == _STAND_INS:
                raise RowRejected("unescapable", f"more than {_STAND_INS} different special texts in one row")
            return chr(_FIRST + literals.setdefault(match[0], len(literals)))

        escaped = [
            # Keep the role: templates compare it with our names, and some vocabularies contain "user".
            _map_strings(message, texts.pattern, stand_in) | {"role": message["role"]}
            for message, texts in zip(messages, special, strict=True)
        ]
        escaped_tools = None if tools is None else _map_strings(tools, self._others.pattern, stand_in)
        if not literals:
            return messages, tools, []
        return escaped, escaped_tools, list(literals)

    def _special_in(self, message: dict[str, Any]) -> _Special:
        return self._assistant if message["role"] == "assistant" else self._others


def literal_index(character: str) -> int | None:
    """Return the index of the literal that a rendered character stands for, or `None` for ordinary text."""
    index = ord(character) - _FIRST
    return index if 0 <= index < _STAND_INS else None


class _Special:
    """Find special texts and reserved characters in a text.

    The pattern begins with one class of characters, which `re` finds in a tight loop, and continues with a tree:
    trying 800 tokens one by one at every character took 12x as long as encoding the text.
    """

    def __init__(self, tokens: Iterable[str]) -> None:
        known = sorted({token for token in tokens if token.strip()})
        groups = [[*group] for _, group in itertools.groupby(known, lambda token: token[0])]
        starts = [re.escape(group[0][0]) for group in groups]
        trees = [_tree([token[1:] for token in group]) for group in groups]
        branches = [f"(?<={start}){tree}" for start, tree in zip(starts, trees, strict=True)]
        branches.append(f"(?<=[{_RESERVED}])")
        self.pattern = re.compile(f"[{''.join(starts)}{_RESERVED}](?:{'|'.join(branches)})")
        # The beginnings of all tokens: `in` is 5x as fast as the pattern, unless there are many of them.
        self._beginnings = [_common_prefix(group) for group in groups]
        self._few = len(groups) <= 4

    def is_in(self, text: str) -> bool:
        """Return whether `text` contains any of them."""
        if self._few and text.isascii():
            for beginning in self._beginnings:
                if beginning in text:
                    break
            else:
                return False
        return self.pattern.search(text) is not None


def _tree(texts: list[str]) -> str:
    """Build a regular expression for the longest matching text of the sorted `texts`.

    >>> _tree(["", "ab", "ac", "b"])
    '(?:a(?:b|c)|b|)'
    """
    prefix = _common_prefix(texts)
    rests = [text[len(prefix) :] for text in texts]
    if len(rests) == 1:
        return re.escape(prefix)
    groups = [_tree([*group]) for start, group in itertools.groupby(rests, lambda rest: rest[:1]) if start]
    # The empty rest comes last, so that a longer token is preferred.
    ends = [""] if "" in rests else []
    return f"{re.escape(prefix)}(?:{'|'.join(groups + ends)})"


def _common_prefix(texts: list[str]) -> str:
    """Return the common prefix of the sorted `texts`."""
    return os.path.commonprefix([texts[0], texts[-1]])  # noqa: RUF071 - of characters, not of folders


def _holds(value: Any, special: _Special) -> bool:
    """Return whether `_map_strings` has anything to replace."""
    if isinstance(value, str):
        return special.is_in(value)
    if isinstance(value, dict):
        # Keys too, joined for one search: a template may print them.
        if special.is_in("\0".join(value)):
            return True
        value = value.values()
    elif not isinstance(value, list):
        return False
    for item in value:  # noqa: SIM110 - a generator would double the time a message takes
        if _holds(item, special):
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
