"""Shards are of equal size, cover every position once, and neither copies nor groups straddle where they must not."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from schemas.sft import SplitsConfig
from tasks.run.layout import stage_folder
from tasks.sft.order.cuts import cut_shards, split_edges
from tasks.sft.order.positions import RING, positions, rotation, unrotated
from tasks.sft.order.spool import Rows, TokenSpoolWriter, open_spools

SPLITS = SplitsConfig(train=0.8, valid=0.15, test=0.05)


def rows_of(
    rng: np.random.Generator, count: int, copies: float = 0.0, in_one_group: float = 0.0
) -> tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.int64]]:
    """Digests, groups and lengths: some rows copies of one conversation, some in one group."""
    digest = rng.integers(0, 2**64, (count, 2), np.uint64)
    lengths = np.clip(rng.lognormal(np.log(350), 0.8, count), 2, 4000).astype(np.int64)
    same = rng.random(count) < copies
    digest[same], lengths[same] = digest[0], lengths[0]
    group = rng.integers(0, 2**64, count, np.uint64)
    group[rng.random(count) < in_one_group] = group[0]
    return digest, group, lengths


def clustered(
    rng: np.random.Generator, count: int, kinds: int, by: str
) -> tuple[NDArray[np.uint64], NDArray[np.uint64] | None, NDArray[np.int64]]:
    """Digests, groups and lengths: copies of a few conversations, or groups of falling sizes."""
    digest = rng.integers(0, 2**64, (count, 2), np.uint64)
    lengths = np.clip(rng.lognormal(np.log(350), 0.3, count), 2, 1000).astype(np.int64)
    if by == "copies":
        which = rng.integers(0, kinds, count)
        return digest[which], None, lengths[which]
    shares = 1 / np.arange(1, kinds + 1)
    groups = rng.integers(0, 2**64, kinds, np.uint64)
    return digest, groups[rng.choice(kinds, count, p=shares / shares.sum())], lengths


def write(
    root: Path,
    parts: int,
    digest: NDArray[np.uint64],
    group: NDArray[np.uint64] | None,
    lengths: NDArray[np.int64],
) -> list[str]:
    stages = []
    for part, some in enumerate(np.array_split(np.arange(len(lengths)), parts)):
        stages.append(f"{part:016x}")
        with TokenSpoolWriter(stage_folder(root, stages[-1])) as spool:
            total = int(lengths[some].sum())
            rows = Rows(np.zeros(len(some)), some, digest[some], None if group is None else group[some])
            tokens, trained = np.zeros(total, np.int32), np.ones(total, np.uint8)
            spool.append(tokens, trained, lengths[some], np.arange(len(some)), np.zeros(len(some)), rows)
            spool.finish(root)
    return stages


def spools(root: Path, stages: list[str]) -> Callable[[], Iterator[object]]:
    def each() -> Iterator[object]:
        with open_spools(root, stages) as opened:
            yield from opened

    return each


@pytest.mark.parametrize(
    ("count", "parts", "shards", "what"),
    [
        (10, 1, 1, {}),
        (20_000, 4, 12, {}),
        (20_000, 4, 12, {"copies": 0.5}),
        (20_000, 4, 12, {"in_one_group": 0.2}),
        (60_000, 8, 1500, {}),
    ],
    ids=["ten rows", "plain", "half are copies", "a fifth in one group", "many shards"],
)
@pytest.mark.parametrize("seed", [0, 11])
def test_shards_have_equal_tokens_and_cover_every_position(
    tmp_path: Path, count: int, parts: int, shards: int, what: dict[str, float], seed: int
) -> None:
    digest, group, lengths = rows_of(np.random.default_rng(count + seed), count, **what)
    groups = group if "in_one_group" in what else None
    stages = write(tmp_path, parts, digest, groups, lengths)
    shard_tokens = -(-int(lengths.sum()) // shards)
    cuts = cut_shards(
        spools(tmp_path, stages), SPLITS, seed, shard_tokens, grouped=groups is not None, deduplicate=False
    )

    assert all(edges == sorted(edges) for edges in cuts.values())
    assert cuts["train"][0] == 0 and cuts["test"][-1] == RING
    assert {name: (edges[0], edges[-1]) for name, edges in cuts.items()} == split_edges(
        SPLITS, groups is not None
    )

    place = positions(digest[:, 0], groups, np.arange(count))
    turn = rotation(seed, groups is not None)
    rotated = place + np.uint64(turn)  # wraps
    for name, edges in cuts.items():
        part = list(itertools.pairwise(edges))
        sizes = np.array(
            [
                lengths[(rotated >= np.uint64(low)) & (rotated <= np.uint64(high - 1))].sum()
                for low, high in part
            ]
        )
        # One sequence more or less is no matter of the cuts.
        allowed = 0.05 * sizes.mean() + 2 * lengths.max()
        assert np.abs(sizes - sizes.mean()).max() <= allowed, (name, sizes)
        inside = [
            (place >= np.uint64(low)) & (place <= np.uint64(high - 1))
            for cut in part
            for low, high in unrotated(*cut, turn)
        ]
        assert sum(int(lengths[mask].sum()) for mask in inside) == sizes.sum()


@pytest.mark.parametrize(
    ("kinds", "by", "shards"),
    [(20, "copies", 5), (100, "copies", 40), (50, "groups", 20), (2000, "groups", 60)],
)
def test_shards_are_equal_where_rows_lie_close_together(
    tmp_path: Path, kinds: int, by: str, shards: int
) -> None:
    digest, groups, lengths = clustered(np.random.default_rng(kinds), 20_000, kinds, by)
    stages = write(tmp_path, 3, digest, groups, lengths)
    grouped = groups is not None
    all_train = SplitsConfig(train=1, valid=0, test=0)
    shard_tokens = -(-int(lengths.sum()) // shards)
    cuts = cut_shards(
        spools(tmp_path, stages), all_train, 1, shard_tokens, grouped=grouped, deduplicate=False
    )
    rotated = positions(digest[:, 0], groups, np.arange(len(lengths))) + np.uint64(rotation(1, grouped))
    highs = np.array([high - 1 for high in cuts["train"][1:]], np.uint64)
    sizes = np.bincount(np.searchsorted(highs, rotated), lengths)
    assert len(sizes) == shards and np.abs(sizes / sizes.mean() - 1).max() < 0.05


def test_copies_share_a_shard_if_one_is_kept_and_groups_share_a_split(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    digest, group, lengths = rows_of(rng, 6_000)
    digest = digest[rng.integers(0, 1_500, len(digest))]
    group = rng.integers(0, 2**64, 40, np.uint64)[rng.integers(0, 40, len(digest))]
    for groups in (None, group):
        stages = write(tmp_path / str(groups is None), 3, digest, groups, lengths)
        cuts = cut_shards(
            spools(tmp_path / str(groups is None), stages), SPLITS, 5, 20_000,
            grouped=groups is not None, deduplicate=True,
        )  # fmt: skip
        rotated = positions(digest[:, 0], groups, np.arange(len(digest))) + np.uint64(
            rotation(5, groups is not None)
        )
        highs = np.array([high - 1 for edges in cuts.values() for high in edges[1:]], np.uint64)
        shard = np.searchsorted(highs, rotated)
        if groups is None:
            for _, same in itertools.groupby(np.lexsort((shard, digest[:, 0])), lambda row: digest[row, 0]):
                assert len({int(shard[row]) for row in same}) == 1
        split_of = np.repeat(np.arange(3), [len(edges) - 1 for edges in cuts.values()])
        key = digest[:, 0] if groups is None else groups
        for one in np.unique(key):
            assert len(set(split_of[shard[key == one]].tolist())) == 1


def test_the_rotation_of_a_seed_is_pinned() -> None:
    # The first eight bytes of sha256("gristmill-split-42"), by sha256sum, lower bits cleared.
    assert f"{rotation(42, False):016x}"[-4:] == "0000"
    assert f"{rotation(42, True):016x}"[-10:] == "0" * 10
    assert unrotated(0, RING, rotation(42, False))[0][1] == RING
