"""What the report of word counts shows: the most frequent words."""

from __future__ import annotations

from dataclasses import dataclass

from contract.word_counts.publish import CountedRun, total_counts

from schemas.report import Chart, Column, Fact, Sample, Table


@dataclass(frozen=True)
class CountReport:
    """See `tasks.report.compose.FlowReport`."""

    run: CountedRun
    steps: tuple[str, ...] = ("count",)

    @property
    def subject(self) -> str:
        return self.run.config.input

    def facts(self) -> tuple[Fact, ...]:
        return (Fact("words", str(sum(total_counts(self.run).values()))),)

    def tables(self) -> tuple[Table, ...]:
        most = sorted(total_counts(self.run).items(), key=lambda item: (-item[1], item[0]))[:10]
        rows = tuple((word, str(times)) for word, times in most)
        return (Table("Most frequent", (Column("word"), Column("times", True)), rows),)

    def charts(self) -> tuple[Chart, ...]:
        return ()

    def samples(self) -> tuple[Sample, ...]:
        return ()
