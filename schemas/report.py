"""What a run's report says, independent of how it is displayed.

It is computed once and rendered twice: as a page in the run folder and as Prefect artifacts. All texts are plain and
untrusted; the renderer escapes them.
"""

from __future__ import annotations

from dataclasses import dataclass


class Figure(str):
    """A number as people read it, which programs that read JSON get as `number`.

    >>> trained = Figure("57.1%", 4 / 7)
    >>> trained, round(trained.number, 3)
    ('57.1%', 0.571)
    """

    number: float | None

    def __new__(cls, text: str, number: float | None) -> Figure:
        """Attach a number to its text; `None` if there is none, as for a share of nothing."""
        made = super().__new__(cls, text)
        made.number = number
        return made


@dataclass(frozen=True)
class Fact:
    """One headline number."""

    label: str
    value: str
    hint: str = ""


@dataclass(frozen=True)
class Column:
    """The head of a table column; numbers are aligned to the right."""

    name: str
    numeric: bool = False


@dataclass(frozen=True)
class Table:
    """Rows of texts, each as long as `columns`."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


@dataclass(frozen=True)
class Series:
    """One kind of bar in a chart: a value for each label of the chart, and the text shown for it."""

    name: str
    values: tuple[float, ...]
    texts: tuple[str, ...]


@dataclass(frozen=True)
class Chart:
    """A bar chart with one or two bars for each label.

    Attributes:
        caption: what the chart shows, as a sentence.
        axis: what the labels mean.
        upright: draw a histogram, whose labels are in order; otherwise one line per label.
    """

    title: str
    caption: str
    axis: str
    labels: tuple[str, ...]
    series: tuple[Series, ...]
    upright: bool = False


@dataclass(frozen=True)
class Passage:
    """A stretch of text.

    Attributes:
        trained: whether its tokens carry loss.
        ids: its tokens, shown where there is no tokenizer, and so no text.
    """

    text: str
    trained: bool
    ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class Sample:
    """One bin as the trainer reads it: its sequences, and what was left out of them.

    Attributes:
        facts: what title and note say, one by one, for programs.
    """

    title: str
    sequences: tuple[tuple[Passage, ...], ...]
    note: str = ""
    facts: tuple[Fact, ...] = ()


@dataclass(frozen=True)
class Node:
    """Some tasks of one kind in the lineage."""

    label: str
    detail: str = ""


@dataclass(frozen=True)
class Lineage:
    """How the outputs were produced: layers of nodes from the inputs to the run.

    Attributes:
        edges: pairs of (layer, place): from, to.
    """

    layers: tuple[tuple[Node, ...], ...]
    edges: tuple[tuple[tuple[int, int], tuple[int, int]], ...]


@dataclass(frozen=True)
class Report:
    """The whole report, in reading order.

    Attributes:
        subject: what the run processed, in a few words.
        remarks: what the reader must know before the numbers.
        drift: this run compared with the last published one, if there is one.
        links: label, and path relative to the run folder.
    """

    flow: str
    run_hash: str
    subject: str
    made: str
    facts: tuple[Fact, ...]
    remarks: tuple[str, ...]
    ledger: Table
    drift: Table | None
    rejects: tuple[Table, ...]
    tables: tuple[Table, ...]
    charts: tuple[Chart, ...]
    samples: tuple[Sample, ...]
    reuse: Table | None
    lineage: Lineage
    inputs: Table
    outputs: Table
    versions: Table
    links: tuple[tuple[str, str], ...]
