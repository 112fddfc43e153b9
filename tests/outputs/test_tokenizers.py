"""Inspection of a tokenizer: its size, its added tokens, and a sentence in pieces."""

from __future__ import annotations

from pathlib import Path

import pytest
from loose_files import tokenizer

from schemas.errors import ConfigError
from tasks.outputs.found import Outputs
from tasks.outputs.tokenizers import inspect_tokenizer, query_tokenizer


def outputs(*files: Path) -> Outputs:
    return Outputs(str(files[0].parent), "tokenizer", files)


def test_vocabulary_model_and_added_tokens(small_tokenizer: Path) -> None:
    file = small_tokenizer / "tokenizer.json"
    found = inspect_tokenizer(outputs(file))
    assert [(fact.label, fact.value) for fact in found.facts[:2]] == [
        ("vocabulary", "2,000"),
        ("model", "BPE"),
    ]
    assert (found.facts[0].hint, found.facts[2].hint) == ("3 added", "tokenizer.json")
    [added] = found.tables
    assert added.rows == (
        ("0", "<|endoftext|>", "yes"),
        ("1", "<|im_start|>", "yes"),
        ("2", "<|im_end|>", "yes"),
    )
    [sentence] = found.samples
    shown = "".join(span.text for part in sentence.sequences for span in part)
    assert "Grüße aus Zürich, 你好 🙂 3" in shown and sentence.note.startswith(
        f"{len(sentence.sequences)} tokens: "
    )


def test_a_foreign_one_has_no_added_tokens(tmp_path: Path) -> None:
    found = inspect_tokenizer(outputs(tokenizer(tmp_path / "tokenizer.json")))
    assert (found.facts[0].value, found.facts[1].value, found.tables[0].rows) == ("3", "WordLevel", ())


def test_one_at_a_time_and_nothing_to_query(tmp_path: Path) -> None:
    files = [tokenizer(tmp_path / f"{name}.json") for name in "ab"]
    for given, names in ((files, "a.json, b.json"), ([], "none")):
        with pytest.raises(ConfigError, match=f"expected one tokenizer.json, found {names}"):
            inspect_tokenizer(Outputs(str(tmp_path), "tokenizer", tuple(given)))
    with pytest.raises(ConfigError, match="no rows to query") as caught:
        query_tokenizer(outputs(*files))
    assert (caught.value.code, caught.value.where) == ("bad_query", str(tmp_path))
