"""The page on MaxText: its program makes the batches that MaxText trains on, and a small model learns from them.

MaxText needs JAX and an accelerator, so its side is accounted for here by what its sources do: process 0 of 1, an
iterator that keeps `iter(dataset)` and passes on what it yields, a checkpoint that holds its state as JSON, and a
loss that compares the output at a place with `targets` at that place, where `targets_segmentation` is not 0.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from docs.markdown import blocks
from records import random_rows, record, write_records, write_shards
from tiny_model import tiny_model

from tasks.probes.loader import VOCABULARY_SIZE

CROP = 256
STEPS = 10
# Those of the page that MaxText's base.yml has, with its defaults.
KEYS = {
    "base_config": None,
    "dataset_type": "tfds",
    "grain_train_files": "",
    "grain_eval_files": "",
    "grain_worker_count": 1,
    "grain_worker_count_eval": 1,
    "max_target_length": 2048,
    "vocab_size": 32_000,
    "packing": True,
    "per_device_batch_size": 12.0,
    "data_shuffle_seed": 0,
    "eval_interval": -1,
    "eval_steps": -1,
    "generate_padding_batch_train": False,
    "generate_padding_batch_eval": False,
}


class LoadIterator:
    """As `MultiHostDataLoadIterator` on one host, without the transfer to devices."""

    def __init__(self, dataloader: Any, global_mesh: Any, generate_padding_batch: bool) -> None:
        self.local_iterator = iter(dataloader)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self.local_iterator)

    def close(self) -> None:
        self.local_iterator.close()


def module(name: str, **contents: Any) -> ModuleType:
    made = ModuleType(name)
    vars(made).update(contents)
    return made


@pytest.fixture
def interface(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """MaxText's module of input pipelines, after the page's program has run; `jax` of host 0 of 1."""
    import grain  # noqa: F401 - sees whether JAX is there, once

    interface = module("maxtext.input_pipeline.input_pipeline_interface")
    loading = module("maxtext.input_pipeline.multihost_dataloading", MultiHostDataLoadIterator=LoadIterator)
    pipelines = module(
        "maxtext.input_pipeline", input_pipeline_interface=interface, multihost_dataloading=loading
    )
    jax = module("jax", process_index=lambda: 0, process_count=lambda: 1)
    for one in (jax, module("maxtext", input_pipeline=pipelines), pipelines, interface, loading):
        monkeypatch.setitem(sys.modules, one.__name__, one)
    [program] = [block.text for block in blocks("docs/maxtext.md") if block.language == "python"]
    exec(compile(program, "probe_train.py", "exec"), {"__name__": "probe_train"})  # noqa: S102 - our own page
    return interface


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rows")
    write_shards(path, seed=0, num_rows=600)
    write_records(
        path / "test-00000-of-00001.arrayrecord",
        [record(row["src_addr"], row["measurements"]) for row in random_rows(1, 50)],
    )
    return path


def settings(folder: Path) -> Any:
    """MaxText's defaults, the page's settings over them, and what MaxText computes from them on one device."""
    [text] = [block.text for block in blocks("docs/maxtext.md") if block.language == "text"]
    shown = yaml.safe_load(text.partition("# probes.yml\n")[2])
    assert shown.keys() <= KEYS.keys()
    assert shown["dataset_type"] == "grain"
    assert shown["vocab_size"] >= VOCABULARY_SIZE
    found = KEYS | shown | {"grain_train_files": str(folder), "grain_eval_files": str(folder)}
    size = int(found["per_device_batch_size"])
    return SimpleNamespace(
        **found | {"max_target_length": CROP},
        global_batch_size_to_load=size,
        global_batch_size_to_load_eval=size,
    )


def assert_is_a_batch(batch: dict[str, Any]) -> None:
    """What `get_shaped_batch` of MaxText promises its training step; targets that are the tokens after."""
    assert sorted(batch) == sorted(
        f"{side}{suffix}" for side in ("inputs", "targets") for suffix in ("", "_segmentation", "_position")
    )
    for values in batch.values():
        assert values.shape == (8, CROP)
        assert values.dtype == np.int32
    for tokens, segments, targets, trained in zip(
        batch["inputs"],
        batch["inputs_segmentation"],
        batch["targets"],
        batch["targets_segmentation"],
        strict=True,
    ):
        for number in range(1, segments.max() + 1):
            places = np.flatnonzero(segments == number)
            assert all(after == place + 1 for place, after in pairwise(places.tolist()))
            assert targets[places[:-1]].tolist() == tokens[places[1:]].tolist()
            assert trained[places].tolist() == [number] * (len(places) - 1) + [0]
        assert not trained[segments == 0].any()


def test_a_small_model_learns(interface: ModuleType, folder: Path, torch: Any) -> None:
    """Ten steps with MaxText's loss, from the iterator that MaxText would create."""
    nn = torch.nn
    config = settings(folder)
    model = tiny_model(torch, CROP, config.vocab_size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    with closing(interface.make_grain_train_iterator(config, None, [0])) as iterator:
        for _ in range(STEPS):
            batch = next(iterator)
            assert_is_a_batch(batch)
            data = {name: torch.from_numpy(np.array(values)).long() for name, values in batch.items()}
            logits = model(data["inputs"], data["inputs_segmentation"], data["inputs_position"])
            errors = nn.functional.cross_entropy(logits.transpose(1, 2), data["targets"], reduction="none")
            trained = data["targets_segmentation"] != 0
            loss = (errors * trained).sum() / trained.sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert np.isfinite(losses).all()
    assert losses[0] == pytest.approx(np.log(config.vocab_size), rel=0.1)
    assert np.mean(losses[-3:]) < 0.8 * losses[0]


def test_the_iterator_goes_into_a_checkpoint(interface: ModuleType, folder: Path) -> None:
    import grain

    config = settings(folder)
    with closing(interface.make_grain_train_iterator(config, None, [0])) as iterator:
        assert isinstance(iterator.local_iterator, grain.DatasetIterator)
        for _ in range(3):
            next(iterator)
        state = json.dumps(iterator.local_iterator.get_state())
        expected = [{name: np.array(values) for name, values in next(iterator).items()} for _ in range(2)]
    with closing(interface.make_grain_train_iterator(config, None, [0])) as resumed:
        resumed.local_iterator.set_state(json.loads(state))
        for batch in expected:
            found = next(resumed)
            assert all(np.array_equal(found[name], batch[name]) for name in batch)


def test_evaluation_is_one_epoch_of_the_test_split(interface: ModuleType, folder: Path) -> None:
    with closing(interface.make_grain_eval_iterator(settings(folder), None, [0])) as iterator:
        batches = list(iterator)
    assert batches
    for batch in batches:
        assert_is_a_batch(batch)
