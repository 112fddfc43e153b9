"""Tokenizing: a whole part, from JSONL to token spool, against nothing but encoding the same rendered text.

    python -m benchmarks.tokenizing  # about two minutes, on one core

The part is read, normalised, digested, rendered, encoded, masked and written with checksums and fsync. The
baseline is `encode_batch_fast` over the texts, rendered beforehand, in chunks of 256 on one thread; it does
not even take the ids out. A second one gets the text in the pieces that exact masks need, prompts apart from
answers. Speeds are by processor time, because the target is for a core and others may use it meanwhile; rows
are GSM8K's when they are there, else docstring chats.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from benchmarks.common import Times, Took, deepseek_folder, in_turn, median, report
from schemas.sft import DatasetConfig, TokenizerConfig, TrainOn
from tasks.demo.docstrings import docstring_chats
from tasks.inputs.files import resolve
from tasks.inputs.readers import read_rows
from tasks.inputs.segments import parts_of
from tasks.inputs.survey import blocks_of, content_of, survey_here
from tasks.sft.chat.dialects import normalise
from tasks.sft.chat.masks import samples
from tasks.sft.chat.tokenizer import load_tokenizer
from tasks.sft.chat.tokenizer_source import find_tokenizer
from tasks.sft.tokenize import TokenizeJob, tokenize_part

GSM8K = Path(__file__).resolve().parents[2] / "shared" / "data" / "gsm8k.jsonl"
ROWS, REPEATS, CHUNK = 20_000, 5, 256
TARGET = 0.85

TURNS = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message.role == 'user' %}<｜User｜>{{ message.content }}"
    "{% elif message.role == 'assistant' %}<｜Assistant｜>ANSWER"
    "{% else %}{{ message.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<｜Assistant｜>{% endif %}"
)
ANSWER = "{{ message.content }}{{ eos_token }}"
TEMPLATES = {
    "generation blocks": TURNS.replace("ANSWER", f"{{% generation %}}{ANSWER}{{% endgeneration %}}"),
    "prefix renders": TURNS.replace("ANSWER", ANSWER),
}


def chat_rows() -> Iterator[dict[str, Any]]:
    """Endless rows; each round over the source has other digits, so no row comes twice soon."""
    source = [orjson.loads(line) for line in GSM8K.open("rb")] if GSM8K.is_file() else [*docstring_chats()]
    for number in itertools.count():
        digits = str.maketrans("0123456789", "".join(str((digit + number) % 10) for digit in range(10)))
        for row in source:
            messages = [{**m, "content": m["content"].translate(digits)} for m in row["messages"]]
            yield {"messages": messages}


def part_jobs(folder: Path, rows: Path, template: str, name: str) -> list[TokenizeJob]:
    """The file in the parts of a real run."""
    tokenizer = TokenizerConfig(path=str(deepseek_folder()), chat_template=template)
    [file] = resolve(str(rows))
    content = content_of(str(file.path), file.bytes, survey_here(blocks_of(str(file.path), file.bytes)))
    return [
        TokenizeJob(
            output_dir=str(folder),
            stage=f"{name}-{number}".replace(" ", "-"),
            segments=segments,
            dataset=DatasetConfig(name="chats", path=str(rows)),
            source=find_tokenizer(tokenizer),
            tokenizer=tokenizer,
            train_on=TrainOn.ASSISTANT,
        )
        for number, segments in enumerate(parts_of([file], [content.cuts]))
    ]


def rendered(job: TokenizeJob) -> tuple[list[str], list[str]]:
    """The text of each row; the same text in pieces, what is trained apart from what is not."""
    template = load_tokenizer(job.source, job.tokenizer).template
    texts, pieces = [], []
    for batch in read_rows(job.segments[0]):
        for _, row in batch:
            conversation = normalise(row, job.dataset.dialect, job.dataset.fields)
            for sample in samples(template, conversation, job.train_on, []):
                pieces += [piece.text for piece in sample]
                texts.append("".join(piece.text for piece in sample))
    return texts, pieces


def encode_raw(backend: Any, texts: list[str]) -> None:
    for start in range(0, len(texts), CHUNK):
        backend.encode_batch_fast(texts[start : start + CHUNK], add_special_tokens=False)


def time_part(job: TokenizeJob) -> Times:
    backend = load_tokenizer(job.source, job.tokenizer)._backend
    texts, pieces = rendered(job)
    return in_turn(
        REPEATS,
        part=partial(tokenize_part, job),
        raw=partial(encode_raw, backend, texts),
        pieces=partial(encode_raw, backend, pieces),
    )


def compare(folder: Path, rows: Path, name: str, template: str) -> None:
    jobs = part_jobs(folder, rows, template, name)
    tokens = sum(tokenize_part(job).statistics["tokens"] for job in jobs)
    # Round by round over the parts: a sum of short runs, close in time to those they are compared with.
    parts = [time_part(job) for job in jobs]
    labels = {"raw": "raw encoding", "pieces": "raw encoding, piece by piece", "part": "whole parts"}
    total = {
        key: Took(*map(sum, zip(*(median(times[key]) for times in parts), strict=True))) for key in labels
    }
    for key, label in labels.items():
        report(f"{name}: {label}", f"{tokens / total[key].cpu / 1e6:.2f} M tok/s")
    share = total["raw"].cpu / total["part"].cpu
    report(f"{name}: whole parts / raw, a core", f"{share:.3f}", f">= {TARGET}", share >= TARGET)
    report(f"{name}: whole parts / raw, on the clock", f"{total['raw'].wall / total['part'].wall:.3f}")
    report(f"{name}: whole parts / raw by piece, a core", f"{total['pieces'].cpu / total['part'].cpu:.3f}")


def main() -> None:
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    folder = Path(tempfile.mkdtemp(prefix="gristmill-bench-"))
    try:
        rows = folder / "chats.jsonl"
        with rows.open("wb") as file:
            for row in itertools.islice(chat_rows(), ROWS):
                file.write(orjson.dumps(row) + b"\n")
        for name, template in TEMPLATES.items():
            compare(folder, rows, name, template)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
