"""What a run over very much data takes: the tables of docs/scaling.md.

    python -m benchmarks.cost_model

The constants were measured by `benchmarks.growth` and `benchmarks.scale`, on two cores of a cloud machine; everything
else follows from how inputs are cut (`tasks.inputs.parts`) and from what a step reads. Change a constant here when it
changes there; a test compares the document with what this prints.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from tasks.corpus.cut import shard_bytes_for
from tasks.inputs.parts import piece_bytes
from tasks.inputs.survey import BLOCK_BYTES
from tasks.probes.runs.layout import RUN_LIMITS
from tasks.sft.stages import shards_of_job

GB = 10**9
MACHINES = (1, 8, 64)
# A machine: cores, and what it reads from its disks or network.
CORES, READ_BYTES_S = 16, GB
# As the flows cut them.
FILES_A_JOB, LARGEST_RECORD_SHARD, MOST_TASKS = 64, 512 << 20, 200

# Measured: seconds of one core, for a byte of input or text, a token, a row.
HASH_S = 1.0 / GB
TOKENIZE_S, PACK_S, CHECK_SHARD_S = 2.5e-6, 0.06e-6, 0.05e-6
SELECT_S, DECODE_S, WRITE_S = 0.1e-6, 2.5 / GB, 5.7 / GB
SCATTER_S, MERGE_S, GATHER_S, CHECK_RECORDS_S = 0.65e-6, 0.1e-6, 0.5e-6, 0.02e-6
# To open a spool and read a range of it.
RANGE_S = 0.3e-3
# Of the driver: a start, a task run, a part, the first look at a file.
START_S, TASK_RUN_S, DRIVER_PART_S, FILE_S = 15.0, 0.1, 0.3e-3, 0.35e-3
DRIVER_BYTES, DRIVER_PART_BYTES = 240e6, 6e3


@dataclass(frozen=True)
class Step:
    """A mapped step.

    Attributes:
        core_s: seconds of one core.
        read: bytes.
        requests: how many ranges of files are read.
        parts: how many it has, each with a receipt.
    """

    name: str
    core_s: float
    read: float
    requests: int
    parts: int


@dataclass(frozen=True)
class Work:
    """A run.

    Attributes:
        flow, of: its name, and what it reads.
        steps: what workers do.
        looked_at: files that the driver opens.
        worker_bytes: peak memory of a worker.
        kept: bytes in `stages/` and `runs/` when it is over.
    """

    flow: str
    of: str
    steps: tuple[Step, ...]
    looked_at: int
    worker_bytes: float
    kept: float

    @property
    def receipts(self) -> int:
        return sum(step.parts for step in self.steps)

    @property
    def requests(self) -> int:
        return sum(step.requests for step in self.steps)

    @property
    def driver_s(self) -> float:
        task_runs = sum(min(step.parts, MOST_TASKS) for step in self.steps)
        return START_S + TASK_RUN_S * task_runs + DRIVER_PART_S * self.receipts + FILE_S * self.looked_at

    @property
    def driver_bytes(self) -> float:
        return DRIVER_BYTES + DRIVER_PART_BYTES * self.receipts

    def step_s(self, step: Step, machines: int) -> float:
        """Return how long a step takes: as long as its processors or its reads."""
        return max(step.core_s / min(CORES * machines, step.parts), step.read / (READ_BYTES_S * machines))

    def seconds(self, machines: int) -> float:
        return self.driver_s + sum(self.step_s(step, machines) for step in self.steps)


def blocks(files: int, file_bytes: float) -> int:
    """Return how many blocks a survey reads."""
    return files * math.ceil(file_bytes / BLOCK_BYTES)


def pack_sft() -> Work:
    conversations, tokens, files = 100_000_000, 33 * 10**9, 100
    source = 4 * tokens
    parts = files * math.ceil(source / files / piece_bytes(source // files))
    shards = math.ceil(tokens / 2**26)
    jobs = math.ceil(shards / shards_of_job(shards, parts, 2**26))
    spool = 4 * tokens + 48 * conversations
    surveyed = blocks(files, source / files)
    return Work(
        "pack-sft",
        "100 million conversations, 33 billion tokens, 132 GB of JSON lines in 100 files",
        (
            Step("fingerprint", HASH_S * source, source, surveyed, surveyed),
            Step("tokenize", TOKENIZE_S * tokens, source, parts, parts),
            Step("pack", PACK_S * tokens + RANGE_S * parts * jobs, spool, 2 * parts * jobs, jobs),
            Step("validate", CHECK_SHARD_S * tokens, 2 * tokens, shards, jobs),
        ),
        looked_at=files,
        worker_bytes=530e6,
        kept=spool + 2 * tokens,
    )


def sample_corpus() -> Work:
    text, documents, files, buckets, share = 10_000 * GB, 5 * 10**9, 40_000, 20, 0.01
    source = text / 2.4
    shards = math.ceil(text / shard_bytes_for(int(text)))
    # Of the sizes that most writers choose.
    groups = math.ceil(text / (64 << 20))
    # Small files share a job up to the size of a block.
    surveyed = math.ceil(files / (BLOCK_BYTES // math.ceil(source / files)))
    return Work(
        "sample-corpus",
        "10 TB of text, 5 billion documents in 20 buckets and 40,000 Parquet files; every hundredth is taken",
        (
            Step("fingerprint", HASH_S * source, source, files, surveyed),
            Step("inventory", FILE_S * files, 0, files, files // FILES_A_JOB),
            Step("select", SELECT_S * documents, 0, 0, buckets),
            Step("write", DECODE_S * text + WRITE_S * text * share, source, groups, shards),
            Step("validate", 0, 0, shards, shards),
        ),
        looked_at=0,
        worker_bytes=250e6,
        kept=source * share,
    )


def build_probe_rows() -> Work:
    rows, files = 20 * 10**9, 2_000
    source = 25 * rows
    parts = 2 * files
    spool = 18 * rows
    runs = math.ceil(rows / RUN_LIMITS["rows"])
    shards = math.ceil(17 * rows / LARGEST_RECORD_SHARD)
    surveyed = blocks(files, source / files)
    return Work(
        "build-probe-rows",
        "20 billion measurements, 500 GB in 2,000 Parquet files of two row groups",
        (
            Step("fingerprint", HASH_S * source, source, surveyed, surveyed),
            Step("scatter", SCATTER_S * rows, source, parts, parts),
            Step("merge", MERGE_S * rows, spool, parts, runs),
            Step("gather", GATHER_S * rows + RANGE_S * runs * shards, spool, 2 * runs * shards, shards),
            Step("validate", CHECK_RECORDS_S * rows, 7 * rows, shards, shards),
        ),
        looked_at=files,
        worker_bytes=325e6,
        kept=2 * spool + 7 * rows,
    )


def tables() -> str:
    """Return the tables as Markdown."""
    works = (sample_corpus(), build_probe_rows(), pack_sft())
    lines = [
        "| | " + " | ".join(work.flow for work in works) + " |",
        "| --- " * (len(works) + 1) + "|",
        *(
            f"| {name} | " + " | ".join(map(told, works)) + " |"
            for name, told in (
                *((f"time, {_machines(machines)}", _timed(machines)) for machines in MACHINES),
                ("of it the driver", lambda work: _duration(work.driver_s)),
                ("memory of the driver", lambda work: _size(work.driver_bytes)),
                ("memory of a worker", lambda work: _size(work.worker_bytes)),
                ("receipts", lambda work: f"{work.receipts:,}"),
                ("ranges read", lambda work: f"{work.requests:,}"),
                ("disk space", lambda work: _size(work.kept)),
            )
        ),
    ]
    for work in works:
        lines += [
            "",
            f"{work.flow}: {work.of}.",
            "",
            "| step | core hours | read | parts | time, 1 machine |",
        ]
        lines += ["| --- | ---: | ---: | ---: | ---: |"]
        lines += [
            f"| {step.name} | {step.core_s / 3600:,.1f} | {_size(step.read) if step.read else '-'} "
            f"| {step.parts:,} | {_duration(work.step_s(step, 1))} |"
            for step in work.steps
        ]
    return "\n".join(lines)


def _timed(machines: int) -> Callable[[Work], str]:
    return lambda work: _duration(work.seconds(machines))


def _machines(count: int) -> str:
    return f"{count} machine" + "s" * (count > 1)


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _size(count: float) -> str:
    unit, name = next((unit, name) for unit, name in _UNITS if count >= unit)
    return f"{count / unit:.3g} {name}"


_UNITS = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"))

if __name__ == "__main__":
    print(tables())
