"""Locate and digest a tokenizer, in a folder or on the hub, without loading it.

A cached re-run needs the digest but cannot afford the imports that loading takes.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from schemas.errors import ConfigError, MissingExtraError
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
class LocatedTokenizer:
    """Where a tokenizer is, and the digest of everything that decides its ids and its template.

    Attributes:
        folder: local folder.
        digest: SHA-256 over the names and contents of its tokenizer files.
    """

    folder: str
    digest: str


def locate_tokenizer(
    path: str, revision: str | None, field: str, revision_field: str, one_of: Sequence[str]
) -> LocatedTokenizer:
    """Locate a tokenizer in a folder or on the hub.

    Args:
        path: a folder or a hub id.
        revision: of the hub id, without which it is refused.
        field, revision_field: the configuration fields of both, for errors.
        one_of: file names, the usual one first; the tokenizer must have one of them.

    Raises:
        ConfigError: `missing_tokenizer`: it is not there, or a hub id has no revision; `bad_tokenizer`: one of its
            files cannot be read.
        MissingExtraError: a hub id is given, but huggingface_hub is not installed.
    """
    folder = Path(path).expanduser()
    if not folder.is_dir():
        folder = _from_hub(path, revision, field, revision_field)
    files = tokenizer_files(folder)
    if not any(file.name in one_of for file in files):
        raise ConfigError(
            f"the folder does not contain a tokenizer; expected {one_of[0]} in {folder}",
            code="missing_tokenizer",
            where=field,
        )
    digest = hashlib.sha256()
    for file in files:
        try:
            content = read_bytes(file)
        except OSError as error:
            raise ConfigError(
                f"cannot read {file}: {error.strerror}", code="bad_tokenizer", where=field
            ) from error
        digest.update(f"{file.relative_to(folder).as_posix()}\0{len(content)}\0".encode())
        digest.update(content)
    return LocatedTokenizer(str(folder), digest.hexdigest())


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


def _from_hub(path: str, revision: str | None, field: str, revision_field: str) -> Path:
    if not _HUB_ID.fullmatch(path):
        raise ConfigError(
            f"no such folder: {path!r}; specify a folder with tokenizer.json",
            code="missing_tokenizer",
            where=field,
        )
    if revision is None:
        raise ConfigError(
            f"there is no folder {path!r}; check the spelling, or, to use it as a hub id, set {revision_field}, "
            "so that the same configuration always means the same tokenizer",
            code="missing_tokenizer",
            where=revision_field,
        )
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise MissingExtraError.of("huggingface_hub", "sft", "a tokenizer from the hub") from None
    try:
        found = snapshot_download(
            path,
            revision=revision,
            allow_patterns=[*TOKENIZER_FILES, f"{_TEMPLATES}/*.jinja"],
            # `*` also matches folders there, such as those of checkpoints.
            ignore_patterns=[*_UNREAD, *(f"*/{kind}" for kind in TOKENIZER_FILES if kind != "*.jinja")],
        )
    except Exception as error:
        raise ConfigError(
            f"cannot download {path!r} at revision {revision!r} from the hub: {error}",
            code="missing_tokenizer",
            where=field,
        ) from error
    return Path(found)
