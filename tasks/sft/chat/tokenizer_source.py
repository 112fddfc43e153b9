"""Locate the tokenizer and the chat template of a run without loading either."""

from __future__ import annotations

from dataclasses import dataclass

from schemas.sft import TokenizerConfig
from tasks.inputs.texts import template_source
from tasks.inputs.tokenizers import locate_tokenizer

_ONE_OF = ("tokenizer.json", "tokenizer.model", "vocab.json")


@dataclass(frozen=True)
class TokenizerSource:
    """The location of a tokenizer, and what decides its ids and its template.

    Attributes:
        folder, digest: see `LocatedTokenizer`.
        chat_template: template source from the configuration; empty for the tokenizer's own.
    """

    folder: str
    digest: str
    chat_template: str


def find_tokenizer(config: TokenizerConfig) -> TokenizerSource:
    """Locate the tokenizer and its template.

    Raises:
        ConfigError: as `locate_tokenizer`; or a template file does not exist.
        MissingExtraError: a hub id is given, but huggingface_hub is not installed.
    """
    found = locate_tokenizer(config.path, config.revision, "tokenizer.path", "tokenizer.revision", _ONE_OF)
    template = template_source(config.chat_template, "tokenizer.chat_template")
    return TokenizerSource(found.folder, found.digest, template)
