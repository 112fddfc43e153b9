"""Batches, against a literal account of what Megatron-Bridge's packed data set builds from the same items."""

from __future__ import annotations

import importlib.util
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from schemas.errors import ConfigError, InputError
from tasks.sft.datasets.collate import Collate, StaticShape, collate

EOS = 2
PLAIN = {"token_count", "pad_between_seqs", "attention_mask"}


def item(*sequences: list[int], masks: list[list[int]] | None = None) -> dict[str, Any]:
    lengths = [len(sequence) for sequence in sequences]
    flat = [1] * sum(lengths) if masks is None else [value for mask in masks for value in mask]
    return {
        "input_ids": np.array([token for sequence in sequences for token in sequence], np.int32),
        "loss_mask": np.array(flat, np.uint8),
        "seq_boundaries": np.cumsum([0, *lengths]),
    }


def random_items(rng: np.random.Generator, number: int, padded: bool) -> list[dict[str, Any]]:
    items = []
    for _ in range(number):
        sequences, masks = [], []
        for _ in range(rng.integers(1, 6)):
            length = int(rng.integers(1, 12))
            ids = rng.integers(0, 9, length).tolist()
            mask = [*rng.integers(0, 2, length - 1).tolist(), 0]
            if padded:
                more = (1 - length) % 4
                ids, mask = ids + [EOS] * more, mask + [0] * more
            sequences.append(ids)
            masks.append(mask)
        items.append(item(*sequences, masks=masks))
    return items


def consumer(
    items: list[dict[str, Any]],
    max_seq_length: int,
    to_max: bool = False,
    row_multiple: int = 16,
    sequence_multiple: int = 1,
    metadata: list[dict[str, int]] | None = None,
    boundaries: bool = True,
    release: str = "any",
) -> dict[str, Any]:
    """The consumer's batch in plain lists, step by step.

    Releases: "0.3" and "main" name the boundaries differently; 0.3 takes every last eos for padding, trains nothing
    from an eos, keeps the static shape of unpadded boundaries open, and has a mask of ones beside boundaries.
    """
    old = release == "0.3"
    rows = []
    for it in items:
        ids, mask = it["input_ids"].tolist(), it["loss_mask"].tolist()
        cuts = it["seq_boundaries"].tolist()
        row: dict[str, list[int]] = {name: [] for name in ("tokens", "labels", "loss", "places", "filler")}
        ends, logical = [0], [0]
        for start, stop in itertools.pairwise(cuts):
            tokens, loss = ids[start : stop - 1], mask[start : stop - 1]
            row["tokens"] += tokens
            row["labels"] += ids[start + 1 : stop]
            row["loss"] += [
                0 if old and token == EOS else value for token, value in zip(tokens, loss, strict=True)
            ]
            row["places"] += range(len(tokens))
            ends.append(ends[-1] + len(tokens))
            real = len(tokens)
            if sequence_multiple > 1:
                while real and tokens[real - 1] == EOS and (old or not loss[real - 1]):
                    real -= 1
            logical.append(logical[-1] + real)
            row["filler"] += [0] * real + [1] * (len(tokens) - real)
        rows.append((row, ends, logical))
    longest = max(ends[-1] for _, ends, _ in rows)
    width = max_seq_length if to_max else min(max_seq_length, -(-longest // row_multiple) * row_multiple)
    most = max(entry["max_samples_per_bin"] for entry in metadata) if metadata else 0
    for _, ends, logical in rows:
        if ends[-1] < width:
            ends.append(width)
            logical.append(logical[-1])
        if metadata:
            logical += [] if old else [logical[-1]] * (most + 2 - len(ends))
            ends += [width] * (most + 2 - len(ends))

    def square(name: str, fill: int) -> list[list[int]]:
        return [row[name] + [fill] * (width - len(row[name])) for row, _, _ in rows]

    def ragged(which: int) -> list[list[int]]:
        size = max(len(row[which]) for row in rows) + 1
        return [row[which] + [-1] * (size - len(row[which])) for row in rows]

    def argmin(values: list[list[int]]) -> list[list[int]]:
        return [[row.index(-1)] for row in values]

    def repeated(which: int) -> list[list[int]]:
        size = max(len(row[which]) for row in rows)
        return [row[which] + row[which][-1:] * (size - len(row[which])) for row in rows]

    batch: dict[str, Any] = {
        "tokens": square("tokens", EOS),
        "labels": square("labels", EOS),
        "loss_mask": square("loss", 0),
        "position_ids": square("places", 0),
        "token_count": [len(row["tokens"]) for row, _, _ in rows],
    }
    if not old:
        batch["padding_mask"] = [[bool(value) for value in row] for row in square("filler", 1)]
        batch["pad_between_seqs"] = sequence_multiple > 1 and repeated(1) != repeated(2)
    if not boundaries:
        causal = [[column > line for column in range(width)] for line in range(width)]
        return batch | {"attention_mask": [[causal]] * len(rows)}
    batch["attention_mask"] = [1] * len(rows) if old else None
    longest_sequence: list[Any] = [[max(b - a for a, b in itertools.pairwise(e))] for _, e, _ in rows]
    if metadata:
        gap = width - min(entry["min_packed_seqlen"] for entry in metadata)
        longest_sequence = [max(gap, *(entry["dataset_max_seqlen"] for entry in metadata))] * len(rows)
    if release != "main":
        batch |= {
            "cu_seqlens": ragged(1),
            "cu_seqlens_argmin": argmin(ragged(1)),
            "max_seqlen": longest_sequence,
        }
        if sequence_multiple > 1:
            batch |= {"cu_seqlens_unpadded": ragged(2), "cu_seqlens_unpadded_argmin": argmin(ragged(2))}
    for name in ("q", "kv") if not old else ():
        batch[f"max_seqlen_{name}"] = longest_sequence
        batch[f"cu_seqlens_{name}"] = repeated(2 if sequence_multiple > 1 else 1)
        if sequence_multiple > 1:
            batch[f"cu_seqlens_{name}_padded"] = repeated(1)
    return batch


def as_lists(batch: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value if isinstance(value, list | bool | None) else value.tolist()
        for name, value in batch.items()
    }


METADATA = [
    {"max_samples_per_bin": 3, "dataset_max_seqlen": 9, "min_packed_seqlen": 30},
    {"max_samples_per_bin": 6, "dataset_max_seqlen": 11, "min_packed_seqlen": 20},
]


@pytest.fixture
def static(tmp_path: Path) -> StaticShape:
    path = tmp_path / "train.json"
    path.write_text(json.dumps(METADATA))
    return StaticShape.read(path)


class TestAsTheConsumer:
    @pytest.mark.parametrize("seed", range(10))
    def test_rows_up_to_a_multiple(self, seed: int) -> None:
        items = random_items(np.random.default_rng(seed), 1 + seed % 4, padded=False)
        made = Collate(EOS, 4096).arrays(items)
        assert as_lists(made) == consumer(items, 4096)

    @pytest.mark.parametrize("seed", range(10))
    def test_static_shapes(self, seed: int, static: StaticShape) -> None:
        items = random_items(np.random.default_rng(seed), 1 + seed % 4, padded=False)
        made = Collate(EOS, 64, pad_to_max_length=True, static=static).arrays(items)
        assert as_lists(made) == consumer(items, 64, to_max=True, metadata=METADATA)
        assert made["cu_seqlens"].shape == (len(items), 6 + 2 + 1)

    @pytest.mark.parametrize("seed", range(20))
    def test_padded_sequences(self, seed: int, static: StaticShape) -> None:
        items = random_items(np.random.default_rng(seed), 3, padded=True)
        made = Collate(EOS, 64, pad_seq_to_mult=4).arrays(items)
        assert as_lists(made) == consumer(items, 64, sequence_multiple=4)
        for row, at in zip(made["cu_seqlens"], made["cu_seqlens_argmin"], strict=True):
            assert not (row[: at[0]] % 4).any()
        made = Collate(EOS, 64, pad_seq_to_mult=4, pad_to_max_length=True, static=static).arrays(items)
        assert as_lists(made) == consumer(items, 64, to_max=True, sequence_multiple=4, metadata=METADATA)

    @pytest.mark.parametrize("release", ["any", "main", "0.3"])
    @pytest.mark.parametrize("boundaries", [True, False])
    @pytest.mark.parametrize("multiple", [1, 4])
    @pytest.mark.parametrize("shape", ["rows of 8", "longest row", "static"])
    def test_every_release_and_option(
        self, release: str, boundaries: bool, multiple: int, shape: str, static: StaticShape
    ) -> None:
        """36 sets of options with 48 items each, a third of them ending in an eos that is trained from."""
        rng = np.random.default_rng(0)
        to_max = shape != "rows of 8"
        options: dict[str, Any] = {
            "pad_seq_to_mult": multiple,
            "return_cu_seqlen": boundaries,
            "release": release,
        }
        options |= {"pad_to_max_length": to_max, "static": static if shape == "static" else None}
        for size in (1, 2, 3, 6) * 4:
            items = random_items(rng, size, padded=multiple > 1)
            for it in items[::3]:
                last = it["seq_boundaries"][1:] - 2
                last = last[last >= it["seq_boundaries"][:-1]]
                it["input_ids"][last], it["loss_mask"][last] = EOS, 1
            made = Collate(EOS, 64, pad_seq_length_to_mult=8, **options).arrays(items)
            assert as_lists(made) == consumer(
                items, 64, to_max, 8, multiple, METADATA if shape == "static" else None, boundaries, release
            )

    def test_a_full_row_gets_no_more_sequences(self) -> None:
        items = [item(list(range(9)), list(range(9)))]
        made = Collate(EOS, 16).arrays(items)
        assert as_lists(made) == consumer(items, 16)
        assert made["cu_seqlens"].tolist() == [[0, 8, 16, -1]]

    def test_dtypes(self) -> None:
        made = Collate(EOS, 16, pad_seq_to_mult=2).arrays([item([1, 2, 3])])
        longs = {"tokens", "labels", "loss_mask", "position_ids", "cu_seqlens_argmin"}
        dtypes = {name: value.dtype for name, value in made.items() if name not in PLAIN}
        assert {dtypes.pop(name) for name in longs | {"cu_seqlens_unpadded_argmin"}} == {np.dtype(np.int64)}
        assert dtypes.pop("padding_mask") == np.bool_
        assert all(name.startswith(("cu_seqlens", "max_seqlen")) for name in dtypes)
        assert set(dtypes.values()) == {np.dtype(np.int32)}

    def test_the_mask_without_boundaries(self) -> None:
        items = [item([1, 2, 3], [4, 5]), item([6, 7])]
        mask = Collate(EOS, pad_seq_length_to_mult=2, return_cu_seqlen=False).arrays(items)["attention_mask"]
        assert (mask.dtype, mask.shape) == (np.bool_, (2, 1, 4, 4))
        assert mask[1, 0].tolist() == [
            [False, True, True, True],
            [False, False, True, True],
            [False, False, False, True],
            [False, False, False, False],
        ]
        mask[0] = True  # rows are their own
        assert not mask[1].all()


def test_the_loss_is_where_the_mask_says() -> None:
    """Stored masks are shifted: the entry of a position is about its label."""
    made = Collate().arrays([item([10, 11, 12, 13], [20, 21, 22], masks=[[0, 1, 1, 0], [1, 0, 0]])])
    trained = made["loss_mask"][0] == 1
    assert made["labels"][0][trained].tolist() == [12, 13, 21]
    assert made["tokens"][0][trained].tolist() == [11, 12, 20]


def test_tensors_where_torch_is(torch: Any) -> None:
    batch = collate([item([1, 2, 3])], pad_id=EOS)
    tensors = {name for name, value in batch.items() if isinstance(value, torch.Tensor)}
    assert tensors == batch.keys() - PLAIN
    assert batch["tokens"].dtype == torch.int64 and batch["cu_seqlens"].dtype == torch.int32


def test_arrays_where_it_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    batch = collate([item([1, 2, 3])])
    assert all(isinstance(value, np.ndarray) for name, value in batch.items() if name not in PLAIN)


def test_items_may_be_lists() -> None:
    as_list = {name: value.tolist() for name, value in item([1, 2, 3], [4, 5]).items()}
    assert as_lists(collate([as_list])) == as_lists(collate([item([1, 2, 3], [4, 5])]))


def test_without_cu_seqlens() -> None:
    made = Collate(return_cu_seqlen=False).arrays([item([1, 2])])
    assert not [name for name in made if "seqlen" in name]


def broken(**changes: Any) -> dict[str, Any]:
    return {**item([1, 2]), **{name: np.array(value) for name, value in changes.items()}}


@pytest.mark.parametrize(
    ("options", "batch", "code"),
    [
        ({}, [], "empty_batch"),
        ({"max_seq_length": 4}, [item([1] * 6)], "too_long"),
        ({}, [broken(seq_boundaries=[0, 1, 2, 2])], "bad_rows"),  # seq_start_id [0, 1, 2] for two tokens
        ({}, [broken(seq_boundaries=[1, 2])], "bad_rows"),
        ({}, [broken(seq_boundaries=[2])], "bad_rows"),
        ({}, [broken(loss_mask=[1, 1, 0])], "bad_rows"),
        ({}, [item([1, 2]), broken(input_ids=[], loss_mask=[], seq_boundaries=[0, 0])], "bad_rows"),
        (
            {"static": StaticShape(1, 9, 9), "pad_to_max_length": True, "max_seq_length": 9},
            [item([1, 2], [3, 4], [5, 6])],
            "bad_pack_metadata",
        ),
    ],
)
def test_bad_items(options: dict[str, Any], batch: list[Any], code: str) -> None:
    with pytest.raises(InputError) as caught:
        Collate(**options).arrays(batch)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({"pad_to_max_length": True}, "max_seq_length"),
        ({"static": StaticShape(1, 9, 9), "max_seq_length": 9}, "pad_cu_seqlens"),
        ({"max_seq_length": 0}, "max_seq_length"),
        ({"pad_seq_to_mult": 0}, "pad_seq_to_mult"),
        ({"release": "0.2"}, "release"),
    ],
)
def test_bad_options(options: dict[str, Any], where: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Collate(**options)
    assert caught.value.where == where


@pytest.mark.parametrize("text", [None, "", "{}", "[]", "[{}]", "[1]", '{"max_samples_per_bin": 1}'])
def test_bad_pack_metadata(text: str | None, tmp_path: Path) -> None:
    path = tmp_path / "train.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        StaticShape.read(path)
    assert (caught.value.code, caught.value.where) == ("bad_pack_metadata", str(path))
