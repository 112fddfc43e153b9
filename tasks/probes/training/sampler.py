"""Draw contexts from probe rows: which measurements, in which order, with which timestamps.

A row of n measurements yields K = min(ceil(n / 30), 16) contexts. With target = crop_size // 30 (34 at 1,024),
a context of a row with fewer measurements has all of them. Otherwise it has those of a window of
floor(exp(U(0, ln n))) measurements at a uniform place or, if the window is larger than `target`, `target` of them
drawn without replacement. There are three modes:

=======  =======================================================================================
full     in time order, all with timestamps
partial  a share U(0.1, 0.9) lose theirs, are shuffled, and put at random among the others, which
         stay in time order
none     shuffled, no timestamps
=======  =======================================================================================

All three are one rule with a different number of untimed measurements: 0, some, all.

Every row draws from a stream of its own, fixed by (seed, epoch, record): its contexts do not depend on the rows
beside it, on sharding, or on where a run was resumed. The draws of a context are one row of a matrix of
uniforms, filled by one call for each record; everything after that works on all contexts of a group at once. Only
drawn measurements are read: a row of 200,000 costs hardly more than one of 600.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from schemas.errors import ConfigError, InputError
from tasks.packing.arrays import lengths_to_offsets, owners
from tasks.probes.records.plain import PlainRows
from tasks.probes.training.crops import Contexts, Crops, lay_out, pack_contexts
from tasks.probes.training.tokens import BLOCK_ORDERS, AddressTable, Measurements, encode, parse_addresses

FULL, PARTIAL, NONE = 0, 1, 2
MODES = ("full", "partial", "none")
MAX_SEED = 2**32 - 1

# (epoch, number of the record in the data set): selects the random stream of a row.
Stream = tuple[int, int]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_PARTIAL_SHARE = (0.1, 0.9)
_MICROSECONDS = 1_000_000
# The purpose of a stream: the second half of a Philox key.
_ROW_KEY, _GROUP_KEY, ORDER_KEY = 0, 1, 2
# Rows longer than this are thinned to their drawn measurements before rows are joined; shorter ones do not gain.
_SHORT_ROW = 1_024
_DRAWN_COLUMNS = ["event_time", "dst_addr", "rtt"]


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """Name the measurements that make up the contexts of some rows, in the order they are written.

    Attributes:
        rows: int64[contexts], the row each context is from, ascending.
        modes: int8[contexts], indices into `MODES`.
        context_offsets: int64[contexts + 1], where each context starts in the three arrays below.
        positions: int64[n], of a measurement in its row.
        timed: bool[n], whether its timestamp is written.
        block_orders: int64[n], rows of `BLOCK_ORDERS`.
    """

    rows: Ints
    modes: NDArray[np.int8]
    context_offsets: Ints
    positions: Ints
    timed: NDArray[np.bool_]
    block_orders: Ints


@dataclass(frozen=True)
class ProbeRowSampler:
    """Draw contexts from rows and lay them into crops.

    Args:
        crop_size: tokens of a crop.
        avg_tokens_per_measurement: decides how many measurements a context has at most.
        max_contexts_per_row: most contexts of a row.
        mode_weights: weights of the modes full, partial and none.
        seed: 0 to 2^32 - 1.

    Raises:
        ConfigError: an argument is out of range.
    """

    crop_size: int = 1024
    avg_tokens_per_measurement: int = 30
    max_contexts_per_row: int = 16
    mode_weights: tuple[float, float, float] = (0.4, 0.3, 0.3)
    seed: int = 0

    def __post_init__(self) -> None:
        _check(self.avg_tokens_per_measurement >= 1, "avg_tokens_per_measurement", self, "1 or more")
        allowed = f"{self.avg_tokens_per_measurement} (avg_tokens_per_measurement) to {2**24}"
        _check(self.avg_tokens_per_measurement <= self.crop_size <= 2**24, "crop_size", self, allowed)
        _check(self.max_contexts_per_row >= 1, "max_contexts_per_row", self, "1 or more")
        _check(0 <= self.seed <= MAX_SEED, "seed", self, f"0 to {MAX_SEED}")
        weights = self.mode_weights
        good = len(weights) == 3 and all(0 <= weight < math.inf for weight in weights) and sum(weights) > 0
        _check(good, "mode_weights", self, f"three numbers for {', '.join(MODES)}, none negative, not all 0")

    @property
    def target(self) -> int:
        """Most measurements of a context."""
        return self.crop_size // self.avg_tokens_per_measurement

    def num_contexts(self, num_measurements: Ints) -> Ints:
        """Return how many contexts rows with these numbers of measurements have.

        >>> ProbeRowSampler().num_contexts(np.array([0, 1, 30, 31, 10_000])).tolist()
        [0, 1, 1, 2, 16]
        """
        return np.minimum(-(-num_measurements // self.avg_tokens_per_measurement), self.max_contexts_per_row)

    def draw(self, num_measurements: Ints, streams: Sequence[Stream]) -> Drawn:
        """Choose the measurements of all contexts.

        Args:
            num_measurements: int64[rows].
            streams: (epoch, record) of each row.
        """
        target = self.target
        # One row of uniforms for each context: window size and place, mode, untimed share, then `target` each of
        # picks, two shuffles and block orders. All are drawn, used or not, so a draw never shifts the next.
        contexts_of_row = self.num_contexts(num_measurements)
        rows = owners(contexts_of_row)
        uniform = self._uniform(contexts_of_row, streams, 4 + 4 * target)
        sizes = num_measurements[rows]
        chosen, counts = _windows(sizes, target, uniform[:, 0], uniform[:, 1], uniform[:, 4 : 4 + target])
        modes = self._modes(uniform[:, 2])
        untimed = _num_untimed(modes, counts, uniform[:, 3])
        keys = uniform[:, 4 + target :]
        order, timed = _arrange(counts, untimed, keys[:, :target], keys[:, target : 2 * target])
        blocks = keys[:, 2 * target :] * len(BLOCK_ORDERS)

        used = np.arange(target) < counts[:, None]
        return Drawn(
            rows,
            modes,
            lengths_to_offsets(counts),
            np.take_along_axis(chosen, order, axis=1)[used],
            timed[used],
            blocks[used].astype(np.int64),
        )

    def sample(self, rows: Sequence[Mapping[str, Any]], streams: Sequence[Stream]) -> Contexts:
        """Draw and tokenize the contexts of some rows.

        Args:
            rows: items of a `ProbeRowDataSource`, with at least `src_addr` and `measurements`.
            streams: (epoch, record) of each row.

        Raises:
            InputError: `bad_address`: an address is malformed; `null_values`: a measurement has a null.
        """
        if isinstance(rows, PlainRows):
            sizes = rows.sizes
        else:
            sizes = np.array([len(row["measurements"]) for row in rows], np.int64)
        drawn = self.draw(sizes, streams)
        if not len(drawn.rows):
            return Contexts.concat([])
        row_of = np.repeat(drawn.rows, np.diff(drawn.context_offsets))
        if isinstance(rows, PlainRows):
            sources, columns = rows.addresses, rows.take(row_of, drawn.positions)
        else:
            sources, columns = [row["src_addr"] for row in rows], _columns(rows, row_of, drawn.positions)
        tokens, starts = encode(*_measurements(drawn, row_of, sources, *columns))
        return Contexts(tokens, starts[drawn.context_offsets], drawn.modes)

    def crops(self, contexts: Contexts, stream: Stream, pack: bool = True) -> Crops:
        """Lay contexts into crops, in random order.

        Args:
            stream: (epoch, record) of the first row.
            pack: put several contexts into a crop, best fit by length; else one.
        """
        rng, rewind = self._generator(_GROUP_KEY)
        rewind(stream)
        sizes = np.minimum(np.diff(contexts.offsets), self.crop_size)
        if pack:
            return lay_out(contexts, pack_contexts(sizes, self.crop_size, rng), self.crop_size)
        return lay_out(contexts, rng.permutation(len(sizes)), self.crop_size)

    def _generator(self, purpose: int) -> tuple[np.random.Generator, Callable[[Stream], None]]:
        """Return a generator, and a function that sets it to the start of a stream."""
        bits = np.random.Philox(key=np.array([self.seed, purpose], np.uint64))
        start = bits.state

        def rewind(stream: Stream) -> None:
            # Philox counts in the lower two words itself.
            start["state"]["counter"][:] = (0, 0, *stream)
            bits.state = start

        return np.random.Generator(bits), rewind

    def _uniform(self, contexts_of_row: Ints, streams: Sequence[Stream], width: int) -> Floats:
        """Draw float64[contexts, width] in [0, 1)."""
        uniform = np.empty((int(contexts_of_row.sum()), width))
        # Creating a generator costs 35 us, setting it to another stream 1 us.
        rng, rewind = self._generator(_ROW_KEY)
        start = 0
        for num_contexts, stream in zip(contexts_of_row.tolist(), streams, strict=True):
            rewind(stream)
            rng.random(out=uniform[start : start + num_contexts])
            start += num_contexts
        return uniform

    def _modes(self, uniform: Floats) -> NDArray[np.int8]:
        bounds = np.cumsum(self.mode_weights) / sum(self.mode_weights)
        return np.searchsorted(bounds[:2], uniform, side="right").astype(np.int8)


def _check(good: bool, name: str, sampler: ProbeRowSampler, allowed: str) -> None:
    if not good:
        raise ConfigError(f"{getattr(sampler, name)!r} is out of range; allowed: {allowed}", where=name)


def _windows(sizes: Ints, target: int, size: Floats, place: Floats, picks: Floats) -> tuple[Ints, Ints]:
    """Choose the positions of each context, ascending: int64[contexts, target], and how many of them are used."""
    whole = sizes < target
    width = np.exp(size * np.log(np.maximum(sizes, 1))).astype(np.int64)
    width = np.where(whole, sizes, np.clip(width, 1, sizes))
    start = (place * (sizes - width + 1)).astype(np.int64)
    chosen = np.broadcast_to(np.arange(target), (len(sizes), target)).copy()
    large = np.flatnonzero(width > target)
    chosen[large] = _subsets(width[large], picks[large])
    return chosen + start[:, None], np.minimum(width, target)


def _subsets(sizes: Ints, picks: Floats) -> Ints:
    """Draw a uniform subset of `picks.shape[1]` of each `range(size)`, ascending, with Floyd's method on all at once.

    Bentley & Floyd, "A sample of brilliance", CACM 30 (1987): for j from size - k to size - 1, take a random one
    of 0..j, or j itself if that is already taken.
    """
    num_picks = picks.shape[1]
    subset = np.empty(picks.shape, np.int64)
    for i in range(num_picks):
        last = sizes - num_picks + i
        pick = (picks[:, i] * (last + 1)).astype(np.int64)
        taken = (subset[:, :i] == pick[:, None]).any(axis=1)
        subset[:, i] = np.where(taken, last, pick)
    subset.sort(axis=1)
    return subset


def _num_untimed(modes: NDArray[np.int8], counts: Ints, uniform: Floats) -> Ints:
    low, high = _PARTIAL_SHARE
    some = np.floor(counts * (low + (high - low) * uniform) + 0.5).astype(np.int64)
    untimed: Ints = np.where(modes == FULL, 0, np.where(modes == NONE, counts, some))
    return untimed


def _arrange(counts: Ints, untimed: Ints, which: Floats, where: Floats) -> tuple[Ints, NDArray[np.bool_]]:
    """Put `untimed` random measurements of each context, in random order, at as many random slots.

    The others take the slots left over in their own order.

    Returns:
        int64[contexts, target]: the measurement in each slot, and whether it is timed; slots from `counts` on
        are not used.
    """
    slots = np.arange(which.shape[1])
    unused = slots >= counts[:, None]
    # Random permutations of the used slots, with the unused slots behind them.
    measurement = np.argsort(np.where(unused, 2.0, which), axis=1)
    slot = np.argsort(np.where(unused, 2.0, where), axis=1)
    moved = slots < untimed[:, None]
    context = np.nonzero(moved)[0]
    moved_measurement = np.zeros(unused.shape, np.bool_)
    moved_measurement[context, measurement[moved]] = True
    moved_slot = np.zeros(unused.shape, np.bool_)
    moved_slot[context, slot[moved]] = True

    order = np.empty(unused.shape, np.int64)
    order[moved_slot] = -1
    order[context, slot[moved]] = measurement[moved]
    # Each context has as many slots as measurements left, so reading both row by row pairs them.
    order[~moved_slot] = np.nonzero(~moved_measurement)[1]
    return order, ~moved_slot


def _columns(
    rows: Sequence[Mapping[str, Any]], row_of: Ints, positions: Ints
) -> tuple[Ints, pa.StringArray, NDArray[np.float32]]:
    """Read the times, destinations and round trips of the drawn measurements."""
    positions = positions.copy()
    batches = [row["measurements"].select(_DRAWN_COLUMNS) for row in rows]
    sizes = np.array([batch.num_rows for batch in batches])
    for number in np.flatnonzero(sizes > _SHORT_ROW).tolist():
        low, high = np.searchsorted(row_of, [number, number + 1]).tolist()
        batches[number] = batches[number].take(pa.array(positions[low:high]))
        positions[low:high] = np.arange(high - low)
        sizes[number] = high - low
    positions += (np.cumsum(sizes) - sizes)[row_of]
    joined = pa.concat_batches(batches)
    for name in ("event_time", "dst_addr"):
        if joined[name].null_count:
            raise InputError(f"{joined[name].null_count} nulls in {name}", code="null_values")
    times = joined["event_time"].view(pa.int64()).to_numpy()[positions]
    rtts = joined["rtt"].to_numpy(zero_copy_only=False)[positions]
    return times, joined["dst_addr"].take(pa.array(positions)), rtts


def _measurements(
    drawn: Drawn,
    row_of: Ints,
    sources: Sequence[str],
    times: Ints,
    targets: pa.StringArray,
    rtts: NDArray[np.float32],
) -> tuple[Measurements, AddressTable]:
    """Return the drawn measurements, and the addresses they refer to."""
    distinct = targets.dictionary_encode()
    return Measurements(
        src=row_of,
        dst=len(sources) + distinct.indices.to_numpy().astype(np.int64),
        rtt_ms=rtts,
        seconds=times // _MICROSECONDS,
        timed=drawn.timed,
        block_orders=drawn.block_orders,
        context_offsets=drawn.context_offsets,
    ), parse_addresses([*sources, *distinct.dictionary.to_pylist()])
