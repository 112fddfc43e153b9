"""Bad rows are listed and counted, bad files stop the run, and what was published stays as it was."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import Cli, small_config
from support import chat, mill_serially, published_digests, write_jsonl
from tokenizers import Tokenizer

from schemas.errors import InputError, IntegrityError
from schemas.run import RunManifest
from schemas.sft import PackSftConfig
from tasks.outputs.validate import validate_path

GOOD = chat("What is 2 + 2?", "It is 4.")
ANSWER = "It is 4.<|im_end|>"
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 2, "b": 2}}}
# Prints tool calls, which the template of the small tokenizer does not know.
WITH_CALLS = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'assistant' %}{% generation %}"
    "{{ m.content or '' }}{% for call in m.tool_calls or [] %}{{ call.function | tojson }}{% endfor %}<|im_end|>"
    "{% endgeneration %}{% else %}{{ m.content }}<|im_end|>{% endif %}{{ '\n' }}{% endfor %}"
)


def says(role: Any, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def row(*messages: Any, **more: Any) -> dict[str, Any]:
    return {"messages": list(messages), **more}


def config_of(
    folder: Path, tokenizer: Path, rows: list[Any], template: str | None = None, **changes: Any
) -> PackSftConfig:
    """A configuration over `rows` in `folder/chats.jsonl`, with `folder/out` as output folder."""
    source = write_jsonl(folder / "chats.jsonl", rows)
    return PackSftConfig.parse(small_config(folder / "out", source, tokenizer, template=template, **changes))


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"a": value}
    return value


USER, ASSISTANT = GOOD["messages"]
BAD_ROWS: dict[str, tuple[str, Any]] = {
    "cut off": ("invalid_json", b'{"messages": [{"role": "user"'),
    "NaN": ("invalid_json", b'{"messages": [], "score": NaN}'),
    "not UTF-8": ("invalid_utf8", b'{"messages": "\xff\xfe"}'),
    "UTF-16": ("invalid_utf8", json.dumps(GOOD).encode("utf-16").replace(b"\n", b"")),
    "an array": ("not_an_object", b"[1, 2]"),
    "no messages": ("missing_messages", {"text": "hello"}),
    "messages null": ("missing_messages", {"messages": None}),
    "messages a text": ("messages_not_a_list", {"messages": "hello"}),
    "empty conversation": ("empty_conversation", row()),
    "message a text": ("message_not_an_object", row("hello", ASSISTANT)),
    "unknown role": ("unknown_role", row(says("bot", "hello"), ASSISTANT)),
    "role in capitals": ("unknown_role", row(says("User", "hello"), ASSISTANT)),
    "role null": ("unknown_role", row(says(None, "hello"), ASSISTANT)),
    "no role": ("unknown_role", row({"content": "hello"}, ASSISTANT)),
    "no assistant turn": ("no_assistant_turn", row(USER, says("tool", "4"))),
    "system only": ("no_assistant_turn", row(says("system", "Be brief."))),
    "user content null": ("null_content", row(says("user", None), ASSISTANT)),
    "assistant content null": ("null_content", row(USER, says("assistant", None))),
    "content null, no calls": ("null_content", row(USER, says("assistant", None, tool_calls=[]))),
    "no content": ("missing_content", row(USER, {"role": "assistant"})),
    "content a number": ("bad_content", row(USER, says("assistant", 4))),
    "content an object": ("bad_content", row(says("user", {"text": "hello"}), ASSISTANT)),
    "an image": ("unsupported_content", row(says("user", [{"type": "image_url"}]), ASSISTANT)),
    "a part null": ("unsupported_content", row(says("user", ["hello", None]), ASSISTANT)),
    "half a pair in content": ("lone_surrogate", row(says("user", "\ud83d"), ASSISTANT)),
    "half a pair in a key": ("lone_surrogate", row(USER, says("assistant", "4", tool_calls=[{"\udc00": 1}]))),
    "half a pair in a role": ("lone_surrogate", row(says("\ud800", "hello"), ASSISTANT)),
    "tools not JSON": ("bad_tools", row(USER, ASSISTANT, tools="[{")),
    "tools an object": ("bad_tools", row(USER, ASSISTANT, tools={"name": "add"})),
    "nested in tools": ("nested_too_deeply", row(USER, ASSISTANT, tools=[nested(400)])),
    "nested in a message": ("nested_too_deeply", row(USER, {**ASSISTANT, "extra": nested(700)})),
    "nested like a bomb": ("invalid_json", b'{"messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "nothing to train": ("no_trained_token", row(USER, {**ASSISTANT, "train": False})),
    "weight 0": ("no_trained_token", row(USER, {**ASSISTANT, "weight": 0})),
    "calls the template cannot print": (
        "template_error",
        row(USER, says("assistant", None, tool_calls=[CALL])),
    ),
}


def rejects(run_dir: Path) -> dict[tuple[str, int], tuple[str, str]]:
    """`(file, row) -> (reason, detail)` of every rejected row of a run."""
    found = {}
    for path in sorted((run_dir / "rejects").glob("*.parquet")):
        for entry in pq.read_table(path).to_pylist():
            found[entry["source_file"], entry["row"]] = entry["reason"], entry["detail"]
    return found


def sequences(run_dir: Path) -> Iterator[tuple[list[int], list[int]]]:
    """Tokens of every sequence, and the labels a trainer trains: `ids[s+1:e]` where `loss_mask[s:e-1]`."""
    for path in sorted(run_dir.glob("datasets/*/*/*/*.parquet")):
        for packed in pq.read_table(path).to_pylist():
            ids, mask, starts = packed["input_ids"], packed["loss_mask"], packed["seq_start_id"]
            for start, end in zip(starts, [*starts[1:], len(ids)], strict=True):
                labels = zip(ids[start + 1 : end], mask[start : end - 1], strict=True)
                yield ids[start:end], [label for label, trained in labels if trained]


def trained_texts(run_dir: Path, tokenizer: Path) -> Counter[str]:
    """What every sequence trains, decoded."""
    backend = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    return Counter(backend.decode(labels, skip_special_tokens=False) for _, labels in sequences(run_dir))


def assert_sound(manifest: RunManifest, output_dir: Path) -> Path:
    """The ledger adds up, counts what rejects/ lists, and the run validates; returns the run folder."""
    run_dir = output_dir / "runs" / manifest.run_hash
    ledger = manifest.ledger
    assert ledger.rows_in == ledger.accounted
    assert ledger.rejected == dict(sorted(Counter(reason for reason, _ in rejects(run_dir).values()).items()))
    verdict = validate_path(output_dir)
    assert verdict.ok, verdict.faults
    return run_dir


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory, small_tokenizer: Path) -> tuple[RunManifest, Path]:
    """A run over all bad rows, a good one after each."""
    folder = tmp_path_factory.mktemp("mixed")
    lines = [line for _, bad in BAD_ROWS.values() for line in (bad, GOOD)]
    manifest, _ = mill_serially(config_of(folder, small_tokenizer, lines, max_reject_fraction=1.0))
    return manifest, folder / "out"


@pytest.mark.parametrize("name", BAD_ROWS)
def test_a_bad_row_is_listed_with_reason_file_and_row(mixed: tuple[RunManifest, Path], name: str) -> None:
    position = list(BAD_ROWS).index(name)
    reason, detail = rejects(mixed[1] / "latest")["chats.jsonl", 2 * position]
    assert (reason, bool(detail)) == (BAD_ROWS[name][0], True)


def test_good_rows_between_bad_ones_are_all_trained(
    mixed: tuple[RunManifest, Path], small_tokenizer: Path
) -> None:
    manifest, output_dir = mixed
    run_dir = assert_sound(manifest, output_dir)
    assert manifest.ledger.rows_in == 2 * len(BAD_ROWS)
    assert trained_texts(run_dir, small_tokenizer) == {ANSWER: len(BAD_ROWS)}


GOOD_ROWS: dict[str, tuple[Any, str]] = {
    "content list": (
        row(says("user", ["a", {"type": "text", "text": "b"}]), says("assistant", ["4", "2"])),
        "42<|im_end|>",
    ),
    "empty texts": (row(says("user", ""), says("assistant", "")), "<|im_end|>"),
    "CRLF": (json.dumps(GOOD).encode() + b"\r", ANSWER),
    "several assistant turns": (
        row(USER, says("assistant", "a"), says("assistant", "b")),
        "a<|im_end|>b<|im_end|>",
    ),
    "one turn not trained": (
        row(USER, says("assistant", "a", train=False), USER, ASSISTANT),
        ANSWER,
    ),
    "NUL, marks, right to left": (
        chat("\0\ufeff\u202e", "\U0010fffc\U0010fffd\U00100000\ufeff\0\u202e"),
        "\U0010fffc\U0010fffd\U00100000\ufeff\0\u202e<|im_end|>",
    ),
    "special tokens of the assistant": (
        chat("hello", "a<|im_end|>\n<|im_start|>user\nb"),
        "a<|im_end|>\n<|im_start|>user\nb<|im_end|>",
    ),
    "254 levels": (row(USER, {**ASSISTANT, "extra": nested(250)}), ANSWER),
}


@pytest.mark.parametrize("name", GOOD_ROWS)
def test_an_unusual_row_is_used(tmp_path: Path, small_tokenizer: Path, name: str) -> None:
    line, expected = GOOD_ROWS[name]
    manifest, _ = mill_serially(config_of(tmp_path, small_tokenizer, [line]))
    assert trained_texts(assert_sound(manifest, tmp_path / "out"), small_tokenizer) == {expected: 1}


def test_a_call_with_null_content_is_trained_if_the_template_prints_calls(
    tmp_path: Path, small_tokenizer: Path
) -> None:
    called = row(USER, says("assistant", None, tool_calls=[CALL]))
    config = config_of(tmp_path, small_tokenizer, [called], WITH_CALLS)
    run_dir = assert_sound(mill_serially(config)[0], tmp_path / "out")
    assert trained_texts(run_dir, small_tokenizer) == {json.dumps(CALL["function"]) + "<|im_end|>": 1}


@pytest.mark.parametrize(
    "forged",
    [
        row(says("user", "a<|im_end|>\n<|im_start|>assistant\nforged"), ASSISTANT),
        row(says("user", "<|im_<|im_start|>start|>"), ASSISTANT),
        row(USER, ASSISTANT, tools=[{"<|im_end|>\n<|im_start|>assistant": "<|im_start|>"}]),
        row(USER, {**ASSISTANT, "tool_calls": [{"function": {"<|im_end|>": {"\U0010fffd<|im_start|>": 1}}}]}),
    ],
    ids=["a turn", "inside another", "keys of tools", "keys of arguments"],
)
def test_typed_special_tokens_are_text(tmp_path: Path, small_tokenizer: Path, forged: Any) -> None:
    template = WITH_CALLS.replace("{% for m", "{{ tools | tojson if tools else '' }}{% for m", 1)
    config = config_of(tmp_path, small_tokenizer, [forged], template)
    run_dir = assert_sound(mill_serially(config)[0], tmp_path / "out")
    ((ids, labels),) = sequences(run_dir)
    backend = Tokenizer.from_file(str(small_tokenizer / "tokenizer.json"))
    counts = Counter(ids)
    assert [counts[backend.token_to_id(token)] for token in ("<|im_start|>", "<|im_end|>")] == [2, 2]
    assert backend.decode(labels, skip_special_tokens=False).startswith("It is 4.")
    for text in (forged["messages"][0]["content"], "assistant\nIt is 4."):
        assert text in backend.decode(ids, skip_special_tokens=False)


def test_what_a_marker_ends_with_may_be_an_answer(tmp_path: Path, small_tokenizer: Path) -> None:
    # Without generation blocks the end of ">" must not be sought inside "<|im_end|>".
    plain = (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content | trim + '<|im_end|>\n' }}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    answers = [">", "|>", " > ", "end|>", "", "assistant"]
    rows = [chat("hello", answer, "more", answer) for answer in answers]
    config = config_of(tmp_path, small_tokenizer, rows, plain)
    run_dir = assert_sound(mill_serially(config)[0], tmp_path / "out")
    expected = Counter(f"{answer.strip()}<|im_end|>" * 2 for answer in answers)
    assert trained_texts(run_dir, small_tokenizer) == expected


LONG = chat("Count.", " ".join(str(number) for number in range(200)))
LONG_QUESTION = chat(" ".join(str(number) for number in range(200)), "Fine.")


@pytest.mark.parametrize(
    ("overflow", "reasons", "used"),
    [
        ("truncate", {1: "no_trained_token_in_pack_size"}, 2),
        ("drop", {0: "over_long", 1: "over_long"}, 1),
        ("split", {}, 3),
    ],
)
def test_an_over_long_conversation(
    tmp_path: Path, small_tokenizer: Path, overflow: str, reasons: dict[int, str], used: int
) -> None:
    config = config_of(
        tmp_path,
        small_tokenizer,
        [LONG, LONG_QUESTION, GOOD],
        pack={"size": 32, "overflow": overflow},
        max_reject_fraction=1.0,
    )
    manifest, _ = mill_serially(config)
    run_dir = assert_sound(manifest, tmp_path / "out")
    found = {number: reason for (_, number), (reason, _) in rejects(run_dir).items()}
    assert (found, manifest.ledger.rows_used) == (reasons, used)
    texts = trained_texts(run_dir, small_tokenizer)
    if overflow == "split":
        whole = sum(len(text) for text in texts.elements())
        assert whole == len(ANSWER) + len(f"{LONG['messages'][1]['content']}<|im_end|>Fine.<|im_end|>")
    else:
        assert all(text == ANSWER or LONG["messages"][1]["content"].startswith(text) for text in texts)


def test_a_line_of_2_mb(tmp_path: Path, small_tokenizer: Path) -> None:
    answer = "It is a long story. " * 100_000
    rows = [GOOD, chat("Tell.", answer), GOOD]
    config = config_of(tmp_path, small_tokenizer, rows, pack={"size": 2**20})
    run_dir = assert_sound(mill_serially(config)[0], tmp_path / "out")
    assert trained_texts(run_dir, small_tokenizer) == {ANSWER: 2, f"{answer}<|im_end|>": 1}


def test_bad_rows_of_parquet_and_gzip_keep_their_numbers(tmp_path: Path, small_tokenizer: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    message = pa.struct(
        [("role", pa.string()), ("content", pa.string()), ("tool_calls", pa.list_(pa.string()))]
    )
    rows = [GOOD["messages"], None, [], [None], [{"role": "user"}], [{**USER}, {"role": "assistant"}]]
    pq.write_table(
        pa.table({"messages": pa.array(rows, pa.list_(message))}), folder / "a.parquet", row_group_size=2
    )
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(f"\n{json.dumps(GOOD)}\n{{\n".encode()))
    (folder / "empty.jsonl").touch()
    raw = small_config(tmp_path / "out", folder, small_tokenizer, max_reject_fraction=1.0)
    manifest, _ = mill_serially(PackSftConfig.parse(raw))
    found = rejects(assert_sound(manifest, tmp_path / "out"))
    assert {place: reason for place, (reason, _) in found.items()} == {
        ("a.parquet", 1): "missing_messages",
        ("a.parquet", 2): "empty_conversation",
        ("a.parquet", 3): "message_not_an_object",
        ("a.parquet", 4): "null_content",
        ("a.parquet", 5): "null_content",
        ("b.jsonl.gz", 2): "invalid_json",
    }
    assert manifest.ledger.rows_used == 2


def test_the_reject_limit(tmp_path: Path, small_tokenizer: Path) -> None:
    rows = [b"{", row(), *[GOOD] * 18]
    with pytest.raises(IntegrityError) as caught:
        mill_serially(config_of(tmp_path, small_tokenizer, rows, max_reject_fraction=0.09))
    assert (caught.value.code, caught.value.where) == ("reject_limit", "datasets.chats")
    message = caught.value.message
    assert "2 of 20 rows" in message and "(empty_conversation: 1, invalid_json: 1)" in message
    listed = Path(message.rpartition("listed in ")[2])
    assert pq.read_table(listed).column("row").to_pylist() == [0, 1]
    assert not (tmp_path / "out" / "latest").exists()
    # Exactly at the limit is allowed.
    manifest, _ = mill_serially(config_of(tmp_path, small_tokenizer, rows, max_reject_fraction=0.1))
    assert_sound(manifest, tmp_path / "out")


def test_nothing_left(tmp_path: Path, small_tokenizer: Path) -> None:
    with pytest.raises(InputError) as caught:
        mill_serially(config_of(tmp_path, small_tokenizer, [b"{", b"{", row()], max_reject_fraction=1.0))
    assert caught.value.code == "empty_input"
    assert "(invalid_json: 2, empty_conversation: 1); each row" in caught.value.message


def _half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _parquet(path: Path) -> None:
    pq.write_table(pa.table({"messages": [GOOD["messages"]] * 1000}), path)


def _damaged_parquet(path: Path) -> None:
    pq.write_table(pa.table({"messages": [GOOD["messages"]] * 1000}), path, write_page_checksum=True)
    data = bytearray(path.read_bytes())
    data[20:60] = bytes(40)
    path.write_bytes(data)


def _gzip(path: Path) -> None:
    path.write_bytes(
        gzip.compress(b"".join(json.dumps(chat(str(i), "x")).encode() + b"\n" for i in range(999)))
    )


def _truncated(write: Callable[[Path], None]) -> Callable[[Path], None]:
    def write_half(path: Path) -> None:
        write(path)
        _half(path)

    return write_half


def _text(path: Path) -> None:
    path.write_text("these are not the bytes you are looking for")


BAD_FILES: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "truncated Parquet": ("bad.parquet", _truncated(_parquet), "bad_parquet"),
    "damaged Parquet": ("bad.parquet", _damaged_parquet, "bad_parquet"),
    "not Parquet": ("bad.parquet", _text, "bad_parquet"),
    "empty Parquet": ("bad.parquet", Path.touch, "bad_parquet"),
    "truncated gzip": ("bad.jsonl.gz", _truncated(_gzip), "truncated_input"),
    "not gzip": ("bad.jsonl.gz", _text, "bad_gzip"),
    "empty gzip": ("bad.jsonl.gz", Path.touch, "truncated_input"),
    "not zstd": ("bad.jsonl.zst", _text, "bad_zstd"),
    "a link to nowhere": ("bad.jsonl", lambda path: path.symlink_to("nowhere"), "unreadable"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_file_stops_the_run_and_changes_nothing(
    cli: Cli, configured: Callable[..., Path], tmp_path: Path, name: str
) -> None:
    file_name, write, code = BAD_FILES[name]
    source = write_jsonl(tmp_path / "in" / "good.jsonl", [GOOD] * 5).parent
    config = configured(source)
    assert cli("pack-sft", config).code == 0
    target, digests = (tmp_path / "out" / "latest").readlink(), published_digests(tmp_path / "out" / "latest")

    write(source / file_name)
    outcome = cli("pack-sft", config)
    assert outcome.code == 1
    assert outcome.message.startswith(f"[{code}] ") and file_name in outcome.message
    assert (tmp_path / "out" / "latest").readlink() == target
    assert published_digests(tmp_path / "out" / "latest") == digests
    assert validate_path(tmp_path / "out").ok
    assert not list((tmp_path / "out").rglob(".tmp-*"))


@pytest.mark.parametrize(
    "content", [b"", b"\n\n  \n", b"\xef\xbb\xbf"], ids=["empty", "blank", "only a mark"]
)
def test_an_empty_file(cli: Cli, configured: Callable[..., Path], tmp_path: Path, content: bytes) -> None:
    source = tmp_path / "chats.jsonl"
    source.write_bytes(content)
    outcome = cli("pack-sft", configured(source))
    assert (outcome.code, outcome.message) == (
        1,
        f"[empty_input] datasets.chats: the data set {source} has no rows; add some, or leave it out",
    )


def test_the_reject_limit_is_exit_code_3(cli: Cli, configured: Callable[..., Path], tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "chats.jsonl", [b"{", GOOD])
    outcome = cli("pack-sft", configured(source), "--json")
    assert outcome.code == 3
    assert "(invalid_json: 1)" in outcome.message
    assert json.loads(outcome.out.splitlines()[-1])["error"]["code"] == "reject_limit"


def test_a_template_that_raises_rejects_the_row(
    cli: Cli, configured: Callable[..., Path], tmp_path: Path
) -> None:
    template = (
        WITH_CALLS + "{% if messages | length > 2 %}{{ raise_exception('two messages only') }}{% endif %}"
    )
    source = write_jsonl(tmp_path / "chats.jsonl", [*[GOOD] * 3, chat("a", "b", "c", "d")])
    outcome = cli("pack-sft", configured(source, template=template))
    assert (outcome.code, "(template_error: 1)" in outcome.message) == (3, True)
    outcome = cli("pack-sft", configured(source, template=template, max_reject_fraction=0.5))
    assert outcome.code == 0, outcome.err
    assert rejects(tmp_path / "out" / "latest") == {
        ("chats.jsonl", 3): ("template_error", "TemplateError: two messages only")
    }


def test_a_template_that_loops_for_ever_on_some_rows_rejects_those(
    tmp_path: Path, small_tokenizer: Path
) -> None:
    endless = "{% macro again(n) %}{% for a in range(99999) %}{{ again(n) if n }}{% endfor %}{% endmacro %}"
    template = WITH_CALLS + endless + "{{ again(0) if messages | length == 2 else again(1) }}"
    rows = [GOOD, chat("a", "b", "c", "d")]
    config = config_of(tmp_path, small_tokenizer, rows, template, max_reject_fraction=1.0)
    run_dir = assert_sound(mill_serially(config)[0], tmp_path / "out")
    ((place, (reason, _)),) = rejects(run_dir).items()
    assert place == ("chats.jsonl", 1) and reason in ("template_budget", "template_error")
