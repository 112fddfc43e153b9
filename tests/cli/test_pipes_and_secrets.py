"""Output that nobody reads, passwords in URIs, and configurations that are no files."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import Cli, write_config
from support import SMALLEST
from workloads import ROOT, command, environment

from schemas.errors import ConfigError, has_secret, without_secrets
from schemas.sft import PackSftConfig
from tasks.storage.remote import store_at

PASSWORD = "hunter2"
URI = f"s3://user:{PASSWORD}@bucket/chats"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://u:p@h:4200/api", "http://***@h:4200/api"),
        ("s3://KEY:a/b+c@d@bucket/x, then", "s3://***@bucket/x, then"),
        ("at s3:/u:p@bucket", "at s3:/***@bucket"),
        ("https://ghp_token@host/x", "https://***@host/x"),
        ("http://:p@h http://u:9@h", "http://***@h http://***@h"),
    ],
)
def test_passwords_are_not_shown(text: str, shown: str) -> None:
    assert (without_secrets(text), has_secret(text)) == (shown, True)
    error = ConfigError(text, where=text)
    assert (error.message, error.where, shown in str(error), *error.args) == (shown, shown, True, shown)


@pytest.mark.parametrize(
    "text",
    [
        "http://127.0.0.1:4200/a@b",
        "hf://datasets/owner/name@main/x",
        "abfs://container@account.dfs.core.windows.net/x",
        "http://h:80, mail a@b",
        "a@b: s3://bucket",
    ],
)
def test_what_is_no_password_is_shown(text: str) -> None:
    assert without_secrets(text) == text


@pytest.mark.parametrize("piece", ["a.", "a://b:", "https://a", "a", "a:/", "a:1"])
def test_a_long_text_takes_no_longer(piece: str) -> None:
    """Searched from each place to the end, a megabyte would take an hour."""
    text = f"@ {piece * (2**20 // len(piece))}"
    assert without_secrets(text) == text


def test_a_password_is_refused_by_whoever_opens_a_uri() -> None:
    """Trainers do, without a configuration or the command line."""
    with pytest.raises(ConfigError) as caught:
        store_at(URI)
    assert (caught.value.code, caught.value.where) == ("secret_in_uri", "s3://***@bucket/chats")


FIELDS = {
    "pack-sft": ["datasets[0].path", "tokenizer.path", "tokenizer.chat_template", "output_dir"],
    "sample-corpus": ["datasets.web.source", "output_dir"],
    "train-tokenizer": ["sample", "base", "compare_with", "chat_template", "output_dir"],
    "build-probe-rows": ["input", "output_dir"],
}


@pytest.mark.parametrize("flow", FIELDS)
def test_a_password_in_a_configuration_is_refused_and_never_shown(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flow: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for field in FIELDS[flow]:
        raw = json.loads(json.dumps(SMALLEST[flow]))
        steps = field.replace("[0]", ".0").split(".")
        holder = raw
        for step in steps[:-1]:
            holder = holder[int(step) if step.isdigit() else step]
        holder[steps[-1]] = URI
        outcome = cli(flow, write_config(tmp_path / "config.yaml", raw), "--json")
        assert (field, outcome.code) == (field, 2)
        assert outcome.message.startswith(f"[secret_in_uri] {field}: ")
        assert PASSWORD not in outcome.out + outcome.err
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["pack-sft", URI],
        ["pack-sft", "x.yaml", "--output-dir", URI],
        ["pack-sft", "x.yaml", "--set", f"datasets[0].path={URI}"],
        ["pack-sft", "x.yaml", "--address", f"http://user:{PASSWORD}@127.0.0.1:1/api"],
        ["validate", URI],
        ["inspect", URI],
        ["convert", URI, "out"],
        ["runs", URI],
    ],
)
def test_a_password_on_the_command_line_is_refused_and_never_shown(cli: Cli, arguments: list[str]) -> None:
    outcome = cli(*arguments, "--json")
    assert outcome.code == 2 and PASSWORD not in outcome.out + outcome.err


def test_whoever_prints_a_validation_error_prints_no_value() -> None:
    with pytest.raises(ValueError) as caught:
        PackSftConfig.model_validate({**SMALLEST["pack-sft"], "output_dir": URI, "seed": URI})
    assert PASSWORD not in str(caught.value)


@pytest.mark.parametrize("name", ["s3://bucket/out", "gs://bucket", "hf://datasets/a/b"])
def test_an_output_folder_is_not_a_uri(
    cli: Cli, configured: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = cli("pack-sft", configured(tmp_path / "chats.jsonl"), "--output-dir", name)
    assert (outcome.code, outcome.message.split("]")[0]) == (2, "[remote_output")
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]


def test_a_configuration_that_is_no_file(cli: Cli, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.yaml"
    os.mkfifo(pipe)
    (tmp_path / "folder.yaml").mkdir()
    for path in (pipe, tmp_path / "folder.yaml", "/dev/zero", "x" * 300, "a\0b"):
        outcome = cli("pack-sft", path)
        assert (path, outcome.code, outcome.message.split("]")[0]) == (path, 2, "[missing_config")
    huge = tmp_path / "huge.yaml"
    huge.write_bytes(b"#" * (2**20 + 1))
    outcome = cli("pack-sft", huge)
    assert outcome.code == 2 and "larger than 1,048,576 bytes" in outcome.message


def _ended(*arguments: str, **options: object) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(command(*arguments), cwd=ROOT, env=environment(), timeout=60, **options)  # type: ignore[call-overload,no-any-return]


def test_a_configuration_from_a_shell(tmp_path: Path) -> None:
    done = _ended("pack-sft", "/dev/stdin", input=b"seed: 010\n", stderr=subprocess.PIPE)
    assert done.returncode == 2 and b"[bad_yaml] /dev/stdin:1" in done.stderr


def test_a_reader_that_has_ended_ends_the_command_quietly() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as pipe:
        done = _ended("example", "pack-sft", stdout=pipe, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (141, b"")


def test_output_that_cannot_be_written_is_an_error() -> None:
    with Path("/dev/full").open("wb") as full:
        done = _ended("example", "pack-sft", stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 1 and done.stderr.startswith(b"gristmill: [limit] No space left")
    assert len(done.stderr.splitlines()) == 1
