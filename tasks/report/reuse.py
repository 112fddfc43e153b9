"""What a run had to do, and what it found done."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Reuse:
    """Tasks of each step, in the order the steps were first seen.

    >>> reuse = Reuse()
    >>> reuse.note("tokenize", cached=True)
    >>> reuse.note("tokenize", cached=False)
    >>> reuse.steps
    {'tokenize': [1, 1]}
    """

    steps: dict[str, list[int]] = field(default_factory=dict)

    def note(self, step: str, *, cached: bool) -> None:
        """Count one task: executed, or cached."""
        self.steps.setdefault(step, [0, 0])[cached] += 1
