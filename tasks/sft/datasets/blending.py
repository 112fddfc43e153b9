"""Choose the data set of each sample in a blend, so that every prefix follows the weights.

Taking the data set that lags most, as blends often do, lets a heavy one fall behind by more than a sample when many
light ones are due together. Here each sample has a release time and a deadline, and the earliest deadline goes
first: after any number of samples, every data set is within one sample of its share
(R. Tijdeman, "The chairman assignment problem", 1980).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from schemas.errors import ConfigError


def normalised(weights: Sequence[float]) -> list[float]:
    """Scale weights to add up to 1.

    Raises:
        ConfigError: there are none, or one is not a finite number above 0.
    """
    values = [float(weight) for weight in weights]
    if not values:
        raise ConfigError("a blend needs at least one data set", where="weights")
    for position, value in enumerate(values):
        if not 0 < value < float("inf"):
            raise ConfigError(
                f"{value} is not a valid weight; allowed: finite, greater than 0",
                where=f"weights[{position}]",
            )
    total = sum(values)
    return [value / total for value in values]


def blend_order(
    weights: Sequence[float], num_samples: int, taken: Sequence[int] | None = None
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Choose the data set of each sample, and the sample's number within it.

    After any k samples, data set i has been taken `weights[i] * k` times, plus or minus less than one.

    Args:
        weights: must add up to 1.
        taken: how often each data set was taken by earlier samples, if the order goes on from there. The
            order depends on these counts alone, so a continued one is the same as one in a single stretch.

    Returns:
        int32[num_samples], int64[num_samples].

    >>> sources, numbers = blend_order([0.5, 0.25, 0.25], 8)
    >>> sources.tolist(), numbers.tolist()
    ([0, 1, 2, 0, 0, 1, 2, 0], [0, 0, 0, 1, 2, 1, 1, 3])
    >>> [values.tolist() for values in blend_order([0.5, 0.25, 0.25], 3, taken=[3, 1, 1])]
    [[1, 2, 0], [1, 1, 3]]
    """
    counts = [0] * len(weights) if taken is None else list(taken)
    done = sum(counts)
    sources = np.zeros(num_samples, np.int32)
    numbers = np.arange(done, done + num_samples, dtype=np.int64)
    if len(weights) == 1:
        return sources, numbers
    slack = 1 / (2 * len(weights) - 2)
    # (release, source) of sources that may not be taken yet, (deadline, source) of those that may.
    waiting = sorted(
        ((count + slack) / weight, source)
        for source, (count, weight) in enumerate(zip(counts, weights, strict=True))
    )
    ready: list[tuple[float, int]] = []
    for place in range(num_samples):
        while waiting and (waiting[0][0] <= done + place + 1 or not ready):
            source = heapq.heappop(waiting)[1]
            heapq.heappush(ready, ((counts[source] + 1 - slack) / weights[source], source))
        source = heapq.heappop(ready)[1]
        sources[place] = source
        numbers[place] = counts[source]
        counts[source] += 1
        heapq.heappush(waiting, ((counts[source] + slack) / weights[source], source))
    return sources, numbers
