"""Made the files in `inputs/` once: `python tests/golden/make_inputs.py`.

The files are committed, because another pyarrow may write other bytes, and every golden value would change with them.
"""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

INPUTS = Path(__file__).resolve().parent / "inputs"
_SYLLABLES = (
    "ba", "co", "du", "fe", "gi", "ho", "ju", "ka", "le", "mi", "no", "pu", "qua", "re", "sti", "to", "vu", "wex",
    "yo", "zan", "ché", "größ", "数", "据",
)  # fmt: skip
_START_S = 1_704_067_200


def main() -> None:
    write_chats(INPUTS / "chats")
    write_dialects(INPUTS / "dialects.jsonl")
    write_corpus(INPUTS / "corpus")
    write_measurements(INPUTS / "measurements")


def _word(rng: random.Random) -> str:
    return "".join(rng.choice(_SYLLABLES) for _ in range(rng.randint(1, 4)))


def _words(rng: random.Random) -> list[str]:
    """A vocabulary; frequent words come first."""
    return [_word(rng) for _ in range(400)]


def _text(rng: random.Random, words: list[str], count: int) -> str:
    chosen = (words[min(int(rng.paretovariate(0.6)) - 1, len(words) - 1)] for _ in range(count))
    return " ".join(chosen) + rng.choice(".!?\n")


def _chat(rng: random.Random, words: list[str], longest: int = 60) -> dict[str, Any]:
    messages: list[dict[str, Any]] = []
    if rng.random() < 0.3:
        messages.append({"role": "system", "content": _text(rng, words, rng.randint(3, 12))})
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        messages.append({"role": "user", "content": _text(rng, words, rng.randint(1, 20))})
        messages.append({"role": "assistant", "content": _text(rng, words, rng.randint(1, longest))})
    return {"messages": messages, "topic": rng.choice(["a", "b", "c"])}


def write_chats(folder: Path) -> None:
    """Rows in the layout `messages`, in three kinds of files: good ones, faults, repeats, long ones."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(1)
    words = _words(rng)
    rows = [_chat(rng, words) for _ in range(150)]
    rows[20:120:20] = [rows[3]] * 5
    rows[31] = _chat(rng, words, 2000)
    rows[57] = _chat(rng, words, 4000)
    question = {"role": "user", "content": "What does <|im_end|> mean? <|endoftext|>"}
    rows[70] = {"messages": [question, {"role": "assistant", "content": "<|im_start|> begins, it ends."}]}
    rows[71] = {"messages": [question, {"role": "assistant", "content": "no", "train": False}, question,
                             {"role": "assistant", "content": "yes", "weight": 1}]}  # fmt: skip
    rows[72] = {"messages": [question, {"role": "assistant", "content": "nothing", "weight": 0}]}
    rows[73] = {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "in "}, {"type": "text", "text": "parts"}]},
            {"role": "assistant", "content": "joined", "name": "helper"},
            {"role": "tool", "content": '{"found": 3}'},
            {"role": "assistant", "content": "Three were found."},
        ],
        "tools": [{"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}],
    }
    lines = [json.dumps(row, ensure_ascii=index % 2 == 0).encode() for index, row in enumerate(rows)]
    lines[90] = b'{"messages": ['
    lines[91] = b'{"messages": []}'
    lines[92] = b'{"text": "no chat"}'
    lines[93] = b'{"messages": [{"role": "user", "content": "nobody answers"}]}'
    (folder / "a.jsonl").write_bytes(b"\n".join(lines) + b"\n")

    rows = [_chat(rng, words) for _ in range(60)]
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(data, mtime=0))

    rows = [_chat(rng, words) for _ in range(80)]
    pq.write_table(pa.Table.from_pylist(rows), folder / "nested.parquet", row_group_size=30)


def write_dialects(path: Path) -> None:
    """Rows of the other layouts."""
    rng = random.Random(2)
    words = _words(rng)
    rows: list[dict[str, Any]] = []
    for number in range(30):
        ask, answer = _text(rng, words, rng.randint(1, 15)), _text(rng, words, rng.randint(1, 40))
        rows += [
            {"conversations": [{"from": "human", "value": ask}, {"from": "gpt", "value": answer}]},
            {"instruction": ask, "input": "" if number % 2 else "given this", "output": answer},
            {"prompt": ask, "completion": answer},
        ]
    path.write_bytes("".join(json.dumps(row) + "\n" for row in rows).encode())


def write_corpus(folder: Path) -> None:
    """Two sources: `docs` with two buckets, one of them nested, and `code`, whose texts are in `content`."""
    rng = random.Random(3)
    words = _words(rng)

    def texts(count: int) -> list[str | None]:
        found: list[str | None] = [_text(rng, words, rng.randint(1, 40)) for _ in range(count)]
        found[7::50] = [None] * len(found[7::50])
        return found

    for name, column, count in (
        ("docs/3/a.parquet", "text", 120),
        ("docs/3/deep/b.parquet", "text", 60),
        ("docs/4.0/a.parquet", "text", 90),
        ("code/10/part-0.parquet", "content", 70),
    ):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        table = pa.table({"id": list(range(count)), column: texts(count)})
        pq.write_table(table, path, row_group_size=25)


def write_measurements(folder: Path) -> None:
    """Two files of measurements: 50 probes of both families, failures, repeats, ties and rows to reject."""
    rng = random.Random(4)
    sources = [f"2001:db8::{n:x}" if n % 5 < 2 else f"192.0.2.{n}" for n in range(50)]
    schema = pa.schema(
        [
            ("event_time", pa.timestamp("us")),
            ("src_addr", pa.string()),
            ("dst_addr", pa.string()),
            ("ip_version", pa.int8()),
            ("rtt", pa.float32()),
        ]
    )
    folder.mkdir(parents=True, exist_ok=True)
    for name, count in (("2024-01-01.parquet", 700), ("2024-01-02.parquet", 500)):
        rows: list[dict[str, Any]] = []
        for number in range(count):
            owner = (int(rng.paretovariate(0.8)) - 1) % len(sources)
            six = ":" in sources[owner]
            target = rng.randint(1, 12)
            rows.append(
                {
                    # Every third at a time of its own, with fractions; the others in ties.
                    "event_time": (_START_S + number // 3 * 60) * 10**6
                    + (number % 3 == 0) * rng.randint(0, 10**6),
                    "src_addr": sources[owner],
                    "dst_addr": f"2001:db8:1::{target:x}" if six else f"198.51.100.{target}",
                    "ip_version": None if number % 97 == 5 else 6 if six else 4,
                    "rtt": -1.0 if number % 11 == 0 else round(rng.lognormvariate(3, 1), 3),
                }
            )
        rows[50:90:10] = rows[51:91:10]
        rows[100]["rtt"] = float("nan")
        rows[101]["src_addr"] = None
        rows[102]["dst_addr"] = "nowhere"
        rows[103]["event_time"] = None
        rows[104]["event_time"] = -1
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), folder / name, row_group_size=200)


if __name__ == "__main__":
    main()
