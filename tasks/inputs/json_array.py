"""Read a file that is one JSON array, element by element, in batches of bounded memory.

An element is numbered by its place in the array, from 0. What is not JSON stops the run, because the end of a broken
element cannot be known.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from itertools import islice
from typing import Any, NoReturn

from schemas.errors import InputError
from tasks.inputs.readers import BATCH_ROWS, MAX_LINE_BYTES, RawRow, RowFault, text_chunks
from tasks.inputs.segments import Segment

_SPACE = re.compile(r"[ \t\r\n]*")


def is_array(segment: Segment) -> bool:
    """Return whether a text file starts as a JSON array.

    Raises:
        InputError: as `text_chunks`.
    """
    for chunk in text_chunks(segment):
        text = chunk.removeprefix(codecs.BOM_UTF8).lstrip()
        if text:
            return text.startswith(b"[")
    return False


def read_array(segment: Segment) -> Iterator[list[RawRow]]:
    """Yield the elements of the array in order, in batches of up to 256.

    Raises:
        InputError: `bad_json_array`: the text is not one array; otherwise as `text_chunks`.
    """
    numbered = enumerate(_element(value) for value in _values(segment))
    while batch := list(islice(numbered, BATCH_ROWS)):
        yield batch


def _element(value: Any) -> dict[str, Any] | RowFault:
    if isinstance(value, dict):
        return value
    return RowFault("not_an_object", f"the element is {json.dumps(value)[:80]}, not an object")


class _Text:
    """The text that has been read, and the place in it up to which it is parsed."""

    def __init__(self, segment: Segment) -> None:
        self.held = ""
        self.at = 0
        self.ended = False
        self._name = segment.name
        self._chunks = text_chunks(segment)
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()

    def more(self) -> None:
        """Drop what is parsed, and read on: at least as much again as is left.

        Raises:
            InputError: the text is not UTF-8.
        """
        pieces = [self.held[self.at :]]
        wanted, read = max(len(pieces[0]), 1), 0
        while read < wanted and not self.ended:
            chunk = next(self._chunks, b"")
            self.ended = not chunk
            try:
                pieces.append(self._decoder.decode(chunk, final=self.ended))
            except UnicodeDecodeError as error:
                self.refuse(str(error))
            read += len(pieces[-1])
        self.held, self.at = "".join(pieces), 0

    def next_character(self) -> str:
        """Skip white space, and return the character after it; empty at the end."""
        while True:
            space = _SPACE.match(self.held, self.at)
            self.at = space.end() if space else self.at
            if self.at < len(self.held) or self.ended:
                return self.held[self.at : self.at + 1]
            self.more()

    def refuse(self, why: str) -> NoReturn:
        """Raise the error for a text that is not an array."""
        raise InputError(
            f"the file is not one JSON array: {why}; fetch it again", code="bad_json_array", where=self._name
        )


def _values(segment: Segment) -> Iterator[Any]:
    text = _Text(segment)
    if text.next_character() != "[":
        text.refuse("it does not start with [")
    text.at += 1
    decoder = json.JSONDecoder(parse_constant=_refuse_constant)
    elements = 0
    character = text.next_character()
    while (elements == 0 and character != "]") or character == ",":
        text.at += elements > 0
        yield _one(text, decoder, elements)
        elements += 1
        character = text.next_character()
    if character != "]":
        text.refuse(f"there is neither a comma nor ] after {elements} elements")
    text.at += 1
    if text.next_character():
        text.refuse("there is text after its end")


def _one(text: _Text, decoder: json.JSONDecoder, number: int) -> Any:
    """Parse the element that comes next."""
    while True:
        text.next_character()
        try:
            value, end = decoder.raw_decode(text.held, text.at)
        except (ValueError, RecursionError) as error:
            if text.ended or len(text.held) - text.at > MAX_LINE_BYTES:
                text.refuse(f"element {number}: {error}")
        else:
            # A number at the end of what has been read may continue.
            if end < len(text.held) or text.ended:
                text.at = end
                return value
        text.more()


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
