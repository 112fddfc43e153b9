"""Items to batches, as Megatron-Bridge's packed data set makes them.

A sequence `[s, e)` gives the tokens `ids[s:e-1]`, the labels `ids[s+1:e]` and the mask `loss_mask[s:e-1]`: one less
than stored. Sequences of a bin follow each other; `cu_seqlens` are their ends. A row is filled up to the length of
the batch, and what is filled up counts as one more sequence.

Rows of `cu_seqlens` differ in length. They end in -1, at least one, and `cu_seqlens_argmin` says where. With
static shapes, for CUDA graphs, every row first gets sequences of length 0 until it has as many as the fullest bin
of the pack metadata, which is a list with an entry for each data set. Later releases name the same boundaries as
Megatron-Core does, `cu_seqlens_q` and so on, and repeat the last one instead of -1; batches have both.
"""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schemas.errors import ConfigError, InputError
from tasks.run.find import content_of

Item = Mapping[str, Any]
_METADATA_KEYS = ("max_samples_per_bin", "dataset_max_seqlen", "min_packed_seqlen")


@dataclass(frozen=True)
class StaticShape:
    """What all batches of a pack-metadata list have room for, in runtime lengths."""

    max_samples_per_bin: int
    dataset_max_seqlen: int
    min_packed_seqlen: int

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> StaticShape:
        """From a pack-metadata file.

        Raises:
            ConfigError: it is missing or no list of such entries.
        """
        try:
            entries = json.loads(content_of(path))
            values = {name: [int(entry[name]) for entry in entries] for name in _METADATA_KEYS}
            return cls(
                max(values["max_samples_per_bin"]),
                max(values["dataset_max_seqlen"]),
                min(values["min_packed_seqlen"]),
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"not pack metadata, a JSON list of objects with {', '.join(_METADATA_KEYS)}: {error!r}",
                code="bad_pack_metadata",
                where=str(path),
            ) from error


@dataclass(frozen=True)
class Collate:
    """Makes batches; a data set's `collate_fn` is one.

    Args:
        pad_id: token that fills up rows.
        max_seq_length: longest row allowed; `None` for any.
        pad_to_max_length: every row is that long; otherwise as long as the longest, rounded up to a multiple of
            `pad_seq_length_to_mult`.
        pad_seq_to_mult: what sequences were padded to when they were packed (`pack.pad_to_multiple`). Above 1,
            `cu_seqlens_unpadded` tells where sequences end without that padding, and `padding_mask` marks it.
        return_cu_seqlen: whether the batch has `cu_seqlens` at all.
        static: pad `cu_seqlens` to one shape.

    Raises:
        ConfigError: static shapes without `pad_to_max_length`, or that without `max_seq_length`.
    """

    pad_id: int = 0
    max_seq_length: int | None = None
    pad_to_max_length: bool = False
    pad_seq_length_to_mult: int = 16
    pad_seq_to_mult: int = 1
    return_cu_seqlen: bool = True
    static: StaticShape | None = None

    def __post_init__(self) -> None:
        if self.static is not None and not self.pad_to_max_length:
            raise ConfigError("padded cu_seqlens need pad_to_max_length", where="pad_cu_seqlens")
        if self.pad_to_max_length and self.max_seq_length is None:
            raise ConfigError("give the length that rows are padded to", where="max_seq_length")
        for name in ("max_seq_length", "pad_seq_length_to_mult", "pad_seq_to_mult"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{value} is out of range; allowed: 1 or more", where=name)

    def __call__(self, batch: Sequence[Item]) -> dict[str, Any]:
        """The batch; torch tensors if torch is installed, numpy arrays otherwise. See `arrays`."""
        arrays = self.arrays(batch)
        if importlib.util.find_spec("torch") is None:
            return arrays
        import torch

        return {
            name: torch.from_numpy(value) if isinstance(value, np.ndarray) else value
            for name, value in arrays.items()
        }

    def arrays(self, batch: Sequence[Item]) -> dict[str, Any]:
        """The batch as numpy arrays; B rows of T tokens.

        Returns:
            `tokens`, `labels`, `loss_mask`, `position_ids`: int64[B, T]; filled up with `pad_id`, `pad_id`, 0, 0.
            `token_count`: a list of each row's tokens, without what fills up.
            `padding_mask`: bool[B, T], true where nothing is to be learnt or routed.
            `attention_mask`: int64[B], ones: the boundaries do its work.
            `cu_seqlens` int32[B, most + 1], `cu_seqlens_argmin` int64[B, 1], `max_seqlen` int32[B, 1], or int32[B]
            with static shapes; and with `pad_seq_to_mult` above 1 `cu_seqlens_unpadded` and its argmin.
            `cu_seqlens_q`, `cu_seqlens_kv` int32[B, most], `max_seqlen_q`, `max_seqlen_kv`, `pad_between_seqs`: the
            same once more; with `pad_seq_to_mult` above 1 these are without that padding, and
            `cu_seqlens_q_padded`, `cu_seqlens_kv_padded` with it.

        Raises:
            InputError: `bad_rows`: boundaries do not fit the tokens; `too_long`: a bin is longer than
                `max_seq_length`; `bad_pack_metadata`: it has more sequences than the pack metadata say;
                `empty_batch`.
        """
        if not batch:
            raise InputError("there is no item to collate", code="empty_batch")
        rows = [_Row(item, number) for number, item in enumerate(batch)]
        length = self._length(rows)
        shape = (len(rows), length)
        tokens, labels = np.full(shape, self.pad_id, np.int64), np.full(shape, self.pad_id, np.int64)
        loss_mask, position_ids = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        padding_mask = np.ones(shape, np.bool_)
        for number, row in enumerate(rows):
            used = slice(0, row.ends[-1])
            tokens[number, used] = row.ids[row.kept]
            labels[number, used] = row.ids[1:][row.kept[:-1]]
            loss_mask[number, used] = row.mask[row.kept]
            lengths = np.diff(row.ends)
            position_ids[number, used] = np.arange(row.ends[-1]) - np.repeat(row.ends[:-1], lengths)
            padding_mask[number, used] = self._alignment(row, lengths) if self.pad_seq_to_mult > 1 else False
        made: dict[str, Any] = {
            "tokens": tokens,
            "labels": labels,
            "loss_mask": loss_mask,
            "position_ids": position_ids,
            "token_count": [int(row.ends[-1]) for row in rows],
            "padding_mask": padding_mask,
            "attention_mask": np.ones(len(rows), np.int64),
        }
        return made | self._boundaries(rows, padding_mask) if self.return_cu_seqlen else made

    def _length(self, rows: Sequence[_Row]) -> int:
        longest, most = max(int(row.ends[-1]) for row in rows), self.max_seq_length
        if most is not None and longest > most:
            raise InputError(
                f"a bin has {longest} tokens, max_seq_length is {most}; raise it to the pack size",
                code="too_long",
            )
        multiple = self.pad_seq_length_to_mult
        rounded = -(-longest // multiple) * multiple
        if most is None:
            return rounded
        return most if self.pad_to_max_length else min(most, rounded)

    def _alignment(self, row: _Row, lengths: NDArray[np.int64]) -> NDArray[np.bool_]:
        """bool[tokens]: the zero-loss padding tokens that end each sequence."""
        filler = (row.ids[row.kept] == self.pad_id) & (row.mask[row.kept] == 0)
        # The last place in each sequence that is no filler, or just before it if all are.
        places = np.where(filler, -1, np.arange(len(filler)))
        last = np.maximum(np.maximum.accumulate(places), np.repeat(row.ends[:-1], lengths) - 1)
        final = np.repeat(last[row.ends[1:] - 1], lengths) if len(last) else last
        marked: NDArray[np.bool_] = np.arange(len(filler)) > final
        return marked

    def _boundaries(self, rows: Sequence[_Row], padding_mask: NDArray[np.bool_]) -> dict[str, Any]:
        length = padding_mask.shape[1]
        made: dict[str, Any] = {}
        static = self.static
        ends = [row.ends if row.ends[-1] == length else np.append(row.ends, length) for row in rows]
        if static is not None:
            ends = [_filled_up(row, static.max_samples_per_bin + 2) for row in ends]
        made["cu_seqlens"], made["cu_seqlens_argmin"] = _with_minus_one(ends)
        if static is not None:
            # Never below the stretch that may fill up a row, which counts as a sequence.
            longest = max(static.dataset_max_seqlen, length - static.min_packed_seqlen)
            made["max_seqlen"] = np.full(len(rows), longest, np.int32)
        else:
            made["max_seqlen"] = np.array([[np.diff(row).max()] for row in ends], np.int32)
        # As Megatron-Core names them.
        physical = _repeating_last(ends)
        core = {"cu_seqlens_q": physical}
        if self.pad_seq_to_mult > 1:
            logical = [
                np.append(0, np.cumsum(~mask))[row] for row, mask in zip(ends, padding_mask, strict=True)
            ]
            made["cu_seqlens_unpadded"], made["cu_seqlens_unpadded_argmin"] = _with_minus_one(logical)
            core = {"cu_seqlens_q": _repeating_last(logical), "cu_seqlens_q_padded": physical}
        core["max_seqlen_q"] = made["max_seqlen"]
        made |= core | {name.replace("_q", "_kv"): value for name, value in core.items()}
        made["pad_between_seqs"] = bool((core["cu_seqlens_q"] != physical).any())
        return made


def collate(batch: Sequence[Item], **options: Any) -> dict[str, Any]:
    """One batch of items; `options` are the arguments of `Collate`.

    >>> item = {"input_ids": [5, 6, 7, 8, 9], "loss_mask": [0, 1, 0, 1, 0], "seq_boundaries": [0, 3, 5]}
    >>> batch = Collate(pad_seq_length_to_mult=4).arrays([item])
    >>> batch["tokens"].tolist(), batch["labels"].tolist(), batch["loss_mask"].tolist()
    ([[5, 6, 8, 0]], [[6, 7, 9, 0]], [[0, 1, 1, 0]])
    >>> batch["position_ids"].tolist(), batch["cu_seqlens"].tolist()
    ([[0, 1, 0, 0]], [[0, 2, 3, 4, -1]])
    """
    return Collate(**options)(batch)


class _Row:
    """An item, checked.

    Attributes:
        ids, mask: as stored.
        kept: bool[stored], false for the last token of each sequence.
        ends: int64[sequences + 1], runtime boundaries, first 0.
    """

    def __init__(self, item: Item, number: int) -> None:
        self.ids, self.mask = np.asarray(item["input_ids"]), np.asarray(item["loss_mask"])
        boundaries = np.asarray(item["seq_boundaries"], np.int64)
        lengths = np.diff(boundaries)
        sound = (
            len(boundaries) > 1 and boundaries[0] == 0 and boundaries[-1] == len(self.ids) == len(self.mask)
        )
        if not sound or (lengths < 1).any():
            raise InputError(
                f"seq_boundaries {np.array2string(boundaries, threshold=8)} do not cut {len(self.ids)} tokens and "
                f"{len(self.mask)} mask entries into sequences; validate the data",
                code="bad_rows",
                where=f"item {number} of the batch",
            )
        self.kept = np.ones(len(self.ids), np.bool_)
        self.kept[boundaries[1:] - 1] = False
        self.ends = np.append(0, np.cumsum(lengths - 1))


def _filled_up(ends: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    if len(ends) > size:
        raise InputError(
            f"a bin has {len(ends) - 1} sequences, what fills it up included; the pack metadata allow {size - 1}",
            code="bad_pack_metadata",
        )
    return np.append(ends, np.full(size - len(ends), ends[-1]))


def _with_minus_one(rows: Sequence[NDArray[np.int64]]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """int32[B, most + 1], rows ending in -1; and int64[B, 1], where the first -1 is."""
    padded = np.full((len(rows), max(map(len, rows)) + 1), -1, np.int32)
    for number, row in enumerate(rows):
        padded[number, : len(row)] = row
    return padded, np.array([[len(row)] for row in rows], np.int64)


def _repeating_last(rows: Sequence[NDArray[np.int64]]) -> NDArray[np.int32]:
    """int32[B, most], rows filled up with sequences of length 0."""
    most = max(map(len, rows))
    return np.array([_filled_up(row, most) for row in rows], np.int32)
