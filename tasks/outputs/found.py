"""Describe an output to the domains: its files, and the tables for queries."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa

from schemas.errors import ConfigError
from schemas.sft import SPLIT_NAMES
from tasks.run.find import Found
from tasks.run.rejects import REJECTS_FOLDER

# As pack-sft names its links, and the other flows their shards.
_LINK = re.compile(r"\d{6,}__(?P<dataset>.+)__shard_\d{6,}(\..+)?")
# As pack-sft publishes the rows it rejected: before they had a split, and after.
_REJECTED = re.compile(
    rf"(?P<dataset>.+)-(?:tokenize-\d{{6,}}|pack-(?P<split>{'|'.join(SPLIT_NAMES)}))\.parquet"
)
_NUMBERED = re.compile(rf"(?P<split>{'|'.join(SPLIT_NAMES)})-\d{{5,}}-of-\d{{5,}}\..+")


@dataclass(frozen=True)
class Place:
    """Where a shard is.

    Attributes:
        dataset, split: by its name, or by the folders it is in, up to the run or the folder that was named, whose own
            names count only outside a run; `None` if they do not say.
        path: relative to the run or the folder that was named.
        shard: the last part of it, which is not unique.
    """

    dataset: str | None
    split: str | None
    path: str
    shard: str


@dataclass(frozen=True)
class Outputs:
    """The files of one kind.

    Attributes:
        path: the path that the user gave.
        kind: what they are, in a few words.
        files: shards in order; for a tokenizer its `tokenizer.json`.
        rejects: the files of rejected rows beside them.
        run: the run they belong to, if any.
    """

    path: str
    kind: str
    files: tuple[Path, ...]
    rejects: tuple[Path, ...] = ()
    run: Found[Path] | None = None

    @property
    def root(self) -> Path:
        """The folder that shard names are relative to."""
        return self.run.folder if self.run is not None else Path(self.path)

    def name(self, file: Path) -> str:
        """Return the name of a shard in its run or folder."""
        is_below = file != self.root and file.is_relative_to(self.root)
        return file.relative_to(self.root).as_posix() if is_below else file.name

    def place(self, file: Path) -> Place:
        """Return data set, split, path and name of a shard."""
        *folders, name = file.absolute().parts
        root = self.root.absolute()
        # Folders above say nothing: an output may be kept below one that is named `train`.
        above = (
            root if self.run is not None else root.parent if file.absolute() != root else root.parent.parent
        )
        inner = folders[len(above.parts) :]
        split = next((folder for folder in reversed(inner) if folder in SPLIT_NAMES), None)
        dataset = None
        # datasets/{name}/{hash}/{split}/{shard}
        if folders[-4:-3] == ["datasets"] and folders[-1] == split:
            dataset = folders[-3]
        elif link := _LINK.fullmatch(name):
            dataset = link["dataset"]
        elif folders[-1] == REJECTS_FOLDER and (rejected := _REJECTED.fullmatch(name)):
            dataset, split = rejected["dataset"], rejected["split"]
        elif numbered := _NUMBERED.fullmatch(name):
            split = numbered["split"]
        return Place(dataset, split, self.name(file), name)

    def chosen(self, split: str | None = None, dataset: str | None = None) -> Outputs:
        """Return only the shards of a split or a data set, and the rejected rows whose files say that they are of it.

        Raises:
            ConfigError: `missing_split`, `missing_dataset`: there are none.
        """
        chosen = self
        for what, words, wanted in (("split", "split", split), ("dataset", "data set", dataset)):
            if wanted is None:
                continue
            of = {file: getattr(self.place(file), what) for file in chosen.files}
            files = tuple(file for file, name in of.items() if name == wanted)
            if not files:
                names = ", ".join(sorted({name for name in of.values() if name is not None}))
                raise ConfigError(
                    f"there is no {words} {wanted!r}; "
                    + (f"allowed: {names}" if names else f"these {self.kind} do not say their {words}"),
                    code=f"missing_{what}",
                    where=f"--{what}",
                )
            rejects = tuple(file for file in chosen.rejects if getattr(self.place(file), what) == wanted)
            chosen = replace(chosen, files=files, rejects=rejects)
        return chosen


@dataclass(frozen=True)
class Tables:
    """The tables that a query can read.

    Attributes:
        files: table name to Parquet files.
        streams: table name to batches.
    """

    files: dict[str, Sequence[Path]] = field(default_factory=dict)
    streams: dict[str, pa.RecordBatchReader] = field(default_factory=dict)
