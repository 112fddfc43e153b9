"""Locate and digest a tokenizer of another origin, as a base or to compare with, without loading it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from schemas.errors import ConfigError, MissingExtraError
from tasks.storage.listing import entries
from tasks.storage.reading import read_bytes
from tasks.tokenizer.loading import TOKENIZER_FILE

# All small files of a model's folder, whichever of them its class reads; not those of weights and training.
_PATTERNS = ("*.json", "*.txt", "*.model", "*.jinja", "*.tiktoken", "*.spm")
_UNREAD = ("*.index.json", "generation_config.json", "trainer_state.json", "*_results.json")


@dataclass(frozen=True)
class OtherTokenizer:
    """Locate a tokenizer.

    Attributes:
        folder: local folder.
        digest: SHA-256 over the names and contents of its small files.
    """

    folder: str
    digest: str

    @property
    def file(self) -> Path:
        """Its `tokenizer.json`."""
        return Path(self.folder) / TOKENIZER_FILE


def find_other(path: str, revision: str | None, field: str, revision_field: str) -> OtherTokenizer:
    """Locate a tokenizer in a folder or on the hub.

    Args:
        field, revision_field: the configuration fields, for errors.

    Raises:
        ConfigError: `missing_tokenizer`: it is not there, a hub id has no revision, or the folder has no
            tokenizer.json; `bad_tokenizer`: one of its files cannot be read.
        MissingExtraError: a hub id is given, but huggingface_hub is not installed.
    """
    folder = Path(path).expanduser()
    if not folder.is_dir():
        folder = _from_hub(path, revision, field, revision_field)
    files = {file for pattern in _PATTERNS for file in entries(folder, pattern) if file.is_file()}
    files -= {file for pattern in _UNREAD for file in entries(folder, pattern)}
    if folder / TOKENIZER_FILE not in files:
        raise ConfigError(
            f"there is no {TOKENIZER_FILE} in {folder}; name a folder or hub id that has one",
            code="missing_tokenizer",
            where=field,
        )
    digest = hashlib.sha256()
    for file in sorted(files):
        try:
            content = read_bytes(file)
        except OSError as error:
            raise ConfigError(
                f"cannot read {file}: {error.strerror}", code="bad_tokenizer", where=field
            ) from error
        digest.update(f"{file.name}\0{len(content)}\0".encode())
        digest.update(content)
    return OtherTokenizer(str(folder), digest.hexdigest())


def _from_hub(path: str, revision: str | None, field: str, revision_field: str) -> Path:
    if path.startswith((".", "/", "~")) or path.count("/") > 1:
        raise ConfigError(
            f"no such folder: {path!r}; name a folder with {TOKENIZER_FILE}, or a hub id",
            code="missing_tokenizer",
            where=field,
        )
    if revision is None:
        raise ConfigError(
            f"{path!r} is not a local folder; to use it as a hub id, set {revision_field}, so that the same "
            "configuration always means the same tokenizer",
            code="missing_tokenizer",
            where=revision_field,
        )
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise MissingExtraError.of("huggingface_hub", "sft", "a tokenizer from the hub") from None
    try:
        found = snapshot_download(
            path, revision=revision, allow_patterns=list(_PATTERNS), ignore_patterns=list(_UNREAD)
        )
    except Exception as error:
        raise ConfigError(
            f"cannot download {path!r} at revision {revision!r} from the hub: {error}",
            code="missing_tokenizer",
            where=field,
        ) from error
    return Path(found)
