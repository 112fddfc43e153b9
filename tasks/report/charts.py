"""Draw bar charts as SVG.

All plots of a report are bars, so this module draws them: matplotlib took 0.3-0.4 s and 45 MB to import
(sample-corpus runs in 300 MB), 100 MB on disk, and 12 kB for a chart whose colours and fonts would have to be
rewritten to follow the reader's theme. These take a millisecond and 2-5 kB, keep text as text, use no ids, and are
the same bytes for the same numbers.

Inside a page, colours come from its custom properties; a chart that stands alone (an image in an artifact, which may
be shown on a light or a dark page) falls back to tones that are legible on both.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from markupsafe import Markup

from schemas.report import Chart
from tasks.report.numbers import short

_WIDTH = 360
_UPRIGHT_HEIGHT = 200
_LEFT, _RIGHT, _TOP, _BOTTOM = 40, 4, 10, 40
_LINE = 38
# An artifact page is wide and shows an image at its own size.
_ALONE = 1.4
# About as many labels as fit under the bars without touching.
_MOST_TICKS = 7
# A chart with more lines becomes a table.
_MOST_LINES = 30

_STYLE = Markup(
    "<style>"
    "text{font:11px system-ui,sans-serif;fill:var(--ink-soft,#7c8694)}"
    ".strong{fill:var(--ink,#7c8694)}"
    ".grid{stroke:var(--line,#8a93a1);stroke-opacity:.35}"
    ".b0{fill:var(--bar,#4f86c6)}.b1{fill:var(--bar-2,#c98a3c)}"
    ".track{fill:var(--line,#8a93a1);fill-opacity:.3}"
    "</style>"
)


def draw(chart: Chart, alone: bool = False) -> Markup:
    """Draw a chart as an SVG element.

    Args:
        alone: draw a standalone document with namespace and style; otherwise the page provides both.
    """
    body, height = _columns(chart) if chart.upright else _lines(chart)
    wide, high = round(_WIDTH * _ALONE), round(height * _ALONE)
    head = Markup(' xmlns="http://www.w3.org/2000/svg" width="{}" height="{}"').format(wide, high)
    return Markup('<svg class="plot" role="img" aria-label="{}" viewBox="0 0 {} {}"{}>{}{}</svg>').format(
        f"{chart.title}: {chart.caption}",
        _WIDTH,
        height,
        head if alone else "",
        _STYLE if alone else "",
        body,
    )


def _columns(chart: Chart) -> tuple[Markup, int]:
    """Draw bars side by side, over a scale of round numbers."""
    top = max((value for series in chart.series for value in series.values), default=0) or 1
    step = _round_step(top)
    ceiling = step * math.ceil(top / step - 1e-9)
    bottom, wide = _UPRIGHT_HEIGHT - _BOTTOM, _WIDTH - _LEFT - _RIGHT
    tall = bottom - _TOP
    parts = []
    for tick in range(round(ceiling / step) + 1):
        y = bottom - tall * tick * step / ceiling
        parts.append(
            Markup(
                '<path class="grid" d="M{} {}H{}"/><text x="{}" y="{}" text-anchor="end">{}</text>'
            ).format(_LEFT, _pixels(y), _WIDTH - _RIGHT, _LEFT - 6, _pixels(y + 4), short(tick * step))
        )
    slot = wide / max(len(chart.labels), 1)
    bar = slot * (0.86 if len(chart.series) == 1 else 0.9) / len(chart.series)
    for number, series in enumerate(chart.series):
        for place, (value, text) in enumerate(zip(series.values, series.texts, strict=True)):
            if value <= 0:
                continue
            # Draw at least a visible line: one in a million is not zero.
            high = max(tall * value / ceiling, 1)
            x = _LEFT + place * slot + (slot - bar * len(chart.series)) / 2 + number * bar
            parts.append(
                Markup(
                    '<rect class="b{}" x="{}" y="{}" width="{}" height="{}"><title>{}</title></rect>'
                ).format(
                    number,
                    _pixels(x),
                    _pixels(bottom - high),
                    _pixels(bar),
                    _pixels(high),
                    f"{chart.labels[place]}: {text}" + (f" ({series.name})" if len(chart.series) > 1 else ""),
                )
            )
    every = math.ceil(len(chart.labels) / _MOST_TICKS)
    for place in range(0, len(chart.labels), every or 1):
        parts.append(
            Markup('<text x="{}" y="{}" text-anchor="middle">{}</text>').format(
                _pixels(_LEFT + (place + 0.5) * slot), bottom + 15, _clipped(chart.labels[place], 12)
            )
        )
    parts.append(
        Markup('<text class="strong" x="{}" y="{}" text-anchor="end">{}</text>').format(
            _WIDTH - _RIGHT, _UPRIGHT_HEIGHT - 8, chart.axis
        )
    )
    parts += _legend(chart, _UPRIGHT_HEIGHT - 8)
    return Markup("").join(parts), _UPRIGHT_HEIGHT


def _lines(chart: Chart) -> tuple[Markup, int]:
    """Draw a line per label: its name and value, and a bar below; with two series the first is the track."""
    labels = chart.labels[:_MOST_LINES]
    top = max((value for series in chart.series for value in series.values), default=0) or 1
    parts = []
    for place, label in enumerate(labels):
        y = place * _LINE
        values = [series.values[place] for series in chart.series]
        text = chart.series[-1].texts[place]
        if len(chart.series) > 1:
            text += f" of {chart.series[0].texts[place]}"
        parts.append(
            Markup(
                '<text class="strong" x="0" y="{}">{}</text><text x="{}" y="{}" text-anchor="end">{}</text>'
            ).format(y + 13, _clipped(label, 44), _WIDTH, y + 13, text)
        )
        track = values[0] if len(values) > 1 else top
        parts.append(
            Markup('<rect class="track" x="0" y="{}" width="{}" height="10" rx="2"/>').format(
                y + 19, _pixels(_WIDTH * track / top)
            )
        )
        if values[-1] > 0:
            wide = max(_WIDTH * values[-1] / top, 1)
            parts.append(
                Markup('<rect class="b0" x="0" y="{}" width="{}" height="10" rx="2"/>').format(
                    y + 19, _pixels(wide)
                )
            )
    return Markup("").join(parts), max(len(labels), 1) * _LINE


def _legend(chart: Chart, y: int) -> Iterator[Markup]:
    if len(chart.series) < 2:
        return
    x = _LEFT
    for number, series in enumerate(chart.series):
        yield Markup(
            '<rect class="b{}" x="{}" y="{}" width="9" height="9"/><text x="{}" y="{}">{}</text>'
        ).format(number, x, y - 8, x + 13, y, series.name)
        x += 13 + 7 * len(series.name) + 16


def _round_step(top: float) -> float:
    """Return 1, 2 or 5 times a power of ten, so that 3 to 6 steps reach `top`.

    >>> [_round_step(top) for top in (1, 9, 40, 7473)]
    [0.2, 2.0, 10.0, 2000.0]
    """
    power = 10 ** math.floor(math.log10(top / 3))
    return float(next(power * factor for factor in (1, 2, 5, 10) if top / (power * factor) <= 6))


def _pixels(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _clipped(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"
