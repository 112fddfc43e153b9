"""Merge what several runs have of one probe by time, holding little of it, however much there is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tasks.packing.arrays import repeated
from tasks.probes.runs.read import Measurements, RunReader
from tasks.probes.runs.texts import used_texts

# Least rows read from a stretch at a time: 4 KB.
_LEAST_ROWS = 1 << 8


@dataclass(frozen=True)
class Stretch:
    """Locate measurements of one probe that are in time order: items `first` to `end` of a run."""

    run: RunReader
    first: int
    end: int


_NOTHING = Measurements(
    np.zeros(0, np.int64), np.zeros(0, np.int32), np.zeros(0, np.float32), pa.array([], pa.string())
)


class _Source:
    """A stretch that is being read, and what has been read of it and not yet been taken."""

    def __init__(self, number: int, stretch: Stretch) -> None:
        self.number, self._stretch = number, stretch
        self._at = stretch.first
        self.held = _NOTHING

    @property
    def ended(self) -> bool:
        """Whether all of it has been read."""
        return self._at == self._stretch.end

    @property
    def rows(self) -> int:
        """How many rows are held."""
        return len(self.held.times)

    def first_time(self) -> int:
        return int(self._stretch.run.spool.items(self._stretch.first, self._stretch.first + 1)["time"][0])

    def last_time(self) -> int:
        """The time of the last row that is held."""
        return int(self.held.times[-1])

    def fill(self, rows: int) -> None:
        """Read `rows` more rows, or all that are left."""
        end = min(self._at + rows, self._stretch.end)
        more = self._stretch.run.read(self._at, end)
        self.held = joined([self.held, more]) if self.rows else more
        self._at = end

    def take(self, time: int, inclusive: bool) -> Measurements | None:
        """Take the rows before a time, or up to it."""
        count = int(np.searchsorted(self.held.times, time, "right" if inclusive else "left"))
        taken, self.held = self.held.slice(0, count), self.held.slice(count, self.rows)
        return taken if count else None


def merge_by_time(stretches: Sequence[Stretch], rows: int) -> Iterator[Measurements]:
    """Yield the measurements of stretches by time, ties in the order of the stretches.

    Args:
        rows: how many are held, about; and if many stretches overlap in time, 256 of each.
    """
    sources = [_Source(number, stretch) for number, stretch in enumerate(stretches)]
    # Those that have begun by some time are open, the others wait.
    waiting = sorted(((source.first_time(), source.number) for source in sources), reverse=True)
    opened: list[_Source] = []
    while opened or waiting:
        least = max(rows // (2 * (len(opened) + 1)), _LEAST_ROWS)
        for source in opened:
            if not source.rows:
                source.fill(least)
        held = sum(source.rows for source in opened)
        # What is read later is not before the last row of a source that has more, nor before the first of one that
        # waits; of rows of that time, those of earlier stretches come first.
        bounds = [(source.last_time(), source.number, True) for source in opened if not source.ended]
        bounds += [(time, number, False) for time, number in waiting[-1:]]
        time, number, is_open = min(bounds, default=(np.iinfo(np.int64).max, len(sources), True))
        if held < rows and bounds:
            if is_open:
                sources[number].fill(max((rows - held) // 2, least))
            else:
                opened = _with(opened, sources[waiting.pop()[1]])
            continue
        taken = [source.take(time, source.number < number + is_open) for source in opened]
        found = [some for some in taken if some is not None]
        opened = [source for source in opened if source.rows or not source.ended]
        if found:
            yield _in_time(found)
        elif waiting:
            opened = _with(opened, sources[waiting.pop()[1]])


def _with(opened: Sequence[_Source], source: _Source) -> list[_Source]:
    return sorted([*opened, source], key=lambda one: one.number)


def without_repeated(merged: Iterator[Measurements]) -> Iterator[Measurements]:
    """Leave out the measurements that equal an earlier one in time, destination and the bits of the round trip."""
    last: Measurements | None = None
    for some in merged:
        both = some if last is None else joined([last, some])
        codes = both.texts.dictionary_encode().indices.to_numpy()[both.codes]
        kept = ~repeated(both.times, codes, np.ascontiguousarray(both.rtts).view(np.int32))
        known = 0 if last is None else len(last.times)
        last = both.filter(kept & (both.times == both.times[-1]))
        kept[:known] = False
        yield both.filter(kept)


def cut_at(merged: Iterator[Measurements], edges: NDArray[np.int64]) -> Iterator[Measurements]:
    """Yield the measurements between each edge and the next, counted from the first."""
    held: list[Measurements] = []
    rows, sizes = 0, np.diff(edges).tolist()
    for some in merged:
        while sizes and rows + len(some.times) >= sizes[0]:
            count = sizes.pop(0) - rows
            yield joined([*held, some.slice(0, count)])
            held, rows, some = [], 0, some.slice(count, len(some.times))
        held.append(some)
        rows += len(some.times)


def joined(parts: Sequence[Measurements]) -> Measurements:
    """Join measurements; of their texts those that are used, each once."""
    # A part of few rows may refer to the addresses of a whole block.
    own = [used_texts(some.codes, some.texts) for some in parts]
    encoded = pa.concat_arrays([texts for _, texts in own]).dictionary_encode()
    new, base, codes = encoded.indices.to_numpy(), 0, []
    for code, texts in own:
        codes.append(new[base : base + len(texts)][code])
        base += len(texts)
    return Measurements(
        np.concatenate([some.times for some in parts]),
        np.concatenate(codes),
        np.concatenate([some.rtts for some in parts]),
        encoded.dictionary,
    )


def _in_time(parts: Sequence[Measurements]) -> Measurements:
    if len(parts) == 1:
        return parts[0]
    whole = joined(parts)
    order = np.argsort(whole.times, kind="stable")
    return Measurements(whole.times[order], whole.codes[order], whole.rtts[order], whole.texts)
