"""The report as one HTML file: no scripts, nothing from elsewhere, light and dark, for screens of any width."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from schemas.report import Report
from tasks.report.charts import draw

_TEMPLATES = Path(__file__).parent / "templates"


def render_page(report: Report) -> bytes:
    """The page, UTF-8."""
    # A lone surrogate, from a row that was rejected for it, has no bytes in UTF-8.
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
