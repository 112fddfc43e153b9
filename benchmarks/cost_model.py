"""What a run over very much data takes: the tables of docs/scaling.md.

    python -m benchmarks.cost_model

The constants were measured by `benchmarks.growth` and `benchmarks.scale`, on two cores of a cloud machine; everything
else follows from how inputs are cut (`tasks.inputs.parts`) and from what a step reads. Change a constant here when it
changes there; a test compares the document with what this prints.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from tasks.inputs.parts import piece_bytes

GB = 10**9
MACHINES = (1, 8, 64)
# A machine: cores, and what it reads from its disks or network.
CORES, READ_BYTES_S = 16, GB

# Measured: seconds of one core.
START_S = 15.0
HASH_S = 0.45 / GB
TOKENIZE_S, PACK_S, CHECK_SHARD_S = 2.4e-6, 0.1e-6, 0.05e-6
SELECT_ROW_S, DECODE_S, WRITE_S, CHECK_SAMPLE_S = 0.1e-6, 3.0 / GB, 8.0 / GB, 8.0 / GB
SCATTER_S, GATHER_S, CHECK_RECORDS_S = 0.8e-6, 0.5e-6, 0.3e-6
# Of the driver: for a part, and for a file's footer.
DRIVER_PART_S, FILE_S = 0.3e-3, 0.35e-3
DRIVER_BYTES, DRIVER_PART_BYTES = 240e6, 10e3


@dataclass(frozen=True)
class Step:
    """A mapped step: seconds of one core, what is read, how many reads that is, how many receipts it leaves."""

    name: str
    core_s: float
    read: float
    requests: int
    receipts: int


@dataclass(frozen=True)
class Work:
    """A run.

    Attributes:
        flow, of: what it reads.
        steps: what workers do.
        files: whose footers or first rows the run looks at.
        worker_mb: peak of a worker.
        kept: bytes that stay in `stages/` beside the inputs.
    """

    flow: str
    of: str
    steps: tuple[Step, ...]
    files: int
    worker_mb: int
    kept: float
    notes: tuple[str, ...] = field(default=())

    @property
    def receipts(self) -> int:
        return sum(step.receipts for step in self.steps)

    @property
    def requests(self) -> int:
        return sum(step.requests for step in self.steps)

    @property
    def driver_s(self) -> float:
        return START_S + DRIVER_PART_S * self.receipts + FILE_S * self.files

    @property
    def driver_bytes(self) -> float:
        return DRIVER_BYTES + DRIVER_PART_BYTES * self.receipts

    def seconds(self, machines: int) -> float:
        """How long it takes: each step as long as its processors or its reads, then the driver."""
        return self.driver_s + sum(
            max(step.core_s / (CORES * machines), step.read / (READ_BYTES_S * machines))
            for step in self.steps
        )


def pack_sft() -> Work:
    """100 million conversations of 330 tokens, 4 bytes of JSON a token, in 100 files."""
    conversations, files = 100_000_000, 100
    tokens = conversations * 330
    source = 4 * tokens
    parts = files * math.ceil(source / files / piece_bytes(source // files))
    shards = math.ceil(tokens / 2**26)
    # `tasks.sft.stages`: so many shards a job that a spool gives it a mebibyte.
    batch = max(1, min(parts * 2**20 // 2**28, shards // 16, 64))
    jobs = math.ceil(shards / batch)
    spool = 4 * tokens + 48 * conversations
    blocks = files * math.ceil(source / files / 2**28)
    return Work(
        "pack-sft",
        f"100 million conversations, {tokens / 1e9:.0f} billion tokens, {source / GB:.0f} GB of JSON in 100 files",
        (
            Step("fingerprint", HASH_S * source, source, blocks, blocks),
            Step("tokenize", TOKENIZE_S * tokens, source, parts, parts),
            Step("pack", PACK_S * tokens, spool, 2 * parts * jobs, jobs),
            Step("validate", CHECK_SHARD_S * tokens, 2 * tokens, shards, jobs),
        ),
        files=files,
        worker_mb=530,
        kept=spool + 2 * tokens,
    )


def sample_corpus() -> Work:
    """10 TB of text, 2 kB a document, 2.4 times smaller in 40,000 Parquet files; one document of a hundred."""
    text, files, share = 10_000 * GB, 40_000, 0.01
    source = text / 2.4
    shards = math.ceil(text / 2**33)
    groups = text / (64 << 20)
    jobs = math.ceil(files / 2)
    return Work(
        "sample-corpus",
        f"10 TB of text, 5 billion documents, {source / 1e12:.1f} TB in 40,000 Parquet files; every hundredth",
        (
            Step("fingerprint", HASH_S * source, source, files, jobs),
            Step("inventory", FILE_S * files, 0, files, files // 1000),
            Step("select", SELECT_ROW_S * text / 2000, 0, 0, 10),
            Step("write", DECODE_S * text + WRITE_S * text * share, source, int(groups), shards),
            Step("validate", CHECK_SAMPLE_S * text * share, source * share, shards, shards),
        ),
        files=0,
        worker_mb=250,
        kept=source * share,
    )


def build_probe_rows() -> Work:
    """20 billion measurements, 25 bytes each, in 2,000 Parquet files of two row groups."""
    rows, files = 20_000_000_000, 2_000
    source = 25 * rows
    parts = 2 * files
    spool = 16 * rows
    merged = math.ceil(rows / 2**23)
    shards = math.ceil(17 * rows / (512 << 20))
    blocks = files * math.ceil(source / files / 2**28)
    return Work(
        "build-probe-rows",
        f"20 billion measurements, {source / GB:.0f} GB in 2,000 Parquet files",
        (
            Step("fingerprint", HASH_S * source, source, blocks, blocks),
            Step("scatter", SCATTER_S * rows, source, parts, parts),
            Step("merge", 0.1e-6 * rows, spool, parts, merged // 32),
            Step("gather", GATHER_S * rows, spool, 2 * merged * shards, shards),
            Step("validate", CHECK_RECORDS_S * rows, 8 * rows, shards, shards),
        ),
        files=files,
        worker_mb=325,
        kept=2 * spool + 8 * rows,
    )
