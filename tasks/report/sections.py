"""Build the parts of every report from what is about to be published."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from schemas.report import Chart, Column, Lineage, Node, Series, Table
from schemas.run import InputRecord, RowLedger
from tasks.report.numbers import count, counted, share, size
from tasks.report.reuse import Reuse
from tasks.run.drift import Drift, Measure
from tasks.run.publish import Publication

# Most files listed one by one; the rest is summarised.
_MOST_FILES = 24
# Most nodes of a layer; more are merged into one.
_MOST_NODES = 8


def ledger_table(ledger: RowLedger) -> Table:
    """Return a table of where every input row went."""
    lines = [
        ("read", ledger.rows_in),
        ("used", ledger.rows_used),
        ("not selected", ledger.not_selected),
        ("filtered", ledger.filtered),
        ("duplicates", ledger.duplicates),
        ("rejected", ledger.rows_rejected),
    ]
    return Table(
        "Row ledger",
        (Column("rows"), Column("count", True), Column("share", True)),
        tuple((name, count(rows), share(rows, ledger.rows_in)) for name, rows in lines),
        "Every row read is used, not selected, filtered, a duplicate, or rejected.",
    )


def losses_chart(ledger: RowLedger) -> tuple[Chart, ...]:
    """Return a chart of rows used and rows left out by reason; none if every row was used."""
    left_out = {
        "not selected": ledger.not_selected,
        "filtered": ledger.filtered,
        "duplicates": ledger.duplicates,
        **{f"rejected: {reason}": rows for reason, rows in ledger.rejected.items()},
    }
    by_rows = sorted(((name, rows) for name, rows in left_out.items() if rows), key=lambda pair: -pair[1])
    if not by_rows:
        return ()
    lines = [("used", ledger.rows_used), *by_rows]
    series = Series(
        "rows",
        tuple(float(rows) for _, rows in lines),
        tuple(f"{count(rows)} · {share(rows, ledger.rows_in)}" for _, rows in lines),
    )
    names = tuple(name for name, _ in lines)
    return (Chart("Where rows went", "Rows used, and rows left out by reason.", "rows", names, (series,)),)


def drift_table(drift: Drift | None) -> Table | None:
    """Return a table that compares this run with the last published one."""
    if drift is None:
        return None
    return Table(
        "Compared with the last published run",
        (
            Column(""),
            Column(f"run {drift.last_run}", True),
            Column("this run", True),
            Column("allowed", True),
            Column("verdict"),
        ),
        tuple(_drift_row(measure) for measure in drift.measures),
    )


def _drift_row(measure: Measure) -> tuple[str, ...]:
    told = (lambda value: f"{value:.2%}") if measure.is_share else count
    if measure.bound is None:
        allowed, verdict = "–", "not bounded"
    else:
        allowed = f"{100 * measure.bound:g} points" if measure.is_share else f"±{measure.bound:.1%}"
        verdict = "OUT OF BOUNDS" if measure.exceeded else "within bounds"
    return measure.name, told(measure.before), told(measure.now), allowed, verdict


def reuse_table(reuse: Reuse | None) -> Table | None:
    """Return a table of the tasks run and reused in each step."""
    if reuse is None or not reuse.steps:
        return None
    return Table(
        "Tasks run and reused",
        (Column("step"), Column("tasks", True), Column("run", True), Column("reused", True)),
        tuple(
            (step, count(executed + cached), count(executed), count(cached))
            for step, (executed, cached) in reuse.steps.items()
        ),
    )


def inputs_table(inputs: Sequence[InputRecord]) -> Table:
    """Return a table of the input files, with the start of their digests."""
    lines = [(record.source, record.path, size(record.bytes), _digest(record.digest)) for record in inputs]
    rest = len(lines) - _MOST_FILES
    note = f"{counted(len(inputs), 'file')}, {size(sum(record.bytes for record in inputs))}"
    if rest > 0:
        note += f"; {count(rest)} more are listed in inputs.json"
    columns = (Column("source"), Column("file"), Column("size", True), Column("digest"))
    return Table("Inputs", columns, tuple(lines[:_MOST_FILES]), note)


def _digest(digest: str) -> str:
    return digest.partition(":")[2][:12] or digest[:12]


def outputs_table(publication: Publication) -> Table:
    """Return a table of the published files and their sizes."""
    sizes = {name: record.bytes for name, record in publication.links.items()}
    sizes |= {name: len(content) for name, content in publication.documents.items()}
    lines = [(name, size(num_bytes)) for name, num_bytes in sorted(sizes.items())]
    rest = len(lines) - _MOST_FILES
    note = f"{counted(len(sizes), 'file')}, {size(sum(sizes.values()))}"
    if rest > 0:
        note += f"; {count(rest)} more are listed in manifest.json"
    return Table("Outputs", (Column("file"), Column("size", True)), tuple(lines[:_MOST_FILES]), note)


def lineage(
    stages: Mapping[str, str], steps: Sequence[str], inputs: Sequence[InputRecord], run_hash: str
) -> Lineage:
    """Return the steps of a run as layers, from its inputs to the run.

    Args:
        stages: `{step}/{what}/{part}` to stage hash, as in manifests; `what` and `part` may be missing.
        steps: the steps in order.
    """
    groups: list[dict[str, list[str]]] = [{} for _ in steps]
    for name, stage in stages.items():
        step, what = _named(name)
        if step in steps:
            groups[steps.index(step)].setdefault(what, []).append(stage)
    groups = [
        group if len(group) <= _MOST_NODES else {"": list(itertools.chain(*group.values()))}
        for group in groups
    ]
    named = [(step, group) for step, group in zip(steps, groups, strict=True) if group]
    layers = [
        (Node("inputs", counted(len(inputs), "file")),),
        *(tuple(_node(step, what, made) for what, made in group.items()) for step, group in named),
        (Node("run", run_hash),),
    ]
    labels = [[""], *(list(group) for _, group in named), [""]]
    edges = tuple(
        ((layer, source), (layer + 1, target))
        for layer in range(len(labels) - 1)
        for source, before in enumerate(labels[layer])
        for target, after in enumerate(labels[layer + 1])
        if _related(before, after)
    )
    return Lineage(tuple(layers), edges)


def _named(name: str) -> tuple[str, str]:
    """Split off the step and its subject, without the number of the part.

    >>> _named("tokenize/gsm8k/000003"), _named("train"), _named("scatter/000000")
    (('tokenize', 'gsm8k'), ('train', ''), ('scatter', ''))
    """
    step, _, rest = name.partition("/")
    head, _, tail = rest.rpartition("/")
    return step, head if len(tail) == 6 and tail.isdigit() else rest


def _node(step: str, what: str, stages: Sequence[str]) -> Node:
    label = f"{step} {what}".strip()
    return Node(label, stages[0] if len(stages) == 1 else counted(len(stages), "task"))


def _related(before: str, after: str) -> bool:
    """Return whether work on `before` is part of work on `after`, or the other way round.

    >>> _related("web", "web/train"), _related("web", "code/train"), _related("web/train", "")
    (True, False, True)
    """
    short, long = sorted((before, after), key=len)
    return not short or PurePosixPath(long).is_relative_to(short)
