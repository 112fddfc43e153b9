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

import hashlib
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from schemas.errors import ConfigError, InputError
from tasks.packing.arrays import owners
from tasks.probes.records.plain import PlainRows
from tasks.probes.training.crops import Contexts, Crops, lay_out, pack_contexts, split_crops
from tasks.probes.training.draws import MODES, Drawn, choose, num_uniforms
from tasks.probes.training.tokens import AddressTable, Measurements, encode, parse_addresses

MAX_SEED = 2**32 - 1

# (epoch, number of the record in the data set): selects the random stream of a row.
Stream = tuple[int, int]
Ints = NDArray[np.int64]

_MICROSECONDS = 1_000_000
# The purpose of a stream: the second half of a Philox key.
_ROW_KEY, _GROUP_KEY, ORDER_KEY, _FLAT_KEY = 0, 1, 2, 3
# Rows longer than this are thinned to their drawn measurements before rows are joined; shorter ones do not gain.
_SHORT_ROW = 1_024
_DRAWN_COLUMNS = ["event_time", "dst_addr", "rtt"]


@dataclass(frozen=True)
class ProbeRowSampler:
    """Draw contexts from rows and lay them into crops; a transformation for Grain, see `random_map` and `flat_map`.

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
        # Grain tells transformations by their base class, and importing it to have one takes too long. If Grain comes
        # later, `random_map` takes the sampler as a function.
        if grain := sys.modules.get("grain"):
            grain.transforms.RandomMap.register(ProbeRowSampler)

    @property
    def target(self) -> int:
        """Most measurements of a context."""
        return self.crop_size // self.avg_tokens_per_measurement

    @property
    def max_fan_out(self) -> int:
        """Most crops that `flat_map` returns."""
        return self.max_contexts_per_row

    def random_map(self, element: Mapping[str, Any], rng: np.random.Generator) -> Crops:
        """Draw one context of a row, for `grain.MapDataset.source(source).seed(0).random_map(sampler)`.

        Args:
            element: an item of a `ProbeRowDataSource`.
            rng: the source of all draws; `seed` is not used.

        Returns:
            A crop of this one context, int32[crop_size] by name; positions continue through the padding.

        Raises:
            InputError: as `sample`.
        """
        uniform = rng.random((1, num_uniforms(self.target)))
        [crop] = self._crops_of(element, uniform)
        return crop

    __call__ = random_map

    def flat_map(self, element: Mapping[str, Any]) -> list[Crops]:
        """Draw all K contexts of a row, for `grain.experimental.FlatMapIterDataset(rows.to_iter_dataset(), sampler)`.

        The draws follow from `seed`, the row and its `epoch`, since Grain has no random flat map: give rows that
        come again another `epoch` each time, or the same contexts come again.

        Args:
            element: an item of a `ProbeRowDataSource`; `epoch`, a whole number, may be added to it, and is 0 else.

        Returns:
            Crops of one context each, int32[crop_size] by name; positions continue through the padding.

        Raises:
            InputError: as `sample`.
        """
        batch = element["measurements"]
        # The parts of a probe differ in their measurements; often not in their first time or their size.
        row = hashlib.blake2b(element["src_addr"].encode(), digest_size=8)
        for name in ("event_time", "rtt"):
            row.update(batch[name].to_numpy(zero_copy_only=False).tobytes())
        row.update(repr([*batch["dst_addr"][:1].to_pylist(), *batch["dst_addr"][-1:].to_pylist()]).encode())
        stream = (int(element.get("epoch", 0)), int.from_bytes(row.digest(), "big"))
        num_contexts = self.num_contexts(np.array([len(batch)], np.int64))
        return self._crops_of(element, self._uniform(num_contexts, [stream], _FLAT_KEY))

    def _crops_of(self, element: Mapping[str, Any], uniform: NDArray[np.float64]) -> list[Crops]:
        """Return a crop for each row of uniforms."""
        sizes = np.array([len(element["measurements"])], np.int64)
        drawn = choose(sizes, np.zeros(len(uniform), np.int64), uniform, self.mode_weights)
        contexts = self._tokenize([element], drawn)
        return split_crops(lay_out(contexts, np.arange(len(uniform)), self.crop_size))

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
        contexts_of_row = self.num_contexts(num_measurements)
        uniform = self._uniform(contexts_of_row, streams, _ROW_KEY)
        return choose(num_measurements, owners(contexts_of_row), uniform, self.mode_weights)

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
        return self._tokenize(rows, self.draw(sizes, streams))

    def _tokenize(self, rows: Sequence[Mapping[str, Any]], drawn: Drawn) -> Contexts:
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

    def _uniform(self, contexts_of_row: Ints, streams: Sequence[Stream], purpose: int) -> NDArray[np.float64]:
        """Draw float64[contexts, num_uniforms] in [0, 1)."""
        uniform = np.empty((int(contexts_of_row.sum()), num_uniforms(self.target)))
        # Creating a generator costs 35 us, setting it to another stream 1 us.
        rng, rewind = self._generator(purpose)
        start = 0
        for num_contexts, stream in zip(contexts_of_row.tolist(), streams, strict=True):
            rewind(stream)
            rng.random(out=uniform[start : start + num_contexts])
            start += num_contexts
        return uniform


def _check(good: bool, name: str, sampler: ProbeRowSampler, allowed: str) -> None:
    if not good:
        raise ConfigError(f"{getattr(sampler, name)!r} is out of range; allowed: {allowed}", where=name)


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
