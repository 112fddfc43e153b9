"""Collate items to batches in the same way as Megatron-Bridge's packed data set.

A sequence `[s, e)` becomes the tokens `ids[s:e-1]`, the labels `ids[s+1:e]` and the mask `loss_mask[s:e-1]`: one
less than stored. Sequences of a bin follow each other; `cu_seqlens` are their ends. A row is padded to the length of
the batch, and the padding counts as one more sequence.

Rows of `cu_seqlens` differ in length. Each is followed by at least one -1, and `cu_seqlens_argmin` says where. With
static shapes, for CUDA graphs, every row first gets sequences of length 0 until it has as many as the fullest bin
of the pack metadata, which is a list with an entry for each data set. Later releases name the same boundaries as
Megatron-Core does, `cu_seqlens_q` and so on, and repeat the last one instead of -1. Batches have both, unless one
release is chosen; its batches are then the same, key by key.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schemas.errors import ConfigError, InputError
from tasks.run.find import content_of
from tasks.sft.datasets.releases import Release, release_of
from tasks.storage.reading import parse_json

Item = Mapping[str, Any]
_METADATA_KEYS = ("max_samples_per_bin", "dataset_max_seqlen", "min_packed_seqlen")


@dataclass(frozen=True)
class StaticShape:
    """The capacity of all batches of a pack-metadata list, in runtime lengths."""

    max_samples_per_bin: int
    dataset_max_seqlen: int
    min_packed_seqlen: int

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> StaticShape:
        """Read a pack-metadata file.

        Raises:
            ConfigError: `bad_pack_metadata`, it is missing or not a list of such entries.
        """
        try:
            entries = parse_json(content_of(path))
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
    """Make batches; the type of a data set's `collate_fn`.

    Args:
        pad_id: token that pads rows.
        max_seq_length: longest row allowed; `None` for any.
        pad_to_max_length: pad every row to that length; otherwise to the longest, rounded up to a multiple of
            `pad_seq_length_to_mult`.
        pad_seq_to_mult: the multiple to which packing padded sequences (`pack.pad_to_multiple`). Above 1,
            `cu_seqlens_unpadded` says where sequences end without that padding, and `padding_mask` marks it.
        return_cu_seqlen: whether the batch has `cu_seqlens` at all; otherwise it has a causal `attention_mask`, in
            which the sequences of a bin see those before them.
        static: pad `cu_seqlens` to one fixed shape.
        release: the release of Megatron-Bridge whose batches to make: `0.3`, `main` (its development in 2026), `any`
            (the names of both with the values of the latter), or a `Release`.

    Raises:
        ConfigError: static shapes without `pad_to_max_length`, or that without `max_seq_length`; an unknown release.
    """

    pad_id: int = 0
    max_seq_length: int | None = None
    pad_to_max_length: bool = False
    pad_seq_length_to_mult: int = 16
    pad_seq_to_mult: int = 1
    return_cu_seqlen: bool = True
    static: StaticShape | None = None
    release: str | Release = "any"

    def __post_init__(self) -> None:
        if self.static is not None and not self.pad_to_max_length:
            raise ConfigError("padded cu_seqlens need pad_to_max_length", where="pad_cu_seqlens")
        if self.pad_to_max_length and self.max_seq_length is None:
            raise ConfigError("set the length to which rows are padded", where="max_seq_length")
        for name in ("max_seq_length", "pad_seq_length_to_mult", "pad_seq_to_mult"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{value} is out of range; allowed: 1 or more", where=name)
        release_of(self.release)

    def __call__(self, batch: Sequence[Item]) -> dict[str, Any]:
        """Make a batch of torch tensors if torch is installed, otherwise of numpy arrays. See `arrays`."""
        arrays = self.arrays(batch)
        if importlib.util.find_spec("torch") is None:
            return arrays
        import torch

        return {
            name: torch.from_numpy(value) if isinstance(value, np.ndarray) else value
            for name, value in arrays.items()
        }

    def arrays(self, batch: Sequence[Item]) -> dict[str, Any]:
        """Make a batch of numpy arrays: B rows of T tokens.

        Returns:
            `tokens`, `labels`, `loss_mask`, `position_ids`: int64[B, T]; padded with `pad_id`, `pad_id`, 0, 0.
            `token_count`: a list with the number of tokens in each row, without padding.
            `padding_mask`: bool[B, T], true where nothing is learnt or routed.
            `pad_between_seqs`: whether logical and padded boundaries differ; false without `pad_seq_to_mult`.
            `attention_mask`: `None` with boundaries, which replace it; otherwise bool[B, 1, T, T], true for tokens
            that a token does not see: those after it.
            `cu_seqlens` int32[B, most + 1], `cu_seqlens_argmin` int64[B, 1], `max_seqlen` int32[B, 1], or int32[B]
            with static shapes; and with `pad_seq_to_mult` above 1 `cu_seqlens_unpadded` and its argmin.
            `cu_seqlens_q`, `cu_seqlens_kv` int32[B, most], `max_seqlen_q`, `max_seqlen_kv`: the same again; with
            `pad_seq_to_mult` above 1 these are without that padding, and `cu_seqlens_q_padded`,
            `cu_seqlens_kv_padded` with it.
            A `release` may lack some of these.

        Raises:
            InputError: `bad_rows`: boundaries do not fit the tokens; `too_long`: a bin is longer than
                `max_seq_length`; `bad_pack_metadata`: it has more sequences than the pack metadata allow;
                `empty_batch`.
        """
        if not batch:
            raise InputError("the batch has no items", code="empty_batch")
        rows = [_Row(item, number) for number, item in enumerate(batch)]
        length = self._length(rows)
        shape = (len(rows), length)
        tokens, labels = np.full(shape, self.pad_id, np.int64), np.full(shape, self.pad_id, np.int64)
        loss_mask, position_ids = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        padding_mask = np.ones(shape, np.bool_)
        # Row by row: a loop over a batch of rows costs little, and each step is a few slices without an index array.
        for number, row in enumerate(rows):
            used = slice(0, row.ends[-1])
            tokens[number, used] = row.ids[row.kept]
            labels[number, used] = row.ids[1:][row.kept[:-1]]
            loss_mask[number, used] = row.mask[row.kept]
            lengths = np.diff(row.ends)
            position_ids[number, used] = np.arange(row.ends[-1]) - np.repeat(row.ends[:-1], lengths)
            padding_mask[number, used] = self._alignment(row, lengths) if self.pad_seq_to_mult > 1 else False
        release = release_of(self.release)
        if not release.eos_is_trained:
            loss_mask[tokens == self.pad_id] = 0
        made: dict[str, Any] = {
            "tokens": tokens,
            "labels": labels,
            "loss_mask": loss_mask,
            "position_ids": position_ids,
            "token_count": [int(row.ends[-1]) for row in rows],
        }
        if release.padding_mask:
            made["padding_mask"] = padding_mask
        if release.core_names:
            made["pad_between_seqs"] = bool(padding_mask.any()) and self.pad_seq_to_mult > 1
        if self.return_cu_seqlen:
            made["attention_mask"] = np.ones(len(rows), np.int64) if release.attention_ones else None
            return made | self._boundaries(rows, padding_mask, release)
        unseen = np.triu(np.ones((length, length), np.bool_), 1)
        made["attention_mask"] = np.broadcast_to(unseen, (len(rows), 1, length, length)).copy()
        return made

    def _length(self, rows: Sequence[_Row]) -> int:
        longest, most = max(int(row.ends[-1]) for row in rows), self.max_seq_length
        if most is not None and longest > most:
            raise InputError(
                f"a bin has {longest} tokens, but max_seq_length is {most}; raise it to the pack size",
                code="too_long",
            )
        multiple = self.pad_seq_length_to_mult
        rounded = -(-longest // multiple) * multiple
        if most is None:
            return rounded
        return most if self.pad_to_max_length else min(most, rounded)

    def _alignment(self, row: _Row, lengths: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Mark the padding tokens at the end of each sequence: bool[tokens]."""
        filler = row.ids[row.kept] == self.pad_id
        if not release_of(self.release).eos_is_padding:
            filler &= row.mask[row.kept] == 0
        # The last place in each sequence that is not filler, or the place before the sequence if all are.
        places = np.where(filler, -1, np.arange(len(filler)))
        last = np.maximum(np.maximum.accumulate(places), np.repeat(row.ends[:-1], lengths) - 1)
        final = np.repeat(last[row.ends[1:] - 1], lengths) if len(last) else last
        marked: NDArray[np.bool_] = np.arange(len(filler)) > final
        return marked

    def _boundaries(
        self, rows: Sequence[_Row], padding_mask: NDArray[np.bool_], release: Release
    ) -> dict[str, Any]:
        # Padding up to the row length is one more sequence, unless the row is full.
        length = padding_mask.shape[1]
        static = self.static
        own = [row.ends if row.ends[-1] == length else np.append(row.ends, length) for row in rows]
        ends = own if static is None else [_filled_up(row, static.max_samples_per_bin + 2) for row in own]
        if static is not None:
            # Never below the longest possible padding of a row, which counts as a sequence.
            longest = max(static.dataset_max_seqlen, length - static.min_packed_seqlen)
            max_seqlen = np.full(len(rows), longest, np.int32)
        else:
            max_seqlen = np.array([[np.diff(row).max()] for row in ends], np.int32)
        # Tokens up to each place without that padding.
        real = [np.append(0, np.cumsum(~mask)) for mask in padding_mask] if self.pad_seq_to_mult > 1 else []
        made: dict[str, Any] = {}
        if release.argmin_names:
            made["cu_seqlens"], made["cu_seqlens_argmin"] = _with_minus_one(ends)
            made["max_seqlen"] = max_seqlen
            if self.pad_seq_to_mult > 1:
                cut = ends if release.static_unpadded else own
                unpadded = [at[row] for at, row in zip(real, cut, strict=True)]
                made["cu_seqlens_unpadded"], made["cu_seqlens_unpadded_argmin"] = _with_minus_one(unpadded)
        if release.core_names:
            core = {"cu_seqlens_q": _repeating_last(ends)}
            if self.pad_seq_to_mult > 1:
                core["cu_seqlens_q_padded"] = core["cu_seqlens_q"]
                core["cu_seqlens_q"] = _repeating_last([at[row] for at, row in zip(real, ends, strict=True)])
            core["max_seqlen_q"] = max_seqlen
            made |= core | {name.replace("_q", "_kv"): value for name, value in core.items()}
        return made


def collate(batch: Sequence[Item], **options: Any) -> dict[str, Any]:
    """Collate one batch of items; `options` are the arguments of `Collate`.

    >>> item = {"input_ids": [5, 6, 7, 8, 9], "loss_mask": [0, 1, 0, 1, 0], "seq_boundaries": [0, 3, 5]}
    >>> batch = Collate(pad_seq_length_to_mult=4).arrays([item])
    >>> batch["tokens"].tolist(), batch["labels"].tolist(), batch["loss_mask"].tolist()
    ([[5, 6, 8, 0]], [[6, 7, 9, 0]], [[0, 1, 1, 0]])
    >>> batch["position_ids"].tolist(), batch["cu_seqlens"].tolist()
    ([[0, 1, 0, 0]], [[0, 2, 3, 4, -1]])
    """
    return Collate(**options)(batch)


class _Row:
    """A checked item.

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
                f"{len(self.mask)} mask entries into sequences; run `gristmill validate` on the data",
                code="bad_rows",
                where=f"item {number} of the batch",
            )
        self.kept = np.ones(len(self.ids), np.bool_)
        self.kept[boundaries[1:] - 1] = False
        self.ends = np.append(0, np.cumsum(lengths - 1))


def _filled_up(ends: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    if len(ends) > size:
        raise InputError(
            f"a bin has {len(ends) - 1} sequences including padding, but the pack metadata allow {size - 1}",
            code="bad_pack_metadata",
        )
    return np.append(ends, np.full(size - len(ends), ends[-1]))


def _with_minus_one(rows: Sequence[NDArray[np.int64]]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Pad rows with -1 to int32[B, most + 1]; and return where the first -1 is, int64[B, 1]."""
    padded = np.full((len(rows), max(map(len, rows)) + 1), -1, np.int32)
    for number, row in enumerate(rows):
        padded[number, : len(row)] = row
    return padded, np.array([[len(row)] for row in rows], np.int64)


def _repeating_last(rows: Sequence[NDArray[np.int64]]) -> NDArray[np.int32]:
    """Pad rows with sequences of length 0 to int32[B, most]."""
    most = max(map(len, rows))
    return np.array([_filled_up(row, most) for row in rows], np.int32)
