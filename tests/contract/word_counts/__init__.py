"""count-words: the smallest flow that keeps the run contract; docs/architecture.md walks through it."""

from __future__ import annotations

from flows.cli.registry import FlowEntry

ENTRY = FlowEntry(
    name="count-words",
    summary="how often each word occurs in JSON lines",
    schema="contract.word_counts.schema",
    config="CountWordsConfig",
    identity="contract.word_counts.identity",
    package="contract.word_counts",
    module="count_words",
)
