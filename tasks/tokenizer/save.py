"""Save a tokenizer so that `transformers.AutoTokenizer` loads it, of version 4 or 5."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from schemas.run import FileRecord
from schemas.tokenizer import TrainTokenizerConfig
from tasks.storage.atomic import write_file


def settings(config: TrainTokenizerConfig, chat_template: str) -> dict[str, Any]:
    """Return `tokenizer_config.json` of a tokenizer without a base.

    Tokens that have no role are declared as well: otherwise transformers does not count them among `all_special_ids`.
    """
    named = {"eos_token": config.eos, "pad_token": config.pad, "unk_token": config.unk}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        **{role: token for role, token in named.items() if token is not None},
        **more_special_tokens(token for token in config.all_special_tokens if token not in named.values()),
        "chat_template": chat_template,
    }


def more_special_tokens(tokens: Any) -> dict[str, list[str]]:
    """Declare special tokens without a role, under the name that transformers 4 and 5 both read.

    `extra_special_tokens` must be a mapping for version 4 and a list for version 5.
    """
    listed = list(tokens)
    return {"additional_special_tokens": listed} if listed else {}


def save_tokenizer(tokenizer: Any, folder: Path, root: Path, settings: Mapping[str, Any]) -> list[FileRecord]:
    """Write `tokenizer.json` and `tokenizer_config.json`; return their records relative to `root`."""
    contents = {
        "tokenizer.json": tokenizer.to_str(pretty=True),
        "tokenizer_config.json": json.dumps(settings, indent=2) + "\n",
    }
    return [write_file(folder / name, content.encode()).record(root) for name, content in contents.items()]
