"""A wrong configuration stops the command before anything is written, with one message that says what to do."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import Cli, small_config, write_config
from support import chat, published_digests, write_jsonl

from flows.cli.configs import load_config


def dataset(**changes: Any) -> dict[str, Any]:
    return {"datasets": [{"name": "chats", "path": "chats.jsonl", **changes}]}


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "unknown key": ({"sede": 0}, "sede: unknown key 'sede'; did you mean 'seed'?"),
    "unknown key inside": ({"pack": {"sizes": 3}}, "pack.sizes: unknown key 'sizes'; did you mean 'size'?"),
    "unknown key in a list": (dataset(wieght=2), "datasets[0].wieght: unknown key 'wieght'; did you mean 'weight'?"),
    "unknown key far from all": ({"splits": {"zzz": 1}}, "known keys: test, train, valid"),
    "duplicate name": (
        {"datasets": [{"name": "a", "path": "x"}, {"name": "b", "path": "x"}, {"name": "A", "path": "x"}]},
        "datasets: the data set name 'A' is used by both datasets[0] and [2]",
    ),
    "slash in a name": (dataset(name="a/b"), "datasets[0].name: Unique name"),
    "dots": (dataset(name=".."), "datasets[0].name: Unique name"),
    "dots inside": (dataset(name="a..b"), "datasets[0].name: Unique name of at most 100 characters"),
    "newline in a name": (dataset(name="a\n"), "(got 'a\\n')"),
    "empty name": (dataset(name=""), "datasets[0].name: Unique name"),
    "no name": ({"datasets": [{"path": "x"}]}, "datasets[0].name: this required field is missing"),
    "negative weight": (dataset(weight=-1), "datasets[0].weight: Input should be greater than 0 (got -1)"),
    "zero weight": (dataset(weight=0), "datasets[0].weight: Input should be greater than 0 (got 0)"),
    "infinite weight": (dataset(weight=float("inf")), "datasets[0].weight: Input should be a finite number"),
    "filter by a fraction": (
        dataset(where={"x": 1.5}),
        "datasets[0].where.x: expected text or a whole number or true or false (got 1.5)",
    ),
    "no list": ({"datasets": {}}, "datasets: expected a list (got {})"),
    "no entry": ({"datasets": []}, "datasets: the list needs at least 1 entry (got [])"),
    "text for a mapping": ({"tokenizer": "gpt"}, "tokenizer: expected a mapping of keys to values (got 'gpt')"),
    "splits above 1": (
        {"splits": {"train": 0.9, "valid": 0.2, "test": 0}},
        "splits: train + valid + test must be 1, but 0.9 + 0.2 + 0.0 is 1.1",
    ),
    "splits by defaults": ({"splits": {"train": 0.5}}, "0.5 + 0.01 + 0.01 is 0.52"),
    "no train": ({"splits": {"train": 0, "valid": 1, "test": 0}}, "splits.train: Input should be greater than 0"),
    "pack size 1": ({"pack": {"size": 1}}, "pack.size: Input should be greater than or equal to 2 (got 1)"),
    "padding beyond the bin": (
        {"pack": {"size": 8, "pad_to_multiple": 8}},
        "pack: pad_to_multiple 8 leaves no room in a bin of size 8; allowed: 1..7",
    ),
    "unknown choice": ({"pack": {"overflow": "cut"}}, "pack.overflow: Input should be 'truncate', 'drop' or 'split'"),
    "several at once": (
        {"seed": -1, "workers": 0},
        "seed: Input should be greater than or equal to 0 (got -1); and 1 more: workers",
    ),
    "taken variable": (
        {"tokenizer": {"path": "x", "template_kwargs": {"messages": []}}},
        "tokenizer.template_kwargs: messages is set for each conversation",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_field_is_named(cli: Cli, configured: Callable[..., Path], tmp_path: Path, name: str) -> None:
    changes, expected = WRONG[name]
    outcome = cli("pack-sft", configured(tmp_path / "chats.jsonl", **changes))
    assert outcome.code == 2
    assert expected in outcome.message
    assert "more: datasets" not in outcome.message
    assert not (tmp_path / "out").exists()


NOT_YAML = {
    "not YAML": (b"a: [1\n", "[bad_yaml]", "config.yaml:2: not valid YAML"),
    "not a mapping": (b"- 1\n", "[bad_config]", "expected a mapping of keys, found list"),
    "empty": (b"", "[bad_config]", "expected a mapping of keys"),
    "not UTF-8": (b"a: \xff\n", "[bad_config]", "not UTF-8"),
    "no such day": (b"date: 2024-13-45\n", "[bad_yaml]", "month must be in 1..12"),
    "code": (b"a: !!python/object/apply:os.getcwd []\n", "[bad_yaml]", "could not determine a constructor"),
    "half a character": (
        b'a: "\\ud83d"\n',
        "[bad_yaml]",
        "config.yaml:1: not valid YAML: the text contains half",
    ),
    "a key twice": (b"seed: 1\nseed: 2\n", "[bad_yaml]", "the key 'seed' appears twice"),
    "base 60": (
        b"seed: 1:00:00\n",
        "[bad_yaml]",
        "config.yaml:1: not valid YAML: 1:00:00 is a number to base 60",
    ),
    "octal": (b"a: {b: 010}\n", "[bad_yaml]", "010 is octal or binary for some programs"),
    "new octal": (b"a: 0o10\n", "[bad_yaml]", "write a decimal number, or use quotes"),
    "binary": (b"a: 0b1\n", "[bad_yaml]", "write a decimal number, or use quotes"),
    "on": (b"name: on\n", "[bad_yaml]", "on is true or false for some programs, text for others"),
    "a key No": (b"where: {No: 1}\n", "[bad_yaml]", "No is true or false for some programs"),
    "beyond 64 bits": (b"a: 1" + b"0" * 400, "[bad_yaml]", "more than 64 bits"),
    "thousands of digits": (b"a: -1" + b"0" * 5000, "[bad_yaml]", "more than 64 bits"),
    "merge keys": (b"a: &a {b: 1}\nc: {<<: *a}\n", "[bad_yaml]", "`<<` is not supported"),
    "an alias in itself": (b"a: &a [*a]\n", "[bad_yaml]", "a value that it is in itself"),
    "aliases of aliases": (
        b"a0: &a0 [1,1,1,1,1,1,1,1,1,1]\n"
        + b"".join(b"a%d: &a%d [%s]\n" % (n, n, b",".join([b"*a%d" % (n - 1)] * 10)) for n in range(1, 30)),
        "[bad_yaml]",
        "has more than 100,000 values",
    ),
    "deep": (b"a: " + b"[" * 5000 + b"]" * 5000, "[bad_yaml]", "recursion"),
}


@pytest.mark.parametrize("name", NOT_YAML)
def test_a_file_that_is_no_configuration(cli: Cli, tmp_path: Path, name: str) -> None:
    content, code, expected = NOT_YAML[name]
    path = tmp_path / "config.yaml"
    path.write_bytes(content)
    outcome = cli("pack-sft", path)
    assert (outcome.code, outcome.message.startswith(code)) == (2, True)
    assert expected in outcome.message and str(path) in outcome.message


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1_000", 1000),
        ("-0x1F", "-0x1F"),
        ("0x1F", 31),
        ("18446744073709551615", 2**64 - 1),
        ("1e-3", 0.001),
        ("1E5", 1e5),
        (".5", 0.5),
        ("-.inf", -math.inf),
        ("1e400", math.inf),
        ("'010'", "010"),
        ('"1:00"', "1:00"),
        ("'on'", "on"),
        ("y", "y"),
        ("True", True),
        ("1.2.3", "1.2.3"),
        ("127.0.0.1:4200", "127.0.0.1:4200"),
        ("2001:db8::1", "2001:db8::1"),
        ("[&a [1], *a]", [[1], [1]]),
    ],
)
def test_what_a_value_means(tmp_path: Path, text: str, value: Any) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(f"value: {text}\n")
    assert load_config(str(path)) == {"value": value}
    assert load_config(str(path), [f"value={text}"]) == {"value": value}


@pytest.mark.parametrize("value", ["2024-01-01", ".nan", "!!binary aGVsbG8="])
def test_template_variables_are_json(cli: Cli, tmp_path: Path, value: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(
        f"output_dir: {tmp_path}/out\ndatasets: [{{name: a, path: x}}]\n"
        f"tokenizer: {{path: x, template_kwargs: {{today: {value}}}}}\n"
    )
    outcome = cli("pack-sft", path)
    assert outcome.code == 2
    assert "tokenizer.template_kwargs: only JSON values are allowed here" in outcome.message
    assert "put dates in quotes" in outcome.message


def test_a_json_configuration_with_escapes(cli: Cli, configured: Callable[..., Path], tmp_path: Path) -> None:
    outcome = cli("pack-sft", configured(tmp_path / "🙂.jsonl"))
    assert outcome.code == 2 and "🙂.jsonl" in outcome.message


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (["pack-sft", "missing.yaml"], "missing_config", "No such file"),
        (["pack-sft"], "usage", "CONFIG"),
        (["pack-stf", "x"], "usage", "pack-sft"),
        (["pack-sft", "{config}", "--runner", "dask2"], "usage", "--runner"),
        (["pack-sft", "{config}", "--set", "pack.size"], "bad_override", "path=value"),
        (["pack-sft", "{config}", "--set", "datasets[3].weight=1"], "bad_override", "datasets[3].weight"),
        (["pack-sft", "{config}", "--set", "tokenizer.date=2024-13-45"], "bad_override", "month must be"),
        (["pack-sft", "{config}", "--set", "seed=[1"], "bad_override", "not valid YAML"),
        (["pack-sft", "{config}", "--workers", "0"], "bad_config", "workers"),
        (["validate", "nowhere"], "missing_path", "nowhere"),
    ],
)
def test_a_wrong_command_line(
    cli: Cli,
    configured: Callable[..., Path],
    tmp_path: Path,
    arguments: list[str],
    code: str,
    expected: str,
) -> None:
    config = str(configured(tmp_path / "chats.jsonl"))
    outcome = cli(*(argument.format(config=config) for argument in arguments))
    assert (outcome.code, outcome.message.startswith(f"[{code}]")) == (2, True)
    assert expected in outcome.message


def _broken_tokenizer(folder: Path) -> str:
    folder.mkdir()
    (folder / "tokenizer.json").write_text("{}")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    return str(folder)


def _without_template(folder: Path, tokenizer: Path) -> str:
    folder.mkdir()
    (folder / "tokenizer.json").write_bytes((tokenizer / "tokenizer.json").read_bytes())
    config = json.loads((tokenizer / "tokenizer_config.json").read_text())
    del config["chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return str(folder)


def _made(tmp_path: Path, tokenizer: Path) -> dict[str, tuple[dict[str, Any], str, str]]:
    def own(template: str) -> dict[str, Any]:
        return {"path": str(tokenizer), "chat_template": template}

    nothing = tmp_path / "nothing"
    nothing.mkdir()
    return {
        "no such folder": ({"path": "/no/such/tokenizer"}, "missing_tokenizer", "'/no/such/tokenizer'"),
        "empty folder": ({"path": str(nothing)}, "missing_tokenizer", "expected tokenizer.json in"),
        "hub id without revision": ({"path": "some/model"}, "missing_tokenizer", "set tokenizer.revision"),
        "broken": ({"path": _broken_tokenizer(tmp_path / "broken")}, "bad_tokenizer", "cannot load"),
        "no template": (
            {"path": _without_template(tmp_path / "plain", tokenizer)},
            "missing_template",
            "set tokenizer.chat_template",
        ),
        "no template file": (own("no/such.jinja"), "missing_template", "'no/such.jinja'"),
        "NUL in a template path": (own("a\0b"), "missing_template", "template file"),
        "template does not compile": (own("{% for %}"), "bad_template", "does not compile"),
        "break outside a loop": (own("{% break %}"), "bad_template", "'break' outside loop"),
        "unknown filter": (own("{{ messages | shout }}"), "bad_template", "No filter named 'shout'"),
        "our marks in a template": (own("{{ messages }}\U0010fffc"), "bad_template", "U+10FFFC"),
        "loops for ever": (
            own("{% macro a() %}{% for i in range(99999) %}{{ a() }}{% endfor %}{% endmacro %}"
                "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}{{ messages }}"),
            "bad_template",
            "does it loop for ever?",
        ),
    }  # fmt: skip


def test_a_tokenizer_or_template_that_cannot_be_used(
    cli: Cli, configured: Callable[..., Path], tmp_path: Path, small_tokenizer: Path
) -> None:
    source = write_jsonl(tmp_path / "chats.jsonl", [chat("hello", "world")])
    assert cli("pack-sft", configured(source)).code == 0
    digests = published_digests(tmp_path / "out" / "latest")
    for name, (tokenizer, code, expected) in _made(tmp_path, small_tokenizer).items():
        outcome = cli("pack-sft", configured(source, tokenizer=tokenizer))
        assert (name, outcome.code, outcome.message.split("]")[0]) == (name, 2, f"[{code}")
        assert expected in outcome.message, name
        assert " tokenizer." in outcome.message, name
    assert published_digests(tmp_path / "out" / "latest") == digests


def test_padding_without_an_end_of_sequence_token(
    cli: Cli, configured: Callable[..., Path], tmp_path: Path, small_tokenizer: Path
) -> None:
    tokenizer = tmp_path / "no_eos"
    tokenizer.mkdir()
    (tokenizer / "tokenizer.json").write_bytes((small_tokenizer / "tokenizer.json").read_bytes())
    config = json.loads((small_tokenizer / "tokenizer_config.json").read_text())
    del config["eos_token"]
    (tokenizer / "tokenizer_config.json").write_text(json.dumps(config))
    source = write_jsonl(tmp_path / "chats.jsonl", [chat("hello", "world")])
    pack = {"size": 64, "pad_to_multiple": 8}
    outcome = cli("pack-sft", configured(source, tokenizer={"path": str(tokenizer)}, pack=pack))
    assert outcome.code == 2
    assert (
        "pack.pad_to_multiple: padding to a multiple of 8 needs an end-of-sequence token" in outcome.message
    )


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("nothing.jsonl", "missing_path"),
        ("folder", "no_files"),
        ("folder/*.jsonl", "no_files"),
        ("notes.txt", "unsupported_file"),
        ("s3://bucket/chats.jsonl", "remote_input"),
        ("a\0b", "missing_path"),
    ],
)
def test_an_input_path_that_leads_nowhere(
    cli: Cli, configured: Callable[..., Path], tmp_path: Path, path: str, code: str
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "notes.txt").touch()
    outcome = cli("pack-sft", configured(path if "://" in path else tmp_path / path))
    assert (outcome.code, outcome.message.split("]")[0]) == (2, f"[{code}")


def test_every_split_may_be_empty_but_train(
    cli: Cli, configured: Callable[..., Path], tmp_path: Path
) -> None:
    source = write_jsonl(tmp_path / "chats.jsonl", [chat("hello", "world")])
    splits = {"train": 1e-12, "valid": 1 - 1e-12, "test": 0}
    outcome = cli("pack-sft", configured(source, splits=splits))
    assert (outcome.code, outcome.message.split("]")[0]) == (3, "[empty_train")
    assert not (tmp_path / "out" / "latest").exists()


def test_the_error_as_json(cli: Cli, tmp_path: Path, small_tokenizer: Path) -> None:
    raw = small_config(tmp_path / "out", tmp_path / "chats.jsonl", small_tokenizer, sede=1)
    outcome = cli("pack-sft", write_config(tmp_path / "config.yaml", raw), "--json")
    error = json.loads(outcome.out.splitlines()[-1])["error"]
    assert error == {
        "code": "unknown_key",
        "message": "unknown key 'sede'; did you mean 'seed'?",
        "where": "sede",
    }
