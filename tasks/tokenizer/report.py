"""Compose the report of a trained tokenizer: how many bytes a token stands for, bucket by bucket."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath

from schemas.report import Chart, Column, Fact, Sample, Series, Table
from tasks.report.numbers import count, size
from tasks.tokenizer.publish import TrainedRun


@dataclass(frozen=True)
class TokenizerReport:
    """See `tasks.report.compose.FlowReport`."""

    run: TrainedRun
    steps: tuple[str, ...] = ("train", "compare")

    @property
    def subject(self) -> str:
        return f"{count(self.run.trained.statistics['vocabulary_size'])} tokens"

    def _totals(self, *names: str) -> tuple[int, ...]:
        return tuple(sum(bucket[name] for bucket in self.run.buckets) for name in names)

    def facts(self) -> tuple[Fact, ...]:
        """Return the headline numbers."""
        trained, rows, held_out_bytes, tokens = self._totals(
            "trained_rows", "held_out_rows", "held_out_bytes", "held_out_tokens"
        )
        wanted = self.run.config.vocabulary_size
        return (
            Fact(
                "vocabulary",
                count(self.run.trained.statistics["vocabulary_size"]),
                f"of {count(wanted)} requested",
            ),
            Fact(
                "bytes per token",
                _ratio(held_out_bytes, tokens),
                "on rows held out" if rows else "no row held out",
            ),
            *self._comparison(held_out_bytes, tokens),
            Fact("rows trained on", count(trained)),
            Fact("rows held out", count(rows), size(held_out_bytes)),
        )

    def _comparison(self, held_out_bytes: int, tokens: int) -> tuple[Fact, ...]:
        if not self.run.compared:
            return ()
        [others] = self._totals("compared_tokens")
        note = f"on the same rows; {(tokens / others - 1):+.1%} tokens with the trained one" if others else ""
        return (Fact(f"bytes per token, {self._other}", _ratio(held_out_bytes, others), note),)

    @property
    def _other(self) -> str:
        return PurePath(self.run.config.compare_with or "").name

    def tables(self) -> tuple[Table, ...]:
        """Return the counts of each bucket."""
        numbers = ["trained_rows", "held_out_rows", "held_out_bytes", "held_out_tokens"]
        names = ["rows trained on", "rows held out", "bytes held out", "tokens held out", "bytes per token"]
        ratios = ["held_out_tokens"]
        if self.run.compared:
            names.append(f"bytes per token, {self._other}")
            ratios.append("compared_tokens")
        rows = [
            (
                bucket["bucket"],
                *(count(bucket[name]) for name in numbers),
                *(_ratio(bucket["held_out_bytes"], bucket[tokens]) for tokens in ratios),
            )
            for bucket in self.run.buckets
        ]
        return (Table("Buckets", (Column("bucket"), *(Column(name, True) for name in names)), tuple(rows)),)

    def charts(self) -> tuple[Chart, ...]:
        """Return a chart of bytes per token, if rows were held out."""
        measured = [bucket for bucket in self.run.buckets if bucket["bytes_per_token"]]
        if not measured:
            return ()
        shown = [("bytes per token", "bytes_per_token")]
        if self.run.compared:
            shown.append((self._other, "compared_bytes_per_token"))
        series = tuple(
            Series(
                name,
                tuple(float(bucket[key] or 0) for bucket in measured),
                tuple(f"{bucket[key]:.2f}" if bucket[key] else "–" for bucket in measured),
            )
            for name, key in shown
        )
        return (
            Chart(
                "Bytes per token",
                "On rows held out from training, by bucket. A higher value means fewer tokens for the same text.",
                "bucket",
                tuple(bucket["bucket"] for bucket in measured),
                series,
            ),
        )

    def samples(self) -> tuple[Sample, ...]:
        """Return no samples."""
        return ()


def _ratio(size: int, tokens: int) -> str:
    return f"{size / tokens:.2f}" if tokens else "–"
