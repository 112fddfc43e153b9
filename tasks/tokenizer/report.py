"""Compose the report of a trained tokenizer: how many bytes a token stands for, bucket by bucket."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from schemas.report import Chart, Column, Fact, Sample, Series, Table
from tasks.report.numbers import count, size
from tasks.tokenizer.publish import TrainedRun


@dataclass(frozen=True)
class TokenizerReport:
    """See `tasks.report.compose.FlowReport`."""

    run: TrainedRun
    steps: tuple[str, ...] = ("train",)

    @property
    def subject(self) -> str:
        return f"{count(self.run.trained.statistics['vocabulary_size'])} tokens"

    @property
    def _buckets(self) -> list[dict[str, Any]]:
        buckets: list[dict[str, Any]] = self.run.trained.statistics["buckets"]
        return buckets

    def facts(self) -> tuple[Fact, ...]:
        """Return the headline numbers."""
        trained, rows, held_out_bytes, tokens = (
            sum(bucket[name] for bucket in self._buckets)
            for name in ("trained_rows", "held_out_rows", "held_out_bytes", "held_out_tokens")
        )
        wanted = self.run.config.vocabulary_size
        return (
            Fact(
                "vocabulary",
                count(self.run.trained.statistics["vocabulary_size"]),
                f"of {count(wanted)} requested",
            ),
            Fact("bytes per token", f"{held_out_bytes / tokens:.2f}" if tokens else "–", "on rows held out"),
            Fact("rows trained on", count(trained)),
            Fact("rows held out", count(rows), size(held_out_bytes)),
        )

    def tables(self) -> tuple[Table, ...]:
        """Return the counts of each bucket."""
        numbers = ("trained_rows", "held_out_rows", "held_out_bytes", "held_out_tokens")
        rows = [
            (bucket["bucket"], *(count(bucket[name]) for name in numbers), _ratio(bucket))
            for bucket in self._buckets
        ]
        names = ("rows trained on", "rows held out", "bytes held out", "tokens held out", "bytes per token")
        return (Table("Buckets", (Column("bucket"), *(Column(name, True) for name in names)), tuple(rows)),)

    def charts(self) -> tuple[Chart, ...]:
        """Return a chart of bytes per token, if rows were held out."""
        measured = [bucket for bucket in self._buckets if bucket["bytes_per_token"]]
        if not measured:
            return ()
        series = Series(
            "bytes per token",
            tuple(float(bucket["bytes_per_token"]) for bucket in measured),
            tuple(_ratio(bucket) for bucket in measured),
        )
        return (
            Chart(
                "Bytes per token",
                "On rows held out from training, by bucket. A higher value means fewer tokens for the same text.",
                "bucket",
                tuple(bucket["bucket"] for bucket in measured),
                (series,),
            ),
        )

    def samples(self) -> tuple[Sample, ...]:
        """Return no samples."""
        return ()


def _ratio(bucket: dict[str, Any]) -> str:
    return f"{bucket['bytes_per_token']:.2f}" if bucket["bytes_per_token"] else "–"
