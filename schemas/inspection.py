"""What `inspect` reports about an output, independent of how it is displayed.

It consists of the same parts as a run's report; all texts are plain and untrusted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from schemas.report import Chart, Fact, Sample, Table


@dataclass(frozen=True)
class Inspection:
    """Describe an output in numbers, with a few of its rows.

    Attributes:
        kind: what the output is, in a few words.
        rows: how many bins, records, documents or rejected rows there are.
    """

    path: str
    kind: str
    facts: tuple[Fact, ...] = ()
    tables: tuple[Table, ...] = ()
    charts: tuple[Chart, ...] = ()
    samples: tuple[Sample, ...] = ()
    rows: int = 0


@dataclass(frozen=True)
class Answer:
    """Hold the rows of a query.

    Attributes:
        more: whether there were more rows than the limit asked for.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    more: bool
