"""A tokenizer: its size, its special tokens, and a sentence as it cuts it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from schemas.errors import InputError
from schemas.inspection import Inspection
from schemas.report import Column, Fact, Sample, Span, Table
from tasks.outputs.finding import Outputs
from tasks.report.numbers import count, size
from tasks.storage.reading import file_bytes

_SENTENCE = 'def greet(name):\n    return f"Hello, {name}! Grüße aus Zürich, 你好 🙂 3.14159"\n'


def inspect_tokenizer(outputs: Outputs) -> Inspection:
    """Look at a tokenizer's folder, or its `tokenizer.json`.

    Raises:
        InputError: it cannot be read.
    """
    from tokenizers import Tokenizer

    [path] = outputs.files
    file = path if path.is_file() else path / "tokenizer.json"
    try:
        tokenizer: Any = Tokenizer.from_file(str(file))
    # The library raises bare Exception.
    except Exception as error:
        raise InputError(
            f"not a readable tokenizer: {error}", code="bad_tokenizer", where=str(file)
        ) from error
    encoded = tokenizer.encode(_SENTENCE, add_special_tokens=False)
    added = sorted(tokenizer.get_added_tokens_decoder().items())
    special = Table(
        "Added tokens",
        (Column("id", True), Column("token"), Column("special")),
        tuple((str(number), token.content, "yes" if token.special else "no") for number, token in added),
    )
    pieces = tuple((Span(_SENTENCE[start:end], False),) for start, end in encoded.offsets)
    facts = (
        Fact("vocabulary", count(tokenizer.get_vocab_size()), f"{count(len(added))} added"),
        Fact("model", type(tokenizer.model).__name__),
        Fact("stored", size(file_bytes(file)), Path(file).name),
    )
    ids = " ".join(map(str, encoded.ids))
    sample = Sample("A sentence, piece by piece", pieces, f"{count(len(encoded.ids))} tokens: {ids}")
    return Inspection(outputs.path, outputs.kind, facts, (special,), (), (sample,))
