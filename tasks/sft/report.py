"""The report of a packing run: fill of the bins, lengths of the sequences, and a few samples."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schemas.report import Chart, Column, Fact, Sample, Table
from tasks.report.histogram import even_classes, fill_classes, histogram
from tasks.report.numbers import count, counted, share, some_of
from tasks.run.drift import fill_share
from tasks.sft.order.fit import OVERFLOW_COUNTS
from tasks.sft.packed import PackedRun, PackedSplit
from tasks.sft.shards.find import open_shard
from tasks.sft.shards.invariants import RawBins
from tasks.sft.view import Decode, load_decoder, passages
from tasks.storage.arrays import read_array

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
    "asked: the share of its weight, which readers of blend.json follow; real: its share of the tokens that a "
    "trainer sees that opens the split's folder; epochs: how often a blend as long as that folder shows each bin."
)


@dataclass(frozen=True)
class PackReport:
    """See `tasks.report.compose.FlowReport`."""

    run: PackedRun
    tokenizer_folder: str
    steps: tuple[str, ...] = ("screen", "tokenize", "cut", "repeats", "pack", "validate")

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
        lengths = _figures(root, self.run.packed, "lengths")
        counts = np.zeros(int(lengths[:, 0].max()) + 1, np.int64)
        np.add.at(counts, lengths[:, 0], lengths[:, 1])
        fills = _figures(root, self.run.packed, "fills")
        return (
            histogram(
                "Sequence lengths",
                "Sequences by length in tokens, after truncation or splitting.",
                "tokens",
                "sequences",
                even_classes(counts),
            ),
            histogram(
                "Fill of the bins",
                "Bins by filled share of the pack size; the classes get finer towards full.",
                "filled, from",
                "bins",
                fill_classes(fills[:, 0] / pack.size, fills[:, 1]),
            ),
        )

    def samples(self) -> tuple[Sample, ...]:
        """Decode the first bins of the train split."""
        decode = load_decoder(Path(self.tokenizer_folder))
        train = [entry for entry in self.run.packed if entry.split == "train"]
        each = max(1, _SAMPLED_BINS // len(train))
        samples = []
        for entry in train[:_SAMPLED_BINS]:
            with open_shard(Path(self.run.config.output_dir, entry.shards[0].path)) as shard:
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


def _figures(root: Path, packed: Sequence[PackedSplit], name: str) -> NDArray[np.int64]:
    """Return values and how often each occurs in a shard: int64[n, 2]."""
    return np.concatenate(
        [read_array(root / record.path) for entry in packed for record in entry.figures(name)]
    )
