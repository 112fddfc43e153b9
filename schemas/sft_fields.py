"""How a chat row is laid out: the dialect, and the names of its fields when they are not the usual ones."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal, get_args

from pydantic import Field

from schemas.config import Config

# A chat template sees only these; `function` is the older name of `tool`.
Role = Literal["system", "developer", "user", "assistant", "tool"]
ROLES: tuple[str, ...] = get_args(Role)


class Dialect(StrEnum):
    """Known layouts of a conversation in a row."""

    AUTO = "auto"
    MESSAGES = "messages"
    SHAREGPT = "sharegpt"
    ALPACA = "alpaca"
    PROMPT_COMPLETION = "prompt_completion"


class FieldMapping(Config):
    """Names of the keys of a row and of a message. A field left at its default follows the dialect."""

    messages: str = Field(
        "messages",
        min_length=1,
        title="Messages",
        description="Key of the list of messages. Left at `messages`, ShareGPT rows use `conversations`.",
    )
    tools: str = Field(
        "tools",
        min_length=1,
        title="Tools",
        description="Key of the tool definitions: a list, or a JSON string holding one. May be absent.",
    )
    role: str = Field(
        "role",
        min_length=1,
        title="Role",
        description="Key of a message's role. Left at `role`, ShareGPT messages use `from`.",
    )
    content: str = Field(
        "content",
        min_length=1,
        title="Content",
        description="Key of a message's text. Left at `content`, ShareGPT messages use `value`.",
    )
    system: str = Field(
        "system",
        min_length=1,
        title="System",
        description="Key of the system prompt beside the conversation, in ShareGPT and Alpaca rows. "
        "May be absent.",
    )
    instruction: str = Field(
        "instruction", min_length=1, title="Instruction", description="Key of the instruction in Alpaca rows."
    )
    input: str = Field(
        "input",
        min_length=1,
        title="Input",
        description="Key of the input that Alpaca rows add to the instruction after an empty line. "
        "May be absent or empty.",
    )
    output: str = Field(
        "output", min_length=1, title="Output", description="Key of the answer in Alpaca rows."
    )
    prompt: str = Field(
        "prompt",
        min_length=1,
        title="Prompt",
        description="Key of the prompt in prompt/completion rows: a text or a list of messages.",
    )
    completion: str = Field(
        "completion",
        min_length=1,
        title="Completion",
        description="Key of the completion in prompt/completion rows: a text or a list of messages.",
    )
    group: str | None = Field(
        None,
        min_length=1,
        title="Group",
        description="Key whose value keeps rows together when splits are made: rows of one group go to the "
        "same split. Empty: every conversation stands for itself.",
    )
    roles: dict[str, Role] = Field(
        default_factory=dict,
        title="Roles",
        description="Further role names and what they stand for, such as {Customer: user, Agent: assistant}; "
        f"allowed: {', '.join(ROLES)}. They win over the dialect's own names.",
    )
