"""Files that somebody crafted: inputs in every format, configurations, templates, tokenizers, receipts, manifests.

Each may be refused with a coded error or have its rows rejected; nothing may hang, take the memory or end in a
traceback.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import workloads
from sft import hostile_templates
from support import chat
from torture.kit import TOKENIZER
from torture.mutate import mutate_bytes, mutate_value
from torture.room import Failed, Room


def attempt(room: Room) -> None:
    """One file, of each kind in turn."""
    room.what, craft = _KINDS[room.number % len(_KINDS)]
    room.notes.append("")
    craft(room)
    room.done += 1


def _pack(room: Room, source: Path, **changes: Any) -> None:
    """pack-sft of a source that may be anything."""
    raw = {
        "output_dir": str(room.folder / "out"),
        "datasets": [{"name": "chats", "path": str(source)}],
        "tokenizer": {"path": str(TOKENIZER)},
        "pack": {"size": 256},
        "splits": {"train": 1, "valid": 0, "test": 0},
        "max_reject_fraction": 1,
        **changes,
    }
    _run(room, "pack-sft", raw)


def _run(room: Room, flow: str, raw: dict[str, Any]) -> None:
    ended = room.judged(room.run(flow, room.config(raw, "config")))
    room.notes[-1] += f": {ended.said[:200]}"
    if ended.ok:
        out = Path(raw["output_dir"])
        ledger = json.loads((out / "latest" / "manifest.json").read_bytes())["ledger"]
        counted = sum(ledger[key] for key in ("rows_used", "not_selected", "filtered", "duplicates"))
        if ledger["rows_in"] != counted + sum(ledger["rejected"].values()):
            raise Failed("row lost", f"the ledger does not add up: {ledger}")
        valid = room.judged(room.run("validate", out))
        if not valid.ok:
            raise Failed("wrong bytes", f"validate right after: {valid.out[-300:]}")


def _text_file(room: Room) -> None:
    rows = [chat(f"question {n} é数", f"answer {n}") for n in range(room.rng.choice((1, 3, 30)))]
    form = room.rng.choice(("jsonl", "json", "csv"))
    data = _texts(form, rows)
    if room.rng.random() < 0.6:
        data = mutate_bytes(room.rng, data)
    codec = room.rng.choice(("", "", *_CODECS))
    if codec:
        data = _CODECS[codec](data)
        if room.rng.random() < 0.5:
            data = mutate_bytes(room.rng, data)
    # At times a name that says something else.
    suffix = room.rng.choice((form, form, form, "parquet", "arrow", "jsonl"))
    path = room.folder / f"in.{suffix}{codec and '.' + codec}"
    path.write_bytes(data)
    room.notes[-1] = path.name
    _pack(room, path)


def _table_file(room: Room) -> None:
    """Parquet or Arrow, with columns of other types and damaged bytes."""
    flow = room.rng.choice(tuple(room.kit.works))
    work = room.kit.works[flow]
    source = shutil.copytree(work.source, room.folder / "in")
    path = room.rng.choice([path for path in sorted(source.rglob("*")) if path.is_file()])
    if path.suffix == ".parquet":
        table = pq.read_table(path)
        if room.rng.random() < 0.6:
            table = _retyped(room, table)
        sink = io.BytesIO()
        if room.rng.random() < 0.15:
            with pa.ipc.new_file(sink, table.schema) as writer:
                writer.write_table(table)
        else:
            pq.write_table(
                table, sink, compression=room.rng.choice(("zstd", "snappy", "gzip", "none", "lz4", "brotli"))
            )
        data = sink.getvalue()
    else:
        data = path.read_bytes()
    path.write_bytes(mutate_bytes(room.rng, data) if room.rng.random() < 0.7 else data)
    room.notes[-1] = f"{flow} {path.name}"
    raw = work.workload.raw(source, room.folder / "out")
    _run(room, work.flow, {**raw, "max_reject_fraction": 1})


def _retyped(room: Room, table: pa.Table) -> pa.Table:
    """A column becomes another, goes, or comes twice."""
    at = room.rng.randrange(table.num_columns)
    name = table.column_names[at]
    columns = [
        pa.nulls(len(table)),
        pa.array([b"\xff\xfe"] * len(table), pa.binary()),
        pa.array([[["deep"]]] * len(table)),
        pa.array([{"a": None}] * len(table)),
        pa.array([2**62] * len(table), pa.int64()),
        pa.array([float("nan")] * len(table)),
        pa.array(["x"] * len(table)).dictionary_encode(),
        pa.array([True] * len(table)),
        pa.array([0] * len(table), pa.timestamp("ns", "Europe/Berlin")),
        pa.array([-(2**40)] * len(table), pa.duration("s")),
        pa.array(["1.5"] * len(table)).cast(pa.decimal128(38, 9)),
        pa.array(["y" * 100_000] * len(table), pa.large_string()),
    ]
    choice = room.rng.randrange(len(columns) + 3)
    if choice < len(columns):
        return table.set_column(at, name, columns[choice])
    if choice == len(columns):
        return table.drop_columns([name])
    if choice == len(columns) + 1:
        return table.append_column(name, table.column(at))
    return table.slice(0, 0)


_NAMES = ("b.jsonl", "b.jsonl.gz", "b.parquet", "b.csv", ".hidden.jsonl", "b\n.jsonl", "ü.jsonl")


def _special_input(room: Room) -> None:
    """No file at all: folders, links, devices, pipes."""
    folder = room.folder / "in"
    folder.mkdir()
    (folder / "a.jsonl").write_text(json.dumps(chat("question", "answer")))
    odd = folder / room.rng.choice(_NAMES)
    makers = {
        "fifo": lambda: os.mkfifo(odd),
        "folder": odd.mkdir,
        "loop": lambda: odd.symlink_to(odd),
        "link to itself above": lambda: odd.symlink_to(folder),
        "broken": lambda: odd.symlink_to("nowhere"),
        "device": lambda: odd.symlink_to("/dev/zero"),
        "endless": lambda: odd.symlink_to("/dev/urandom"),
        "nothing": lambda: odd.write_bytes(b""),
        "blank": lambda: odd.write_bytes(b"\n" * 200_000),
        "bomb": lambda: odd.with_name("b.jsonl.gz").write_bytes(gzip.compress(b"\n" * 30_000_000)),
        "spaces": lambda: odd.with_name("b.jsonl").write_text(json.dumps(chat(" " * 3_000_000, "a"))),
        "deep": lambda: odd.with_name("b.jsonl").write_text("[" * 100_000),
        "long": lambda: odd.with_name("b.jsonl").write_text(json.dumps(chat("a", "x" * 2_000_000))),
        "long name": lambda: (folder / ("n" * 240 + ".jsonl")).write_text(json.dumps(chat("q", "a"))),
    }
    name = room.rng.choice(sorted(makers))
    room.notes[-1] = f"{name} {odd.name!r}"
    makers[name]()
    given = room.rng.choice((folder, folder / "*", odd, f"{folder}/**/*"))
    _pack(room, Path(given))


def _config(room: Room) -> None:
    """A field that is anything; or text that is no configuration."""
    flow = room.rng.choice(tuple(room.kit.works))
    work = room.kit.works[flow]
    out = room.folder / "out"
    raw = work.raw(out)
    if room.rng.random() < 0.7:
        mutated = mutate_value(room.rng, {key: value for key, value in raw.items() if key != "output_dir"})
        text = json.dumps({**mutated, "output_dir": str(out)} if isinstance(mutated, dict) else mutated)
    else:
        text = room.rng.choice(_no_configuration(json.dumps(raw)))
    path = room.folder / "text.yaml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    if room.rng.random() < 0.1:
        path.write_bytes(mutate_bytes(room.rng, path.read_bytes()))
    if room.rng.random() < 0.04:
        path = room.rng.choice(
            (Path("/dev/zero"), Path("/dev/null"), room.folder, Path("/proc/self/mem"), Path("x" * 300))
        )
    given = room.rng.choice((*_OPTIONS, ("--output-dir", f"{out}/{'n' * 300}"), ("--output-dir", str(path))))
    options = [option for option in given if option]
    room.notes[-1] = f"{flow} {path.name} {options}"
    room.judged(room.run(work.flow, path, *options, fault=lambda: os.chdir(room.folder)))


_OPTIONS = (
    (),
    (),
    ("--set", "pack.size=1:00"),
    ("--set", "=" * 9),
    ("--workers", "0"),
    ("--set", f"workers={'9' * 400}"),
    ("--set", "a.b.c.d[0]=1"),
    ("--set", "datasets[99999999].name=a"),
)


def _no_configuration(good: str) -> tuple[str, ...]:
    """Texts that are not one, or not as they seem; YAML is a big language."""
    doubling = "a: &a [x, x]\nb0: &b0 [*a, *a]\n"
    doubling += "".join(f"b{n}: &b{n} [*b{n - 1}, *b{n - 1}]\n" for n in range(1, 40))
    values = (f'"workers": {"9" * 5000}', '"seed": .inf', '"seed": 1e999', '"workers": 2, "workers": 3')
    return (
        *("", "\0", "a: &a [*a]", "- - - -", "{" * 3000, "[" * 9000, "<<: {<<: {}}\n", "? [a, b]\n: c\n"),
        *(
            "!!python/object/apply:os.system ['true']",
            "2020-99-99",
            "!!binary abc",
            doubling,
            "\ufeff" + good,
        ),
        *(
            good[: len(good) // 2],
            good + good,
            good.replace(":", " :\t", 1),
            good * 2000,
            good + "\x85\u2028",
        ),
        *(f"{good[:-1]}, {value}}}" for value in (*values, '"workers": 1:00:00')),
        f"%YAML 9.9\n---\n{good}",
    )


def _template(room: Room) -> None:
    """A template that wants all time or memory, as it is or changed."""
    every = [*hostile_templates.BUDGET, *hostile_templates.ERROR, *hostile_templates.BAD]
    source = every[(room.number // len(_KINDS)) % len(every)]
    if room.rng.random() < 0.5:
        source = mutate_bytes(room.rng, source[:70_000].encode()).decode(errors="replace")
    room.notes[-1] = source[:300]
    path = room.folder / "template.jinja"
    path.write_text(source)
    rows = [chat("a", "b" * 20_000), chat("c", "d")]
    tokenizer = {"path": str(TOKENIZER), "chat_template": str(path)}
    _pack(room, workloads_jsonl(room.folder / "in.jsonl", rows), tokenizer=tokenizer)


def _tokenizer(room: Room) -> None:
    """A folder whose files are damaged, or say something else."""
    folder = shutil.copytree(TOKENIZER, room.folder / "tokenizer")
    path = room.rng.choice(sorted(path for path in folder.iterdir() if path.is_file()))
    how = room.rng.random()
    if how < 0.55 and path.suffix == ".json":
        value = json.loads(path.read_bytes())
        for _ in range(room.rng.choice((1, 1, 3))):
            value = mutate_value(room.rng, value)
        path.write_text(json.dumps(value))
    elif how < 0.9:
        path.write_bytes(mutate_bytes(room.rng, path.read_bytes()))
    else:
        path.unlink()
        room.rng.choice(
            (path.mkdir, lambda: os.mkfifo(path), lambda: path.symlink_to("/dev/zero"), lambda: None)
        )()
    room.notes[-1] = path.name
    rows = [chat("question", "answer é数🙂"), chat("", "x " * 900)]
    _pack(room, workloads_jsonl(room.folder / "in.jsonl", rows), tokenizer={"path": str(folder)})


def _receipt(room: Room) -> None:
    """A receipt that says something else, in a folder whose run is gone, so that it is read."""
    work = room.kit.work(room.number)
    out = workloads.clone(work.base, room.folder / "out")
    shutil.rmtree(out / "runs")
    (out / "latest").unlink()
    path = room.rng.choice(sorted(out.glob("stages/*/receipts/*.json")))
    room.notes[-1] = _mutate_json(room, path)
    room.judged(work.run(room, out))
    room.judged(work.run(room, out, "--verify", "sha256"))


def _manifest(room: Room) -> None:
    """A manifest that says something else, read by each command that reads one."""
    work = room.kit.work(room.number)
    out = workloads.clone(work.base, room.folder / "out")
    room.notes[-1] = _mutate_json(room, (out / "latest" / "manifest.json").resolve())
    for command in (
        ("validate", out),
        ("runs", out),
        ("inspect", out),
        ("inspect", out, "--rows", "1"),
        ("prune", out),
    ):
        if command[0] == "validate" or room.rng.random() < 0.4:
            room.judged(room.run(*command))
    ended = room.judged(work.run(room, out, "--verify", "sha256"))
    if ended.ok:
        work.check_whole(room, out)


def _mutate_json(room: Room, path: Path) -> str:
    before = json.loads(path.read_bytes())
    after = mutate_value(room.rng, before)
    path.write_text(json.dumps(after))
    return f"{path.name}: {json.dumps(after)[:80]}"


def workloads_jsonl(path: Path, rows: list[Any]) -> Path:
    """Write rows as JSON lines."""
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def _texts(form: str, rows: list[Any]) -> bytes:
    if form == "jsonl":
        return "".join(f"{json.dumps(row)}\n" for row in rows).encode()
    if form == "json":
        return json.dumps(rows, ensure_ascii=False).encode()
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["messages", "note"])
    writer.writerows([json.dumps(row["messages"]), 'a\n"b'] for row in rows)
    return text.getvalue().encode()


def _zstd(data: bytes) -> bytes:
    return bytes(pa.compress(data, "zstd", asbytes=True))


_CODECS = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "zst": _zstd}
_KINDS = (
    ("text file", _text_file),
    ("config", _config),
    ("table file", _table_file),
    ("tokenizer", _tokenizer),
    ("text file", _text_file),
    ("special input", _special_input),
    ("manifest", _manifest),
    ("config", _config),
    ("template", _template),
    ("table file", _table_file),
    ("receipt", _receipt),
)
