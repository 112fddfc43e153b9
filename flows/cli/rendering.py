"""Print tables, charts and samples in a terminal, or as plain text in a pipe.

Anything shown may come from users' data, so control characters are made visible: an escape sequence inside a chat
must not control the terminal.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from schemas.report import Chart, Fact, Passage, Sample, Table

_BAR_CELLS = 40
_TRAINED = "bold green"
# Mark trained text where there is no colour.
_OPEN, _CLOSE = "⟦", "⟧"
# Width, in columns, of text that goes to a file or a pipe.
_PLAIN_WIDTH = 120
# Control characters except line feed and tab, and marks that reorder text.
_UNSAFE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """Return the text with control characters written out.

    >>> printable("red \\x1b[31m")
    'red \\\\x1b[31m'
    """
    return _UNSAFE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def make_console() -> Console:
    """Return a console for stdout, as wide as the terminal."""
    console = Console(highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _PLAIN_WIDTH
    return console


def print_facts(console: Console, facts: Iterable[Fact]) -> None:
    """Print headline numbers, one on each line."""
    grid = Grid.grid(padding=(0, 2))
    for fact in facts:
        grid.add_row(_text(fact.label), _text(fact.value), _text(fact.hint, "dim"))
    console.print(grid)


def print_table(console: Console, table: Table) -> None:
    """Print a table under its title, with its note below."""
    console.print()
    console.print(_text(table.title, "bold"))
    grid = Grid(box=SIMPLE_HEAD, pad_edge=False)
    for column in table.columns:
        grid.add_column(_text(column.name), justify="right" if column.numeric else "left", overflow="fold")
    for row in table.rows:
        grid.add_row(*(_text(cell) for cell in row))
    console.print(grid)
    if table.note:
        console.print(_text(table.note, "dim"))


def print_chart(console: Console, chart: Chart) -> None:
    """Print a chart as lines of blocks, one for each label and series."""
    console.print()
    console.print(_text(chart.title, "bold"))
    console.print(_text(chart.caption, "dim"))
    most = max((value for series in chart.series for value in series.values), default=0) or 1
    grid = Grid(box=None, pad_edge=False)
    grid.add_column(_text(chart.axis, "dim"), justify="right")
    grid.add_column("")
    measure = chart.series[0].name if len(chart.series) == 1 else ""
    grid.add_column(_text(measure, "dim"), justify="right")
    for place, label in enumerate(chart.labels):
        for series in chart.series:
            name = label if len(chart.series) == 1 else f"{label} {series.name}"
            value = series.values[place]
            # A value above zero gets at least one cell.
            cells = round(_BAR_CELLS * value / most) or int(value > 0)
            grid.add_row(_text(name), Text("█" * cells, "cyan"), _text(series.texts[place]))
    console.print(grid)


def print_sample(console: Console, sample: Sample) -> None:
    """Print sequences of text; trained text is coloured, or in brackets where there is no colour."""
    console.print()
    console.print(_text(sample.title, "bold"))
    coloured = console.is_terminal and not console.no_color
    for number, sequence in enumerate(sample.sequences):
        if len(sample.sequences) > 1:
            console.print(Text(f"── {number} ", "dim"))
        console.print(_sequence(sequence, coloured), soft_wrap=True)
    if sample.note:
        console.print(_text(sample.note, "dim"))


def _sequence(sequence: tuple[Passage, ...], coloured: bool) -> Text:
    text = Text()
    for span in sequence:
        shown = printable(span.text) or "".join(f"{token} " for token in span.ids)
        if span.trained:
            text.append(shown if coloured else f"{_OPEN}{shown}{_CLOSE}", _TRAINED)
        else:
            text.append(shown)
    return text


def _text(text: str, style: str = "") -> Text:
    # As a Text, so that brackets in data are not read as markup.
    return Text(printable(text), style)
