"""Turn rows into a token spool: read, filter, normalise, render, encode, and account for every row."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import orjson
from numpy.typing import NDArray

from schemas.canonical import canonical_json
from schemas.run import Receipt, RowLedger
from schemas.sft import MAX_ROW_BYTES, DatasetConfig, TokenizerConfig, TrainOn
from tasks.inputs.readers import BATCH_BYTES, RowFault, read_rows
from tasks.inputs.segments import Segment
from tasks.packing.arrays import owners, ranges
from tasks.run.contract import Job
from tasks.run.rejects import REJECTS, RejectWriter, RowRejected
from tasks.sft.chat.dialects import Conversation, normalise
from tasks.sft.chat.flags import empty_answers
from tasks.sft.chat.masks import Sample, samples
from tasks.sft.chat.tokenizer import ChatTokenizer, Encoded, TokenizerFailed, load_tokenizer
from tasks.sft.chat.tokenizer_source import TokenizerSource
from tasks.sft.order.spool import Rows, TokenSpoolWriter


@dataclass(frozen=True, kw_only=True)
class TokenizeJob(Job):
    """One part of one data set.

    Attributes:
        output_dir: root of the run layout.
        stage: stage hash of this part; each part has its own stage, so that a new file only affects the parts
            that contain it, and its receipt is always number 0 there.
        segments: pieces of input files, read in this order.
        dataset: dialect, field names and row filter.
        source, tokenizer: the tokenizer and its settings.
        train_on: which tokens carry loss.
        drop_empty: reject conversations with an empty assistant turn.
        max_row_bytes: reject conversations of more bytes.
        seen: what the input files looked like when they were hashed.
    """

    task: ClassVar[str] = "tokenize"
    segments: tuple[Segment, ...]
    dataset: DatasetConfig
    source: TokenizerSource
    tokenizer: TokenizerConfig
    train_on: TrainOn
    drop_empty: bool = False
    max_row_bytes: int = MAX_ROW_BYTES

    @property
    def weight(self) -> int:
        """See `Job.weight`."""
        return sum(segment.bytes for segment in self.segments)


def tokenize_part(job: TokenizeJob) -> Receipt:
    """Tokenize one part into a spool in its stage folder.

    Raises:
        InputError: an input file is unreadable or truncated.
        StorageError: the spool cannot be written.
    """
    root = job.root
    folder = job.folder
    tokenizer = load_tokenizer(job.source, job.tokenizer)
    names = list(dict.fromkeys(segment.name for segment in job.segments))
    part = _Part(job, tokenizer, names)
    with TokenSpoolWriter(folder) as spool, RejectWriter(folder / REJECTS) as rejects:
        for segment in job.segments:
            for batch in read_rows(segment):
                part.process(batch, segment.name, spool, rejects)
        records = spool.finish(root) + rejects.finish(root)
    return part.receipt(records)


@dataclass(slots=True)
class _Row:
    """A row that has samples to encode."""

    file: int
    number: int
    digest: bytes
    group: bytes | None
    empty_answers: int
    samples: list[Sample]


class _Part:
    """The running totals of one part."""

    def __init__(self, job: TokenizeJob, tokenizer: ChatTokenizer, names: list[str]) -> None:
        self._job = job
        self._tokenizer = tokenizer
        self._files = {name: index for index, name in enumerate(names)}
        self._rows_in = self._filtered = self._used = 0
        self._rejected: Counter[str] = Counter()
        self._lengths: Counter[int] = Counter()
        self._sequences = self._tokens = self._trained = self._longest = self._empty_answers = 0

    def process(
        self, batch: Iterable[tuple[int, Any]], name: str, spool: TokenSpoolWriter, rejects: RejectWriter
    ) -> None:
        rows: list[_Row] = []
        characters = 0
        for number, value in batch:
            self._rows_in += 1
            try:
                row = self._prepare(self._files[name], number, value)
            except RowRejected as rejected:
                self._reject(rejects, name, number, rejected.reason, rejected.detail)
                continue
            if row is None:
                self._filtered += 1
                continue
            rows.append(row)
            characters += sum(len(piece.text) for sample in row.samples for piece in sample)
            # Rows of Parquet, and templates that repeat a conversation for each turn, can hold much more.
            if characters > BATCH_BYTES:
                self._encode(rows, name, spool, rejects)
                rows, characters = [], 0
        if rows:
            self._encode(rows, name, spool, rejects)

    def _prepare(self, file: int, number: int, value: Any) -> _Row | None:
        """Prepare the row for encoding; return `None` if the row filter drops it."""
        if isinstance(value, RowFault):
            raise RowRejected(value.reason, value.detail)
        dataset = self._job.dataset
        if not matches(value, dataset.where):
            return None
        conversation = normalise(value, dataset.dialect, dataset.fields)
        empty = list(empty_answers(conversation.messages))
        if empty and self._job.drop_empty:
            raise RowRejected("empty_answer", f"message {empty[0]}, of the assistant, has no content")
        digest = _digest(conversation_json(conversation, self._job.max_row_bytes))
        group = None
        if dataset.fields.group is not None:
            if value.get(dataset.fields.group) is None:
                raise RowRejected("missing_group", f"the row has no {dataset.fields.group!r}")
            group = _digest(_json(value[dataset.fields.group]))[:8]
        messages, tools, literals = self._tokenizer.escaper.escape(conversation.messages, conversation.tools)
        found = samples(
            self._tokenizer.template,
            Conversation(messages, tools),
            self._job.train_on,
            literals,
            self._job.max_row_bytes,
        )
        return _Row(file, number, digest, group, len(empty), found)

    def _encode(self, rows: list[_Row], name: str, spool: TokenSpoolWriter, rejects: RejectWriter) -> None:
        try:
            encoded = self._tokenizer.encode([sample for row in rows for sample in row.samples])
        except TokenizerFailed as failed:
            if len(rows) == 1:
                self._reject(rejects, name, rows[0].number, "tokenizer_failed", str(failed)[:500])
                return
            # One by one: a panic takes seconds and prints a line, and halving would meet it eight times.
            for row in rows:
                self._encode([row], name, spool, rejects)
            return
        counts = np.array([len(row.samples) for row in rows])
        seq_row, turns = owners(counts).astype(np.int32), ranges(0, counts)
        trained = _sums(shifted_mask(encoded.trained, encoded.lengths), encoded.lengths)
        keep = trained > 0
        if not keep.all():
            encoded, seq_row, turns = _keep_sequences(encoded, keep), seq_row[keep], turns[keep]
            used = np.zeros(len(rows), dtype=bool)
            used[seq_row] = True
            for row, is_used in zip(rows, used, strict=True):
                if not is_used:
                    self._reject(rejects, name, row.number, "no_trained_token", "no token would carry loss")
            seq_row = (np.cumsum(used, dtype=np.int32) - 1)[seq_row].astype(np.int32)
            rows = [row for row, is_used in zip(rows, used, strict=True) if is_used]
        self._count(encoded.lengths, int(trained.sum()), rows)
        spool.append(encoded.tokens, encoded.trained, encoded.lengths, seq_row, turns, _row_table(rows))

    def _count(self, lengths: NDArray[np.int64], trained: int, rows: list[_Row]) -> None:
        self._used += len(rows)
        self._empty_answers += sum(row.empty_answers for row in rows)
        self._sequences += len(lengths)
        self._tokens += int(lengths.sum())
        self._trained += trained
        self._longest = max(self._longest, int(lengths.max(initial=0)))
        classes, counts = np.unique(np.ceil(np.log2(np.maximum(lengths, 1))).astype(int), return_counts=True)
        self._lengths.update(dict(zip(classes.tolist(), counts.tolist(), strict=True)))

    def _reject(self, rejects: RejectWriter, name: str, row: int, reason: str, detail: str) -> None:
        self._rejected[reason] += 1
        rejects.add(name, row, reason, detail)

    def receipt(self, records: list[Any]) -> Receipt:
        ledger = RowLedger(
            rows_in=self._rows_in,
            rows_used=self._used,
            filtered=self._filtered,
            rejected=dict(sorted(self._rejected.items())),
        )
        statistics = {
            "sequences": self._sequences,
            "tokens": self._tokens,
            "trained_tokens": self._trained,
            "longest_sequence": self._longest,
            "empty_answers": self._empty_answers,
            "lengths_up_to_power_of_2": {str(k): n for k, n in sorted(self._lengths.items())},
            "source_files": list(self._files),
            "vocabulary_size": self._tokenizer.vocabulary_size,
            "eos_id": self._tokenizer.eos_id,
            "tokenizer_digest": self._tokenizer.digest,
        }
        job = self._job
        return job.receipt(
            records,
            ledger=ledger,
            statistics=statistics,
        )


def shifted_mask(trained: NDArray[np.uint8], lengths: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Shift flags to the stored mask: entry j is the flag of token j + 1, and 0 at each sequence's end.

    Args:
        trained: uint8[total], 1 where the token itself is trained.
        lengths: int64[num_sequences], all above 0.

    >>> shifted_mask(np.array([0, 1, 1, 1, 1], np.uint8), np.array([3, 2])).tolist()
    [1, 1, 0, 1, 0]
    """
    stored = np.zeros_like(trained)
    if not len(stored):
        return stored
    stored[:-1] = trained[1:]
    stored[np.cumsum(lengths) - 1] = 0
    return stored


def _sums(values: NDArray[np.uint8], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    totals = np.concatenate((np.zeros(1, np.int64), np.cumsum(values, dtype=np.int64)))
    ends = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))
    return np.diff(totals[ends])


def _keep_sequences(encoded: Encoded, keep: NDArray[np.bool_]) -> Encoded:
    tokens = np.repeat(keep, encoded.lengths)
    return Encoded(encoded.tokens[tokens], encoded.trained[tokens], encoded.lengths[keep])


def _row_table(rows: list[_Row]) -> Rows:
    groups = [row.group for row in rows if row.group is not None]
    return Rows(
        file=np.array([row.file for row in rows]),
        number=np.array([row.number for row in rows]),
        digest=np.frombuffer(b"".join(row.digest for row in rows), "<u8").reshape(-1, 2),
        group=np.frombuffer(b"".join(groups), "<u8") if groups else None,
    )


def conversation_json(conversation: Conversation, max_row_bytes: int) -> bytes:
    """Return what identifies a conversation.

    Raises:
        RowRejected: `row_too_large`, or it cannot be written as JSON.
    """
    data = _json([conversation.messages, conversation.tools])
    if len(data) > max_row_bytes:
        raise RowRejected(
            "row_too_large",
            f"the conversation has {len(data):,} bytes as JSON; max_row_bytes allows {max_row_bytes:,}",
        )
    return data


def _json(value: Any) -> bytes:
    """Write plain JSON data, independent of key order."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError as error:
        # orjson refuses more than 254 levels, lone surrogates and integers beyond 64 bits. The last are valid.
        # The first must be an error: Python's own limit depends on the caller, and all runners must agree.
        if "Recursion" in str(error):
            raise RowRejected(
                "nested_too_deeply", "the conversation is nested deeper than 254 levels"
            ) from None
        _refuse_surrogates(value)
        return canonical_json(value)


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


def _refuse_surrogates(value: Any) -> None:
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise RowRejected("lone_surrogate", "the text holds half of a UTF-16 pair") from None
    elif isinstance(value, dict):
        for key, item in value.items():
            _refuse_surrogates(key)
            _refuse_surrogates(item)
    elif isinstance(value, list):
        for item in value:
            _refuse_surrogates(item)


def matches(row: dict[str, Any], where: dict[str, Any]) -> bool:
    """Return whether each field of `where` has the value it names, or is a list that contains it.

    >>> matches({"used_in": ["a", "b"]}, {"used_in": "b"}), matches({"n": 1}, {"n": True})
    (True, False)
    """
    for key, wanted in where.items():
        value = row.get(key)
        if not any(_same(item, wanted) for item in (value if isinstance(value, list) else [value])):
            return False
    return True


def _same(value: Any, wanted: Any) -> bool:
    # In Python 1 == True; in data they are different answers.
    return bool(value == wanted) and isinstance(value, bool) == isinstance(wanted, bool)
