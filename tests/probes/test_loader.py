"""The data source, and the data set of crops: once an epoch, resumed anywhere, shared out, in processes."""

from __future__ import annotations

import datetime
import hashlib
import itertools
import pickle
import sys
import threading
from collections import Counter
from collections.abc import Iterable
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from manifests import publish_by_hand
from plain_tokens import encode_context, read_context
from records import measurements, random_rows, record, stream, write_records, write_shards

from schemas.errors import ConfigError, InputError, MissingExtraError
from schemas.probes import record_schema
from tasks.probes.training import loader
from tasks.probes.training.loader import Order, ProbeRowDataSource, build_probe_dataset
from tasks.probes.training.sampler import ProbeRowSampler
from tasks.probes.training.tokens import decode

NUM_ROWS = 700
Batch = dict[str, Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """700 probes in three shards; the number of a probe is in its address."""
    path = tmp_path_factory.mktemp("shards")
    write_shards(path, seed=0, num_rows=NUM_ROWS)
    return path


def copied(thing: Any) -> Any:
    return pickle.loads(pickle.dumps(thing))  # noqa: S301 - made here


def build(path: Any, **how: Any) -> Any:
    return build_probe_dataset(path, **{"batch_size": 4, "seed": 1, "group_rows": 64, **how})


def tokens_of(batches: Iterable[Batch]) -> list[tuple[int, ...]]:
    return [tuple(batch["inputs"].ravel().tolist()) for batch in batches]


def assert_equal(one: Batch, other: Batch) -> None:
    assert one.keys() == other.keys()
    for name in one:
        assert np.array_equal(one[name], other[name]), name


def sources(batches: Iterable[Batch]) -> Counter[str]:
    """How many contexts each source address has."""
    found: Counter[str] = Counter()
    for batch in batches:
        for inputs, segments in zip(batch["inputs"], batch["inputs_segmentation"], strict=True):
            for segment in range(1, segments.max() + 1):
                found[decode(inputs[segments == segment])[0].src_addr] += 1
    return found


def expected_sources(epochs: int = 1) -> Counter[str]:
    sampler = ProbeRowSampler()
    return Counter(
        {
            row["src_addr"]: epochs * int(sampler.num_contexts(np.array([len(row["measurements"])]))[0])
            for row in random_rows(0, NUM_ROWS)
        }
    )


def as_stored(item: dict[str, Any]) -> pa.RecordBatch:
    """The measurements of an item without the source address that the data source adds."""
    assert set(item["measurements"]["src_addr"].to_pylist()) == {item["src_addr"]}
    return item["measurements"].drop_columns(["src_addr"])


class TestDataSource:
    def test_items(self, folder: Path) -> None:
        source = ProbeRowDataSource(folder)
        rows = random_rows(0, NUM_ROWS)
        assert len(source) == NUM_ROWS
        for index in (0, 233, 234, NUM_ROWS - 1):
            item = source[index]
            times = rows[index]["measurements"]["event_time"].to_pylist()
            span = (times[-1] - times[0]).total_seconds()
            assert item["src_addr"] == rows[index]["src_addr"]
            assert as_stored(item).equals(rows[index]["measurements"])
            assert item["n_measurements"] == len(times)
            assert item["metadata"] == {
                "time_span_seconds": span,
                "first_timestamp": times[0],
                "last_timestamp": times[-1],
            }
        assert isinstance(times[0], datetime.datetime)
        digest = hashlib.md5(source[0]["src_addr"].encode(), usedforsecurity=False).hexdigest()
        assert source[0]["src_id"] == int(digest[:15], 16)
        first = source[0]["measurements"].to_pylist()[0]
        assert first.keys() == {"event_time", "dst_addr", "ip_version", "rtt", "src_addr"}

    def test_an_encoder_of_dicts_takes_the_measurements_as_they_are(self, folder: Path) -> None:
        """One measurement at a time, by an encoder without a line of ours; and equal to the contexts we draw."""
        source = ProbeRowDataSource(folder)
        sampler = ProbeRowSampler(mode_weights=(1, 0, 0))
        num_whole = 0
        for number, item in enumerate(source.__getitems__(range(100))):
            rows = item["measurements"].to_pylist()
            assert {row["src_addr"] for row in rows} == {item["src_addr"]}
            assert all(
                row.keys() == {"src_addr", "dst_addr", "ip_version", "rtt", "event_time"} for row in rows
            )
            read = list(read_context(encode_context(rows)))
            assert [one.dst_addr for one in read] == [str(ip_address(row["dst_addr"])) for row in rows]
            assert {one.src_addr for one in read} == {str(ip_address(item["src_addr"]))}
            if len(rows) < sampler.target:
                num_whole += 1
                drawn = sampler.sample([item], [(0, number)])
                ours = list(read_context(drawn.tokens[: drawn.offsets[1]].tolist()))
                assert ours == read
        assert num_whole > 50

    def test_the_source_address_costs_little(self, folder: Path) -> None:
        """A constant column: four bytes a measurement in memory and in a pickle; batches of many probes join."""
        items = ProbeRowDataSource(folder).__getitems__(range(NUM_ROWS))
        for item in items[:50]:
            number = item["n_measurements"]
            assert item["measurements"]["src_addr"].nbytes < 5 * number + 64
            assert len(pickle.dumps(item)) < len(pickle.dumps(item | {"measurements": as_stored(item)})) + (
                4 * number + 2_000
            )
            assert copied(item)["measurements"].equals(item["measurements"])
        joined = pa.Table.from_batches([item["measurements"] for item in items]).combine_chunks()
        assert joined["src_addr"].to_pylist() == [
            item["src_addr"] for item in items for _ in range(item["n_measurements"])
        ]

    def test_batched_reads_keep_order_and_repeats(self, folder: Path) -> None:
        source = ProbeRowDataSource(folder)
        indices = [699, 0, 400, 0, 233, 234]
        wanted = [source[index]["src_addr"] for index in indices]
        assert [item["src_addr"] for item in source.__getitems__(indices)] == wanted
        assert [row["src_addr"] for row in source.sampler_rows(np.array(indices))] == wanted
        assert source.__getitems__([]) == []

    @pytest.mark.parametrize("index", [-1, NUM_ROWS])
    def test_numbers_out_of_range(self, folder: Path, index: int) -> None:
        with pytest.raises(IndexError):
            ProbeRowDataSource(folder)[index]

    def test_pickled_before_and_after_use(self, folder: Path) -> None:
        source = ProbeRowDataSource(folder)
        before = copied(source)
        item = source[5]
        after = copied(source)
        assert before[5]["src_addr"] == after[5]["src_addr"] == item["src_addr"]
        assert repr(before) == repr(after) == repr(source)
        assert "train-00001-of-00003.arrayrecord" in repr(source)

    def test_shared_between_threads(self, folder: Path) -> None:
        source = ProbeRowDataSource(folder)
        found: list[list[str]] = []

        def read() -> None:
            found.append([source[index]["src_addr"] for index in range(0, NUM_ROWS, 7)])

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [[row["src_addr"] for row in random_rows(0, NUM_ROWS)[::7]]] * 4

    def test_long_records_and_foreign_schema_bytes(self, tmp_path: Path) -> None:
        long = random_rows(3, 1, mean=20_000, sigma=0.01)[0]
        noted = measurements([(1, "1.2.3.4", 2.0)]).replace_schema_metadata({"made": "elsewhere"})
        path = write_records(
            tmp_path / "a.arrayrecord",
            [record(long["src_addr"], long["measurements"]), record("1.1.1.1", noted)],
        )
        source = ProbeRowDataSource(path)
        first, second = source.__getitems__([0, 1])
        assert as_stored(first).equals(long["measurements"])
        assert as_stored(second).equals(measurements([(1, "1.2.3.4", 2.0)]), check_metadata=True)


class TestPaths:
    def names(self, path: Any, split: str = "train") -> list[str]:
        return [Path(file).name for file in ProbeRowDataSource(path, split).paths]

    def test_what_a_path_may_be(self, folder: Path, tmp_path: Path) -> None:
        three = [f"train-0000{i}-of-00003.arrayrecord" for i in range(3)]
        assert self.names(folder) == self.names(str(folder)) == three
        assert self.names(folder / three[1]) == [three[1]]
        assert self.names([folder / three[2], str(folder / three[0])]) == [three[2], three[0]]
        assert self.names(str(folder / "*1-of-*")) == [three[1]]
        assert self.names([folder, folder / three[0]]) == three

    def test_output_folder_and_splits(self, tmp_path: Path) -> None:
        run = tmp_path / "runs" / "0123456789abcdef"
        run.mkdir(parents=True)
        for name in ("train-00000-of-00001", "test-00000-of-00001"):
            write_records(run / f"{name}.arrayrecord", [record(name, measurements([(0, "1.1.1.1", 1)]))])
        publish_by_hand(tmp_path, "build-probe-rows", run.name)
        source = ProbeRowDataSource(tmp_path)
        # Another run becomes the latest; the reader keeps the one it was opened on.
        (tmp_path / "latest").unlink()
        assert source.paths == (str(run / "train-00000-of-00001.arrayrecord"),)
        assert source[0]["src_addr"] == "train-00000-of-00001"
        assert self.names(run, "test") == ["test-00000-of-00001.arrayrecord"]
        with pytest.raises(ConfigError, match="there is no valid-"):
            self.names(run, "valid")

    def test_a_folder_of_other_names_is_taken_whole(self, tmp_path: Path) -> None:
        for name in ("b", "a"):
            write_records(
                tmp_path / f"{name}.arrayrecord", [record("1.1.1.1", measurements([(0, "1.1.1.1", 1)]))]
            )
        assert self.names(tmp_path) == ["a.arrayrecord", "b.arrayrecord"]

    @pytest.mark.parametrize("path", ["", "/does/not/exist", "/does/not/*.arrayrecord", [], "a\0b"])
    def test_paths_that_name_nothing(self, path: Any) -> None:
        with pytest.raises(ConfigError):
            ProbeRowDataSource(path)

    def test_a_missing_shard_is_named(self, tmp_path: Path) -> None:
        write_shards(tmp_path, 0, 10)
        (tmp_path / "train-00001-of-00003.arrayrecord").unlink()
        with pytest.raises(
            InputError, match="1 of 3 shards are missing; the first missing one is number 1"
        ) as caught:
            ProbeRowDataSource(tmp_path)
        assert caught.value.code == "missing_shard"


class TestBadFiles:
    @pytest.mark.parametrize("content", ["empty", "cut", "text"])
    def test_not_a_whole_file(self, tmp_path: Path, content: str) -> None:
        path = write_shards(tmp_path, 0, 200, num_shards=1)[0]
        whole = path.read_bytes()
        path.write_bytes({"empty": b"", "cut": whole[: len(whole) // 2], "text": b"hello " * 30_000}[content])
        with pytest.raises(InputError) as caught:
            len(ProbeRowDataSource(path))
        assert (caught.value.code, caught.value.where) == ("bad_array_record", str(path))

    def test_flipped_bytes(self, tmp_path: Path) -> None:
        path = write_shards(tmp_path, 0, 200, num_shards=1)[0]
        content = bytearray(path.read_bytes())
        content[200_000:200_050] = bytes(50)
        path.write_bytes(content)
        with pytest.raises(InputError) as caught:
            ProbeRowDataSource(path).__getitems__(range(200))
        assert (caught.value.code, caught.value.where) == ("bad_array_record", str(path))

    def bad_record(self, kind: str) -> bytes:
        batch = measurements([(0, "1.1.1.1", 1.0)])
        good = record("1.1.1.1", batch)
        row = pa.ipc.open_stream(good).read_all().to_pylist()[0]

        def changed(**values: Any) -> bytes:
            return stream(pa.RecordBatch.from_pylist([row | values], schema=record_schema()))

        with_nulls = pa.record_batch([pa.nulls(1, field.type) for field in record_schema()], record_schema())
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, record_schema()) as writer:
            for _ in range(2):
                writer.write_batch(pa.RecordBatch.from_pylist([row], schema=record_schema()))
        return {
            "text": b"hello",
            "empty": b"",
            "cut": good[:-600],
            "other columns": stream(pa.record_batch({"a": [1]})),
            "other type": changed(measurements=stream(pa.record_batch({"event_time": [1]}))),
            "two rows": stream(pa.RecordBatch.from_pylist([row, row], schema=record_schema())),
            "two batches": sink.getvalue().to_pybytes(),
            "no rows": stream(pa.RecordBatch.from_pylist([], schema=record_schema())),
            "nulls": stream(with_nulls),
            "no source": changed(src_addr=None),
            "measurements cut": changed(measurements=row["measurements"][:-200]),
            "wrong count": changed(n_measurements=2),
        }[kind]

    @pytest.mark.parametrize(
        "kind",
        [
            "text",
            "empty",
            "cut",
            "other columns",
            "other type",
            "two rows",
            "two batches",
            "no rows",
            "nulls",
            "no source",
            "measurements cut",
            "wrong count",
        ],
    )
    def test_a_record_that_is_none_of_ours_is_named(self, tmp_path: Path, kind: str) -> None:
        good = record("1.1.1.1", measurements([(0, "1.1.1.1", 1.0)]))
        path = write_records(tmp_path / "a.arrayrecord", [good, good, self.bad_record(kind), good])
        source = ProbeRowDataSource(path)
        for indices in ([2], [0, 1, 2, 3]):
            with pytest.raises(InputError) as caught:
                source.__getitems__(indices)
            assert (caught.value.code, caught.value.where) == ("bad_record", f"{path}:2")
        assert source[3]["src_addr"] == "1.1.1.1"


class TestOrder:
    @pytest.mark.parametrize("count", [1, 2, 3, 7])
    def test_processes_share_out_every_epoch(self, count: int) -> None:
        orders = [Order(10, 3, seed=5, index=index, count=count) for index in range(count)]
        shares = [order.streams(0, len(order)) for order in orders]
        assert sorted(itertools.chain(*shares)) == [
            (epoch, record) for epoch in range(3) for record in range(10)
        ]
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
        merged = [key for keys in itertools.zip_longest(*shares) for key in keys if key is not None]
        assert merged == Order(10, 3, seed=5).streams(0, 30)

    def test_epochs_and_seeds_differ(self) -> None:
        keys = Order(50, 2, seed=5).streams(0, 100)
        assert [record for _, record in keys[:50]] != [record for _, record in keys[50:]]
        assert keys != Order(50, 2, seed=6).streams(0, 100)

    def test_for_ever(self) -> None:
        order = Order(10, None, seed=5, index=1, count=2)
        assert len(order) > 2**60
        assert (
            order.streams(10**9, 10**9 + 5) == Order(10, None, 5).streams(2 * 10**9 + 1, 2 * 10**9 + 11)[::2]
        )


class TestDataset:
    def test_batches(self, folder: Path) -> None:
        batches = list(build(folder))
        assert {values.shape for batch in batches for values in batch.values()} == {(4, 1024)}
        assert {values.dtype for batch in batches for values in batch.values()} == {np.dtype(np.int32)}
        single = list(build(folder, batch_size=None))
        assert {values.shape for values in single[0].values()} == {(1024,)}
        assert len(single) // 4 == len(batches)
        assert len(list(build(folder, drop_remainder=False))) == -(-len(single) // 4)

    @pytest.mark.parametrize("pack", [True, False])
    @pytest.mark.parametrize("epochs", [1, 2])
    def test_each_row_once_an_epoch(self, folder: Path, pack: bool, epochs: int) -> None:
        batches = build(folder, pack=pack, num_epochs=epochs, drop_remainder=False)
        assert sources(batches) == expected_sources(epochs)

    def test_each_record_is_read_once(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        seen: Counter[int] = Counter()
        read = ProbeRowDataSource.read

        def counting(source: ProbeRowDataSource, indices: list[int]) -> list[bytes]:
            seen.update(indices)
            return read(source, indices)

        monkeypatch.setattr(ProbeRowDataSource, "read", counting)
        list(build(folder))
        assert seen == dict.fromkeys(range(NUM_ROWS), 1)

    def test_shards_are_disjoint_and_complete(self, folder: Path) -> None:
        found = [sources(build(folder, shard=(i, 3), drop_remainder=False)) for i in range(3)]
        assert sum(found, Counter()) == expected_sources()
        assert all(not (one.keys() & other.keys()) for one, other in itertools.combinations(found, 2))

    def test_seed_decides_all(self, folder: Path) -> None:
        first = tokens_of(build(folder))
        assert tokens_of(build(folder)) == first
        assert tokens_of(build(list(folder.glob("*1-of*")) + list(folder.glob("*0-of*")))) != first
        assert tokens_of(build(folder, seed=2)) != first
        epochs = tokens_of(build(folder, num_epochs=2, batch_size=1))
        assert not set(epochs[: len(epochs) // 3]) & set(epochs[-len(epochs) // 3 :])

    def test_held_bytes_change_nothing(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        expected = tokens_of(build(folder))
        monkeypatch.setattr(loader, "_HELD_BYTES", 10_000)
        monkeypatch.setattr(loader, "_FIRST_ROWS", 5)
        assert tokens_of(build(folder)) == expected

    @pytest.mark.parametrize("pack", [True, False])
    def test_resumes_from_any_point(self, folder: Path, pack: bool) -> None:
        """Every state of an epoch, before the first batch and after the last included."""
        dataset = build(folder, pack=pack, batch_size=8)
        iterator = iter(dataset)
        states, batches = [iterator.get_state()], []
        for batch in iterator:
            batches.append(batch)
            states.append(iterator.get_state())
        assert len(batches) > 20
        resumed = iter(build(folder, pack=pack, batch_size=8))
        for place, state in reversed(list(enumerate(states))):
            resumed.set_state(state)
            following = next(resumed, None)
            if place == len(batches):
                assert following is None
            else:
                assert following is not None
                assert_equal(following, batches[place])
        # The state is small and plain: it goes into a checkpoint.
        assert len(pickle.dumps(states[-1])) < 500
        fresh = iter(build(folder, pack=pack, batch_size=8))
        fresh.set_state(states[7])
        for batch, expected in zip(fresh, batches[7:], strict=True):
            assert_equal(batch, expected)

    def test_grains_own_check_of_checkpoints(self, folder: Path) -> None:
        import grain

        grain.experimental.assert_equal_output_after_checkpoint(build(folder, batch_size=64))

    def test_runs_for_ever_and_resumes_far_out(self, folder: Path) -> None:
        iterator = iter(build(folder, num_epochs=None))
        iterator.set_state({"parent": {"next_index": 10**9}, "next_index_in_buffer": 3})
        state = iterator.get_state()
        batch = next(iterator)
        other = iter(build(folder, num_epochs=None))
        other.set_state(state)
        assert_equal(next(other), batch)

    def test_other_sampling_rules(self, folder: Path) -> None:
        sampler = ProbeRowSampler(crop_size=256, seed=1, mode_weights=(0, 0, 1))
        batch = next(iter(build(folder, crop_size=256, sampler=sampler)))
        assert batch["inputs"].shape == (4, 256)
        # No timestamp of any kind.
        assert not np.isin(batch["inputs"], [5, 6, 7]).any()

    @pytest.mark.parametrize(
        ("how", "where"),
        [
            ({"shard": (2, 2)}, "shard"),
            ({"shard": (-1, 2)}, "shard"),
            ({"batch_size": 0}, "batch_size"),
            ({"num_epochs": 0}, "num_epochs"),
            ({"group_rows": 0}, "group_rows"),
            ({"seed": -1}, "seed"),
            ({"crop_size": 10}, "crop_size"),
            ({"sampler": ProbeRowSampler(seed=2)}, "sampler"),
        ],
    )
    def test_arguments_out_of_range_are_named(self, folder: Path, how: dict[str, Any], where: str) -> None:
        with pytest.raises(ConfigError) as caught:
            build(folder, **how)
        assert caught.value.where == where

    def test_no_records(self, tmp_path: Path) -> None:
        path = write_records(tmp_path / "train-00000-of-00001.arrayrecord", [])
        assert len(ProbeRowDataSource(path)) == 0
        with pytest.raises(InputError) as caught:
            build(path)
        assert caught.value.code == "no_records"

    def test_a_bad_record_stops_the_iteration(self, tmp_path: Path) -> None:
        path = write_records(tmp_path / "a.arrayrecord", [b"nothing"])
        with pytest.raises(InputError):
            next(iter(build(path)))

    def test_a_missing_package_is_named(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "grain", None)
        with pytest.raises(MissingExtraError, match=r"'grain'.*gristmill\[probes\]"):
            build(folder)
        monkeypatch.setitem(sys.modules, "array_record.python.array_record_module", None)
        with pytest.raises(MissingExtraError, match="'array_record'"):
            len(ProbeRowDataSource(folder))
