"""Classes lose nothing, and their edges are what their labels say."""

from __future__ import annotations

import numpy as np
import pytest

from tasks.report.histogram import even_classes, fill_classes, power_classes


@pytest.mark.parametrize("seed", range(30))
def test_even_classes_count_every_value_in_its_class(seed: int) -> None:
    rng = np.random.default_rng(seed)
    scale = 10 ** rng.uniform(0, 5)
    values = rng.exponential(scale, rng.integers(1, 3000)).astype(np.int64)

    labels, counts = even_classes(np.bincount(values))

    edges = [int(label.removeprefix("≥ ").replace(",", "")) for label in labels]
    assert counts == np.histogram(values, [*edges, np.inf])[0].tolist()
    assert sum(counts) == len(values)
    assert len(labels) <= 24
    widths = set(np.diff(edges).tolist())
    assert len(widths) <= 1
    assert str(next(iter(widths), 1)).rstrip("0") in ("1", "2", "5")


def test_one_giant_does_not_hide_the_others() -> None:
    counts = np.zeros(1_000_001, np.int64)
    counts[1:201] = 5
    counts[1_000_000] = 1

    labels, sums = even_classes(counts)

    assert len(labels) > 15
    assert labels[-1] == "≥ 210" and sums[-1] == 1


def test_nothing_has_no_classes() -> None:
    assert even_classes(np.zeros(10, np.int64)) == even_classes(np.zeros(0, np.int64)) == ([], [])
    assert power_classes({}) == ([], [])


def test_fills_stand_in_the_class_that_starts_at_or_below_them() -> None:
    fills = np.array([0.0, 0.4999, 0.5, 0.8999, 0.9, 0.999, 0.99999, 1.0])

    labels, counts = fill_classes(fills)

    assert dict(zip(labels, counts, strict=True)) == {
        "< 50%": 2,
        "50%": 1,
        "80%": 1,
        "90%": 1,
        "95%": 0,
        "98%": 0,
        "99%": 0,
        "99.5%": 0,
        "99.9%": 2,
        "100%": 1,
    }
