"""The tables of docs/scaling.md are those of the model that they name."""

from __future__ import annotations

from docs.markdown import ROOT

from benchmarks.cost_model import tables


def test_the_tables_are_what_the_model_computes() -> None:
    assert tables() in (ROOT / "docs" / "scaling.md").read_text()
