"""Check what a chat template makes of a conversation: nothing it says is lost, and its answers are trained."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from markupsafe import escape

from schemas.sft import TrainOn
from tasks.sft.chat.dialects import Conversation
from tasks.sft.chat.flags import without_flags
from tasks.sft.chat.masks import samples, wanted_messages
from tasks.sft.chat.template import REASONING_FIELDS, Message
from tasks.sft.chat.tokenizer import ChatTokenizer

_SHOWN = 200
_THINK, _END_THINK = "<think>", "</think>"


def check_rendering(tokenizer: ChatTokenizer, conversation: Conversation, train_on: TrainOn) -> str | None:
    """Describe what the template loses of a conversation; return `None` if it loses nothing.

    It looks for the text of every message, the names of the functions it calls, and the reasoning of the answers to
    the last question: templates leave out earlier reasoning on purpose. The text of an answer must be trained, not
    only rendered. A text counts as found as it is, with other white space, as in JSON, or as in HTML.

    Raises:
        RowRejected: the conversation would be rejected; see `samples`.
    """
    if not tokenizer.template.mentions_messages:
        return "the template never mentions `messages`, so that every conversation looks the same"
    messages, tools, literals = tokenizer.escaper.escape(conversation.messages, conversation.tools)
    found = samples(tokenizer.template, Conversation(messages, tools), train_on, literals)
    rendered = ["".join(piece.text for piece in sample) for sample in found]
    trained = ["".join(piece.text for piece in sample if piece.trained) for sample in found]
    plain, flags = without_flags(conversation.messages)
    wanted = wanted_messages(plain, flags, train_on)
    last_question = max((i for i, message in enumerate(plain) if message["role"] == "user"), default=-1)
    for place, message in enumerate(plain):
        shown = f"message {place}, {_shown(message)}"
        if not _has(rendered, _text(message)):
            return f"the template drops the text of {shown}"
        if wanted[place] and train_on is not TrainOn.ALL and not _has(trained, _text(message)):
            return f"the template does not mark the text of {shown} as trained"
        if place > last_question and not _has(rendered, _reasoning(message)):
            return f"the template drops the reasoning of {shown}"
        for name in _called(message):
            if not _has(rendered, name):
                return f"the template drops the call of {name!r} in {shown}"
    return None


def _text(message: Message) -> str:
    """Return what a message says, without reasoning in front of it."""
    text: str = message.get("content") or ""
    return text.rpartition(_END_THINK)[2].strip()


def _reasoning(message: Message) -> str:
    if message["role"] != "assistant":
        return ""
    field = next((message[name] for name in REASONING_FIELDS if message.get(name)), None)
    if isinstance(field, str):
        return field.strip()
    before, mark, _ = (message.get("content") or "").rpartition(_END_THINK)
    return before.partition(_THINK)[2].strip() if mark else ""


def _called(message: Message) -> Iterator[str]:
    calls: Any = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function", call) if isinstance(call, dict) else None
        if isinstance(function, dict) and isinstance(function.get("name"), str):
            yield function["name"]


def _has(texts: Sequence[str], part: str) -> bool:
    forms = (part, json.dumps(part, ensure_ascii=False)[1:-1], json.dumps(part)[1:-1], str(escape(part)))
    return any(any(form in text for form in forms) or _one_line(part) in _one_line(text) for text in texts)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _shown(message: Message) -> str:
    content = message.get("content") or ""
    return f"of role {message['role']!r}: {content[:_SHOWN]!r}{'…' if len(content) > _SHOWN else ''}"
