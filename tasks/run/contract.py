"""What a domain tells the run contract about itself, and the work it hands out.

A domain is a schema, an identity, stages, kernels, a report and steps; docs/architecture.md shows how one is written.
Hashes and keys are made here alone, so that all domains chain them alike: a run hash covers the configuration and the
content of all inputs, a stage key only the fields that its own step depends on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from schemas.canonical import canonical_hash
from schemas.config import Config
from schemas.run import FileRecord, Receipt, RowLedger
from tasks.inputs.fingerprint import check_unchanged
from tasks.run.layout import claim, stage_folder


@dataclass(frozen=True)
class Domain:
    """One kind of run.

    Attributes:
        flow: the flow's name, as on the command line.
        format_version: enters every hash; raised when the same configuration would give other bytes.
        published: names at the top of the output directory, and where they lead.
    """

    flow: str
    format_version: int
    published: Mapping[str, str]

    def claim(self, output_dir: Path) -> None:
        """Make sure that `output_dir` belongs to this domain; see `tasks.run.layout.claim`.

        Raises:
            ConfigError: it belongs to another flow, or holds what we did not make.
            StorageError: it cannot be created or written.
        """
        claim(output_dir, self.flow, dict(self.published))

    def run_hash(self, config: Any, inputs: Any, **content: Any) -> str:
        """Hash a run: 16 hex digits, equal for equal settings over equal bytes.

        Args:
            config: fields that can change output bytes, as `Config.hash_fields` gives them.
            inputs: names and digests of the inputs, in the order that decides the output.
            content: what else lies behind paths of the configuration (a tokenizer, a template), by digest.
        """
        return canonical_hash(self._fields(config, inputs, content))

    def stage_key(self, step: str, **fields: Any) -> str:
        """Hash what one step of one part depends on, and nothing else: 16 hex digits."""
        return canonical_hash({"step": step, "format": self.format_version, **fields})

    def run_stage_key(self, step: str, config: Any, inputs: Any, **content: Any) -> str:
        """Hash a step that depends on everything that the run does."""
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
    """The work of one task: what a step is given, and what names its receipt.

    Attributes:
        task: name of the step.
        output_dir: root of the run layout, absolute.
        stage: stage key; everything the job makes lies in that stage's folder.
        part: number of the job within its stage.
        label: what the job works on, for people; part of no key.
        seen: what the input files it reads looked like when they were hashed, by path.
    """

    task: ClassVar[str]
    output_dir: str
    stage: str
    part: int = 0
    label: str = ""
    seen: Mapping[str, Sequence[int]] = field(default_factory=dict)

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
        """Say what this job did.

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
    """Call a kernel, then make sure that it read what was hashed.

    A receipt is kept under a key made of its inputs' digests, so it must be of just those bytes.

    Raises:
        InputError: `input_changed`, an input is not what it was when it was hashed.
    """
    receipt = kernel(job)
    check_unchanged(job.seen)
    return receipt


def absolute_root(config: Config) -> str:
    """The output directory of a configuration, as jobs carry it."""
    return str(Path(config.output_dir).absolute())  # type: ignore[attr-defined]
