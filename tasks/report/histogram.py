"""Sort counts into classes that a chart can show."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from schemas.report import Chart, Figure, Series
from tasks.report.numbers import count

# Most bars of a histogram, including the open one at the end.
_MOST_CLASSES = 24
# Values beyond this quantile share the last, open class, so that an outlier does not squeeze all others into one bar.
_TAIL = 0.995


def even_classes(counts: NDArray[np.int64]) -> tuple[list[str], list[int]]:
    """Sort whole numbers into classes of one round width.

    Args:
        counts: int64[n], how often each value below n occurs.

    Returns:
        Labels, each the first value of its class (the last may be open), and counts.

    >>> even_classes(np.array([0, 5, 3, 0, 1]))
    (['0', '1', '2', '3', '4'], [0, 5, 3, 0, 1])
    >>> counts = np.zeros(10_001, np.int64); counts[:100] = 10; counts[10_000] = 1
    >>> labels, sums = even_classes(counts)
    >>> labels[-2:], sums[-2:], sum(sums)
    (['95', '≥ 100'], [50, 1], 1001)
    """
    total = int(counts.sum())
    if not total:
        return [], []
    end = int(np.searchsorted(np.cumsum(counts), _TAIL * total)) + 1
    width = _round_width(end / (_MOST_CLASSES - 1))
    classes = -(-end // width)
    sums = np.add.reduceat(counts, np.arange(0, len(counts), width)).tolist()
    labels: list[str] = [count(number * width) for number in range(classes)]
    closed, tail = sums[:classes], sum(sums[classes:])
    open_end = Figure(f"≥ {count(classes * width)}", classes * width)
    return (labels, closed) if not tail else ([*labels, open_end], [*closed, tail])


def _round_width(width: float) -> int:
    """Return the smallest of 1, 2, 5, 10, 20, ... that is at least `width`."""
    power = 1
    while True:
        for factor in (1, 2, 5):
            if power * factor >= width:
                return power * factor
        power *= 10


# Most bins are nearly full, so the classes get finer towards 100%.
_FILLS = (0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999)


def fill_classes(
    fills: NDArray[np.float64], counts: NDArray[np.int64] | None = None
) -> tuple[list[str], list[int]]:
    """Sort shares of 1 into classes that get finer towards 1; full bins are a class of their own.

    Args:
        fills: float64[n].
        counts: int64[n], how often each occurs; 1 by default.

    >>> fill_classes(np.array([0.1, 0.97, 0.9995, 1.0, 1.0]))[1]
    [1, 0, 0, 0, 1, 0, 0, 0, 1, 2]
    """
    edges = np.array([0.0, *_FILLS, 1.0])
    places = np.searchsorted(edges, fills, side="right") - 1
    texts = ["< 50%", *(f"{100 * edge:g}%" for edge in edges[1:-1]), "100%"]
    labels: list[str] = [Figure(text, edge) for text, edge in zip(texts, edges.tolist(), strict=True)]
    sums = np.bincount(np.minimum(places, len(edges) - 1), counts, minlength=len(edges))
    return labels, sums.astype(np.int64).tolist()


def power_classes(counts: Mapping[int, int]) -> tuple[list[int], list[int]]:
    """Sort counts into classes that end at each power of two, without gaps.

    Args:
        counts: upper end of each class, a power of two, to its count.

    >>> power_classes({4: 7, 16: 1})
    ([4, 8, 16], [7, 0, 1])
    """
    if not counts:
        return [], []
    first, last = (end.bit_length() - 1 for end in (min(counts), max(counts)))
    ends = [1 << power for power in range(first, last + 1)]
    return ends, [counts.get(end, 0) for end in ends]


def histogram(
    title: str, caption: str, axis: str, measure: str, classes: tuple[list[str], list[int]]
) -> Chart:
    """Return labels and counts as an upright chart."""
    labels, counts = classes
    series = Series(measure, tuple(map(float, counts)), tuple(count(value) for value in counts))
    return Chart(title, caption, axis, tuple(labels), (series,), upright=True)
