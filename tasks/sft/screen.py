"""Look at the first rows of every file before anything is tokenized.

A misnamed field, a wrong dialect or a template that loses text spoils every row alike, and is found here in a second
rather than at the end of the run. What would be rejected is judged as at the end of the run: by the share of the data
set that lies in files of which no first row can be used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar, NamedTuple

from schemas.errors import ConfigError
from schemas.run import Receipt
from schemas.sft import MAX_ROW_BYTES, DatasetConfig, PackSftConfig, TokenizerConfig, TrainOn
from tasks.inputs.files import InputFile
from tasks.inputs.readers import RowFault, read_rows
from tasks.inputs.segments import format_of, whole_file
from tasks.run.contract import Job
from tasks.run.rejects import RowRejected
from tasks.sft.chat.dialects import Conversation, normalise
from tasks.sft.chat.rendering import check_rendering
from tasks.sft.chat.tokenizer import load_tokenizer
from tasks.sft.chat.tokenizer_source import TokenizerSource
from tasks.sft.tokenize import conversation_json, matches

# Conversations that are rendered: the first of each file, and of each shape (roles, tools, calls); so many at most.
_ALIKE = 2
_MOST_RENDERED = 64
# Reasons that a wrong dialect or field name gives for every row.
_LAYOUT = frozenset(
    {
        "bad_content",
        "bad_tools",
        "message_not_an_object",
        "messages_not_a_list",
        "missing_content",
        "missing_messages",
        "null_content",
        "unknown_role",
        "unsupported_content",
    }
)
# Reasons that a wrong template gives for every row.
_TEMPLATE = frozenset({"mask_unresolved", "template_budget", "template_error"})
_MOST_TOLD = 3


@dataclass(frozen=True, kw_only=True)
class ScreenJob(Job):
    """One data set.

    Attributes:
        files: all files of the data set.
        dataset, source, tokenizer, train_on, max_row_bytes: see `TokenizeJob`.
    """

    task: ClassVar[str] = "screen"
    files: tuple[InputFile, ...]
    dataset: DatasetConfig
    source: TokenizerSource
    tokenizer: TokenizerConfig
    train_on: TrainOn
    max_row_bytes: int = MAX_ROW_BYTES


class _Found(NamedTuple):
    """A conversation among the first rows."""

    file: InputFile
    row: int
    conversation: Conversation


class _Bad(NamedTuple):
    """A file of which no first row can be used; `row` is the first of them."""

    file: InputFile
    row: int
    why: str


def screen_dataset(job: ScreenJob) -> Receipt:
    """Check the layout of the first rows, and what the template makes of them.

    Raises:
        ConfigError: `bad_template`, the template loses something that a conversation says or does not train its
            answers; also what `load_tokenizer` raises.
        InputError: a file cannot be read.
    """
    looked = [_look(file, job) for file in job.files]
    misfits = [bad for _, bad in looked if bad is not None]
    failed = _render(job, _chosen([found for found, _ in looked])) if job.tokenizer.check_template else []
    statistics = {
        "bytes": sum(file.bytes for file in job.files),
        "files": len(job.files),
        "layout": _summary(misfits),
        "template": _summary(failed),
    }
    return job.receipt([], statistics=statistics)


def _summary(bad: Sequence[_Bad]) -> dict[str, Any]:
    told = [f"{one.file.name}, row {one.row}: {one.why}" for one in bad[:_MOST_TOLD]]
    return {"files": len(bad), "bytes": sum(one.file.bytes for one in bad), "told": told}


def check_screened(config: PackSftConfig, screened: Sequence[Receipt]) -> None:
    """Stop if the files that cannot be used would reject more rows than may be rejected.

    Args:
        screened: the receipt of each data set, in configuration order.

    Raises:
        ConfigError: `wrong_layout` or `bad_template`, with the first rows that show it.
    """
    for dataset, receipt in zip(config.datasets, screened, strict=True):
        found = receipt.statistics
        for kind, code, where, what in (
            (
                "layout",
                "wrong_layout",
                f"datasets.{dataset.name}",
                f"has the layout of the dialect {dataset.dialect.value!r}; set dialect or fields",
            ),
            (
                "template",
                "bad_template",
                "tokenizer.chat_template",
                "can be rendered; mend the template, or set tokenizer.check_template: false",
            ),
        ):
            if found[kind]["bytes"] > config.max_reject_fraction * found["bytes"]:
                raise ConfigError(
                    f"no first row of {_files(found[kind]['files'], found['files'])} of {dataset.name} {what}; if "
                    "such rows shall be rejected, raise max_reject_fraction. First of each: "
                    f"{'; '.join(found[kind]['told'])}",
                    code=code,
                    where=where,
                )


def screening_warnings(config: PackSftConfig, screened: Sequence[Receipt]) -> Iterator[str]:
    """Yield a sentence for each data set with files that probably reject all of their rows."""
    for dataset, receipt in zip(config.datasets, screened, strict=True):
        for kind in ("layout", "template"):
            bad = receipt.statistics[kind]
            if bad["files"]:
                files = _files(bad["files"], receipt.statistics["files"])
                yield f"no first row of {files} of {dataset.name} could be used: {bad['told'][0]}"


def _files(some: int, all_: int) -> str:
    return "its only file" if all_ == 1 else f"{some} of {all_} files"


def _look(file: InputFile, job: ScreenJob) -> tuple[list[_Found], _Bad | None]:
    """Read the first rows of a file; return what fits, and the first misfit if nothing does."""
    found: list[_Found] = []
    misfit: _Bad | None = None
    fits = False
    for number, value in _first_rows(file, job.dataset):
        try:
            conversation = normalise(value, job.dataset.dialect, job.dataset.fields)
            conversation_json(conversation, job.max_row_bytes)
            found.append(_Found(file, number, conversation))
        except RowRejected as rejected:
            if rejected.reason in _LAYOUT:
                misfit = misfit or _Bad(file, number, rejected.detail)
                continue
        fits = True
    return found, None if fits else misfit


def _first_rows(file: InputFile, dataset: DatasetConfig) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the first rows that the row filter lets through: those of one batch, which is read at once anyway."""
    for batch in islice(read_rows(whole_file(file, format_of(file.name))), 1):
        for number, value in batch:
            if not isinstance(value, RowFault) and matches(value, dataset.where):
                yield number, value


def _chosen(looked: Sequence[Sequence[_Found]]) -> list[_Found]:
    """Choose what to render: of each file some, so that shapes which differ are all among them."""
    chosen: list[_Found] = []
    shapes: dict[object, int] = {}
    for found in looked:
        for place, one in enumerate(found):
            shape = _shape(one.conversation)
            if place == 0 or shapes.get(shape, 0) < _ALIKE:
                shapes[shape] = shapes.get(shape, 0) + 1
                chosen.append(one)
    return chosen[:_MOST_RENDERED]


def _shape(conversation: Conversation) -> object:
    kinds = {(message["role"], *sorted(message.keys() - {"content"})) for message in conversation.messages}
    return conversation.tools is not None, frozenset(kinds)


def _render(job: ScreenJob, chosen: Sequence[_Found]) -> list[_Bad]:
    """Render conversations; return the files of which none could be rendered.

    Raises:
        ConfigError: `bad_template`.
    """
    if not chosen:
        return []
    tokenizer = load_tokenizer(job.source, job.tokenizer)
    failed: dict[str, _Bad] = {}
    rendered: set[str] = set()
    for file, row, conversation in chosen:
        try:
            problem = check_rendering(tokenizer, conversation, job.train_on)
        except RowRejected as rejected:
            if rejected.reason in _TEMPLATE:
                failed.setdefault(file.name, _Bad(file, row, f"{rejected.reason}: {rejected.detail}"))
                continue
            problem = None
        if problem is not None:
            raise ConfigError(
                f"{file.name}, row {row}: {problem}; if this is intended, set tokenizer.check_template: false",
                code="bad_template",
                where="tokenizer.chat_template",
            )
        rendered.add(file.name)
    return [bad for name, bad in failed.items() if name not in rendered]
