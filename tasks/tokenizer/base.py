"""Train from another tokenizer: its model, normalizer, words, special tokens and template, with a new vocabulary."""

from __future__ import annotations

import json
import os
from typing import Any

from schemas.errors import ConfigError, MissingExtraError
from schemas.tokenizer import TrainTokenizerConfig
from tasks.inputs.native import panics_are_errors
from tasks.tokenizer.learn import Texts
from tasks.tokenizer.save import more_special_tokens

# Options of our configuration, and the models of which the trainer has them.
_OPTIONS = {
    "min_frequency": ("BPE", "WordPiece", "WordLevel"),
    "max_token_length": ("BPE",),
}
# Settings that are not in tokenizer.json.
_ATTRIBUTES = (
    "clean_up_tokenization_spaces",
    "model_input_names",
    "model_max_length",
    "padding_side",
    "truncation_side",
)


def learn_from(
    base_folder: str, texts: Texts, config: TrainTokenizerConfig, chat_template: str
) -> tuple[Any, dict[str, Any]]:
    """Train as `train_new_from_iterator` of transformers does, with the options of `config`.

    Args:
        texts: called once.
        chat_template: source of a template; empty for that of the base.

    Returns:
        The `tokenizers.Tokenizer`, and the content of its `tokenizer_config.json`.

    Raises:
        ConfigError: `bad_tokenizer`: transformers cannot load the base or train from it; `bad_config`: an option does
            not fit its model, or a token with a role is not one of its special tokens.
        MissingExtraError: transformers is not installed.
    """
    # Counting words uses all cores inside one call.
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise MissingExtraError.of("transformers", "sft", "training from a base") from None
    try:
        with panics_are_errors():
            base = AutoTokenizer.from_pretrained(base_folder, local_files_only=True, trust_remote_code=False)
        kind = json.loads(base.backend_tokenizer.to_str())["model"]["type"]
    except Exception as error:
        raise ConfigError(
            f"transformers cannot load this tokenizer: {error}", code="bad_tokenizer", where="base"
        ) from error
    trained = base.train_new_from_iterator(
        texts(),
        config.vocabulary_size,
        new_special_tokens=list(config.extra_special_tokens) or None,
        show_progress=False,
        **_options(config, kind),
    )
    return trained.backend_tokenizer, _settings(trained, config, chat_template)


def _options(config: TrainTokenizerConfig, kind: str) -> dict[str, int]:
    options = {name: getattr(config, name) for name in _OPTIONS}
    given = {name: value for name, value in options.items() if value is not None}
    for name in given:
        # The trainer would ignore it, with a line on stdout.
        if kind not in _OPTIONS[name]:
            raise ConfigError(
                f"{name} has no effect on the model of the base, {kind}; remove it",
                code="bad_config",
                where=name,
            )
    return given


def _settings(trained: Any, config: TrainTokenizerConfig, chat_template: str) -> dict[str, Any]:
    special = [token.content for token in trained.added_tokens_decoder.values() if token.special]
    roles = {role: str(token) for role, token in trained.special_tokens_map.items() if isinstance(token, str)}
    for role in ("eos_token", "pad_token"):
        token = getattr(config, role)
        if token is not None and token not in special:
            raise ConfigError(
                f"{token!r} is not a special token of the base {special[:10]}; add it to extra_special_tokens",
                code="bad_config",
                where=role,
            )
        if token is not None:
            roles[role] = token
    template = chat_template or trained.chat_template
    return {
        # The class of a base may rebuild the pipeline; tokenizer.json is what was trained.
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{name: getattr(trained, name) for name in _ATTRIBUTES},
        **roles,
        **more_special_tokens(token for token in special if token not in roles.values()),
        **({"chat_template": template} if template else {}),
    }
