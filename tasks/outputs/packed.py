"""Inspect packed bins: counts, fill, sequence lengths, and a few bins as a trainer reads them."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from schemas.errors import ConfigError
from schemas.inspection import Inspection
from schemas.report import Chart, Column, Fact, Passage, Sample, Table
from schemas.sft import Count
from tasks.outputs.found import Outputs, Tables
from tasks.outputs.query import PLACE
from tasks.report.histogram import even_classes, fill_classes, histogram
from tasks.report.numbers import count, plain, share, size
from tasks.sft.shards.find import open_shard
from tasks.sft.shards.invariants import RawBins
from tasks.sft.view import Decode, load_decoder, passages
from tasks.storage.listing import stored_bytes

# Most lines in the table of shards.
_MOST_SHARDS = 20
# Most tokens of a bin that is shown.
_MOST_TOKENS = 2_000


class _Counts:
    """Totals over shards; memory grows only with the longest bin.

    Attributes:
        lengths: int64[n], sequences by stored length.
        used: int64[n], bins by their number of tokens.
    """

    def __init__(self) -> None:
        self.totals: Counter[str] = Counter()
        self.lengths = np.zeros(1, np.int64)
        self.used = np.zeros(1, np.int64)

    def add(self, bins: RawBins, rule: Count) -> None:
        tokens = np.diff(bins.ids_offsets)
        sequences = np.diff(bins.starts_offsets)
        self.totals.update(
            bins=len(tokens),
            sequences=int(sequences.sum()),
            tokens=int(tokens.sum()),
            trained=int(np.count_nonzero(bins.mask)),
        )
        lengths = _sequence_lengths(bins)
        # Damaged bins can have any length; `validate` reports what is wrong with them.
        self.lengths = _added(self.lengths, lengths[lengths >= 0])
        used = tokens - sequences if rule is Count.RUNTIME else tokens
        self.used = _added(self.used, used[used >= 0])


def _sequence_lengths(bins: RawBins) -> NDArray[np.int64]:
    per_bin = np.diff(bins.starts_offsets)
    bin_of = np.repeat(np.arange(len(per_bin)), per_bin)
    begins = bins.ids_offsets[bin_of] + bins.starts
    last = np.append(bin_of[1:] != bin_of[:-1], True) if len(bin_of) else np.zeros(0, bool)
    ends = np.where(last, bins.ids_offsets[bin_of + 1], np.append(begins[1:], 0))
    lengths: NDArray[np.int64] = ends - begins
    return lengths


def _added(counts: NDArray[np.int64], values: NDArray[np.int64]) -> NDArray[np.int64]:
    more = np.bincount(values, minlength=len(counts))
    more[: len(counts)] += counts
    return more


def inspect_packed(outputs: Outputs, rows: int, first: int, tokenizer: Path | None) -> Inspection:
    """Inspect packed shards of any format.

    Args:
        rows: number of bins to show, starting at `first`, counted over all shards.
        tokenizer: its folder; without it, bins are shown as ids.

    Raises:
        InputError: a shard cannot be read.
        ConfigError: the tokenizer cannot be read.
    """
    counts = _Counts()
    shards = []
    about: dict[str, set[str]] = {}
    pack_size: int | None = None
    for path in outputs.files:
        before = counts.totals.copy()
        with open_shard(path) as shard:
            told = shard.metadata
            rule = told.count or Count.RUNTIME
            for block in shard.blocks():
                counts.add(block, rule)
            shape = shard.format
        pack_size = told.pack_size if told.pack_size is not None else pack_size
        for name, value in (
            ("format", shape),
            ("pack size", told.pack_size),
            ("counted", told.count),
            ("tokenizer", told.tokenizer_digest),
            ("vocabulary", told.vocabulary_size),
        ):
            text = plain(value) if type(value) is int else str(value)
            about.setdefault(name, set()).add("not recorded" if value is None else text)
        done = counts.totals - before
        shards.append(
            (outputs.name(path), *(count(done[name]) for name in _TOTALS), size(stored_bytes(path)))
        )
    return Inspection(
        path=outputs.path,
        kind=outputs.kind,
        facts=_facts(counts, pack_size),
        tables=(_about(about), _shard_table(shards)),
        charts=_charts(counts, pack_size),
        samples=tuple(_samples(outputs, rows, first, tokenizer)) if rows else (),
        rows=counts.totals["bins"],
    )


_TOTALS = ("bins", "sequences", "tokens", "trained")


def _facts(counts: _Counts, pack_size: int | None) -> tuple[Fact, ...]:
    totals = counts.totals
    used = int((np.arange(len(counts.used)) * counts.used).sum())
    facts = [Fact(name, count(totals[name])) for name in ("bins", "sequences", "tokens")]
    facts.append(Fact("trained", share(totals["trained"], totals["tokens"]), count(totals["trained"])))
    if pack_size:
        facts.append(Fact("filled", share(used, pack_size * totals["bins"]), f"of {count(pack_size)} tokens"))
    longest = np.flatnonzero(counts.lengths)
    if len(longest):
        facts.append(Fact("longest sequence", count(int(longest[-1])), "tokens as stored"))
    return tuple(facts)


def _about(about: dict[str, set[str]]) -> Table:
    rows = tuple(
        (name, values.copy().pop() if len(values) == 1 else ", ".join(sorted(values)))
        for name, values in about.items()
    )
    return Table("Metadata of the shards", (Column("field"), Column("value")), rows)


def _shard_table(shards: list[tuple[str, ...]]) -> Table:
    columns = (Column("shard"), *(Column(name, True) for name in (*_TOTALS, "stored")))
    more = len(shards) - _MOST_SHARDS
    return Table(
        "Shards", columns, tuple(shards[:_MOST_SHARDS]), f"and {count(more)} more" if more > 0 else ""
    )


def _charts(counts: _Counts, pack_size: int | None) -> tuple[Chart, ...]:
    charts = [
        histogram(
            "Sequence lengths",
            "Sequences by their length in tokens, as stored.",
            "tokens",
            "sequences",
            even_classes(counts.lengths),
        )
    ]
    if pack_size:
        fills = np.arange(len(counts.used)) / pack_size
        charts.append(
            histogram(
                "Fill of the bins",
                "Bins by the share of the pack size that they hold; classes grow finer towards full.",
                "filled, from",
                "bins",
                fill_classes(fills, counts.used),
            )
        )
    return tuple(charts)


def _samples(outputs: Outputs, rows: int, first: int, tokenizer: Path | None) -> Iterator[Sample]:
    decode = _decoder(tokenizer)
    for path in outputs.files:
        with open_shard(path) as shard:
            here = shard.num_bins
            start, end = min(first, here), min(first + rows, here)
            number = start
            for block in shard.blocks(start, end):
                for place in range(len(block.ids_offsets) - 1):
                    yield _sample(outputs.name(path), number, block, place, decode)
                    number += 1
        rows -= end - start
        first = max(0, first - here)
        if rows <= 0:
            return


def _decoder(tokenizer: Path | None) -> Decode | None:
    if tokenizer is None:
        return None
    try:
        return load_decoder(tokenizer)
    # The tokenizers library raises bare Exception for files it cannot read.
    except Exception as error:
        problem = " ".join(str(error).split())
        raise ConfigError(
            f"cannot read a tokenizer from this folder: {problem}",
            code="bad_tokenizer",
            where=str(tokenizer),
        ) from error


def _sample(shard: str, number: int, bins: RawBins, place: int, decode: Decode | None) -> Sample:
    """Show one bin, cut so that it fits on a few screens."""
    ids, mask, starts = (
        values[offsets[place] : offsets[place + 1]]
        for values, offsets in (
            (bins.ids, bins.ids_offsets),
            (bins.mask, bins.mask_offsets),
            (bins.starts, bins.starts_offsets),
        )
    )
    sequences: list[tuple[Passage, ...]] = []
    shown = 0
    for start, end in itertools.pairwise([*starts.tolist(), len(ids)]):
        stop = min(end, start + _MOST_TOKENS - shown)
        if stop <= start:
            break
        shown += stop - start
        sequences.append(passages(ids[start:stop], mask[start:stop], decode))
    facts = (
        Fact("shard", shard),
        Fact("bin", count(number)),
        Fact("sequences", count(len(starts))),
        Fact("tokens", count(len(ids))),
        Fact("trained", count(int(np.count_nonzero(mask)))),
    )
    note = f"{facts[2].value} sequences, {facts[3].value} tokens, {facts[4].value} carry loss"
    if shown < len(ids):
        note += f"; the first {count(shown)} tokens are shown"
    return Sample(f"{shard}, bin {count(number)}", tuple(sequences), note, facts)


def query_packed(outputs: Outputs) -> Tables:
    """Return the table `bins`: Parquet in place, other formats as batches."""
    if all(file.suffix == ".parquet" for file in outputs.files):
        return Tables(files={"bins": outputs.files})
    return Tables(streams={"bins": packed_batches(outputs)})


def packed_batches(outputs: Outputs) -> pa.RecordBatchReader:
    """Yield bins of any format as Arrow batches for queries: where a bin is, and the columns of a packed shard."""
    lists = pa.list_(pa.int64())
    schema = pa.schema(
        [
            *((name, pa.string()) for name in PLACE),
            ("bin", pa.int64()),
            ("input_ids", lists),
            ("loss_mask", lists),
            ("seq_start_id", lists),
        ]
    )

    def batches() -> Iterator[pa.RecordBatch]:
        for path in outputs.files:
            place = outputs.place(path)
            with open_shard(path) as shard:
                number = 0
                for block in shard.blocks():
                    bins = len(block.ids_offsets) - 1
                    columns = [
                        *(pa.array([getattr(place, name)] * bins, pa.string()) for name in PLACE),
                        pa.array(np.arange(number, number + bins)),
                        pa.ListArray.from_arrays(block.ids_offsets.astype(np.int32), pa.array(block.ids)),
                        pa.ListArray.from_arrays(block.mask_offsets.astype(np.int32), pa.array(block.mask)),
                        pa.ListArray.from_arrays(
                            block.starts_offsets.astype(np.int32), pa.array(block.starts)
                        ),
                    ]
                    yield pa.record_batch(columns, schema=schema)
                    number += bins

    return pa.RecordBatchReader.from_batches(schema, batches())
