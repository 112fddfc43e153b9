"""A tiny torch model learns from the loader's batches, as a trainer would use them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from records import write_shards
from tiny_model import tiny_model

from tasks.probes.training.loader import build_probe_dataset
from tasks.probes.training.tokens import VOCABULARY_SIZE

CROP = 256
STEPS = 10


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """1,000 probes."""
    path = tmp_path_factory.mktemp("rows")
    write_shards(path, seed=0, num_rows=1_000)
    return path


def shifted(batch: dict[str, Any]) -> tuple[Any, Any]:
    """The labels of every position but the last, and which are trained: inside one context, not padding."""
    segments = batch["targets_segmentation"]
    return batch["targets"][:, 1:], (segments[:, 1:] == segments[:, :-1]) & (segments[:, 1:] > 0)


@pytest.mark.parametrize("pack", [True, False])
def test_a_tiny_model_learns(folder: Path, pack: bool, torch: Any) -> None:
    nn = torch.nn
    model = tiny_model(torch, CROP, VOCABULARY_SIZE)
    before = {name: values.detach().clone() for name, values in model.named_parameters()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    batches = iter(build_probe_dataset(folder, crop_size=CROP, batch_size=8, seed=0, pack=pack))
    losses = []
    for _ in range(STEPS):
        batch = {name: torch.from_numpy(values).long() for name, values in next(batches).items()}
        labels, trained = shifted(batch)
        logits = model(batch["inputs"], batch["inputs_segmentation"], batch["inputs_position"])[:, :-1]
        loss = nn.functional.cross_entropy(logits[trained], labels[trained])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    batches.close()
    assert np.isfinite(losses).all()
    assert np.mean(losses[-3:]) < 0.8 * losses[0]
    for name, values in model.named_parameters():
        assert torch.isfinite(values).all()
        assert not torch.equal(values, before[name]), name


@pytest.mark.parametrize("pack", [True, False])
def test_a_bigram_model_learns(folder: Path, pack: bool) -> None:
    """The same in plain NumPy, where torch is not installed: softmax regression on the token before."""
    weights = np.zeros((VOCABULARY_SIZE, VOCABULARY_SIZE))
    batches = iter(build_probe_dataset(folder, crop_size=CROP, batch_size=8, seed=0, pack=pack))
    losses = []
    for _ in range(STEPS):
        batch = next(batches)
        labels, trained = shifted(batch)
        given, wanted = batch["inputs"][:, :-1][trained], labels[trained]
        logits = weights[given]
        chances = np.exp(logits - logits.max(axis=1, keepdims=True))
        chances /= chances.sum(axis=1, keepdims=True)
        rows = np.arange(len(wanted))
        losses.append(-np.log(chances[rows, wanted]).mean())
        chances[rows, wanted] -= 1
        # The mean gradient of each token before, at a rate of 2.
        share = 2 / np.bincount(given, minlength=VOCABULARY_SIZE)[given]
        np.subtract.at(weights, given, share[:, None] * chances)
    batches.close()
    assert losses[0] == pytest.approx(np.log(VOCABULARY_SIZE))
    assert np.isfinite(losses).all()
    assert np.mean(losses[-3:]) < 0.7 * losses[0]
    assert np.count_nonzero(weights) > 0
