"""Look at the first rows of every file before anything is tokenized.

A misnamed field, a wrong dialect or a template that loses text spoils every row alike, and is found here in a second
rather than at the end of the run. The layout is judged by what the run would do: it stops if the files of which no
first row fits would reject more than `max_reject_fraction`. A template is judged on the first conversations.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar, NamedTuple

from schemas.errors import ConfigError
from schemas.run import Receipt
from schemas.sft import DatasetConfig, TokenizerConfig, TrainOn
from tasks.inputs.files import InputFile
from tasks.inputs.readers import RowFault, read_rows
from tasks.inputs.segments import cut
from tasks.report.numbers import counted
from tasks.run.contract import Job
from tasks.run.rejects import RowRejected
from tasks.sft.chat.dialects import Conversation, normalise
from tasks.sft.chat.rendering import check_rendering
from tasks.sft.chat.tokenizer import load_tokenizer
from tasks.sft.chat.tokenizer_source import TokenizerSource
from tasks.sft.tokenize import matches

# Rows of each file that are looked at, and conversations of each data set that are rendered.
FIRST_ROWS = 20
FIRST_CONVERSATIONS = 8
# Reasons that speak of the layout: a wrong dialect or field name gives one of them for every row.
_LAYOUT_REASONS = frozenset(
    {"missing_messages", "messages_not_a_list", "message_not_an_object", "missing_content", "unknown_role"}
)
_MOST_TOLD = 3

log = logging.getLogger("gristmill.pack_sft")


@dataclass(frozen=True, kw_only=True)
class ScreenJob(Job):
    """One data set.

    Attributes:
        files: all files of the data set.
        dataset, source, tokenizer, train_on: see `TokenizeJob`.
        max_reject_fraction: share of the data set that may be rejected.
    """

    task: ClassVar[str] = "screen"
    files: tuple[InputFile, ...]
    dataset: DatasetConfig
    source: TokenizerSource
    tokenizer: TokenizerConfig
    train_on: TrainOn
    max_reject_fraction: float


class _Misfit(NamedTuple):
    """A file of which no first row fits; `row` is the first, with what is wrong in it."""

    file: InputFile
    row: int
    rejected: RowRejected


class _Found(NamedTuple):
    """A conversation among the first rows."""

    name: str
    row: int
    conversation: Conversation


def screen_dataset(job: ScreenJob) -> Receipt:
    """Check that the first rows have the expected layout, and that the template renders what they say.

    Raises:
        ConfigError: `wrong_layout`, too many files have another layout; `bad_template`, the template drops a
            message's text, trains nothing, or fails; also what `load_tokenizer` raises.
        InputError: a file cannot be read.
    """
    misfits: list[_Misfit] = []
    found: list[_Found] = []
    rows = 0
    for file in job.files:
        fitting, misfit, seen = _look(file, job.dataset)
        rows += seen
        found += fitting[: FIRST_CONVERSATIONS - len(found)]
        if misfit is not None:
            misfits.append(misfit)
    _judge_layout(job, misfits)
    rendered = _judge_template(job, found) if job.tokenizer.check_template else 0
    return job.receipt([], statistics={"files": len(job.files), "rows": rows, "rendered": rendered})


def _look(file: InputFile, dataset: DatasetConfig) -> tuple[list[_Found], _Misfit | None, int]:
    """Read the first rows of a file: what fits, the first misfit if none does, and how many were read."""
    found: list[_Found] = []
    misfit: _Misfit | None = None
    fits = seen = 0
    for number, value in islice(_first_rows(file, dataset), FIRST_ROWS):
        seen += 1
        try:
            found.append(_Found(file.name, number, normalise(value, dataset.dialect, dataset.fields)))
        except RowRejected as rejected:
            if rejected.reason in _LAYOUT_REASONS:
                misfit = misfit or _Misfit(file, number, rejected)
                continue
        fits += 1
    return found, None if fits else misfit, seen


def _first_rows(file: InputFile, dataset: DatasetConfig) -> Iterator[tuple[int, dict[str, Any]]]:
    # In one piece: a segment of its own for every row group would need them all.
    [segment, *_] = cut([file], max(file.bytes, 1))
    for batch in islice(read_rows(segment), 1):
        for number, value in batch:
            if not isinstance(value, RowFault) and matches(value, dataset.where):
                yield number, value


def _judge_layout(job: ScreenJob, misfits: list[_Misfit]) -> None:
    """Stop if the files that do not fit would reject more rows than may be rejected; else warn."""
    wrong, total = (sum(file.bytes for file in files) for files in ([m.file for m in misfits], job.files))
    told = [
        f"{misfit.file.name}, row {misfit.row}: {misfit.rejected.detail}" for misfit in misfits[:_MOST_TOLD]
    ]
    if misfits and wrong > job.max_reject_fraction * total:
        more = f"; and {len(misfits) - len(told)} more files" if len(misfits) > len(told) else ""
        raise ConfigError(
            f"{len(misfits)} of {counted(len(job.files), 'file')} have no row of the dialect "
            f"{job.dataset.dialect.value!r} among the first {FIRST_ROWS}; set dialect or fields: "
            f"{'; '.join(told)}{more}",
            code="wrong_layout",
            where=f"datasets.{job.dataset.name}",
        )
    for line in told:
        log.warning(
            "%s: a file has no row of the expected layout among the first: %s", job.dataset.name, line
        )


def _judge_template(job: ScreenJob, found: list[_Found]) -> int:
    """Stop at the first conversation that is rendered wrongly, or if none can be rendered."""
    if not found:
        return 0
    tokenizer = load_tokenizer(job.source, job.tokenizer)
    failed: list[str] = []
    for name, row, conversation in found:
        where = f"{name}, row {row}"
        try:
            problem = check_rendering(tokenizer, conversation, job.train_on)
        except RowRejected as rejected:
            failed.append(f"{where}: {rejected.reason}: {rejected.detail}")
            continue
        if problem is not None:
            raise _bad_template(
                f"{where}: {problem}; if this is intended, set tokenizer.check_template: false"
            )
    if len(failed) == len(found) and job.max_reject_fraction < 1:
        raise _bad_template(
            f"none of the first {len(found)} conversations of {job.dataset.name} can be used: {failed[0]}"
        )
    return len(found) - len(failed)


def _bad_template(message: str) -> ConfigError:
    return ConfigError(message, code="bad_template", where="tokenizer.chat_template")
