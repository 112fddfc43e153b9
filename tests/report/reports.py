"""A report whose every text tries to be markup."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from schemas.report import (
    Chart,
    Column,
    Fact,
    Lineage,
    Node,
    Passage,
    Report,
    Sample,
    Series,
    Table,
)

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=https://example.org/x onerror=alert(1)>',
    "| a | b |\n|---|---|",
    "```\n# heading\n[link](https://example.org)",
    "**bold** _it_ `code` ~~x~~ &lt; \\| $x$",
    "]]><svg onload=alert(1)> {{ 7 * 7 }} {% raw %}",
    "www.example.org https://example.org a@example.org",
    "中文 🦉 \u202e rtl",
)


def hostile_report() -> Report:
    """Every field that comes from names or data holds one of `HOSTILE`."""
    texts: Iterator[str] = itertools.cycle(HOSTILE)

    def table(title: str) -> Table:
        columns = (Column(next(texts)), Column(next(texts), True))
        return Table(title, columns, tuple((next(texts), next(texts)) for _ in HOSTILE), next(texts))

    labels = tuple(HOSTILE)
    values = tuple(float(number) for number in range(len(HOSTILE)))
    series = Series(next(texts), values, tuple(f"{next(texts)}{value}" for value in values))
    other = Series(next(texts), values[::-1], tuple(map(str, values[::-1])))
    charts = (
        Chart(next(texts), next(texts), next(texts), labels, (series,), upright=True),
        Chart(next(texts), next(texts), next(texts), labels, (series, other), upright=True),
        Chart(next(texts), next(texts), next(texts), labels, (series,)),
        Chart(next(texts), next(texts), next(texts), labels, (other, series)),
    )
    spans = tuple(Passage(text, number % 2 == 1) for number, text in enumerate(HOSTILE))
    nodes = tuple(Node(text, text) for text in HOSTILE)
    return Report(
        flow="pack-sft",
        run_hash="0123456789abcdef",
        subject=next(texts),
        made="2026-01-02 03:04:05 UTC",
        facts=tuple(Fact(text, text, text) for text in HOSTILE),
        remarks=HOSTILE,
        ledger=table("Row ledger"),
        drift=table("Compared with the last published run"),
        rejects=(table("Rejected rows by reason"), table("Some rejected rows")),
        tables=(table("Splits"),),
        charts=charts,
        samples=(Sample(next(texts), (spans, spans[:1]), next(texts)),),
        reuse=table("Tasks run and reused"),
        lineage=Lineage((nodes[:2], nodes[2:]), (((0, 0), (1, 0)), ((0, 1), (1, 2)))),
        inputs=table("Inputs"),
        outputs=table("Outputs"),
        versions=table("Versions"),
        links=tuple((text, text) for text in HOSTILE),
    )
