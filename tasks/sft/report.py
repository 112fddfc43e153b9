"""The report of a packing run: fill of the bins, lengths of the sequences, and a few samples."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schemas.report import Chart, Column, Fact, Sample, Table
from schemas.sft import Count, PackConfig
from tasks.report.histogram import even_classes, fill_classes, histogram
from tasks.report.numbers import count, counted, share, some_of
from tasks.run.drift import fill_share
from tasks.run.layout import stage_folder
from tasks.sft.gather import PackPlan
from tasks.sft.packed import PackedRun
from tasks.sft.plan import OVERFLOW_COUNTS, padded_length
from tasks.sft.shards.find import open_shard
from tasks.sft.shards.invariants import RawBins
from tasks.sft.view import Decode, load_decoder, passages

# How much of the published bins is shown.
_SAMPLED_BINS = 3
_SHOWN_SEQUENCES = 3
_SHOWN_TOKENS = 400

_SPLIT_COLUMNS = (
    "sequences",
    "bins",
    "filled",
    "tokens",
    "trained",
    "longest",
    "cut or dropped",
    "tokens cut",
)
_SHARE_COLUMNS = ("bins", "tokens", "weight", "asked", "real", "epochs")
_SHARE_NOTE = (
    "asked: the share of its weight, which readers of blend.json follow; real: its share of the bins, which a "
    "trainer that opens the split's folder sees; epochs: how often a blend as long as the split shows each bin."
)

# Sequences processed at a time: about 50 MB of temporary arrays.
_BLOCK_ITEMS = 1 << 20


@dataclass(frozen=True)
class PackReport:
    """See `tasks.report.compose.FlowReport`."""

    run: PackedRun
    tokenizer_folder: str
    steps: tuple[str, ...] = ("screen", "tokenize", "plan", "write")

    @property
    def subject(self) -> str:
        names = some_of([dataset.name for dataset in self.run.config.datasets])
        return f"{names} · {self.run.config.pack.size}"

    def facts(self) -> tuple[Fact, ...]:
        """Return the headline numbers."""
        statistics = self.run.statistics
        ledger = self.run.ledger
        tokens, trained = statistics["tokens"], statistics["trained_tokens"]
        return (
            Fact("conversations", count(ledger.rows_used), f"used, of {count(ledger.rows_in)} read"),
            Fact(
                "rejected", share(ledger.rows_rejected, ledger.rows_in), f"{count(ledger.rows_rejected)} rows"
            ),
            Fact("bins", count(statistics["bins"]), f"of {count(self.run.config.pack.size)} tokens"),
            Fact("filled", share(fill_share(statistics) or 0), "of the bins"),
            Fact("tokens", count(tokens), f"in {count(statistics['sequences'])} sequences"),
            Fact("trained", share(trained, tokens), f"{count(trained)} tokens"),
        )

    def tables(self) -> tuple[Table, ...]:
        """Return the table of splits and data sets, and that of their shares."""
        statistics = self.run.statistics
        counted = [
            (split, name, counts)
            for split, datasets in statistics["splits"].items()
            for name, counts in datasets.items()
        ]

        def table(
            title: str, columns: tuple[str, ...], row: Callable[[dict[str, Any]], tuple[str, ...]]
        ) -> Table:
            head = (Column("split"), Column("data set"), *(Column(name, True) for name in columns))
            return Table(title, head, tuple((split, name, *row(counts)) for split, name, counts in counted))

        splits = table("Splits", _SPLIT_COLUMNS, _split_row)
        shares = table("Shares of the data sets", _SHARE_COLUMNS, _share_row)
        return (splits, replace(shares, note=_SHARE_NOTE)) if len(self.run.config.datasets) > 1 else (splits,)

    def charts(self) -> tuple[Chart, ...]:
        """Draw sequence lengths and the fill of the bins."""
        root, pack = Path(self.run.config.output_dir), self.run.config.pack
        # The plans give the longest runtime length, one less than stored.
        longest = max(int(entry.plan.statistics["dataset_max_seqlen"]) + 1 for entry in self.run.packed)
        lengths = np.zeros(longest + 1, np.int64)
        fills = []
        for entry in self.run.packed:
            plan = PackPlan(stage_folder(root, entry.plan.stage))
            lengths += length_counts(plan, len(lengths))
            fills.append(bin_fills(plan, pack))
        return (
            histogram(
                "Sequence lengths",
                "Sequences by length in tokens, after truncation or splitting.",
                "tokens",
                "sequences",
                even_classes(lengths),
            ),
            histogram(
                "Fill of the bins",
                "Bins by filled share of the pack size; the classes get finer towards full.",
                "filled, from",
                "bins",
                fill_classes(np.concatenate(fills)),
            ),
        )

    def samples(self) -> tuple[Sample, ...]:
        """Decode the first bins of the train split."""
        decode = load_decoder(Path(self.tokenizer_folder))
        train = [entry for entry in self.run.packed if entry.split == "train"]
        each = max(1, _SAMPLED_BINS // len(train))
        samples = []
        for entry in train[:_SAMPLED_BINS]:
            with open_shard(Path(self.run.config.output_dir, next(iter(entry.files())))) as shard:
                for number, bins in enumerate(shard.blocks(0, each, rows=1)):
                    samples.append(_sample(f"{entry.dataset}, train, bin {number}", bins, decode))
        return tuple(samples)


def _sample(title: str, one: RawBins, decode: Decode) -> Sample:
    """Show the first sequences of a bin, and the first tokens of each."""
    bounds = [*one.starts.tolist(), len(one.ids)]
    sequences = []
    shown = 0
    for start, end in list(itertools.pairwise(bounds))[:_SHOWN_SEQUENCES]:
        stop = min(end, start + _SHOWN_TOKENS)
        shown += stop - start
        sequences.append(passages(one.ids[start:stop], one.mask[start:stop], decode))
    note = (
        f"{count(len(sequences))} of {counted(len(one.starts), 'sequence')}, {count(shown)} of "
        f"{counted(len(one.ids), 'token')}; {counted(int(one.mask.sum()), 'token')} in the bin carry loss"
    )
    return Sample(title, tuple(sequences), note)


def _split_row(counts: dict[str, Any]) -> tuple[str, ...]:
    lost = sum(counts[name] for name in OVERFLOW_COUNTS if name != "tokens_cut")
    return (
        count(counts["sequences"]),
        count(counts["bins"]),
        f"{counts['packing_efficiency']:.2f}%",
        count(counts["tokens"]),
        share(counts["trained_tokens"], counts["tokens"]),
        count(counts["dataset_max_seqlen"]),
        count(lost),
        count(counts["tokens_cut"]),
    )


def _share_row(counts: dict[str, Any]) -> tuple[str, ...]:
    return (
        count(counts["bins"]),
        count(counts["tokens"]),
        f"{counts['weight']:g}",
        share(counts["weight_share"], 1),
        share(counts["share"], 1),
        f"{counts['epochs']:.2f}",
    )


def length_counts(plan: PackPlan, end: int) -> NDArray[np.int64]:
    """Count the sequences of each stored length below `end`, padding excluded: int64[end]."""
    counts = np.zeros(end, np.int64)
    for start in range(0, len(plan.item_length), _BLOCK_ITEMS):
        counts += np.bincount(plan.item_length[start : start + _BLOCK_ITEMS], minlength=end)
    return counts


def bin_fills(plan: PackPlan, pack: PackConfig) -> NDArray[np.float64]:
    """Compute the filled share of each bin, counting as `pack.count` does: float64[bins]."""
    lengths = plan.item_length
    num_bins = len(plan.bin_offsets) - 1
    step = max(1, _BLOCK_ITEMS * num_bins // max(len(lengths), 1))
    fills = []
    for first in range(0, num_bins, step):
        offsets = plan.bin_offsets[first : min(first + step, num_bins) + 1]
        items = plan.bin_items[offsets[0] : offsets[-1]]
        stored = padded_length(lengths[items].astype(np.int64), pack.pad_to_multiple)
        cost = stored - 1 if pack.count is Count.RUNTIME else stored
        fills.append(np.add.reduceat(cost, offsets[:-1] - offsets[0]))
    return np.concatenate([np.zeros(0), *fills]) / pack.size
