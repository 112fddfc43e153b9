"""Sampling rules: how many contexts, which measurements, which order, which timestamps."""

from __future__ import annotations

import math
import pickle
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from records import START_S, measurements, random_rows

from schemas.errors import ConfigError, InputError
from tasks.probes.training.crops import Contexts, lay_out
from tasks.probes.training.draws import FULL, NONE, PARTIAL, Drawn
from tasks.probes.training.sampler import ProbeRowSampler, Stream
from tasks.probes.training.tokens import decode

FIELDS = {
    f"{side}{suffix}" for side in ("inputs", "targets") for suffix in ("", "_segmentation", "_position")
}


def streams(count: int, epoch: int = 0) -> list[Stream]:
    return [(epoch, record) for record in range(count)]


def row(size: int, step_s: int = 300) -> dict[str, Any]:
    """A row whose i-th measurement goes to destination number i, at second `i * step_s`."""
    return {
        "src_addr": "192.0.2.1",
        "measurements": measurements(
            [
                ((START_S + i * step_s) * 10**6, f"10.{i >> 16}.{i >> 8 & 255}.{i & 255}", 1.0)
                for i in range(size)
            ]
        ),
    }


def contexts_of(drawn: Drawn) -> list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    """Positions and timed flags of each context."""
    return [(drawn.positions[a:b], drawn.timed[a:b]) for a, b in pairwise(drawn.context_offsets.tolist())]


def test_number_of_contexts() -> None:
    sizes = np.array([0, 1, 29, 30, 31, 60, 61, 480, 481, 10**6])
    assert ProbeRowSampler().num_contexts(sizes).tolist() == [0, 1, 1, 1, 2, 2, 3, 16, 16, 16]
    drawn = ProbeRowSampler().draw(sizes, streams(len(sizes)))
    assert np.bincount(drawn.rows, minlength=len(sizes)).tolist() == [0, 1, 1, 1, 2, 2, 3, 16, 16, 16]


@pytest.mark.parametrize("size", [1, 2, 33])
def test_a_short_row_is_whole_in_every_context(size: int) -> None:
    drawn = ProbeRowSampler().draw(np.full(50, size), streams(50))
    for positions, _ in contexts_of(drawn):
        assert sorted(positions.tolist()) == list(range(size))


@pytest.mark.parametrize("size", [34, 35, 100, 5_000, 3_000_000])
def test_windows_of_long_rows(size: int) -> None:
    """Sizes are log-uniform, places uniform, and what is drawn is distinct and inside."""
    rows = 40_000 // 16
    sampler = ProbeRowSampler(seed=5)
    drawn = sampler.draw(np.full(rows, size), streams(rows))
    counts = np.diff(drawn.context_offsets)
    assert counts.min() == 1
    # exp(U ln n) stays below n, so a row of 34 has windows of 33 at most.
    assert sampler.target == 34
    assert counts.max() == min(34, size - 1)
    # P(floor(exp(U ln n)) < 34) = ln 34 / ln n, and of exactly 1 measurement ln 2 / ln n.
    for share, expected in (
        ((counts < 34).mean(), math.log(34) / math.log(size)),
        ((counts == 1).mean(), math.log(2) / math.log(size)),
    ):
        assert share == pytest.approx(min(1, expected), abs=0.015)
    spans = []
    for positions, _ in contexts_of(drawn):
        assert len(set(positions.tolist())) == len(positions)
        spans.append((positions.min(), positions.max()))
    low, high = np.array(spans).T
    assert low.min() >= 0
    assert high.max() < size
    # Places are symmetric: as far from the beginning as from the end.
    assert ((low + high) / 2).mean() == pytest.approx((size - 1) / 2, rel=0.03)


def test_subsets_of_large_windows_are_uniform() -> None:
    """Of a window, every measurement is drawn as often as every other."""
    rows, size = 4_000, 40
    sampler = ProbeRowSampler(crop_size=120)
    drawn = sampler.draw(np.full(rows, size), streams(rows))
    whole = [positions for positions, _ in contexts_of(drawn) if len(positions) == sampler.target == 4]
    spans = np.array([positions.max() - positions.min() for positions in whole])
    # The largest window has 39, and they are drawn from end to end of it.
    assert spans.max() == size - 2
    drawn_often = np.bincount(np.concatenate(whole), minlength=size)
    # Uniform places make the middle of a row more frequent than its ends, symmetrically.
    assert np.allclose(drawn_often, drawn_often[::-1], rtol=0.25)


def test_mode_shares_over_100k_contexts() -> None:
    drawn = ProbeRowSampler(seed=1).draw(np.full(6_250, 1_000), streams(6_250))
    assert len(drawn.modes) == 100_000
    shares = np.bincount(drawn.modes, minlength=3) / len(drawn.modes)
    assert shares == pytest.approx([0.4, 0.3, 0.3], abs=0.01)
    only = ProbeRowSampler(mode_weights=(0, 2, 0)).draw(np.full(50, 1_000), streams(50))
    assert set(only.modes.tolist()) == {PARTIAL}


def test_modes_decide_order_and_timestamps() -> None:
    drawn = ProbeRowSampler(seed=2).draw(np.full(3_000, 33), streams(3_000))
    shares, slots, displaced = [], [], []
    for mode, (positions, timed) in zip(drawn.modes.tolist(), contexts_of(drawn), strict=True):
        if mode == FULL:
            assert timed.all()
            assert (np.diff(positions) > 0).all()
        elif mode == NONE:
            assert not timed.any()
            displaced.append(positions.tolist() != sorted(positions.tolist()))
        else:
            assert (np.diff(positions[timed]) > 0).all()
            shares.append(1 - timed.mean())
            slots.extend(np.flatnonzero(~timed).tolist())
            untimed = positions[~timed].tolist()
            displaced.append(len(untimed) < 15 or untimed != sorted(untimed))
    assert all(displaced)
    assert min(shares) == pytest.approx(0.1, abs=0.02)
    assert max(shares) == pytest.approx(0.9, abs=0.02)
    assert np.mean(shares) == pytest.approx(0.5, abs=0.02)
    # Untimed measurements stand anywhere, first and last place included.
    often = np.bincount(slots, minlength=33)
    assert often.min() > 0.8 * often.mean()
    assert often.max() < 1.2 * often.mean()


def test_tokens_of_each_mode_decode_to_the_row() -> None:
    rows = [row(33), row(5_000)]
    sampler = ProbeRowSampler(seed=3)
    contexts = sampler.sample(rows, streams(2))
    drawn = sampler.draw(np.array([33, 5_000]), streams(2))
    assert len(contexts.modes) == 2 + 16
    for (start, stop), (positions, timed) in zip(
        pairwise(contexts.offsets.tolist()), contexts_of(drawn), strict=True
    ):
        found = decode(contexts.tokens[start:stop])
        assert len(found) == len(positions)
        for measurement, position, is_timed in zip(found, positions.tolist(), timed.tolist(), strict=True):
            assert measurement.dst_addr == f"10.0.{position >> 8}.{position & 255}"
            assert measurement.seconds == (START_S + 300 * position if is_timed else None)


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    rows = random_rows(0, 20)
    sampler = ProbeRowSampler(seed=4)
    together = sampler.sample(rows, streams(20))
    apart = Contexts.concat([sampler.sample([rows[i]], [(0, i)]) for i in range(20)])
    assert np.array_equal(together.tokens, apart.tokens)
    assert np.array_equal(together.offsets, apart.offsets)
    assert np.array_equal(together.modes, apart.modes)


def test_draws_follow_seed_epoch_and_record() -> None:
    rows = random_rows(0, 5)
    first = ProbeRowSampler(seed=4).sample(rows, streams(5)).tokens.tolist()
    copy = pickle.loads(pickle.dumps(ProbeRowSampler(seed=4)))  # noqa: S301 - made here
    assert copy.sample(rows, streams(5)).tokens.tolist() == first
    assert ProbeRowSampler(seed=5).sample(rows, streams(5)).tokens.tolist() != first
    assert ProbeRowSampler(seed=4).sample(rows, streams(5, epoch=1)).tokens.tolist() != first
    assert ProbeRowSampler(seed=4).sample(rows, streams(6)[1:]).tokens.tolist() != first


@pytest.mark.parametrize("pack", [True, False])
def test_crops_hold_every_context_once(pack: bool) -> None:
    rows = random_rows(1, 64)
    sampler = ProbeRowSampler(seed=6)
    contexts = sampler.sample(rows, streams(64))
    crops = sampler.crops(contexts, (0, 0), pack)
    assert crops.keys() == FIELDS
    assert {values.dtype for values in crops.values()} == {np.dtype(np.int32)}
    found = []
    for inputs, segments, positions in zip(
        crops["inputs"], crops["inputs_segmentation"], crops["inputs_position"], strict=True
    ):
        used = int(np.count_nonzero(segments))
        assert (segments[:used] > 0).all()
        assert not inputs[used:].any()
        numbers = segments[:used]
        assert numbers[0] == 1
        assert set(np.diff(numbers).tolist()) <= {0, 1}
        starts = np.flatnonzero(np.diff(numbers, prepend=0)).tolist()
        if not pack:
            assert positions.tolist() == list(range(1024))
            assert starts == [0]
        for start, stop in pairwise([*starts, used]):
            assert positions[start:stop].tolist() == list(range(stop - start))
            found.append(tuple(inputs[start:stop].tolist()))
        if pack:
            assert not positions[used:].any()
    expected = [
        tuple(contexts.tokens[start : min(stop, start + 1024)].tolist())
        for start, stop in pairwise(contexts.offsets.tolist())
    ]
    assert sorted(found) == sorted(expected)
    for suffix in ("", "_segmentation", "_position"):
        assert np.array_equal(crops[f"inputs{suffix}"], crops[f"targets{suffix}"])


@pytest.mark.parametrize(("mean", "sigma"), [(26.5, 1.3), (500, 1.5)])
def test_padding(mean: float, sigma: float) -> None:
    """Short and long probes, IPv4 and IPv6: at most 3% in groups of 64 rows, 1% in groups of 256."""
    rows = random_rows(2, 512, mean, sigma)
    sampler = ProbeRowSampler(seed=7)
    for group, limit in ((64, 0.03), (256, 0.01)):
        used = total = 0
        for start in range(0, len(rows), group):
            contexts = sampler.sample(rows[start : start + group], streams(len(rows))[start : start + group])
            segments = sampler.crops(contexts, (0, start))["inputs_segmentation"]
            used += int(np.count_nonzero(segments))
            total += segments.size
        assert 1 - used / total <= limit
    single = sampler.crops(contexts, (0, 0), pack=False)["inputs_segmentation"]
    assert (single == 0).mean() > 0.5


def test_a_long_context_is_cut_at_the_end_of_the_crop() -> None:
    contexts = Contexts(np.arange(10, dtype=np.int32), np.array([0, 7, 10]), np.zeros(2, np.int8))
    crops = lay_out(contexts, np.array([1, 0]), 4)
    assert crops["inputs"].tolist() == [[7, 8, 9, 0], [0, 1, 2, 3]]
    assert crops["inputs_segmentation"].tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]


def test_nothing_gives_no_crops() -> None:
    sampler = ProbeRowSampler()
    contexts = sampler.sample([row(0)], streams(1))
    assert sampler.crops(contexts, (0, 0))["inputs"].shape == (0, 1024)
    assert sampler.crops(contexts, (0, 0), pack=False)["targets"].shape == (0, 1024)
    assert len(sampler.sample([row(0), row(3)], streams(2)).modes) == 1


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        ({"crop_size": 29}, "crop_size"),
        ({"crop_size": 2**24 + 1}, "crop_size"),
        ({"avg_tokens_per_measurement": 0}, "avg_tokens_per_measurement"),
        ({"max_contexts_per_row": 0}, "max_contexts_per_row"),
        ({"mode_weights": (0.5, 0.5)}, "mode_weights"),
        ({"mode_weights": (0, 0, 0)}, "mode_weights"),
        ({"mode_weights": (1, -1, 1)}, "mode_weights"),
        ({"mode_weights": (1, math.nan, 1)}, "mode_weights"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**32}, "seed"),
    ],
)
def test_arguments_out_of_range_are_named(arguments: dict[str, Any], where: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ProbeRowSampler(**arguments)
    assert caught.value.where == where


def test_nulls_and_bad_addresses_are_refused() -> None:
    bad = row(3)
    bad["src_addr"] = "nowhere"
    with pytest.raises(InputError) as caught:
        ProbeRowSampler().sample([bad], streams(1))
    assert caught.value.code == "bad_address"
    for rows in ([(None, "1.2.3.4", 1.0)], [(0, None, 1.0)]):
        batch = measurements([(0, "1.2.3.4", 1.0)]).from_pylist(
            [dict(zip(("event_time", "dst_addr", "rtt"), rows[0], strict=True)) | {"ip_version": 4}],
            schema=measurements([]).schema,
        )
        with pytest.raises(InputError) as caught:
            ProbeRowSampler().sample([{"src_addr": "1.2.3.4", "measurements": batch}], streams(1))
        assert caught.value.code == "null_values"
