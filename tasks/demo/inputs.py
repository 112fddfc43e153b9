"""Write the inputs that the deployments' forms name by default, so that every form runs unchanged."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from schemas.tokenizer import CHAT_TEMPLATE, TrainTokenizerConfig
from tasks.demo.corpus import write_corpus
from tasks.demo.docstrings import docstring_chats, write_chats
from tasks.demo.measurements import write_measurements
from tasks.storage.atomic import AtomicFile, write_file
from tasks.tokenizer.learn import learn
from tasks.tokenizer.save import save_tokenizer, settings

_VOCABULARY = 4_000
_PACKED_ROWS = 64


def write_inputs(folder: Path) -> bool:
    """Write the demonstration's inputs, and stand-ins for what its flows produce for each other.

    `corpus/`, `docstrings.jsonl` and `measurements/` are the demo's own. `tokenizer/` and `packed/` stand in for the
    outputs of a run, so that no form has to wait for another's.

    Returns:
        Whether there was anything to write.
    """
    done = folder / "complete.json"
    if done.exists():
        return False
    rows: dict[str, Any] = {
        "corpus": write_corpus(folder / "corpus"),
        "docstrings": write_chats(folder / "docstrings.jsonl"),
        "measurements": write_measurements(folder / "measurements"),
    }
    _write_packed(folder / "packed", _train(folder / "tokenizer"))
    write_file(done, json.dumps(rows).encode())
    return True


def _texts() -> list[str]:
    return [str(row["messages"][-1]["content"]) for row in docstring_chats()]  # type: ignore[index]


def _train(folder: Path) -> Any:
    config = TrainTokenizerConfig(output_dir=str(folder), sample="docstrings", vocabulary_size=_VOCABULARY)
    tokenizer = learn(lambda: [_texts()], config)
    save_tokenizer(tokenizer, folder, folder, settings(config, CHAT_TEMPLATE))
    return tokenizer


def _write_packed(folder: Path, tokenizer: Any) -> None:
    """Write a small shard as another tool would write it: one answer per bin."""
    import pyarrow.parquet as pq

    ids = [tokenizer.encode(text).ids for text in islice(_texts(), _PACKED_ROWS)]
    table = pa.table(
        {
            "input_ids": pa.array(ids, pa.list_(pa.int32())),
            "loss_mask": pa.array([[1] * (len(row) - 1) + [0] for row in ids], pa.list_(pa.uint8())),
            "seq_start_id": pa.array([[0]] * len(ids), pa.list_(pa.int32())),
        }
    )
    with AtomicFile(folder / "shard_000000.parquet") as file:
        pq.write_table(table, pa.PythonFile(file, mode="w"))
