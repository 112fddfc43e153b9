"""The runs whose outputs are pinned: a flow, its configuration over the committed inputs, its format versions.

Paths start at the repository's root, because the summary of a sample names its source as it was given.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support import run_serially

from schemas.run import MANIFEST_FORMAT, RECEIPT_FORMAT, RunManifest
from schemas.sft_memmap import MEMMAP_FORMAT
from tasks.probes.runs.layout import SPILL_FORMAT

ROOT = Path(__file__).resolve().parents[2]
INPUTS = "tests/golden/inputs"
TOKENIZER = "tests/fixtures/tokenizer"
_SCHEMAS = {
    "sample-corpus": "schemas.corpus",
    "train-tokenizer": "schemas.tokenizer",
    "build-probe-rows": "schemas.probes",
    "pack-sft": "schemas.sft",
}
# Whose versions the bytes of packed shards depend on; orjson's messages are among the reasons for rejects.
_PACKERS = ("numpy", "orjson", "pyarrow", "tokenizers")


@dataclass(frozen=True)
class Case:
    """One run.

    Attributes:
        flow: its name on the command line.
        raw: its configuration without the output folder.
        packages: whose versions the bytes of its files depend on.
    """

    flow: str
    raw: dict[str, Any]
    packages: tuple[str, ...]


def run_case(case: Case, output_dir: Path) -> RunManifest:
    """Run a case; the working directory must be the repository's root."""
    manifest, _ = run_serially(case.flow, {**case.raw, "output_dir": str(output_dir)})
    return manifest


def format_versions(flow: str) -> dict[str, int | str]:
    """The versions that say which bytes a flow makes; a change of bytes without a change of these is a fault."""
    versions: dict[str, int | str] = {
        flow: importlib.import_module(_SCHEMAS[flow]).FORMAT_VERSION,
        "receipt": RECEIPT_FORMAT,
        "manifest": MANIFEST_FORMAT,
    }
    if flow == "pack-sft":
        versions["memmap"] = MEMMAP_FORMAT
    if flow == "build-probe-rows":
        versions["spill"] = SPILL_FORMAT
    return versions


def _pack(**changes: Any) -> Case:
    """Two data sets into small bins, of which a shard holds several row groups."""
    raw = {
        "datasets": [
            {"name": "chats", "path": f"{INPUTS}/chats", "weight": 2},
            {"name": "dialects", "path": f"{INPUTS}/dialects.jsonl"},
        ],
        "tokenizer": {"path": TOKENIZER},
        "pack": {"size": 512},
        "storage": {"shard_tokens": 50_000},
        "splits": {"train": 0.8, "valid": 0.1, "test": 0.1},
    }
    return Case("pack-sft", {**raw, **changes}, _PACKERS)


def _sample(**changes: Any) -> Case:
    datasets = {
        "docs": {
            "name": "docs",
            "source": f"{INPUTS}/corpus/docs",
            "buckets": {"3": {"count": 60}, "4.0": {"count": 1000}},
        },
        "code": {
            "name": "github-code",
            "source": f"{INPUTS}/corpus/code",
            "buckets": {"10": {"count": 20}},
        },
    }
    return Case("sample-corpus", {"datasets": datasets, **changes}, ("numpy", "pyarrow"))


def _train(**changes: Any) -> Case:
    raw = {"sample": f"{INPUTS}/corpus/docs", "vocabulary_size": 600, **changes}
    return Case("train-tokenizer", raw, ("numpy", "pyarrow", "tokenizers"))


def _probes(**changes: Any) -> Case:
    return Case(
        "build-probe-rows",
        {"input": f"{INPUTS}/measurements", **changes},
        ("array-record", "numpy", "pyarrow"),
    )


_KEPT = {
    "name": "docs",
    "source": f"{INPUTS}/corpus/docs",
    "glob": "*.parquet",
    "keep_columns": ["id"],
    "buckets": {"4.0": {"count": 25}, "3": {"count": 70}},
}

# By name of the file in values/.
CASES = {
    "sample-corpus": _sample(),
    "sample-corpus-options": _sample(
        datasets={"docs": _KEPT},
        random_seed=-7,
        max_rows=30,
        compression="gzip",
        compression_level=6,
        min_characters=20,
        max_characters=400,
    ),
    "train-tokenizer": _train(),
    "train-tokenizer-options": _train(
        vocabulary_size=500,
        min_frequency=3,
        special_tokens=["<pad>", "<eos>", "<|im_start|>", "<|im_end|>"],
        eos_token="<eos>",
        pad_token="<pad>",
        chat_template="{% for message in messages %}{{ message.content }}{% endfor %}",
        held_out=0.25,
        seed=7,
    ),
    "train-tokenizer-wordpiece": _train(
        model="wordpiece",
        pre_tokenizer="llama3",
        normalizer="nfkc",
        special_tokens=["<unk>", "<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        unk_token="<unk>",
        special_tokens_place="last",
        compare_with=TOKENIZER,
        held_out=0.25,
    ),
    "build-probe-rows": _probes(),
    "build-probe-rows-options": _probes(
        seed=-3,
        train_ratio=0.6,
        split="sorted",
        max_record_bytes=4096,
        compression="snappy",
        deduplicate=True,
    ),
    "pack-sft": _pack(),
    "pack-sft-minimal": Case(
        "pack-sft",
        {
            "datasets": [{"name": "chats", "path": f"{INPUTS}/chats"}],
            "tokenizer": {"path": TOKENIZER},
        },
        _PACKERS,
    ),
    "pack-sft-memmap": _pack(storage={"format": "memmap", "shard_tokens": 50_000}),
    "pack-sft-npy": _pack(storage={"format": "npy", "shard_tokens": 50_000}),
    "pack-sft-options": _pack(
        seed=7,
        train_on="last_turn",
        pack={
            "size": 256,
            "order": "decreasing",
            "count": "stored",
            "overflow": "split",
            "pad_to_multiple": 8,
        },
        storage={"shard_tokens": 20_000, "row_group_size": 16, "compression": "gzip", "compression_level": 4},
        splits={"train": 0.9, "valid": 0, "test": 0.1},
        deduplicate=True,
    ),
    "pack-sft-drop": _pack(
        datasets=[
            {
                "name": "chats",
                "path": f"{INPUTS}/chats/*.jsonl",
                "dialect": "messages",
                "where": {"topic": "a"},
                "fields": {"group": "topic"},
            }
        ],
        tokenizer={"path": TOKENIZER, "escape_special_tokens": False},
        train_on="all",
        pack={"size": 300, "overflow": "drop"},
        storage={"compression": "snappy"},
        splits={"train": 1, "valid": 0, "test": 0},
        max_reject_fraction=0.2,
    ),
}
