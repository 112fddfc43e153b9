"""Locate and digest a tokenizer without loading it.

Separate from tokenizer.py because a cached re-run needs the digest but cannot afford the imports.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from schemas.errors import ConfigError, MissingExtraError
from schemas.sft import TokenizerConfig
from tasks.inputs.texts import template_source
from tasks.storage.listing import entries
from tasks.storage.reading import read_bytes

# Kinds of files from which transformers may take a tokenizer. By kind rather than by name: classes name their own
# vocabulary files, config.json decides the class, and without a tokenizer.json any listed name may be chosen.
# Weights, which are of other kinds, are never hashed or fetched.
TOKENIZER_FILES = (
    "*.json",
    "*.model",
    "*.model.*",
    "*.txt",
    "*.jinja",
    "*.spm",
    "*.codes",
    "*.tokenizer",
    "*.tiktoken",
    "*.bpe",
    "*.vocab",
)
_TEMPLATES = "additional_chat_templates"
# Of those kinds, but about weights or generation only; some are rewritten by every training run.
_UNREAD = (
    "*.index.json",
    "generation_config.json",
    "trainer_state.json",
    "all_results.json",
    "train_results.json",
    "eval_results.json",
)
# A hub id: a name, or an owner and a name.
_HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")


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
    folder = Path(config.path).expanduser()
    if not folder.is_dir():
        folder = _from_hub(config)
    files = tokenizer_files(folder)
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


def tokenizer_files(folder: Path) -> list[Path]:
    """List the files that can change a token or the template, sorted by name."""
    files = [
        path
        for path in entries(folder)
        if _matches(path.name, TOKENIZER_FILES) and not _matches(path.name, _UNREAD) and path.is_file()
    ]
    return files + entries(folder / _TEMPLATES, "*.jinja")


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _from_hub(config: TokenizerConfig) -> Path:
    if not _HUB_ID.fullmatch(config.path):
        raise ConfigError(
            f"no such folder: {config.path!r}; specify a folder with tokenizer.json",
            code="missing_tokenizer",
            where="tokenizer.path",
        )
    if config.revision is None:
        raise ConfigError(
            f"there is no folder {config.path!r}; check the spelling, or, to use it as a hub id, set its revision, "
            "so that the same configuration always means the same tokenizer",
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
            allow_patterns=[*TOKENIZER_FILES, f"{_TEMPLATES}/*.jinja"],
            # `*` also matches folders there, such as those of checkpoints.
            ignore_patterns=[*_UNREAD, *(f"*/{kind}" for kind in TOKENIZER_FILES if kind != "*.jinja")],
        )
    except Exception as error:
        raise ConfigError(
            f"cannot download {config.path!r} at revision {config.revision!r} from the hub: {error}",
            code="missing_tokenizer",
            where="tokenizer.path",
        ) from error
    return Path(found)
