"""What many tests need: a small tokenizer, chat files, and pack-sft without a Prefect server."""

from __future__ import annotations

import hashlib
import importlib
import json
import random
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from flows.cli.registry import FLOWS, FlowEntry
from schemas.corpus import SampleCorpusConfig
from schemas.errors import IntegrityError
from schemas.run import Receipt, RunManifest
from schemas.sft import PackSftConfig
from tasks.report.reuse import Reuse
from tasks.run.contract import missing_stages
from tasks.run.receipts import Verify, check_receipt, format_record, receipt_key, record_path
from tasks.storage.atomic import write_file

GSM8K = Path(__file__).resolve().parents[2] / "shared" / "data" / "gsm8k.jsonl"


# The smallest configuration of each flow that a form accepts.
SMALLEST: dict[str, dict[str, Any]] = {
    "pack-sft": {
        "output_dir": "out",
        "datasets": [{"name": "a", "path": "a.jsonl"}],
        "tokenizer": {"path": "tok"},
    },
    "sample-corpus": {
        "output_dir": "out",
        "datasets": {"web": {"name": "web", "source": "web", "buckets": {"4.0": {"count": 5}}}},
    },
    "train-tokenizer": {"output_dir": "out", "sample": "sample"},
    "build-probe-rows": {"output_dir": "out", "input": "rows"},
}


def write_jsonl(path: Path, rows: Iterable[Any]) -> Path:
    """Write rows as JSON lines; a `bytes` row is written as it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        for row in rows:
            file.write(row if isinstance(row, bytes) else json.dumps(row).encode())
            file.write(b"\n")
    return path


def chat(*texts: str, system: str | None = None) -> dict[str, Any]:
    """A chat row whose texts alternate between user and assistant."""
    messages = [{"role": "system", "content": system}] if system is not None else []
    for position, text in enumerate(texts):
        messages.append({"role": ("user", "assistant")[position % 2], "content": text})
    return {"messages": messages}


def made_up_texts(count: int, seed: int = 0, longest: int = 300) -> list[str]:
    """Texts of up to so many words that nobody wrote, a few of them frequent: the same under every Python."""
    rng = random.Random(seed)
    words = ["".join(rng.choices(_SYLLABLES, k=rng.randint(1, 4))) for _ in range(1000)]
    weights = [1 / (place + 10) for place in range(len(words))]
    return [
        " ".join(
            f"{word}{rng.choices(_ENDS, _END_WEIGHTS)[0]}" for word in rng.choices(words, weights, k=length)
        )
        for length in (rng.randint(1, longest) for _ in range(count))
    ]


def made_up_chats(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Chat rows of such texts: one to three turns, every fourth row with a system prompt."""
    rng = random.Random(seed)
    texts = iter(made_up_texts(7 * count, seed, longest=25))
    return [
        chat(
            *(next(texts) for _ in range(2 * rng.randint(1, 3))),
            system=next(texts) if number % 4 == 0 else None,
        )
        for number in range(count)
    ]


_SYLLABLES = (
    *(
        "ba",
        "ci",
        "do",
        "fu",
        "ge",
        "hy",
        "ja",
        "ko",
        "li",
        "mu",
        "ne",
        "po",
        "qua",
        "re",
        "si",
        "to",
        "un",
        "vel",
    ),
    *("wi", "yes", "zo", "3", "17", "é", "ß", "数", "据", "🙂", "_", "print", "def"),
)
_ENDS = ("", ",", ".", ":", "()", " = [1, 2]", "\n", "\n\n    ", "\t")
_END_WEIGHTS = (80, 5, 5, 2, 2, 1, 3, 1, 1)


def config_of(output_dir: Path, source: Path, tokenizer: Path, /, **changes: Any) -> PackSftConfig:
    """A small pack-sft configuration; `changes` replace top-level keys."""
    raw: dict[str, Any] = {
        "output_dir": str(output_dir),
        "datasets": [{"name": "chats", "path": str(source)}],
        "tokenizer": {"path": str(tokenizer)},
        "pack": {"size": 128},
        "splits": {"train": 1.0, "valid": 0.0, "test": 0.0},
    }
    return PackSftConfig.parse({**raw, **changes})


def load_receipt(output_dir: Path, key: str, verify: Verify) -> Receipt | None:
    """The receipt under `key` if it can be relied on, else None; what the cache of the runtime asks of the disk."""
    try:
        return check_receipt(output_dir, key, verify)
    except IntegrityError:
        return None


def save_receipt(output_dir: Path, receipt: Receipt) -> None:
    """Store a receipt as Prefect does, but whole or not at all."""
    key = receipt_key(receipt.stage, receipt.task, receipt.part)
    write_file(record_path(output_dir, key), format_record(receipt))


class Serial:
    """Runs steps in this thread, with the same receipts Prefect would keep.

    Attributes:
        executed: name and stage of every step that really ran; `reuse`: the same, counted.
        after_first_step: called once, when the first step is done.
    """

    def __init__(
        self,
        output_dir: Path,
        verify: Verify = Verify.SIZE,
        after_first_step: Callable[[], None] | None = None,
    ) -> None:
        self.after_first_step = after_first_step
        self.output_dir = output_dir
        self.verify = verify
        self.executed: list[tuple[str, str]] = []
        self.reuse = Reuse()

    def each(self, step: Any, jobs: Sequence[Any]) -> list[Receipt]:
        receipts = [self._one(step, job) for job in jobs]
        self.after_first_step, act = None, self.after_first_step
        if act is not None:
            act()
        return receipts

    def _one(self, step: Any, job: Any) -> Receipt:
        key = receipt_key(job.stage, job.task, job.part)
        receipt = load_receipt(self.output_dir, key, self.verify)
        self.reuse.note(job.task, cached=receipt is not None)
        if receipt is None:
            receipt = step.fn(job)
            save_receipt(self.output_dir, receipt)
            self.executed.append((job.task, job.stage))
        return receipt

    def once(self, step: Any, job: Any) -> Any:
        return step.fn(job)


def mill_serially(config: PackSftConfig, verify: Verify = Verify.SIZE) -> tuple[RunManifest, Serial]:
    """Run pack-sft's story without a Prefect server; the steps, receipts and files are the real ones."""
    return mill_of("pack-sft", config, verify)


def published_digests(run_dir: Path) -> dict[str, str]:
    """SHA-256 of every published data file, symbolic links included, by path."""
    digests = {}
    for path in sorted(run_dir.rglob("*")):
        name = path.relative_to(run_dir).as_posix()
        if path.is_file() and name not in ("manifest.json", "config.json", "inputs.json", "report.html"):
            digests[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return digests


def state_of(folder: Path) -> dict[str, tuple[object, ...]]:
    """Kind, links, size, time of change and content of everything at and below a folder."""
    seen: dict[str, tuple[object, ...]] = {}
    for path in [folder, *folder.rglob("*")]:
        found = path.lstat()
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        seen[str(path)] = (found.st_mode, found.st_nlink, found.st_size, found.st_ctime_ns, content)
    return seen


def sample_serially(config: SampleCorpusConfig, verify: Verify = Verify.SIZE) -> tuple[RunManifest, Serial]:
    """Run sample-corpus's story without a Prefect server; the steps, receipts and files are the real ones."""
    return mill_of("sample-corpus", config, verify)


def run_serially(flow: str, raw: dict[str, Any], verify: Verify = Verify.SIZE) -> tuple[RunManifest, Serial]:
    """Run any flow's story without a Prefect server; the steps, receipts and files are the real ones.

    Args:
        flow: its name on the command line.
        raw: its configuration as YAML would give it.
    """
    return mill_of(flow, entry_of(flow).parse(raw), verify)


def entry_of(flow: str) -> FlowEntry:
    """The entry of a flow, by its name on the command line or as `module:attribute`."""
    module, found, name = flow.partition(":")
    if found:
        entry: FlowEntry = getattr(importlib.import_module(module), name)
        return entry
    return next(entry for entry in FLOWS if entry.name == flow)


def mill_of(
    flow: str | FlowEntry,
    config: Any,
    verify: Verify = Verify.SIZE,
    after_first_step: Callable[[], None] | None = None,
) -> tuple[RunManifest, Serial]:
    """Run a flow's story as `tasks.runtime.story.tell` does, without a Prefect server."""
    entry = entry_of(flow) if isinstance(flow, str) else flow
    identity = importlib.import_module(entry.identity)
    identity.DOMAIN.claim(Path(config.output_dir))
    serial = Serial(Path(config.output_dir), verify, after_first_step)
    mill = importlib.import_module(f"{entry.package}.{entry.module}").mill
    found = identity.identify(config)
    with missing_stages(Path(config.output_dir).absolute()):
        return mill(config, found, serial.each, serial.once, serial.reuse), serial
