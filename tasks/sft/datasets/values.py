"""Values of an item: numpy views without a copy that compare with lists as lists do.

Packed data sets of trainers hand out lists. Building three lists for each item costs more than reading the item, and
collating turns them back into arrays. But `item["input_ids"] == [1, 2, 3]` and `dataset[0] == other[0]` should be a
yes or a no, as they are there, and not an array with an answer for each token.
"""

from __future__ import annotations

from typing import Any

import numpy as np


class Values(np.ndarray[Any, Any]):
    """An array that is equal to a list, a tuple or other `Values` if it has the same values in the same order.

    The answer is one `np.bool_`. Against anything else, and in everything else, it is a numpy array, and arithmetic
    gives a plain one, or a plain number. Whatever numpy makes of it in another way is `Values` too: slices, copies,
    and the results of `astype`, `sort`, `reshape`, `np.roll` or `np.zeros_like`. So `ids[1:] == ids[:-1]` is one
    answer, as it is of two lists; for an answer a token, compare a plain array: `np.asarray(ids)`, without a copy.

    >>> ids = np.array([7, 8, 9]).view(Values)
    >>> bool(ids == [7, 8, 9]), bool(ids[1:] == [7, 8]), bool(ids != ids.copy())
    (True, False, False)
    >>> (ids == 8).tolist(), (ids == np.array([7, 0, 9])).tolist()
    ([False, True, False], [True, False, True])
    >>> bool(ids[1:] == ids[:-1]), (np.asarray(ids)[1:] == ids[:-1]).tolist()
    (False, [False, False])
    >>> type(ids + 1).__name__, type(ids.max()).__name__
    ('ndarray', 'int64')
    """

    def __eq__(self, other: object) -> Any:
        if isinstance(other, Values):
            return np.bool_(np.array_equal(self, other))
        if isinstance(other, list | tuple):
            return np.bool_(self.tolist() == list(other))
        return super().__eq__(other)

    def __ne__(self, other: object) -> Any:
        if isinstance(other, Values | list | tuple):
            return ~(self == other)
        return super().__ne__(other)

    __hash__ = None

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        return np.asarray(array)[()]
