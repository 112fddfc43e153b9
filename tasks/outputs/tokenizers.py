"""Inspect a tokenizer: its size, its special tokens, and how it splits a sentence."""

from __future__ import annotations

import itertools
from pathlib import Path

from schemas.errors import ConfigError
from schemas.inspection import Inspection
from schemas.report import Column, Fact, Passage, Sample, Table
from tasks.outputs.found import Outputs, Tables
from tasks.report.numbers import count, plain, size
from tasks.storage.reading import file_bytes
from tasks.tokenizer.loading import TOKENIZER_FILE, load_tokenizer

_SENTENCE = 'def greet(name):\n    return f"Hello, {name}! Grüße aus Zürich, 你好 🙂 3.14159"\n'


def inspect_tokenizer(
    outputs: Outputs, rows: int = 0, first: int = 0, tokenizer: Path | None = None
) -> Inspection:
    """Inspect a `tokenizer.json`.

    Raises:
        ConfigError: `mixed_outputs`: there are several.
        InputError: it cannot be read.
    """
    if len(outputs.files) != 1:
        names = ", ".join(map(outputs.name, outputs.files)) or "none"
        raise ConfigError(
            f"expected one {TOKENIZER_FILE}, found {names}; name one",
            code="mixed_outputs",
            where=outputs.path,
        )
    [file] = outputs.files
    found = load_tokenizer(file)
    encoded = found.encode(_SENTENCE, add_special_tokens=False)
    added = sorted(found.get_added_tokens_decoder().items())
    special = Table(
        "Added tokens",
        (Column("id", True), Column("token"), Column("special")),
        tuple((plain(number), token.content, "yes" if token.special else "no") for number, token in added),
    )
    # A character of several tokens is shown with the first token.
    ends = [0, *itertools.accumulate((end for _, end in encoded.offsets), max)]
    pieces = tuple((Passage(_SENTENCE[start:end], False),) for start, end in itertools.pairwise(ends))
    facts = (
        Fact("vocabulary", count(found.get_vocab_size()), f"{count(len(added))} added"),
        Fact("model", type(found.model).__name__),
        Fact("stored", size(file_bytes(file)), file.name),
    )
    ids = " ".join(map(str, encoded.ids))
    sample = Sample("A sentence, piece by piece", pieces, f"{count(len(encoded.ids))} tokens: {ids}")
    return Inspection(outputs.path, outputs.kind, facts, (special,), (), (sample,))


def query_tokenizer(outputs: Outputs) -> Tables:
    """Refuse to query a tokenizer.

    Raises:
        ConfigError: `bad_query`, always: a tokenizer has no rows.
    """
    raise ConfigError("a tokenizer has no rows to query", code="bad_query", where=outputs.path)
