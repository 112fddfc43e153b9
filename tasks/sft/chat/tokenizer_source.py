"""Locate and digest a tokenizer without loading it.

Separate from tokenizer.py because a cached re-run needs the digest but cannot afford the imports.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from schemas.errors import ConfigError, MissingExtraError
from schemas.sft import TokenizerConfig
from tasks.inputs.texts import template_source
from tasks.storage.listing import entries
from tasks.storage.reading import read_bytes

# The files from which transformers reads a tokenizer; a model folder also has gigabytes of irrelevant files.
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
)


@dataclass(frozen=True)
class TokenizerSource:
    """The location of a tokenizer, and the digest of everything that decides its ids and its template.

    Attributes:
        folder: local folder.
        digest: SHA-256 over the names and contents of its tokenizer files.
        chat_template: template source from the configuration; empty for the tokenizer's own.
    """

    folder: str
    digest: str
    chat_template: str


def find_tokenizer(config: TokenizerConfig) -> TokenizerSource:
    """Locate the tokenizer and its template without loading either.

    Raises:
        ConfigError: `missing_tokenizer`; `bad_tokenizer`, one of its files cannot be read; or a template file
            does not exist.
        MissingExtraError: a hub id is given, but huggingface_hub is not installed.
    """
    folder = Path(config.path)
    if not folder.is_dir():
        folder = _from_hub(config)
    files = [folder / name for name in _TOKENIZER_FILES if (folder / name).is_file()]
    files += entries(folder / "additional_chat_templates", "*.jinja")
    if not any(file.name in ("tokenizer.json", "tokenizer.model", "vocab.json") for file in files):
        raise ConfigError(
            f"the folder does not contain a tokenizer; expected tokenizer.json in {folder}",
            code="missing_tokenizer",
            where="tokenizer.path",
        )
    digest = hashlib.sha256()
    for file in files:
        try:
            content = read_bytes(file)
        except OSError as error:
            raise ConfigError(
                f"cannot read {file}: {error.strerror}", code="bad_tokenizer", where="tokenizer.path"
            ) from error
        digest.update(f"{file.relative_to(folder).as_posix()}\0{len(content)}\0".encode())
        digest.update(content)
    template = template_source(config.chat_template, "tokenizer.chat_template")
    return TokenizerSource(str(folder), digest.hexdigest(), template)


def _from_hub(config: TokenizerConfig) -> Path:
    looks_local = config.path.startswith((".", "/", "~")) or config.path.count("/") != 1
    if looks_local:
        raise ConfigError(
            f"no such folder: {config.path!r}; specify a folder with tokenizer.json",
            code="missing_tokenizer",
            where="tokenizer.path",
        )
    if config.revision is None:
        raise ConfigError(
            f"{config.path!r} is not a local folder; to use it as a hub id, set its revision, so that the same "
            "configuration always means the same tokenizer",
            code="missing_tokenizer",
            where="tokenizer.revision",
        )
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise MissingExtraError.of("huggingface_hub", "sft", "a tokenizer from the hub") from None
    try:
        found = snapshot_download(
            config.path,
            revision=config.revision,
            allow_patterns=[*_TOKENIZER_FILES, "additional_chat_templates/*"],
        )
    except Exception as error:
        raise ConfigError(
            f"cannot download {config.path!r} at revision {config.revision!r} from the hub: {error}",
            code="missing_tokenizer",
            where="tokenizer.path",
        ) from error
    return Path(found)
