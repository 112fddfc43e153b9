"""Base of packed shards of all formats: metadata, blocks of bins, and faults of the file as a whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from schemas.errors import InputError
from schemas.sft import (
    FORMAT_VERSION,
    METADATA_COUNT,
    METADATA_PACK_SIZE,
    METADATA_TOKENIZER,
    METADATA_VERSION,
    METADATA_VOCABULARY,
    Count,
    PackConfig,
    StorageFormat,
)
from tasks.sft.shards.invariants import Limits, RawBins

# 2 MB of ids at the default pack size: fits the cache, and takes 200 MB less at the peak of two shards than 1,024.
BLOCK_ROWS = 128


class BadShardError(InputError):
    """A shard that cannot be read as one.

    Attributes:
        findings: rule and detail of each fault of the file as a whole.
    """

    default_code = "bad_shard"
    findings: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, path: Path, *findings: tuple[str, str], code: str | None = None) -> Self:
        """Build an error from one or more (rule, detail)."""
        error = cls("; ".join(detail for _, detail in findings), code=code, where=str(path))
        error.findings = findings
        return error


@dataclass(frozen=True)
class ShardMetadata:
    """A shard's description of itself; `None` where it does not say.

    Attributes:
        version: format version; only files written by Gristmill have one.
        pack_size: most tokens a bin may count, as `count` counts them.
        tokenizer_digest: SHA-256 of the tokenizer.
        vocabulary_size: ids are below this.
    """

    version: int | None = None
    pack_size: int | None = None
    count: Count | None = None
    tokenizer_digest: str | None = None
    vocabulary_size: int | None = None

    @classmethod
    def made_here(cls, pack: PackConfig, tokenizer_digest: str, vocabulary_size: int) -> ShardMetadata:
        """Describe a shard that this version writes."""
        return cls(FORMAT_VERSION, pack.size, pack.count, tokenizer_digest, vocabulary_size)

    @classmethod
    def parse(cls, keys: Mapping[str, str]) -> ShardMetadata:
        """Parse key-value metadata; keys of other tools are ignored.

        Raises:
            ValueError: one of our keys has an invalid value.
        """

        def number(key: bytes) -> int | None:
            text = keys.get(key.decode())
            return None if text is None else int(text)

        count = keys.get(METADATA_COUNT.decode())
        return cls(
            version=number(METADATA_VERSION),
            pack_size=number(METADATA_PACK_SIZE),
            count=None if count is None else Count(count),
            tokenizer_digest=keys.get(METADATA_TOKENIZER.decode()),
            vocabulary_size=number(METADATA_VOCABULARY),
        )

    def keys(self) -> dict[str, str]:
        """Format as key-value metadata, the inverse of `parse`.

        >>> ShardMetadata(pack_size=8, count=Count.STORED).keys()
        {'gristmill.pack_size': '8', 'gristmill.count': 'stored'}
        """
        values = {
            METADATA_VERSION: self.version,
            METADATA_PACK_SIZE: self.pack_size,
            METADATA_COUNT: self.count,
            METADATA_TOKENIZER: self.tokenizer_digest,
            METADATA_VOCABULARY: self.vocabulary_size,
        }
        return {key.decode(): str(value) for key, value in values.items() if value is not None}

    def limits(self) -> Limits:
        """Return the limits that rows must keep; by default, lengths count as in the trainer."""
        return Limits(self.pack_size, self.count or Count.RUNTIME, self.vocabulary_size)


class Shard(Protocol):
    """A packed shard, opened on first access, which raises faults of the file as `BadShardError`."""

    path: Path

    @property
    def format(self) -> StorageFormat: ...

    @property
    def num_bins(self) -> int: ...

    @property
    def metadata(self) -> ShardMetadata: ...

    def longest_bin(self) -> int:
        """Return the stored tokens of the longest bin, 0 without bins. Token ids are not read."""
        ...

    def blocks(self, first: int = 0, end: int | None = None, rows: int = BLOCK_ROWS) -> Iterator[RawBins]:
        """Yield bins `[first, end)` in order, at most `rows` at a time, as stored and unchecked."""
        ...

    def digests(self) -> Iterator[tuple[Path, str, str]]:
        """Yield the path, the stated and the real digest of what the shard states one for; this reads all of it."""
        ...

    def close(self) -> None:
        """Close the file; the next access opens it again."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Opened:
    """Mixin: a shard whose open files are cached properties, dropped by `close`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def digests(self) -> Iterator[tuple[Path, str, str]]:
        """See `Shard.digests`; Parquet has checksums of its own."""
        return iter(())

    def close(self) -> None:
        """Drop all cached properties; the next access opens the shard again."""
        kept = {name: value for name, value in vars(self).items() if name == "path"}
        self.__dict__.clear()
        self.__dict__.update(kept)

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
