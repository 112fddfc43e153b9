"""What `inspect` has to say about an output, before anybody decides how it looks.

It is made of the parts that a run's report is made of; all texts are plain and untrusted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from schemas.report import Chart, Fact, Sample, Table


@dataclass(frozen=True)
class Inspection:
    """An output in numbers, and a few of its rows.

    Attributes:
        kind: what it is, in a few words.
    """

    path: str
    kind: str
    facts: tuple[Fact, ...] = ()
    tables: tuple[Table, ...] = ()
    charts: tuple[Chart, ...] = ()
    samples: tuple[Sample, ...] = ()


@dataclass(frozen=True)
class Answer:
    """The rows of a query.

    Attributes:
        more: whether there were rows beyond the most that were asked for.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    more: bool
