"""Load tokenizers of any tool from their files, and validate such files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from schemas.errors import InputError, MissingExtraError
from schemas.verdict import Fault, Verdict
from tasks.inputs.native import panics_are_errors
from tasks.storage.reading import read_text

TOKENIZER_FILE = "tokenizer.json"


def validate_tokenizers(files: Sequence[Path], kind: str, where: str) -> Verdict:
    """Load every `tokenizer.json`, of any tool, and check its ids.

    Args:
        kind, where: copied into the verdict.

    Returns:
        A verdict with the counts `files` and `tokens`.

    Raises:
        MissingExtraError: tokenizers is not installed.
    """
    tokens = 0
    faults = []
    for file in files:
        try:
            ids = load_tokenizer(file).get_vocab(with_added_tokens=True).values()
        except InputError as error:
            faults.append(Fault(where=str(file), rule="readable", detail=error.message))
            continue
        tokens += len(ids)
        detail = _gap(ids)
        if detail is not None:
            faults.append(Fault(where=str(file), rule="vocabulary", detail=detail))
    return Verdict(
        path=where, kind=kind, counts={"files": len(files), "tokens": tokens}, faults=tuple(faults)
    )


def load_tokenizer(file: Path) -> Any:
    """Load the `tokenizers.Tokenizer` of a file.

    Raises:
        InputError: `bad_tokenizer`: the file cannot be read.
        MissingExtraError: tokenizers is not installed.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise MissingExtraError.of("tokenizers", "sft", "reading a tokenizer") from None
    try:
        with panics_are_errors():
            # The library would wait for the other end of a pipe.
            return Tokenizer.from_str(read_text(file))
    # The library raises bare Exception.
    except Exception as error:
        raise InputError(
            f"not a readable tokenizer: {error}", code="bad_tokenizer", where=str(file)
        ) from error


def _gap(ids: Iterable[int]) -> str | None:
    """Describe what is wrong with ids, which must run from 0 without gaps or repeats; `None` if nothing is.

    >>> _gap([1, 0, 2]), _gap([0, 2]), _gap([0, 0]), _gap([])
    (None, 'no token has the id 1; ids must run from 0 to 1', '2 tokens share the id 0', 'there are no tokens')
    """
    ordered = sorted(ids)
    if not ordered:
        return "there are no tokens"
    for expected, number in enumerate(ordered):
        if number < expected:
            return f"{ordered.count(number)} tokens share the id {number}"
        if number > expected:
            return f"no token has the id {expected}; ids must run from 0 to {len(ordered) - 1}"
    return None
