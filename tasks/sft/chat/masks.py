"""Decide which characters of a rendered conversation are trained.

There are two ways, tried in this order:

* Templates with `{% generation %}` blocks mark them: one render is exact.
* Otherwise the assistant's text lies between two prefix renders: the conversation before the message, with
  the header that prompts for an answer, and the conversation up to and including the message. Both must be
  prefixes of the full render. Templates that strip earlier reasoning break that; then the conversation
  is split into one sample per user turn, in which only the last turn is trained.

White space that a template prints after an end-of-turn marker is not trained: the model stops at the marker.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from schemas.sft import MAX_ROW_BYTES, TrainOn
from tasks.run.rejects import RowRejected
from tasks.sft.chat.budget import UNIT_BUDGET, Budget
from tasks.sft.chat.dialects import Conversation
from tasks.sft.chat.escape import literal_index
from tasks.sft.chat.flags import without_flags
from tasks.sft.chat.template import GENERATION_CLOSE, GENERATION_OPEN, ChatTemplate, Message

_MARKS = re.compile(f"([{GENERATION_OPEN}{GENERATION_CLOSE}])")
_PRIVATE = re.compile("([\U00100000-\U0010fffb])")
_PROBE = "gristmillprobe"
# For all renders of a conversation: those of 100 answers in 1 MB take half of it, those of 600 short answers all.
_ROW_BUDGET = 10 * UNIT_BUDGET
# What rendering a message takes beside its units, about 5 us: handing it over, and attributes that it does not have.
_MESSAGE_UNITS = 160
# Its samples may have so many characters for each byte that a row may have.
_GROWTH = 8
# An answer's text is between the renders before and after it; older ones are not needed again.
_KEPT_RENDERS = 4


class Piece(NamedTuple):
    """A stretch of rendered text that is encoded as a whole.

    Attributes:
        text: the characters.
        trained: whether all of its tokens carry loss.
        literal: encode special tokens in it as plain text.
    """

    text: str
    trained: bool
    literal: bool = False


Span = tuple[int, int]
Sample = list[Piece]


def samples(
    template: ChatTemplate,
    conversation: Conversation,
    train_on: TrainOn,
    literals: list[str],
    max_row_bytes: int = MAX_ROW_BYTES,
) -> list[Sample]:
    """Return the training samples of a conversation: usually one, or one per user turn if the template forces it.

    Args:
        template: the compiled template.
        conversation: escaped messages and tools.
        train_on: which tokens carry loss.
        literals: what the stand-ins in the messages stand for.
        max_row_bytes: eight times as many characters is the most that the samples may have together.

    Raises:
        RowRejected: `bad_train`, `bad_weight`, `template_error`, `template_budget`, `mask_unresolved`,
            `row_too_large`, or `no_trained_token` if there is nothing to train.
    """
    messages, flags = without_flags(conversation.messages)
    wanted = wanted_messages(messages, flags, train_on)
    if train_on is not TrainOn.ALL and not any(wanted):
        raise RowRejected(
            "no_trained_token", "every assistant message is excluded by train: false or weight: 0"
        )
    render = _Renderer(template, messages, conversation.tools)
    found: list[Sample] = []
    characters = 0
    for text, spans in _trained_spans(render, wanted, flags, train_on):
        characters += len(text)
        if characters > _GROWTH * max_row_bytes:
            raise RowRejected(
                "row_too_large",
                f"the {len(found) + 1} first samples of the conversation have {characters:,} characters; "
                f"{_GROWTH} times max_row_bytes is {_GROWTH * max_row_bytes:,}",
            )
        found.append(list(_pieces(text, spans, literals)))
    return found


def wanted_messages(messages: list[Message], flags: list[bool], train_on: TrainOn) -> list[bool]:
    """Mark the assistant messages whose text is trained."""
    wanted = [message["role"] == "assistant" and flag for message, flag in zip(messages, flags, strict=True)]
    if train_on is TrainOn.LAST_TURN:
        last = max((i for i, message in enumerate(messages) if message["role"] == "assistant"), default=-1)
        wanted = [want and position == last for position, want in enumerate(wanted)]
    return wanted


class _Renderer:
    """Renders prefixes of one conversation, all of them within one budget."""

    def __init__(self, template: ChatTemplate, messages: list[Message], tools: list[Any] | None) -> None:
        self.template = template
        self.messages = messages
        self.tools = tools
        self._texts: dict[tuple[int, bool], str] = {}
        self._left = _ROW_BUDGET

    def render(self, messages: list[Message], *, prompt: bool = False) -> str:
        if self._left < 0:
            raise RowRejected(
                "template_budget",
                f"rendering the start of the conversation up to each answer took more than {_ROW_BUDGET:,} steps; "
                "a template with {% generation %} blocks needs one render",
            )
        budget = Budget()
        try:
            return self.template.render(messages, self.tools, prompt=prompt, budget=budget)
        finally:
            self._left -= UNIT_BUDGET - budget.left + _MESSAGE_UNITS * len(messages)

    def marked(self, count: int, *, prompt: bool = False) -> str:
        key = (count, prompt)
        if key not in self._texts:
            if len(self._texts) == _KEPT_RENDERS:
                del self._texts[next(iter(self._texts))]
            self._texts[key] = self.render(self.messages[:count], prompt=prompt)
        return self._texts[key]

    def text(self, count: int, *, prompt: bool = False) -> str:
        text = self.marked(count, prompt=prompt)
        return _MARKS.sub("", text) if self.template.marks_generation else text


def _trained_spans(
    render: _Renderer, wanted: list[bool], flags: list[bool], train_on: TrainOn
) -> Iterator[tuple[str, list[Span]]]:
    count = len(render.messages)
    if train_on is TrainOn.ALL:
        excluded = [not flag for flag in flags]
        text = render.text(count)
        spans = _message_spans(render, excluded, text, count) if any(excluded) else []
        if spans is None:
            raise RowRejected(
                "mask_unresolved", "cannot tell which rendered text a message with train: false has"
            )
        yield text, _complement(spans, len(text))
        return
    if render.template.marks_generation:
        text, blocks = _generation_blocks(render.marked(count))
        yield text, _blocks_of(render, text, blocks, wanted)
        return
    text = render.text(count)
    spans = _message_spans(render, wanted, text, count)
    if spans is not None:
        yield text, spans
        return
    yield from _per_user_turn(render, wanted)


def _generation_blocks(marked: str) -> tuple[str, list[Span]]:
    """Remove the marks from the text, and return the spans they enclosed."""
    blocks: list[Span] = []
    start = None
    position = 0
    texts_and_marks = _MARKS.split(marked)
    texts = texts_and_marks[::2]
    for text, mark in zip(texts, texts_and_marks[1::2], strict=False):
        position += len(text)
        if mark == GENERATION_OPEN:
            if start is not None:
                raise RowRejected("mask_unresolved", "generation blocks are nested")
            start = position
        elif start is not None:
            blocks.append((start, position))
            start = None
        else:
            raise RowRejected("mask_unresolved", "a generation block was cut by the template")
    if start is not None:
        raise RowRejected("mask_unresolved", "a generation block was cut by the template")
    return "".join(texts), [block for block in blocks if block[0] < block[1]]


def _blocks_of(render: _Renderer, text: str, blocks: list[Span], wanted: list[bool]) -> list[Span]:
    """Select the blocks of the wanted messages; a message may have several blocks, or none."""
    assistants = [i for i, message in enumerate(render.messages) if message["role"] == "assistant"]
    if all(wanted[i] for i in assistants):
        return blocks
    if render.template.one_block_a_message and len(blocks) == len(assistants):
        return [block for block, i in zip(blocks, assistants, strict=True) if wanted[i]]
    chosen: list[Span] = []
    before = 0
    for position, following in zip(assistants, [*assistants[1:], None], strict=True):
        # Which message owns a block only matters between trained and untrained messages.
        if following is not None and wanted[position] == wanted[following]:
            continue
        upto = len(blocks) if following is None else _blocks_up_to(render, text, blocks, position + 1)
        if wanted[position]:
            chosen += blocks[before:upto]
        before = upto
    return chosen


def _blocks_up_to(render: _Renderer, text: str, blocks: list[Span], count: int) -> int:
    """Count the blocks of the first `count` messages, which must render as they do in `text`."""
    prefix, found = _generation_blocks(render.marked(count))
    end = found[-1][1] if found else 0
    if found != blocks[: len(found)] or prefix[:end] != text[:end]:
        raise RowRejected("mask_unresolved", "cannot tell which generation block belongs to which message")
    return len(found)


def _message_spans(render: _Renderer, wanted: list[bool], text: str, count: int) -> list[Span] | None:
    """Find the span of each wanted message in `text`; return `None` if prefix renders differ from it."""
    spans = []
    for position in range(count):
        if not wanted[position]:
            continue
        upto = text if position == count - 1 else render.text(position + 1)
        if not text.startswith(upto):
            return None
        start = _span_start(render, position, upto)
        if start is None:
            return None
        spans.append((start, _span_end(render.messages[position], upto, start)))
    return spans


def _span_start(render: _Renderer, position: int, upto: str) -> int | None:
    """Find where the text of a message begins: after its header."""
    assistant = render.messages[position]["role"] == "assistant"
    try:
        header = render.text(position, prompt=assistant)
    except RowRejected as rejected:
        if rejected.reason == "template_budget":
            raise
        header = None
    if header is not None and upto.startswith(header):
        return len(header)
    # Some templates prompt with more than they print later ("<think>"): find the header with a probe instead.
    probe = {"role": render.messages[position]["role"], "content": _PROBE}
    try:
        probed = render.render([*render.messages[:position], probe])
    except RowRejected as rejected:
        if rejected.reason == "template_budget":
            raise
        return None
    header, found, _ = _MARKS.sub("", probed).rpartition(_PROBE)
    return len(header) if found and upto.startswith(header) else None


def _span_end(message: Message, upto: str, start: int) -> int:
    """Find the end of a message's text: white space after an end-of-turn marker comes from the template."""
    content = message.get("content")
    stripped = upto.rstrip()
    if isinstance(content, str):
        body = content.strip()
        # Take the first occurrence: the last ">" would be the end of the marker itself.
        found = upto.find(body, start)
        if found >= 0 and not upto[found + len(body) :].strip():
            return len(upto)
    return max(start, len(stripped))


def _per_user_turn(render: _Renderer, wanted: list[bool]) -> Iterator[tuple[str, list[Span]]]:
    """Yield one sample per user turn with a wanted message; the sample ends with that turn."""
    messages = render.messages
    starts = [i for i, message in enumerate(messages) if message["role"] == "user"]
    ends = [*starts, len(messages)][1:]
    for start, end in zip(starts, ends, strict=True):
        if not any(wanted[start:end]):
            continue
        turn = [*[False] * start, *wanted[start:end]]
        text = render.text(end)
        spans = _message_spans(render, turn, text, end)
        if spans is None:
            raise RowRejected(
                "mask_unresolved",
                "the template renders a conversation's start differently from its prefix, even within one user "
                "turn; add {% generation %} blocks to the template",
            )
        yield text, spans
    if any(wanted[: starts[0]] if starts else wanted):
        raise RowRejected(
            "mask_unresolved", "an assistant message before the first user message cannot be located"
        )


def _complement(spans: list[Span], length: int) -> list[Span]:
    edges = [0, *(edge for span in spans for edge in span), length]
    return [(start, stop) for start, stop in zip(edges[::2], edges[1::2], strict=True) if start < stop]


def _pieces(text: str, spans: list[Span], literals: list[str]) -> Iterator[Piece]:
    position = 0
    for start, stop in spans:
        yield from _literal_pieces(text[position:start], False, literals)
        yield from _literal_pieces(text[start:stop], True, literals)
        position = stop
    yield from _literal_pieces(text[position:], False, literals)


def _literal_pieces(text: str, trained: bool, literals: list[str]) -> Iterator[Piece]:
    if not literals:
        if text:
            yield Piece(text, trained)
        return
    for part in _PRIVATE.split(text):
        index = literal_index(part) if len(part) == 1 else None
        if index is not None and index < len(literals):
            yield Piece(literals[index], trained, literal=True)
        elif part:
            yield Piece(part, trained)
