"""Blends follow their weights at every prefix."""

from __future__ import annotations

import numpy as np
import pytest

from schemas.errors import ConfigError
from tasks.sft.datasets.blending import blend_order, normalised


def deviations(weights: list[float], num_samples: int) -> np.ndarray:
    """float[samples, data sets]: how far each prefix is from its share."""
    sources, numbers = blend_order(weights, num_samples)
    taken = np.cumsum(sources[:, None] == np.arange(len(weights)), axis=0)
    assert (numbers == taken[np.arange(num_samples), sources] - 1).all()
    return taken - np.outer(np.arange(1, num_samples + 1), weights)


@pytest.mark.parametrize("seed", range(30))
def test_every_prefix_is_within_one_sample_of_its_share(seed: int) -> None:
    rng = np.random.default_rng(seed)
    weights = normalised(rng.lognormal(0, rng.choice([0.1, 1, 3]), rng.integers(1, 30)).tolist())
    assert np.abs(deviations(weights, 2000)).max() < 1


@pytest.mark.parametrize(
    "weights", [[1], [1, 1], [1, 1, 1], [1] * 7, [10, *[1] * 10], [1e-9, 1], [1e9, 1, 1]]
)
def test_equal_and_lopsided_weights(weights: list[float]) -> None:
    assert np.abs(deviations(normalised(weights), 3000)).max() < 1


def test_proportional_weights_take_every_sample_once() -> None:
    sizes = [5, 300, 17, 1]
    sources, numbers = blend_order(normalised(sizes), sum(sizes))
    assert sorted(zip(sources.tolist(), numbers.tolist(), strict=True)) == [
        (source, number) for source, size in enumerate(sizes) for number in range(size)
    ]


def test_a_longer_blend_begins_like_a_shorter_one() -> None:
    weights = normalised([3, 2, 2])
    assert (blend_order(weights, 500)[0][:200] == blend_order(weights, 200)[0]).all()
    assert blend_order(weights, 0)[0].shape == (0,)


@pytest.mark.parametrize("weights", [[], [0.0], [1, -1], [1, float("nan")], [float("inf")]])
def test_weights_are_checked(weights: list[float]) -> None:
    with pytest.raises(ConfigError):
        normalised(weights)


@pytest.mark.parametrize("seed", range(20))
def test_an_order_continued_in_pieces_is_the_whole_order(seed: int) -> None:
    rng = np.random.default_rng(seed)
    weights = normalised(rng.lognormal(0, rng.choice([0.1, 1, 3]), rng.integers(1, 12)).tolist())
    whole = np.array(blend_order(weights, 900))
    taken = [0] * len(weights)
    for start in range(0, 900, 75):
        piece = np.array(blend_order(weights, 75, taken))
        assert (piece == whole[:, start : start + 75]).all()
        taken = (np.array(taken) + np.bincount(piece[0], minlength=len(weights))).tolist()
