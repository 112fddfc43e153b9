"""The layout of a chat row: its dialect, and the names of its fields if they are not the usual ones."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal, get_args

from pydantic import Field

from schemas.config import Config
from schemas.fields import text_field

# A chat template sees only these; `function` is the former name of `tool`.
Role = Literal["system", "developer", "user", "assistant", "tool"]
ROLES: tuple[str, ...] = get_args(Role)


class Dialect(StrEnum):
    """Known layouts of a conversation in a row."""

    AUTO = "auto"
    MESSAGES = "messages"
    SHAREGPT = "sharegpt"
    ALPACA = "alpaca"
    PROMPT_COMPLETION = "prompt_completion"


def _key(name: str, description: str) -> Any:
    """Declare the name of a key; by default it is the field's own."""
    return text_field(name, name.capitalize(), description)


class FieldMapping(Config):
    """Names of the keys of a row and of a message. A field left at its default follows the dialect."""

    messages: str = _key(
        "messages", "Key of the list of messages. If left at `messages`, ShareGPT rows use `conversations`."
    )
    tools: str = _key(
        "tools", "Key of the tool definitions: a list, or a JSON string that contains one. May be missing."
    )
    role: str = _key("role", "Key of a message's role. If left at `role`, ShareGPT messages use `from`.")
    content: str = _key(
        "content", "Key of a message's text. If left at `content`, ShareGPT messages use `value`."
    )
    system: str = _key(
        "system",
        "Key of the system prompt next to the conversation, in ShareGPT and Alpaca rows. May be missing.",
    )
    instruction: str = _key("instruction", "Key of the instruction in Alpaca rows.")
    input: str = _key(
        "input",
        "Key of the input that Alpaca rows add to the instruction after an empty line. May be missing or empty.",
    )
    output: str = _key("output", "Key of the answer in Alpaca rows.")
    prompt: str = _key("prompt", "Key of the prompt in prompt/completion rows: text or a list of messages.")
    completion: str = _key(
        "completion", "Key of the completion in prompt/completion rows: text or a list of messages."
    )
    group: str | None = Field(
        None,
        min_length=1,
        title="Group",
        description="Key whose value keeps rows together in splits: all rows of a group go to the same split. Leave "
        "empty to assign each conversation on its own.",
    )
    roles: dict[str, Role] = Field(
        default_factory=dict,
        title="Roles",
        description="Additional role names and the roles they stand for, such as {Customer: user, Agent: assistant}; "
        f"allowed roles: {', '.join(ROLES)}. They take precedence over the dialect's own names.",
    )
