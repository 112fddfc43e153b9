"""Render the report as Markdown for artifacts: tables, plots as SVG data URIs, the lineage in mermaid.

Text from data or names is escaped character by character, or put in a fence longer than any run of
backticks in it, so it can neither break out nor become markup.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator

from schemas.report import Chart, Lineage, Report, Sample, Table
from tasks.report.charts import draw

# What can begin markup inside a line, including bare web and mail addresses; an underscore inside a word cannot.
_MARKUP = re.compile(r"([\\`*~\[\]<>&|$@]|:(?=//)|(?<=www)\.|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|^[-+=#])")
_HTML = {"<": "&lt;", ">": "&gt;", "&": "&amp;", "|": "&#124;"}


def summary(report: Report) -> str:
    """Render the numbers, tables, plots and lineage of a run."""
    lines = [f"# {escape(report.subject)}", "", f"{report.flow}, run `{report.run_hash}`, {report.made}", ""]
    lines += [f"> **{escape(remark)}**\n" for remark in report.remarks]
    if report.facts:
        lines += _grid(
            ["", *(escape(fact.label) for fact in report.facts)],
            [["**this run**", *(escape(fact.value) for fact in report.facts)]],
            [False, *(True for _ in report.facts)],
        )
    for table in (report.drift, *report.tables, report.ledger, *report.rejects):
        if table is not None:
            lines += _table(table)
    for chart in report.charts:
        lines += _plot(chart)
    for table in (report.reuse,):
        if table is not None:
            lines += _table(table)
    lines += ["## How it was made", "", "```mermaid", *mermaid(report.lineage), "```", ""]
    lines += _table(report.outputs) + _table(report.inputs)
    return "\n".join(lines)


def bins(samples: tuple[Sample, ...]) -> str:
    """Render sampled bins, a line per run of tokens; a bar in front marks tokens that carry loss."""
    lines = ["# As the trainer reads it", "", "Lines that begin with `┃` carry loss.", ""]
    for sample in samples:
        lines += [f"## {escape(sample.title)}", ""]
        for sequence in sample.sequences:
            text = "\n".join(
                f"{'┃' if span.trained else ' '} {line}"
                for span in sequence
                if span.text.strip("\n")
                for line in span.text.strip("\n").split("\n")
            )
            fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
            lines += [f"{fence}text", text, fence, ""]
        if sample.note:
            lines += [escape(sample.note), ""]
    return "\n".join(lines)


def escape(text: str) -> str:
    r"""Escape text so that it shows as itself anywhere in a line or a table cell.

    >>> escape("a|b <i> *c* `d`")
    'a&#124;b &lt;i&gt; \\*c\\* \\`d\\`'
    """
    flat = " ".join(text.split())
    return _MARKUP.sub(lambda match: _HTML.get(match[1], f"\\{match[1]}"), flat)


def mermaid(lineage: Lineage) -> Iterator[str]:
    """Render a flow chart from the inputs to the run."""
    yield "flowchart LR"
    for number, layer in enumerate(lineage.layers):
        for place, node in enumerate(layer):
            label = "<br/>".join(_entities(text) for text in (node.label, node.detail) if text)
            yield f'  n{number}x{place}["{label}"]'
    for before, after in lineage.edges:
        yield f"  n{before[0]}x{before[1]} --> n{after[0]}x{after[1]}"


def _entities(text: str) -> str:
    """Escape text in a mermaid label: all but letters, digits, spaces and a few marks become `#code;`."""
    return re.sub(r"[^\w ./…·-]", lambda match: f"#{ord(match[0])};", text)


def _table(table: Table) -> list[str]:
    lines = [f"## {escape(table.title)}", ""]
    lines += _grid(
        [escape(column.name) for column in table.columns],
        [[escape(cell) for cell in row] for row in table.rows],
        [column.numeric for column in table.columns],
    )
    return [*lines, escape(table.note), ""] if table.note else lines


def _grid(head: list[str], rows: list[list[str]], numeric: list[bool]) -> list[str]:
    rule = [("---:" if right else "---") for right in numeric]
    return [*(f"| {' | '.join(row)} |" for row in (head, rule, *rows)), ""]


def _plot(chart: Chart) -> list[str]:
    data = base64.b64encode(draw(chart, alone=True).encode()).decode()
    return [
        f"## {escape(chart.title)}",
        "",
        escape(chart.caption),
        "",
        f"![{escape(chart.title)}](data:image/svg+xml;base64,{data})",
        "",
    ]
