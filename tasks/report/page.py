"""Render the report as one HTML file: no scripts, no external content, light and dark, for any screen width."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from schemas.report import Report
from tasks.report.charts import draw

_TEMPLATES = Path(__file__).parent / "templates"


def render_page(report: Report) -> bytes:
    """Render the page, in UTF-8."""
    # A lone surrogate, from a row rejected for it, cannot be encoded as UTF-8.
    return _template().render(report=report, draw=draw).encode("utf-8", "replace")


@cache
def _template() -> Template:
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html")
