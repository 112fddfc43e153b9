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


def blend_order(weights: Sequence[float], num_samples: int) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Choose the data set of each sample, and the sample's number within it.

    After any k samples, data set i has been taken `weights[i] * k` times, plus or minus less than one.

    Args:
        weights: must add up to 1.

    Returns:
        int32[num_samples], int64[num_samples].

    >>> sources, numbers = blend_order([0.5, 0.25, 0.25], 8)
    >>> sources.tolist(), numbers.tolist()
    ([0, 1, 2, 0, 0, 1, 2, 0], [0, 0, 0, 1, 2, 1, 1, 3])
    """
    sources = np.zeros(num_samples, np.int32)
    numbers = np.arange(num_samples, dtype=np.int64)
    if len(weights) == 1:
        return sources, numbers
    slack = 1 / (2 * len(weights) - 2)
    taken = [0] * len(weights)
    # (release, source) of sources that may not be taken yet, (deadline, source) of those that may.
    waiting = sorted((slack / weight, source) for source, weight in enumerate(weights))
    ready: list[tuple[float, int]] = []
    for sample in range(num_samples):
        while waiting and (waiting[0][0] <= sample + 1 or not ready):
            source = heapq.heappop(waiting)[1]
            heapq.heappush(ready, ((taken[source] + 1 - slack) / weights[source], source))
        source = heapq.heappop(ready)[1]
        sources[sample] = source
        numbers[sample] = taken[source]
        taken[source] += 1
        heapq.heappush(waiting, ((taken[source] + slack) / weights[source], source))
    return sources, numbers
