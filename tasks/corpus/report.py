"""Compose the report of a sample: how many documents of each bucket were requested and sampled."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from schemas.report import Chart, Column, Fact, Sample, Series, Table
from tasks.corpus.publish import SampledRun, report
from tasks.report.histogram import power_classes
from tasks.report.numbers import binary, count, counted, share, size, some_of


@dataclass(frozen=True)
class SampleReport:
    """See `tasks.report.compose.FlowReport`."""

    run: SampledRun
    steps: tuple[str, ...] = ("screen", "select", "write")

    @property
    def subject(self) -> str:
        config = self.run.config
        names = some_of([dataset.name for dataset in config.datasets.values()])
        return f"{names} · seed {config.random_seed}"

    def facts(self) -> tuple[Fact, ...]:
        """Return the headline numbers."""
        buckets = report(self.run.buckets)
        requested, sampled, rows, text, stored, shards = (
            sum(bucket[name] for bucket in buckets)
            for name in ("requested", "sampled", "rows", "text_bytes", "stored_bytes", "shards")
        )
        return (
            Fact("documents sampled", count(sampled), f"of {count(requested)} requested"),
            Fact("share of the corpus", share(sampled, rows), f"of {count(rows)} documents"),
            Fact("text", size(text), f"{size(text / sampled)} a document" if sampled else ""),
            Fact("stored", size(stored), f"in {counted(shards, 'shard')}"),
            Fact("buckets", count(len(buckets)), f"of {counted(len(self.run.config.datasets), 'source')}"),
        )

    def tables(self) -> tuple[Table, ...]:
        """Return the counts of each bucket."""
        numbers = ("files", "documents", "requested", "sampled", "text", "shards")
        rows = [
            (
                f"{bucket['source']}/{bucket['bucket']}",
                *(count(bucket[name]) for name in ("files", "rows", "requested", "sampled")),
                size(bucket["text_bytes"]),
                count(bucket["shards"]),
            )
            for bucket in report(self.run.buckets)
        ]
        return (Table("Buckets", (Column("bucket"), *(Column(name, True) for name in numbers)), tuple(rows)),)

    def charts(self) -> tuple[Chart, ...]:
        """Return charts of what was requested and sampled, and of text lengths."""
        buckets = report(self.run.buckets)
        lengths: Counter[int] = Counter()
        for bucket in buckets:
            lengths.update({int(end): rows for end, rows in bucket["text_bytes_up_to"].items()})
        labels, counts = power_classes(lengths)
        return (
            Chart(
                "Requested and sampled",
                "Documents of each bucket. If a bucket has fewer than requested, all of them are sampled.",
                "bucket",
                tuple(f"{bucket['source']}/{bucket['bucket']}" for bucket in buckets),
                tuple(
                    Series(
                        name,
                        tuple(float(bucket[key]) for bucket in buckets),
                        tuple(count(bucket[key]) for bucket in buckets),
                    )
                    for name, key in (("requested", "requested"), ("sampled", "sampled"))
                ),
            ),
            Chart(
                "Text lengths",
                "Sampled documents by the bytes of their text; each class ends at a power of two.",
                "bytes, up to",
                tuple(binary(end) for end in labels),
                (Series("documents", tuple(map(float, counts)), tuple(count(value) for value in counts)),),
                upright=True,
            ),
        )

    def samples(self) -> tuple[Sample, ...]:
        """Return no samples: a sample's documents are not shown."""
        return ()
