"""Describe a domain to the run contract, and the jobs it hands out.

A domain is a schema, an identity, stages, kernels, a report and steps; docs/architecture.md shows how one is written.
Only this module computes hashes and keys, so that all domains chain them alike: a run hash covers the configuration
and the content of all inputs, a stage key only the fields that its own step depends on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from schemas.canonical import canonical_hash
from schemas.config import Config
from schemas.errors import StorageError
from schemas.run import FileRecord, Receipt, RowLedger
from tasks.inputs.fingerprint import check_unchanged
from tasks.run.layout import STAGES, claim, stage_folder


@dataclass(frozen=True)
class Domain:
    """A kind of run.

    Attributes:
        flow: the flow's name, as on the command line.
        format_version: part of every hash; raised when the same configuration would produce other bytes.
        published: names at the top of the output directory, and their link targets.
    """

    flow: str
    format_version: int
    published: Mapping[str, str]

    def claim(self, output_dir: Path) -> None:
        """Claim `output_dir` for this domain; see `tasks.run.layout.claim`.

        Raises:
            ConfigError: it belongs to another flow, or holds files that Gristmill did not make.
            StorageError: it cannot be created or written.
        """
        claim(output_dir, self.flow, dict(self.published))

    def run_hash(self, config: Any, inputs: Any, **content: Any) -> str:
        """Hash a run: 16 hex digits, equal for equal settings over equal bytes.

        Args:
            config: fields that can change output bytes, from `Config.hash_fields`.
            inputs: names and digests of the inputs, in the order that decides the output.
            content: digests of whatever else the configuration names by path (a tokenizer, a template).
        """
        return canonical_hash(self._fields(config, inputs, content))

    def stage_key(self, step: str, **fields: Any) -> str:
        """Hash exactly what one step of one part depends on: 16 hex digits."""
        return canonical_hash({"step": step, "format": self.format_version, **fields})

    def run_stage_key(self, step: str, config: Any, inputs: Any, **content: Any) -> str:
        """Hash a step that depends on everything the run depends on."""
        return canonical_hash({"step": step, **self._fields(config, inputs, content)})

    def _fields(self, config: Any, inputs: Any, content: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "flow": self.flow,
            "format": self.format_version,
            "config": config,
            "inputs": inputs,
            **content,
        }


@dataclass(frozen=True, kw_only=True)
class Job:
    """The work of one task: the input of a step, and what names its receipt.

    Attributes:
        task: name of the step.
        output_dir: root of the run layout, absolute.
        stage: stage key; the job writes only to that stage's folder.
        part: number of the job within its stage.
        label: what the job works on, for people; not part of any key.
        seen: file status of each input at the time it was hashed, by path.
    """

    task: ClassVar[str]
    output_dir: str
    stage: str
    part: int = 0
    label: str = ""
    seen: Mapping[str, Sequence[int]] = field(default_factory=dict)

    @property
    def weight(self) -> int:
        """How much work the job is, next to others of its step: bytes to read, where these differ."""
        return 1

    @property
    def root(self) -> Path:
        """The output directory."""
        return Path(self.output_dir)

    @property
    def folder(self) -> Path:
        """The folder of the job's stage."""
        return stage_folder(self.root, self.stage)

    def receipt(
        self,
        files: Sequence[FileRecord],
        ledger: RowLedger | None = None,
        statistics: Mapping[str, Any] | None = None,
    ) -> Receipt:
        """Return the receipt of this job.

        Raises:
            IntegrityError: `ledger`, the rows do not add up.
        """
        return Receipt(
            task=self.task,
            stage=self.stage,
            part=self.part,
            files=tuple(files),
            ledger=ledger,
            statistics=dict(statistics or {}),
        )


J = TypeVar("J", bound=Job)


def do(kernel: Callable[[J], Receipt], job: J) -> Receipt:
    """Call a kernel, then check that it read what was hashed.

    The key of a receipt is built from the digests of its inputs, so it must describe exactly those bytes.

    Raises:
        InputError: `input_changed`, an input changed after it was hashed.
        StorageError: `missing_stage`, a file that an earlier step made is gone.
    """
    with missing_stages(job.root):
        receipt = kernel(job)
    check_unchanged(job.seen)
    return receipt


@contextlib.contextmanager
def missing_stages(root: Path) -> Iterator[None]:
    """Turn the error of a missing file of a stage into one that says how it may have come to that.

    Args:
        root: the output folder.

    Raises:
        StorageError: `missing_stage`, a file that an earlier step made is gone.
    """
    try:
        yield
    except FileNotFoundError as error:
        if not Path(str(error.filename)).is_relative_to(root / STAGES):
            raise
        raise StorageError(
            "an earlier step made this file, and it is gone; run again to make it anew. `prune` with a --min-age "
            "shorter than a run removes what that run builds on",
            code="missing_stage",
            where=str(error.filename),
        ) from error


def absolute_root(config: Config) -> str:
    """Return the absolute output directory of a configuration, as text."""
    return str(Path(config.output_dir).absolute())  # type: ignore[attr-defined]
