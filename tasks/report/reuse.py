"""Count which tasks of a run were executed and which were reused."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Reuse:
    """Counts of tasks per step, in the order the steps first appeared.

    >>> reuse = Reuse()
    >>> reuse.note("tokenize", cached=True)
    >>> reuse.note("tokenize", cached=False)
    >>> reuse.steps
    {'tokenize': [1, 1]}
    """

    steps: dict[str, list[int]] = field(default_factory=dict)

    def note(self, step: str, *, cached: bool, tasks: int = 1) -> None:
        """Count tasks as executed or cached."""
        self.steps.setdefault(step, [0, 0])[cached] += tasks
