"""Check what a chat template makes of a conversation: all texts are in it, and an answer is trained."""

from __future__ import annotations

import json

from markupsafe import escape

from schemas.sft import TrainOn
from tasks.sft.chat.dialects import Conversation
from tasks.sft.chat.flags import empty_answers, without_flags
from tasks.sft.chat.masks import samples, wanted_messages
from tasks.sft.chat.template import Message
from tasks.sft.chat.tokenizer import ChatTokenizer

_SHOWN = 200
# Templates leave out what comes before it in earlier answers.
_END_OF_REASONING = "</think>"


def check_rendering(tokenizer: ChatTokenizer, conversation: Conversation, train_on: TrainOn) -> str | None:
    """Describe what the template loses of a conversation; return `None` if it loses nothing.

    A text counts as rendered if it is somewhere in a sample, whatever surrounds it: as it is, with other white space,
    as in JSON, or as in HTML. Of an answer with reasoning, only what follows the reasoning is looked for.

    Raises:
        RowRejected: the conversation would be rejected; see `samples`.
    """
    if not tokenizer.template.mentions_messages:
        return "the template never mentions `messages`, so that every conversation looks the same"
    messages, tools, literals = tokenizer.escaper.escape(conversation.messages, conversation.tools)
    found = samples(tokenizer.template, Conversation(messages, tools), train_on, literals)
    texts = ["".join(piece.text for piece in sample) for sample in found]
    for place, message in enumerate(conversation.messages):
        if not any(_is_rendered(message, text) for text in texts):
            return f"the template drops the text of message {place}, {_shown(message)}"
    plain, flags = without_flags(conversation.messages)
    empty = set(empty_answers(plain))
    wanted = [place for place, want in enumerate(wanted_messages(plain, flags, train_on)) if want]
    answers = [place for place in wanted if place not in empty]
    if answers and not any(piece.trained and piece.text.strip() for sample in found for piece in sample):
        return f"the template marks nothing to train in message {answers[0]}, {_shown(plain[answers[0]])}"
    return None


def _is_rendered(message: Message, text: str) -> bool:
    body = message.get("content") or ""
    body = (body.rpartition(_END_OF_REASONING)[2].strip() or body).strip()
    written = (body, json.dumps(body, ensure_ascii=False)[1:-1], json.dumps(body)[1:-1], str(escape(body)))
    return any(form in text for form in written) or _one_line(body) in _one_line(text)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _shown(message: Message) -> str:
    content = message.get("content") or ""
    return f"of role {message['role']!r}: {content[:_SHOWN]!a}{'…' if len(content) > _SHOWN else ''}"
