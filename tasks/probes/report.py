"""Compose the report of a probe rows run: measurements per probe, and the share of padding in training."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from schemas.probes import TRAIN
from schemas.report import Chart, Column, Fact, Sample, Series, Table
from tasks.probes.publish import WrittenRun, run_statistics, written_shards
from tasks.probes.training.sampler import ProbeRowSampler
from tasks.probes.training.source import ProbeRowDataSource
from tasks.report.histogram import power_classes
from tasks.report.numbers import binary, count, counted, share, size, some_of

# Records whose padding is measured: one group of the loader, or fewer if records are large.
_RECORDS = 256
_RECORD_BYTES = 1 << 24


@dataclass(frozen=True)
class ProbeReport:
    """See `tasks.report.compose.FlowReport`."""

    run: WrittenRun
    steps: tuple[str, ...] = ("scatter", "merge", "gather")

    @property
    def subject(self) -> str:
        names = some_of([Path(path).name or path for path in self.run.config.inputs])
        return f"{names} · split by {self.run.config.split.value}"

    def facts(self) -> tuple[Fact, ...]:
        """Return the headline numbers."""
        statistics = run_statistics(self.run)
        ledger = self.run.ledger
        splits = statistics["probe_splits"].values()
        rows, ipv6 = statistics["measurements"], sum(split["ipv6"] for split in splits)
        stored = sum(split["stored_bytes"] for split in splits)
        return (
            Fact("measurements used", count(ledger.rows_used), f"of {count(ledger.rows_in)} read"),
            Fact(
                "rejected", share(ledger.rows_rejected, ledger.rows_in), f"{count(ledger.rows_rejected)} rows"
            ),
            Fact("probes", count(statistics["probes"]), f"in {counted(statistics['records'], 'record')}"),
            Fact("failed", share(statistics["failed"], rows), "of the measurements"),
            Fact("IPv6", share(ipv6, rows), "of the measurements"),
            Fact("stored", size(stored), f"in {counted(statistics['shards'], 'shard')}"),
        )

    def tables(self) -> tuple[Table, ...]:
        """Return the counts of each split."""
        names = ("probes", "records", "measurements", "mean per probe", "most", "failed", "IPv6", "stored")
        rows = [
            (
                name,
                *(count(split[key]) for key in ("probes", "records", "measurements")),
                f"{split['measurements_per_probe']['mean']:,.1f}",
                count(split["measurements_per_probe"]["most"]),
                share(split["failed_share"]),
                share(split["ipv6_share"]),
                size(split["stored_bytes"]),
            )
            for name, split in run_statistics(self.run)["probe_splits"].items()
        ]
        return (Table("Splits", (Column("split"), *(Column(name, True) for name in names)), tuple(rows)),)

    def charts(self) -> tuple[Chart, ...]:
        """Return charts of measurements per probe and of padding."""
        return (self._per_probe(), self._padding())

    def samples(self) -> tuple[Sample, ...]:
        """Return no samples."""
        return ()

    def _per_probe(self) -> Chart:
        by_split = {
            name: {
                int(end): probes for end, probes in split["measurements_per_probe"]["probes_up_to"].items()
            }
            for name, split in run_statistics(self.run)["probe_splits"].items()
        }
        ends, _ = power_classes({end: 0 for counts in by_split.values() for end in counts})
        series = tuple(
            Series(
                name,
                tuple(float(counts.get(end, 0)) for end in ends),
                tuple(count(counts.get(end, 0)) for end in ends),
            )
            for name, counts in by_split.items()
        )
        return Chart(
            "Measurements per probe",
            "Probes by how many measurements they have; each class ends at a power of two.",
            "measurements, up to",
            tuple(binary(end) for end in ends),
            series,
            upright=True,
        )

    def _padding(self) -> Chart:
        sampler = ProbeRowSampler()
        records, shares = self._measure(sampler)
        return Chart(
            "Padding in training",
            f"Share of padding in crops of {count(sampler.crop_size)} tokens, measured on {count(records)} train "
            "records with the loader's own sampling.",
            "layout",
            tuple(shares),
            (Series("padding", tuple(shares.values()), tuple(share(value) for value in shares.values())),),
        )

    def _measure(self, sampler: ProbeRowSampler) -> tuple[int, dict[str, float]]:
        """Return how many records were measured, and the share of padding by layout."""
        shards = [pair for pair in written_shards(self.run.gathered) if pair[0]["split"] == TRAIN]
        counts, record = shards[0]
        # Shards are in hash order, so the first records are a random sample.
        mean = counts["record_bytes"] / counts["records"]
        records = min(counts["records"], max(1, min(_RECORDS, int(_RECORD_BYTES / mean))))
        source = ProbeRowDataSource(str(Path(self.run.config.output_dir, record.path)))
        streams = [(0, number) for number in range(records)]
        contexts = sampler.sample(source.sampler_rows(range(records)), streams)
        shares = {}
        for name, pack in (("contexts packed into crops", True), ("one context per crop", False)):
            crops = sampler.crops(contexts, streams[0], pack)
            shares[name] = float(np.mean(crops["inputs_segmentation"] == 0))
        return records, shares
