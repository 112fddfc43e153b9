"""Show bins to people: sequences of text, with trained stretches marked."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schemas.report import Passage

# Token ids to text, special tokens included.
Decode = Callable[[list[int]], str]


def load_decoder(folder: Path) -> Decode:
    """Load a decoder from a tokenizer's folder.

    `tokenizer.json` is read without transformers, whose import takes seconds.

    Raises:
        OSError, ValueError: there is no readable tokenizer.
    """
    if (folder / "tokenizer.json").is_file():
        from tokenizers import Tokenizer

        tokenizer: Any = Tokenizer.from_file(str(folder / "tokenizer.json"))
    else:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    return lambda ids: str(tokenizer.decode(ids, skip_special_tokens=False))


def passages(
    input_ids: NDArray[np.integer[Any]], loss_mask: NDArray[np.integer[Any]], decode: Decode | None
) -> tuple[Passage, ...]:
    """Decode one sequence to text, cut where training begins or ends.

    Each cut is placed by the length of the text before it, and all passages are slices of the whole text, so a
    character of several tokens is never torn, and a space that appears only between words is never lost.

    Args:
        input_ids: ints[n], the sequence.
        loss_mask: ints[n], shifted as in shards: entry j says whether token j + 1 is trained.
        decode: `None` to show ids instead of text.

    >>> letters = lambda ids: "".join(map(chr, ids))
    >>> ids, mask = np.array([97, 98, 99, 100], np.int32), np.array([0, 1, 1, 0], np.uint8)
    >>> [(span.text, span.trained) for span in passages(ids, mask, letters)]
    [('ab', False), ('cd', True)]
    >>> [(span.ids, span.trained) for span in passages(ids, mask, None)]
    [((97, 98), False), ((99, 100), True)]
    """
    if not len(input_ids):
        return ()
    trained = np.concatenate(([False], loss_mask[:-1] != 0))
    cuts = [0, *(np.flatnonzero(np.diff(trained)) + 1).tolist(), len(input_ids)]
    ids = input_ids.tolist()
    if decode is None:
        return tuple(
            Passage("", bool(trained[cut]), tuple(ids[cut:end])) for cut, end in itertools.pairwise(cuts)
        )
    whole = decode(ids)
    places = [0, *(min(len(decode(ids[:cut])), len(whole)) for cut in cuts[1:-1]), len(whole)]
    return tuple(
        Passage(whole[start:stop], bool(trained[cut]))
        for cut, start, stop in zip(cuts[:-1], places[:-1], places[1:], strict=True)
        if stop > start
    )
