"""Convert chat rows of any known layout to one form: a list of `{role, content, …}` messages, and tools.

What chat templates and loss masks see later is decided only here:

* roles are `system`, `developer`, `user`, `assistant`, `tool`; `function` becomes `tool`;
* a content list of text parts is joined into one string, without separators;
* keys whose value is null are dropped, as transformers drops them; an assistant message whose content is
  null needs tool calls and then has no `content` key;
* every other key of a message (`tool_calls`, `name`, `reasoning_content`, `train`, `weight` …) is kept
  unchanged, after `role` and `content`;
* an empty list of tools counts as no tools.

Anything else raises `RowRejected` with a reason by which ledgers count. Empty texts are allowed here.

The loop handles the common message, two keys and a string, without a function call: a row of two messages takes
1.7 us, the same as reading it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import orjson

from schemas.sft_fields import ROLES, Dialect, FieldMapping
from tasks.run.rejects import RowRejected
from tasks.sft.chat.layouts import describe_missing, listed_keys

Row = dict[str, Any]
Message = dict[str, Any]

_ROLES = {role: role for role in ROLES} | {"function": "tool"}
_SHAREGPT_ROLES = _ROLES | {
    "human": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bard": "assistant",
    "bing": "assistant",
    "function_call": "assistant",
    "observation": "tool",
    "function_response": "tool",
}
_CONVERSATIONS, _FROM, _VALUE = "conversations", "from", "value"
_HISTORY = "history"


@dataclass(slots=True)
class Conversation:
    """A conversation in the form that chat templates take."""

    messages: list[Message]
    tools: list[Any] | None


def normalise(row: Row, dialect: Dialect, fields: FieldMapping) -> Conversation:
    """Extract the conversation from `row`. Neither the row nor anything in it is changed.

    Args:
        row: a parsed row.
        dialect: its layout; `auto` decides by the keys that are present and not null, in the order
            messages, conversations, prompt and completion, instruction and output, and recognizes
            ShareGPT messages by the `from` key of the first one.
        fields: names of the keys; one left at its default follows the dialect.

    Raises:
        RowRejected: `missing_messages`, `messages_not_a_list`, `empty_conversation`,
            `message_not_an_object`, `unknown_role`, `missing_content`, `null_content`, `bad_content`,
            `unsupported_content`, `no_assistant_turn`, `bad_tools`, `lone_surrogate`.

    >>> row = {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]}
    >>> normalise(row, Dialect.AUTO, FieldMapping()).messages
    [{'role': 'user', 'content': 'Hi'}, {'role': 'assistant', 'content': 'Hello'}]
    """
    messages = _READERS[dialect](row, fields)
    for message in messages:
        if message["role"] == "assistant":
            break
    else:
        _reject("no_assistant_turn", f"none of the {len(messages)} messages is by the assistant")
    tools = row.get(fields.tools)
    return Conversation(messages, None if tools is None else _tools(tools))


def _auto(row: Row, fields: FieldMapping) -> list[Message]:
    for key in (fields.messages, _CONVERSATIONS):
        listed = row.get(key)
        if listed is None:
            continue
        first = listed[0] if isinstance(listed, list) and listed else None
        if isinstance(first, dict) and fields.role not in first and _FROM in first:
            return _sharegpt_list(row, key, fields)
        messages = _listed(row, key, fields.role, fields.content, _table(_ROLES, fields))
        return messages if key != _CONVERSATIONS else _with_system(row, fields, messages)
    if row.get(fields.prompt) is not None and row.get(fields.completion) is not None:
        return _prompt_completion(row, fields)
    if row.get(fields.instruction) is not None and row.get(fields.output) is not None:
        return _alpaca(row, fields)
    raise RowRejected("missing_messages", describe_missing(row, fields))


def _messages(row: Row, fields: FieldMapping) -> list[Message]:
    return _listed(row, fields.messages, fields.role, fields.content, _table(_ROLES, fields))


def _sharegpt(row: Row, fields: FieldMapping) -> list[Message]:
    return _sharegpt_list(row, _CONVERSATIONS if fields.messages == "messages" else fields.messages, fields)


def _sharegpt_list(row: Row, key: str, fields: FieldMapping) -> list[Message]:
    role_key = _FROM if fields.role == "role" else fields.role
    content_key = _VALUE if fields.content == "content" else fields.content
    messages = _listed(row, key, role_key, content_key, _table(_SHAREGPT_ROLES, fields))
    return _with_system(row, fields, messages)


def _alpaca(row: Row, fields: FieldMapping) -> list[Message]:
    question = _text(row, fields.instruction)
    if row.get(fields.input):
        question = f"{question}\n\n{_text(row, fields.input)}"
    answer = _text(row, fields.output)
    messages: list[Message] = []
    history = row.get(_HISTORY)
    if history is not None and not isinstance(history, list):
        _reject("bad_content", f"{_HISTORY} is {_kind(history)}, not a list of pairs")
    for index, pair in enumerate(history or ()):
        if not isinstance(pair, list) or len(pair) != 2:
            _reject("bad_content", f"{_HISTORY}[{index}] is not a pair of texts")
        messages += _turn(*(_checked_text(text, f"{_HISTORY}[{index}]") for text in pair))
    messages += _turn(question, answer)
    return _with_system(row, fields, messages)


def _prompt_completion(row: Row, fields: FieldMapping) -> list[Message]:
    messages: list[Message] = []
    for key, role in ((fields.prompt, "user"), (fields.completion, "assistant")):
        value = row.get(key)
        if isinstance(value, list):
            # Either list may be empty, but not both.
            if value:
                messages += _listed(row, key, fields.role, fields.content, _table(_ROLES, fields))
        else:
            messages.append({"role": role, "content": _text(row, key)})
    if not messages:
        _reject("empty_conversation", f"{fields.prompt} and {fields.completion} are empty lists")
    return messages


_READERS: dict[Dialect, Callable[[Row, FieldMapping], list[Message]]] = {
    Dialect.AUTO: _auto,
    Dialect.MESSAGES: _messages,
    Dialect.SHAREGPT: _sharegpt,
    Dialect.ALPACA: _alpaca,
    Dialect.PROMPT_COMPLETION: _prompt_completion,
}


def _table(roles: dict[str, str], fields: FieldMapping) -> dict[str, str]:
    return roles | fields.roles if fields.roles else roles


def _turn(question: str, answer: str) -> list[Message]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def _with_system(row: Row, fields: FieldMapping, messages: list[Message]) -> list[Message]:
    """Put the row's system prompt before `messages`, unless there is none or they begin with it."""
    if not row.get(fields.system):
        return messages
    system = {"role": "system", "content": _text(row, fields.system)}
    return messages if messages[0] == system else [system, *messages]


def _listed(row: Row, key: str, role_key: str, content_key: str, roles: dict[str, str]) -> list[Message]:
    """Read the messages in the list `row[key]`."""
    listed = row.get(key)
    if type(listed) is not list:
        if listed is None:
            _missing(row, key)
        _reject("messages_not_a_list", f"{key} is {_kind(listed)}")
    if not listed:
        _reject("empty_conversation", f"{key} is an empty list")
    messages: list[Message] = []
    for index, raw in enumerate(listed):
        if type(raw) is not dict:
            _reject("message_not_an_object", f"{key}[{index}] is {_kind(raw)}")
        name = raw.get(role_key)
        role = roles.get(name) if type(name) is str else None
        if role is None:
            _unknown_role(raw, role_key, f"{key}[{index}]", roles)
        content = raw.get(content_key)
        # `isascii` only reads a flag of the string; other texts are checked for half a UTF-16 pair.
        if type(content) is str and content.isascii() and len(raw) == 2:
            messages.append({"role": role, "content": content})
        else:
            messages.append(_message(raw, role, role_key, content_key, f"{key}[{index}]"))
    return messages


def _message(raw: Message, role: str, role_key: str, content_key: str, where: str) -> Message:
    content = raw.get(content_key)
    message: Message = {"role": role}
    if content is not None:
        message["content"] = _content(content, f"{where}.{content_key}")
    elif role != "assistant" or not raw.get("tool_calls"):
        if content_key in raw:
            _reject("null_content", f"{where}.{content_key} is null in a message of role {role!r}")
        _reject("missing_content", f"{where} has no {content_key!r}; its keys: {listed_keys(raw)}")
    if len(raw) > 2 or "content" not in message:
        own = (role_key, content_key, "role", "content")
        rest = {key: value for key, value in raw.items() if value is not None and key not in own}
        _check_surrogates(rest, where)
        message |= rest
    return message


def _content(content: Any, where: str) -> str:
    if isinstance(content, str):
        return _checked_text(content, where)
    if not isinstance(content, list):
        _reject("bad_content", f"{where} is {_kind(content)}")
    texts: list[str] = []
    for index, part in enumerate(content):
        text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else part
        if not isinstance(text, str):
            kind = f"of type {part.get('type')!r}" if isinstance(part, dict) else _kind(part)
            _reject("unsupported_content", f"{where}[{index}] is a part {kind}; only text can be packed")
        texts.append(_checked_text(text, where))
    return "".join(texts)


def _text(row: Row, key: str) -> str:
    """Return the text `row[key]` of a row that must have one."""
    value = row.get(key)
    if value is None:
        if key in row:
            _reject("null_content", f"{key} is null")
        _missing(row, key)
    return _checked_text(value, key)


def _checked_text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        _reject("bad_content", f"{where} is {_kind(value)}, not a text")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            _lone_surrogate(where, error)
    return value


def _check_surrogates(value: Any, where: str) -> None:
    """Reject a value in which any text contains half of a UTF-16 pair."""
    try:
        orjson.dumps(value)
    except TypeError:
        # orjson also refuses values that templates can handle, so ask the text encoder.
        for text in _texts(value):
            try:
                text.encode()
            except UnicodeEncodeError as error:
                _lone_surrogate(where, error)


def _texts(value: Any) -> list[str]:
    """Collect all texts in a JSON value, including keys."""
    texts: list[str] = []
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            texts.append(item)
        elif isinstance(item, dict):
            pending += [*item, *item.values()]
        elif isinstance(item, list):
            pending += item
    return texts


def _tools(tools: Any) -> list[Any] | None:
    """Read tool definitions from a list or a JSON string."""
    if isinstance(tools, str):
        if not tools.strip():
            return None
        try:
            tools = orjson.loads(_checked_text(tools, "tools"))
        except orjson.JSONDecodeError as error:
            if "surrogate" in str(error):
                _reject("lone_surrogate", f"tools: {error}")
            _reject("bad_tools", f"tools is a string that is not JSON: {error}")
    else:
        _check_surrogates(tools, "tools")
    if tools is None:
        return None
    if not isinstance(tools, list):
        _reject("bad_tools", f"tools is {_kind(tools)}, not a list")
    for index, tool in enumerate(tools):
        if not isinstance(tool, dict):
            _reject("bad_tools", f"tools[{index}] is {_kind(tool)}, not an object")
    return tools or None


def _reject(reason: str, detail: str) -> NoReturn:
    raise RowRejected(reason, detail)


def _missing(row: Row, key: str) -> NoReturn:
    state = "is null" if key in row else "is missing"
    _reject("missing_messages", f"{key!r} {state}; keys of the row: {listed_keys(row)}")


def _lone_surrogate(where: str, error: UnicodeEncodeError) -> NoReturn:
    _reject("lone_surrogate", f"{where} holds half of a UTF-16 pair at character {error.start}")


def _unknown_role(raw: Message, role_key: str, where: str, roles: dict[str, str]) -> NoReturn:
    if role_key not in raw:
        _reject("unknown_role", f"{where} has no {role_key!r}; its keys: {listed_keys(raw)}")
    _reject(
        "unknown_role", f"{where}.{role_key} is {ascii(raw[role_key])[:80]}; known roles: {', '.join(roles)}"
    )


_KINDS = {
    bool: "a boolean",
    int: "a number",
    float: "a number",
    str: "a string",
    list: "a list",
    dict: "an object",
}


def _kind(value: Any) -> str:
    return "null" if value is None else _KINDS.get(type(value), f"a {type(value).__name__}")
