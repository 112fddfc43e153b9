"""inspect: what is printed is what plain pyarrow, DuckDB and numpy find in the files."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import Cli
from rich.console import Console
from support import chat, config_of, mill_serially, run_serially, write_jsonl

from flows.cli.inspect import print_answer
from flows.cli.rendering import print_sample, print_table, printable
from schemas.errors import ConfigError, InputError
from schemas.inspection import Answer
from schemas.report import Column, Passage, Sample, Table
from tasks.outputs.inspect import inspect_path, query_path

EMPTY: dict[str, list[int]] = {"input_ids": [], "loss_mask": [], "seq_start_id": []}
ESCAPE = "\x1b[31m[red]"


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory, small_tokenizer: Path) -> Path:
    """An output folder of pack-sft, some of whose rows were rejected."""
    folder = tmp_path_factory.mktemp("packed")
    rows: list[Any] = [chat(f"Question {n}?", f"Answer {ESCAPE} {n} Zürich 🙂.") for n in range(40)]
    rows += [chat("Only a question") for _ in range(2)]
    source = write_jsonl(folder / "chats.jsonl", rows)
    mill_serially(config_of(folder / "out", source, small_tokenizer, max_reject_fraction=0.2))
    return folder / "out"


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sample")
    for bucket, rows in (("a", 30), ("b", 20)):
        (folder / "corpus" / bucket).mkdir(parents=True)
        texts = [f"{bucket} {n} " + "x" * n for n in range(rows)]
        pq.write_table(pa.table({"text": texts}), folder / "corpus" / bucket / "f.parquet")
    buckets = {"a": {"count": 10}, "b": {"count": 5}}
    run_serially(
        "sample-corpus",
        {
            "datasets": {
                "one": {"name": "one", "source": str(folder / "corpus"), "samples": 15, "buckets": buckets}
            },
            "output_dir": str(folder / "out"),
        },
    )
    return folder / "out"


@pytest.fixture(scope="module")
def probes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An output folder of build-probe-rows: 6 probes of 30 measurements, a tenth of them failed, 2 rejected."""
    folder = tmp_path_factory.mktemp("probes")
    size = 180
    rtts = np.where(np.arange(size) % 10 == 0, -1, np.arange(size) + 1.5).astype(np.float32)
    table = pa.table(
        {
            "event_time": pa.array(np.arange(size) * 10**9 + 1_600_000_000_000_000).cast(pa.timestamp("us")),
            "src_addr": [f"10.0.0.{n % 6}" for n in range(size)],
            "dst_addr": ["192.0.2.1"] * size,
            "ip_version": pa.array([4] * size, pa.int8()),
            "rtt": pa.array(rtts, mask=np.isin(np.arange(size), [7, 11])),
        }
    )
    pq.write_table(table, folder / "m.parquet")
    run_serially("build-probe-rows", {"input": str(folder / "m.parquet"), "output_dir": str(folder / "out")})
    return folder / "out"


def parts(cli: Cli, *arguments: object) -> dict[str, Any]:
    outcome = cli("inspect", *arguments, "--json")
    assert outcome.code == 0, outcome.err
    found: dict[str, Any] = json.loads(outcome.out.splitlines()[-1])
    return found


def facts(found: dict[str, Any]) -> dict[str, Any]:
    return {fact["label"]: fact["value"] for fact in found["facts"]}


def table(found: dict[str, Any], title: str) -> list[list[Any]]:
    rows: list[list[Any]] = next(part["rows"] for part in found["tables"] if part["title"] == title)
    return rows


def test_packed_counts_are_those_of_plain_parquet(cli: Cli, packed: Path) -> None:
    rows = [
        row
        for shard in (packed / "latest/datasets").rglob("*.parquet")
        for row in pq.read_table(shard).to_pylist()
    ]
    found = parts(cli, packed)
    assert found["kind"] == "packed bins"
    tokens = sum(len(row["input_ids"]) for row in rows)
    trained = sum(sum(row["loss_mask"]) for row in rows)
    sequences = sum(len(row["seq_start_id"]) for row in rows)
    used = tokens - sequences
    cuts = [[*row["seq_start_id"], len(row["input_ids"])] for row in rows]
    longest = max(int(np.diff(cut).max()) for cut in cuts)
    assert facts(found) == {
        "bins": len(rows),
        "sequences": sequences,
        "tokens": tokens,
        "trained": trained / tokens,
        "filled": used / (128 * len(rows)),
        "longest sequence": longest,
    }
    assert found["rows"] == len(rows)
    lengths, fill = found["charts"]
    assert fill["labels"] == [0, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 1]
    shards = table(found, "Shards")
    assert [sum(column) for column in list(zip(*shards, strict=True))[1:5]] == [
        len(rows),
        sequences,
        tokens,
        trained,
    ]
    assert sum(lengths["series"][0]["values"]) == sequences
    assert sum(fill["series"][0]["values"]) == len(rows)
    assert table(found, "Rejected rows by reason") == [["no_assistant_turn", 2]]
    assert ["pack size", 128] in table(found, "Metadata of the shards")


def test_a_shard_a_folder_and_a_run_show_the_same(cli: Cli, packed: Path) -> None:
    [shard] = (packed / "latest/splits/train").iterdir()
    counts = [facts(parts(cli, path)) for path in (packed, packed / "latest", shard, shard.parent)]
    assert counts == counts[:1] * 4


def test_rows_show_trained_text_and_sequence_boundaries(
    cli: Cli, packed: Path, small_tokenizer: Path
) -> None:
    [shown] = parts(cli, packed, "--rows", 1, "--first", 1, "--tokenizer", small_tokenizer)["samples"]
    assert "bin 1" in shown["title"]
    for sequence in shown["sequences"]:
        trained = "".join(span["text"] for span in sequence if span["trained"])
        untrained = "".join(span["text"] for span in sequence if not span["trained"])
        assert re.match(r"Answer .* \d+ Zürich 🙂\.", trained), trained
        assert "Question" in untrained and "Answer" not in untrained
    bare = parts(cli, packed, "--rows", 1)["samples"][0]["sequences"]
    [row, *_] = pq.read_table(next((packed / "latest/splits/train").iterdir())).to_pylist()
    assert [token for sequence in bare for span in sequence for token in span["ids"]] == row["input_ids"]
    assert {span["text"] for sequence in bare for span in sequence} == {""}
    assert str(row["input_ids"][0]) in cli("inspect", packed, "--rows", 1).out


def test_rows_run_on_from_shard_to_shard(tmp_path: Path) -> None:
    for name, first in (("a", 10), ("b", 20)):
        bins = pa.table(
            {
                "input_ids": pa.array([[first, first], [first + 1, first]], pa.list_(pa.int32())),
                "loss_mask": pa.array([[1, 0]] * 2, pa.list_(pa.uint8())),
                "seq_start_id": pa.array([[0]] * 2, pa.list_(pa.int32())),
            }
        )
        pq.write_table(bins, tmp_path / f"{name}.parquet")
    shown = inspect_path(tmp_path, rows=2, first=1).samples
    assert [[span.ids for span in sample.sequences[0]] for sample in shown] == [
        [(11,), (10,)],
        [(20,), (20,)],
    ]
    with pytest.raises(
        ConfigError, match="4 is beyond the end of these packed bins; allowed: 0 to 3"
    ) as caught:
        inspect_path(tmp_path, rows=5, first=4)
    assert (caught.value.code, caught.value.where) == ("usage", "--first")


def test_other_formats_and_tools(cli: Cli, tmp_path: Path) -> None:
    rows = [{"input_ids": [5, 6, 7], "loss_mask": [0, 1, 1], "seq_start_id": [0, 2]}, EMPTY]
    np.save(tmp_path / "x.npy", np.array(rows, dtype=object), allow_pickle=True)
    found = parts(cli, tmp_path / "x.npy", "--rows", 1)
    assert facts(found)["tokens"] == 3 and ["pack size", "not recorded"] in table(
        found, "Metadata of the shards"
    )
    [shown] = found["samples"]
    found = [[(span["ids"], span["trained"]) for span in sequence] for sequence in shown["sequences"]]
    assert found == [[([5, 6], False)], [([7], False)]]
    assert parts(cli, tmp_path, "--sql", "SELECT bin, len(input_ids) FROM bins")["rows"] == [[0, 3], [1, 0]]


def test_a_terminal_gets_colours_a_pipe_gets_brackets_and_neither_gets_escape_sequences() -> None:
    sample = Sample("t", ((Passage("ask ", False), Passage(ESCAPE, True)),))
    for terminal in (True, False):
        console = Console(force_terminal=terminal, width=80, color_system="standard" if terminal else None)
        with console.capture() as capture:
            print_sample(console, sample)
            print_table(console, Table("x", (Column("c"),), ((ESCAPE,),)))
        shown = capture.get()
        assert r"\x1b[31m[red]" in shown
        assert (r"⟦\x1b[31m[red]⟧" in shown) is not terminal
        assert ("\x1b[1;32m" in shown) is terminal
        assert "\x1b[31m" not in shown


def test_marks_that_reorder_text_are_written_out() -> None:
    assert printable("a\u202eb\r\n\tc\x9b") == "a\\u202eb\\r\n\tc\\x9b"


def test_a_query_reads_bins_and_rejects(cli: Cli, packed: Path) -> None:
    rows = pq.read_table(next((packed / "latest/datasets").rglob("*.parquet"))).num_rows
    answer = parts(cli, packed, "--sql", "SELECT count(*) AS n, max(len(input_ids)) <= 160 AS fits FROM bins")
    assert answer == {"columns": ["n", "fits"], "rows": [[rows, True]]}
    numbers = parts(cli, packed, "--sql", "SELECT bin FROM bins WHERE shard LIKE 'shard_0%'")["rows"]
    assert numbers == [[number] for number in range(rows)]
    assert parts(cli, packed, "--sql", "SELECT DISTINCT reason FROM rejects")["rows"] == [
        ["no_assistant_turn"]
    ]
    assert "no_assistant_turn" in cli("inspect", packed, "--sql", "SELECT reason FROM rejects").out


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory, small_tokenizer: Path) -> Path:
    """An output folder of two data sets, whose shards have the same names."""
    folder = tmp_path_factory.mktemp("two")
    datasets = []
    for name, count in (("z", 90), ("a", 50)):
        rows = [chat(f"{name} {n}?", "Yes. " * (n % 9 + 1)) for n in range(count)]
        datasets.append({"name": name, "path": str(write_jsonl(folder / f"{name}.jsonl", rows))})
    changes = {"storage": {"shard_tokens": 1000}, "splits": {"train": 0.7, "valid": 0.3, "test": 0}}
    mill_serially(config_of(folder / "out", folder, small_tokenizer, datasets=datasets, **changes))
    return folder / "out"


def of_shards(run: Path) -> list[list[Any]]:
    """Data set, split, path, shard and rows of every shard, from the names of the files alone."""
    found = []
    for path in (run / "latest" / "datasets").rglob("*.parquet"):
        name = path.relative_to(run / "latest").as_posix()
        _, dataset, _, split, shard = name.split("/")
        found.append([dataset, split, name, shard, pq.read_metadata(path).num_rows])
    return sorted(found)


def test_rows_of_shards_with_one_name_are_told_apart(cli: Cli, two: Path) -> None:
    wanted = of_shards(two)
    assert len({row[3] for row in wanted}) < len(wanted) == len({row[2] for row in wanted})
    sql = (
        "SELECT dataset, split, path, shard, count(*), min(bin), max(bin) FROM bins GROUP BY ALL ORDER BY ALL"
    )
    found = parts(cli, two, "--sql", sql)["rows"]
    assert found == [[*row, 0, row[-1] - 1] for row in wanted]
    columns = parts(cli, two, "--sql", "SELECT * FROM bins LIMIT 0")["columns"]
    assert columns[:5] == ["dataset", "split", "path", "shard", "bin"]


def test_a_split_and_a_data_set_are_chosen(cli: Cli, two: Path) -> None:
    wanted = of_shards(two)
    for options, rows in (
        (["--split", "valid"], [row for row in wanted if row[1] == "valid"]),
        (["--dataset", "z"], [row for row in wanted if row[0] == "z"]),
        (["--dataset", "a", "--split", "train"], [row for row in wanted if row[:2] == ["a", "train"]]),
    ):
        assert facts(parts(cli, two, *options))["bins"] == sum(row[4] for row in rows)
        paths = parts(cli, two, *options, "--sql", "SELECT DISTINCT path FROM bins ORDER BY 1")["rows"]
        assert paths == [[row[2]] for row in rows]
    shown = parts(cli, two, "--dataset", "z", "--split", "valid", "--rows", 1)["samples"]
    [path, bin_number, sequences, tokens, trained] = [fact["value"] for fact in shown[0]["facts"]]
    row = pq.read_table(two / "latest" / path).to_pylist()[0]
    assert (path.split("/")[1], bin_number) == ("z", 0)
    assert [sequences, tokens, trained] == [
        len(row["seq_start_id"]), len(row["input_ids"]), sum(row["loss_mask"]),
    ]  # fmt: skip


def test_folders_and_links_say_what_they_are_of(cli: Cli, two: Path, tmp_path: Path) -> None:
    """Outside a run too: by its links, and in a copy that is not one."""
    sql = "SELECT DISTINCT dataset, split FROM bins ORDER BY ALL"
    assert parts(cli, two / "splits/train", "--sql", sql)["rows"] == [["a", "train"], ["z", "train"]]
    loose = Path(shutil.copytree(two / "latest/datasets", tmp_path / "datasets"))
    assert len(parts(cli, loose, "--sql", sql)["rows"]) == 4
    bare = shutil.copy(next(loose.rglob("*.parquet")), tmp_path / "bare.parquet")
    assert parts(cli, bare, "--sql", "SELECT DISTINCT dataset, split, path, shard FROM bins")["rows"] == [
        [None, None, "bare.parquet", "bare.parquet"]
    ]


def test_a_split_of_documents_and_of_probe_rows(cli: Cli, sample: Path, probes: Path) -> None:
    documents = "SELECT DISTINCT split, path = shard FROM documents"
    assert parts(cli, sample, "--sql", documents)["rows"] == [["train", True]]
    records = "SELECT split, path, count(DISTINCT record), max(record) FROM measurements GROUP BY ALL"
    found = parts(cli, probes, "--sql", records)["rows"]
    assert sum(row[2] for row in found) == 6
    assert all(row[1].startswith(row[0]) and row[3] == row[2] - 1 for row in found)
    [split, *_] = found[0]
    only = parts(cli, probes, "--split", split)
    assert facts(only)["records"] == sum(row[2] for row in found if row[0] == split)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--split", "dev"], "[missing_split] --split: there is no split 'dev'; allowed: train, valid"),
        (["--dataset", "x"], "[missing_dataset] --dataset: there is no data set 'x'; allowed: a, z"),
        (["--first", "1000"], "[usage] --first: 1000 is beyond the end of these packed bins; allowed: 0 to "),
    ],
)
def test_what_is_not_there(cli: Cli, two: Path, options: list[str], says: str) -> None:
    outcome = cli("inspect", two, *options)
    assert outcome.code == 2 and outcome.message.startswith(says)


def test_the_first_row_of_anything_is_there(
    cli: Cli, packed: Path, sample: Path, probes: Path, small_tokenizer: Path
) -> None:
    for path, first, says in (
        (sample, 15, "beyond the end of these sampled documents; allowed: 0 to 14"),
        (probes, 6, "beyond the end of these probe rows; allowed: 0 to 5"),
        (packed / "latest/rejects", 2, "beyond the end of these rejected rows; allowed: 0 to 1"),
        (small_tokenizer, 1, "there are no rows to show"),
    ):
        outcome = cli("inspect", path, "--rows", 1, "--first", first)
        assert outcome.code == 2 and says in outcome.message
    outcome = cli("inspect", sample, "--dataset", "one")
    assert outcome.code == 2 and "these sampled documents do not say their data set" in outcome.message


def test_json_has_numbers_and_nothing_that_is_not_one(
    cli: Cli, packed: Path, sample: Path, probes: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    formatted = re.compile(r"\d[\d,]*(\.\d+)? ?(%|k?B|MB|[KM]i|ms)?")

    def texts(part: Any) -> list[str]:
        if isinstance(part, dict):
            return [text for value in part.values() for text in texts(value)]
        return (
            [text for value in part for text in texts(value)]
            if isinstance(part, list)
            else [str(part)] * (isinstance(part, str))
        )

    def refused(text: str) -> Any:
        raise AssertionError(text)

    for path in (packed, sample, probes):
        out = cli("inspect", path, "--rows", 2, "--json").out
        found = json.loads(out, parse_constant=refused)
        found["samples"] = [shown["facts"] for shown in found["samples"]]
        assert [text for text in texts(found) if formatted.fullmatch(text)] == []
    rows = (
        (
            float("nan"), float("inf"), Decimal("1.50"), Decimal(3), 10**30, [float("nan")], date(2026, 1, 2),
            b"ab\xff",
        ),
    )  # fmt: skip
    print_answer(Answer(tuple("abcdefgh"), rows, False), as_json=True)
    answer = json.loads(capsys.readouterr().out, parse_constant=refused)
    assert answer["rows"] == [[None, None, 1.5, 3, 10**30, [None], "2026-01-02", "6162ff"]]


def test_a_uri_cannot_be_inspected_yet(tmp_path: Path) -> None:
    for look in (inspect_path, lambda path: query_path(path, "SELECT 1")):
        with pytest.raises(InputError, match="only local or mounted files can be inspected") as caught:
            look("memory://bucket/run")
        assert caught.value.code == "remote_input"


@pytest.mark.parametrize(
    "query",
    [
        "COPY bins TO '{out}'",
        "SELECT 1; SELECT 2",
        "SET threads = 1",
        "SELECT * FROM read_text('{secret}')",
        "SELECT * FROM '{secret}'",
        "SELECT getenv('HOME') FROM read_csv('{secret}')",
        "ATTACH '{out}'",
        "INSTALL httpfs",
        "SELECT * FROM sql",
        "SELECT",
        "",
    ],
)
def test_a_query_can_neither_write_nor_reach_other_files(
    cli: Cli, packed: Path, tmp_path: Path, query: str
) -> None:
    secret, out = tmp_path / "secret.csv", tmp_path / "out.csv"
    secret.write_text("a\n1\n")
    outcome = cli("inspect", packed, "--sql", query.format(secret=secret, out=out))
    assert outcome.code == 2 and outcome.message.startswith("[bad_query] --sql")
    assert not out.exists()


def test_long_answers_are_cut_on_a_terminal_only(packed: Path) -> None:
    sql = "SELECT * FROM range(1000)"
    assert len(query_path(packed, sql).rows) == 1_000
    cut = query_path(packed, sql, most=10)
    assert (len(cut.rows), cut.more) == (10, True)
    assert query_path(packed, "SELECT * FROM range(10)", most=10).more is False


def test_a_sample_shows_buckets_and_documents(cli: Cli, sample: Path) -> None:
    found = parts(cli, sample, "--rows", 2, "--first", 9)
    rows = [
        row
        for path in sorted((sample / "latest").glob("*.parquet"))
        for row in pq.read_table(path).to_pylist()
    ]
    assert facts(found)["documents"] == 15
    assert [row[:3] for row in table(found, "Sources and buckets")] == [["one", "a", 10], ["one", "b", 5]]
    assert [shown["sequences"][0][0]["text"] for shown in found["samples"]] == [
        row["text"] for row in rows[9:11]
    ]
    assert sum(found["charts"][0]["series"][0]["values"]) == 15
    assert parts(cli, sample, "--sql", "SELECT count(*) FROM documents")["rows"] == [[15]]


def test_probe_rows_show_records_padding_modes_and_a_crop(cli: Cli, probes: Path) -> None:
    found = parts(cli, probes, "--rows", 1)
    assert (facts(found)["records"], facts(found)["measurements"], found["rows"]) == (6, 178, 6)
    assert facts(found)["failed"] == 18 / 178
    titles = [chart["title"] for chart in found["charts"]]
    assert titles == [
        "Measurements per record",
        "Bytes of measurements per record",
        "Padding in training",
        "Modes of contexts",
    ]
    single, *packed = found["charts"][2]["series"][0]["values"]
    assert all(0 <= share <= single < 1 for share in packed)
    record = next(part for part in found["tables"] if part["title"].startswith("Record 0: 10.0.0."))
    assert len(record["rows"]) == 8
    crop = table(found, "A crop, decoded from its tokens")
    assert {row[1] for row in crop} <= {f"10.0.0.{n}" for n in range(6)} and {row[2] for row in crop} == {
        "192.0.2.1"
    }


def test_a_query_reads_every_measurement(cli: Cli, probes: Path) -> None:
    sql = (
        "SELECT count(*), count(DISTINCT src_addr), count(*) FILTER (rtt < 0), sum(epoch(event_time)) "
        "FROM measurements"
    )
    times = [n * 1_000 + 1_600_000_000 for n in range(180) if n not in (7, 11)]
    assert parts(cli, probes, "--sql", sql)["rows"] == [[178, 6, 18, float(sum(times))]]


def test_a_tokenizer_shows_its_special_tokens(cli: Cli, small_tokenizer: Path) -> None:
    for path in (small_tokenizer, small_tokenizer / "tokenizer.json"):
        found = parts(cli, path)
        raw = json.loads((small_tokenizer / "tokenizer.json").read_text())
        added = [
            [one["id"], one["content"], "yes" if one["special"] else "no"] for one in raw["added_tokens"]
        ]
        assert table(found, "Added tokens") == added
        assert found["samples"][0]["sequences"]
    outcome = cli("inspect", small_tokenizer, "--sql", "SELECT 1")
    assert outcome.code == 2 and "no rows to query" in outcome.message


def test_reject_files_can_be_looked_at_alone(cli: Cli, packed: Path) -> None:
    found = parts(cli, packed / "latest/rejects", "--rows", 1)
    assert found["kind"] == "rejected rows"
    assert table(found, "Rejected rows by reason") == [["no_assistant_turn", 2]]
    assert len(table(found, "Rejected rows")) == 1


@pytest.mark.parametrize(
    ("make", "code", "says"),
    [
        (lambda path: None, 2, "nothing is there"),
        (lambda path: path.mkdir(), 2, "neither a run (manifest.json) nor anything"),
        (
            lambda path: pq.write_table(pa.table({"a": [1]}), path),
            2,
            "not match anything that gristmill makes",
        ),
        (lambda path: path.write_bytes(b"PAR1"), 1, "not a readable Parquet file"),
    ],
)
def test_what_cannot_be_inspected(
    cli: Cli, tmp_path: Path, make: Callable[[Path], Any], code: int, says: str
) -> None:
    path = tmp_path / "x.parquet"
    make(path)
    outcome = cli("inspect", path)
    assert outcome.code == code and says in outcome.message and str(path) in outcome.message


def test_a_folder_that_is_no_tokenizer(cli: Cli, packed: Path, tmp_path: Path) -> None:
    outcome = cli("inspect", packed, "--rows", 1, "--tokenizer", tmp_path)
    assert outcome.code == 2 and outcome.message.startswith(f"[bad_tokenizer] {tmp_path}")
    assert cli("inspect", packed, "--rows", -1).code == 2
