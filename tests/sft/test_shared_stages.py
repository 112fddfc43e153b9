"""What the jobs of one stage, the rows of one digest and a growing file must not take from each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from support import chat, config_of, mill_serially, write_jsonl

from schemas.errors import InputError
from tasks.inputs.files import InputFile, resolve
from tasks.outputs.validate import validate_path
from tasks.sft.order.positions import RING
from tasks.sft.order.spool import ITEM, RECORD, SPOOL, Rows, TokenSpoolWriter
from tasks.spool.reader import open_spool


@pytest.mark.parametrize("every", [1, 97])
def test_every_job_of_a_split_has_rejects_of_its_own(
    every: int, small_tokenizer: Path, tmp_path: Path
) -> None:
    rows = [chat(f"{i}", "word " * (80 if i % every == 0 and i % 3 else 5)) for i in range(400)]
    source = write_jsonl(tmp_path / "chats.jsonl", rows)
    config = config_of(
        tmp_path / "out", source, small_tokenizer, max_reject_fraction=1,
        pack={"size": 60, "overflow": "drop"}, storage={"shard_tokens": 800},
    )  # fmt: skip

    manifest, serial = mill_serially(config)

    rejected = [
        row
        for path in sorted((tmp_path / "out" / "latest" / "rejects").glob("*pack*"))
        for row in pq.read_table(path)["row"].to_pylist()
    ]
    assert sorted(rejected) == [i for i in range(400) if i % every == 0 and i % 3]
    assert manifest.ledger.rejected == {"over_long": len(rejected)}
    assert validate_path(tmp_path / "out").ok
    assert len([task for task, _ in serial.executed if task == "pack"]) > 5
    _, again = mill_serially(config)
    assert not again.executed


@pytest.mark.parametrize(
    ("given", "items"),
    [
        ([[1, 2, 3], [3, 2, 1], [1, 2, 3], [9, 9, 9, 9, 9], [3, 2, 1]], None),
        ([[4, 4, 4], [1, 2]], 5),
        ([[1, 2], [4, 4, 4]], 5),
        ([[1, 2, 3], [1, 2, 3], [1, 2, 3]], 3),
    ],
)
def test_equal_digests_share_items_only_if_these_are_equal(
    given: list[list[int]], items: int | None, tmp_path: Path
) -> None:
    lengths = np.array([len(items) for items in given])
    count = len(given)
    digest = np.full((count, 2), 5 << 40, np.uint64)
    with TokenSpoolWriter(tmp_path) as writer:
        numbers = np.arange(count)
        writer.append(
            np.concatenate(given).astype(np.int32), np.ones(lengths.sum(), np.uint8), lengths,
            numbers.astype(np.int32), numbers * 0, Rows(numbers * 0, numbers, digest, None),
        )  # fmt: skip
        writer.finish(tmp_path)

    with open_spool(tmp_path / SPOOL, RECORD, ITEM) as spool:
        found = {
            int(record["row"]): (
                spool.items(int(record["start"]), int(record["start"] + record["length"])) & (2**31 - 1)
            ).tolist()
            for record in spool.records(0, RING)
        }
        assert found == dict(enumerate(given))
        assert items is None or spool.num_items == items


def test_a_file_that_grows_after_it_was_listed_is_read_whole_or_refused(
    small_tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_jsonl(tmp_path / "chats.jsonl", [chat(f"{i}", "yes") for i in range(100)])
    more = write_jsonl(tmp_path / "more", [chat(f"{i}", "no") for i in range(50)]).read_bytes()

    def listed(*args: Any) -> tuple[InputFile, ...]:
        found = resolve(*args)
        with source.open("ab") as file:
            file.write(more)
        return found

    monkeypatch.setattr("tasks.sft.identity.resolve", listed)
    config = config_of(tmp_path / "out", source, small_tokenizer)
    try:
        manifest, _ = mill_serially(config)
    except InputError as error:
        assert error.code == "input_changed"
    else:
        assert manifest.ledger.rows_in == 150
