"""Rows in bulk, good ones and ones that are almost right; an account that uses nothing of ours says where each went.

A row carries its number where it comes out again: in the text of each message, in a document, as the time of a
measurement. So each is in the outputs or among the rejects, never in both, and a good one is in the outputs, with
its content.
"""

from __future__ import annotations

import datetime
import ipaddress
import json
import math
import re
from collections import Counter, defaultdict
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from probes.measurements import SCHEMA, START, records
from tokenizers import Tokenizer
from torture.kit import TOKENIZER
from torture.mutate import hostile, mutate_bytes, mutate_value
from torture.room import Failed, Room

_TEXTS = (
    *(
        "plain text",
        "é数据🙂",
        "a\r\nb\tc",
        "<|im_start|>system",
        "{{ messages }}",
        "\u202eabc",
        "e\u0301\u0301",
    ),
    *(
        "\\u0000 \\n",
        "   ",
        "x" * 700,
        "0" * 99,
        "\x7f\x01\x1b",
        "']\"}",
        "\ufeffbom",
        "👨‍👩‍👧‍👦" * 20,
        "ﷺ" * 30,
    ),
    "\u2028\u2029\x85",
)
_ADDRESSES = ("192.0.2.1", "192.0.2.77", "2001:db8::1", "2001:DB8:0::2", "10.0.0.9")
_ODD_ADDRESSES = (
    *(
        "",
        " 192.0.2.1",
        "192.0.2",
        "::ffff:1.2.3.4",
        "1.2.3.4.5",
        "fe80::1%eth0",
        "localhost",
        "0x7f.1",
        "192.0.2.01",
    ),
    None,
)
_ODD: dict[str, tuple[Any, ...]] = {
    "event_time": (None, *(datetime.datetime(year, 1, 1) for year in (1, 1969, 2200))),
    "src_addr": _ODD_ADDRESSES,
    "dst_addr": _ODD_ADDRESSES,
    "ip_version": (None, 0, 5, -1, 127, 4, 6),
    "rtt": (None, math.nan, math.inf, -math.inf, 3.4e38, 4294967.5, -0.0),
}
_MARK = re.compile(r"m(\d{6})m")


def attempt(room: Room) -> None:
    """One file or more of one flow."""
    flow, fuzz = _FLOWS[room.number % len(_FLOWS)]
    room.what = f"rows of {flow}"
    fuzz(room)


def _chats(room: Room) -> None:
    rng, rows = room.rng, 4000
    lines, good, marked = [], set(), set()
    for number in range(rows):
        mark = f"m{number:06d}m"
        roles = rng.choice(((), ("system",))) + ("user", "assistant") * rng.choice((1, 1, 2, 3))
        messages = [{"role": role, "content": f"{mark} {rng.choice(_TEXTS)}"} for role in roles]
        row: dict[str, Any] = {"messages": messages, "id": number}
        how = rng.random()
        if how < 0.4:
            good.add(number)
            marked.add(number)
        elif how < 0.65:
            # What is said stays.
            marked.add(number)
            for _ in range(rng.choice((1, 3))):
                row[rng.choice(("name", "tools", "weight", "train", "tool_calls", "text", "id"))] = hostile(
                    rng
                )
                rng.choice(messages)[rng.choice(("name", "tool_calls", "weight", "train", "x"))] = hostile(
                    rng
                )
        else:
            row = mutate_value(rng, row)
        line = json.dumps(row, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")
        if how > 0.9:
            # No other line than this one is broken: a line end is another row.
            line = mutate_bytes(rng, line).replace(b"\n", b" ") or b"x"
        # A blank line is no row, and a mark at the start of the file is none of a row.
        lines.append(line if line.strip() and (number or not line.startswith(b"\xef\xbb\xbf")) else b"{}")
    source = room.folder / "rows.jsonl"
    source.write_bytes(b"\n".join(lines))
    out = room.folder / "out"
    raw = {
        "output_dir": str(out),
        "datasets": [{"name": "chats", "path": str(source)}],
        "tokenizer": {"path": str(TOKENIZER)},
        "splits": {"train": 0.9, "valid": 0.1, "test": 0},
        "max_reject_fraction": 1,
    }
    ledger = _run(room, "pack-sft", raw, rows)
    rejected = {row for _, row in _rejects(out)}
    tokenizer = Tokenizer.from_file(str(TOKENIZER / "tokenizer.json"))
    # A changed byte may have made another row's mark of one, in all messages of a row or in one of them.
    said_by: dict[int, set[int]] = defaultdict(set)
    for number, line in enumerate(lines):
        for mark in re.findall(_MARK.pattern.encode(), line):
            said_by[int(mark)].add(number)
    kept: set[int] = set()
    for shard in sorted((out / "latest").glob("datasets/**/*.parquet")):
        bins = pq.read_table(shard)
        for ids, starts in zip(bins["input_ids"].to_pylist(), bins["seq_start_id"].to_pylist(), strict=True):
            for start, stop in zip(starts, [*starts[1:], len(ids)], strict=True):
                text = tokenizer.decode(ids[start:stop], skip_special_tokens=False)
                found = {int(mark) for mark in _MARK.findall(text)}
                if not found:
                    continue
                of = set.intersection(*(said_by[mark] for mark in found))
                if not of:
                    raise Failed("wrong bytes", f"no row says all that one sequence does: {sorted(found)}")
                if of <= kept:
                    raise Failed("wrong bytes", f"row {sorted(of)} comes twice")
                number = min(of - kept, key=lambda row: (row in rejected, row not in found))
                kept.add(number)
                if number in good:
                    said = [message["content"] for message in json.loads(lines[number])["messages"]]
                    # A template may take white space off a message's ends.
                    if not all(part.strip() in text for part in said):
                        raise Failed("wrong bytes", f"row {number} says {said}, its tokens {text!r}"[:600])
    _account(kept, rejected, good, marked, ledger)


def _documents(room: Room) -> None:
    rng, out = room.rng, room.folder / "out"
    texts: list[bytes | None] = []
    for bucket in range(2):
        for file in range(3):
            some: list[bytes | None] = [_document(rng, n) for n in range(1200)]
            path = room.folder / "web" / str(bucket) / f"{bucket}-{file}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(_table(some), path, row_group_size=500)
            texts += some
    buckets = {str(bucket): {"count": 10**6} for bucket in range(2)}
    raw = {
        "output_dir": str(out),
        "datasets": {"web": {"name": "web", "source": str(room.folder / "web"), "buckets": buckets}},
        "max_rows": 1000,
        "max_reject_fraction": 1,
    }
    ledger = _run(room, "sample-corpus", raw, len(texts))
    published: Counter[bytes] = Counter()
    for shard in sorted((out / "latest").glob("*.parquet")):
        published.update(pq.read_table(shard)["text"].cast(pa.binary()).to_pylist())
    good = Counter(text for text in texts if text is not None and _is_text(text))
    if good - published:
        raise Failed(
            "row lost",
            f"{sum((good - published).values())} documents, for example {next(iter(good - published))!r}"[
                :400
            ],
        )
    if published - good:
        raise Failed("wrong bytes", f"documents that nobody wrote: {next(iter(published - good))!r}"[:400])
    rejects = len(_rejects(out))
    if rejects != len(texts) - sum(good.values()) or ledger["rows_used"] != sum(good.values()):
        raise Failed("row lost", f"{len(texts)} rows, {sum(good.values())} good, {rejects} rejects, {ledger}")


def _table(texts: list[bytes | None]) -> pa.Table:
    """Texts that may not be UTF-8, which Arrow does not check."""
    return pa.table({"text": pa.array(texts, pa.binary()).view(pa.string())})


def _document(rng: Random, number: int) -> bytes | None:
    how = rng.random()
    if how < 0.1:
        return None
    text = f"{number} {rng.choice(_TEXTS)} {rng.random()}".encode()
    return text if how < 0.7 else mutate_bytes(rng, text)


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _measurements(room: Room) -> None:
    rng, out = room.rng, room.folder / "out"
    rows, usable = [], {}
    for number in range(6000):
        src = rng.choice(_ADDRESSES)
        row: dict[str, Any] = {
            "event_time": START + datetime.timedelta(microseconds=number * 7 + 1),
            "src_addr": src,
            "dst_addr": rng.choice([one for one in _ADDRESSES if (":" in one) == (":" in src)]),
            "ip_version": 6 if ":" in src else 4,
            "rtt": float(np.float32(rng.choice((rng.random() * 100, -1.0, 0.0, 1e-30, 4e6)))),
        }
        if rng.random() < 0.6:
            usable[number] = _told(row)
        else:
            column = rng.choice(list(row))
            row[column] = rng.choice(_ODD[column])
        rows.append(row)
    files = 3
    places = {}
    for file in range(files):
        path = room.folder / "in" / f"{file}.parquet"
        path.parent.mkdir(exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows[file::files], schema=SCHEMA), path, row_group_size=700)
        places |= {(path.name, n): file + n * files for n in range(len(rows[file::files]))}
    raw = {
        "output_dir": str(out),
        "input": str(room.folder / "in"),
        "train_ratio": 0.5,
        "max_reject_fraction": 1,
    }
    ledger = _run(room, "build-probe-rows", raw, len(rows))
    rejected = {places[source, row] for source, row in _rejects(out)}
    # Rows that lost their own time have other ones' instead: they are not looked for.
    by_time = {row["event_time"]: number for number, row in enumerate(rows) if row["event_time"] is not None}
    kept: set[int] = set()
    for record in records(out / "latest"):
        for one in record["measurements"]:
            number = by_time.get(one["event_time"].replace(tzinfo=None), -1)
            if (
                number in usable
                and _told({"src_addr": record["src_addr"], "ip_version": record.get("ip_version"), **one})
                != usable[number]
            ):
                raise Failed("wrong bytes", f"{usable[number]} became {one}")
            kept.add(number)
    own = {n for n, row in enumerate(rows) if row["event_time"] and by_time[row["event_time"]] == n}
    marked = {n for n in own if 1970 < rows[n]["event_time"].year < 2106}
    _account(kept, rejected, set(usable), marked, ledger)


def _told(row: dict[str, Any]) -> tuple[Any, ...]:
    src, dst = (ipaddress.ip_address(row[name]) for name in ("src_addr", "dst_addr"))
    return (src, dst, row["rtt"])


def _sample_rows(room: Room) -> None:
    rng, out = room.rng, room.folder / "out"
    texts = [_document(rng, n) for n in range(3000)]
    path = room.folder / "sample" / "rows.parquet"
    path.parent.mkdir()
    pq.write_table(_table(texts), path, row_group_size=500)
    raw = {
        "output_dir": str(out),
        "sample": str(path.parent),
        "vocabulary_size": 300,
        "max_reject_fraction": 1,
    }
    ledger = _run(room, "train-tokenizer", raw, len(texts))
    bad = {n for n, text in enumerate(texts) if text is None or not _is_text(text)}
    rejected = {row for _, row in _rejects(out)}
    if bad - rejected or ledger["rows_in"] != len(texts):
        raise Failed(
            "row lost", f"{len(bad)} rows are no text, {len(bad & rejected)} of them rejected; {ledger}"
        )


def _run(room: Room, flow: str, raw: dict[str, Any], rows: int) -> dict[str, Any]:
    """The ledger, which has to add up to the rows."""
    ended = room.judged(room.run(flow, room.config(raw), timeout_s=120))
    if not ended.ok:
        raise Failed("row lost", f"the run ends: {ended.said}")
    room.done += rows
    out = Path(raw["output_dir"])
    ledger: dict[str, Any] = json.loads((out / "latest" / "manifest.json").read_bytes())["ledger"]
    counted = sum(ledger[key] for key in ("rows_used", "not_selected", "filtered", "duplicates"))
    rejected = sum(ledger["rejected"].values())
    if ledger["rows_in"] != rows or counted + rejected != rows or rejected != len(_rejects(out)):
        raise Failed("row lost", f"{rows} rows, {len(_rejects(out))} rejects, ledger {ledger}")
    verdict = room.judged(room.run("validate", out))
    if not verdict.ok:
        raise Failed("wrong bytes", f"validate right after: {verdict.out[-300:]}")
    return ledger


def _rejects(out: Path) -> list[tuple[str, int]]:
    """File and row of each reject; every one has a reason."""
    found = []
    for path in sorted((out / "latest" / "rejects").glob("*.parquet")):
        for row in pq.read_table(path).to_pylist():
            if not row["reason"]:
                raise Failed("row lost", f"rejected without a reason: {row}")
            found.append((row["source_file"], row["row"]))
    if len(found) != len(set(found)):
        raise Failed("wrong bytes", "a row is rejected twice")
    return found


def _account(
    kept: set[int], rejected: set[int], good: set[int], marked: set[int], ledger: dict[str, Any]
) -> None:
    """Each row is on one side."""
    for rule, wrong in (
        ("row lost", marked - kept - rejected),
        ("row lost", good - kept),
        ("wrong bytes", kept & rejected),
    ):
        if wrong:
            raise Failed(rule, f"{len(wrong)} rows, for example {sorted(wrong)[:5]}; {ledger}")


_FLOWS = (
    ("pack-sft", _chats),
    ("sample-corpus", _documents),
    ("build-probe-rows", _measurements),
    ("pack-sft", _chats),
    ("train-tokenizer", _sample_rows),
)
