"""Name runs: a flow run after what it makes from what, a task run after its data set and shard.

Only the flow run has tags, not its tasks: Prefect asks the server about each tagged task before it starts.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from prefect.context import FlowRunContext

from schemas.config import Config

log = logging.getLogger("gristmill.runtime")

_MOST_CHARACTERS = 120
_HASH_DIGITS = 4
_COUNTED = re.compile(r"(.*?)([0-9]+)/([0-9]+)", re.DOTALL)


def task_names(step: str, jobs: Sequence[Any]) -> list[str]:
    """Name each job: the step, the job's label, and its number among the jobs of that label.

    >>> from types import SimpleNamespace as W
    >>> task_names("tokenize", [W(label="a"), W(label="b"), W(label="a")])
    ['tokenize a 1/2', 'tokenize b', 'tokenize a 2/2']
    """
    labels = [getattr(job, "label", "") for job in jobs]
    totals = Counter(labels)
    numbers: Counter[str] = Counter()
    names = []
    for label in labels:
        numbers[label] += 1
        number = f"{numbers[label]}/{totals[label]}" if totals[label] > 1 else ""
        names.append(" ".join(filter(None, (step, label, number))))
    return names


def batch_name(names: Sequence[str]) -> str:
    """Name a task that does several jobs after the first and the last of them.

    >>> batch_name(["tokenize a 7/9"])
    'tokenize a 7/9'
    >>> batch_name(["tokenize a 5/9", "tokenize a 6/9", "tokenize a 7/9"])
    'tokenize a 5-7 of 9'
    >>> batch_name(["tokenize a 9/9", "tokenize b"])
    'tokenize a 9/9 to tokenize b'
    """
    (first, last), counted = (names[0], names[-1]), _COUNTED.fullmatch(names[-1])
    if first == last:
        return first
    start = _COUNTED.fullmatch(first)
    if counted is None or start is None or (start[1], start[3]) != (counted[1], counted[3]):
        return f"{first} to {last}"
    return f"{start[1]}{start[2]}-{counted[2]} of {counted[3]}"


def flow_run_name() -> str:
    """Return the initial name of a flow run: its flow and its configuration's subject."""
    context = FlowRunContext.get()
    if context is None or context.flow is None:
        return "run"
    return _name(context.flow.name, (context.parameters or {}).get("config"))


def name_run(config: Config, run_hash: str) -> None:
    """Add the run's hash to the name of its flow run, and what it works on to its tags.

    A name is not worth failing for: without a flow run, or if the server refuses, nothing happens.
    """
    context = FlowRunContext.get()
    if context is None or context.flow_run is None or context.flow is None:
        return
    name = f"{_name(context.flow.name, config)} · {run_hash[:_HASH_DIGITS]}…"
    tags = sorted({*context.flow_run.tags, context.flow.name, *config.tags})
    try:
        context.client.update_flow_run(context.flow_run.id, name=name, tags=tags)
    except Exception as error:
        log.debug("cannot rename the flow run: %s", error)
        return
    context.flow_run.name = name


def _name(flow: str, config: Any) -> str:
    name = f"{flow} {config.subject}" if isinstance(config, Config) else flow
    return name if len(name) <= _MOST_CHARACTERS else name[: _MOST_CHARACTERS - 1] + "…"
