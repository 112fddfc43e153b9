"""Paths to input files: names, order, hidden files, globs, links, and what is refused."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from schemas.errors import ConfigError, GristmillError, InputError
from tasks.inputs.files import InputFile, resolve

FILES = (
    "b.jsonl",
    "a.jsonl.gz",
    "B.jsonl",
    "sub/z.parquet",
    "sub/deep/y.jsonl.zst",
    "sub-x/w.jsonl",
    "ä.jsonl",
    "a10.jsonl",
    "a2.jsonl",
)
LEFT_OUT = (
    "c.json",
    "readme.md",
    "jsonl",
    ".hidden.jsonl",
    "_tmp.jsonl",
    ".git/x.jsonl",
    "_old/x.jsonl",
    "sub/d.jsonl.bz2",
    "UPPER.JSONL",
)
# By the bytes of the whole name: '-' sorts before '/', capitals before small letters, 'ä' last.
SORTED = [
    "B.jsonl",
    "a.jsonl.gz",
    "a10.jsonl",
    "a2.jsonl",
    "b.jsonl",
    "sub-x/w.jsonl",
    "sub/deep/y.jsonl.zst",
    "sub/z.parquet",
    "ä.jsonl",
]


def make(root: Path, names: tuple[str, ...]) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)


def names(path: Path | str) -> list[str]:
    return [file.name for file in resolve(str(path))]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    make(tmp_path, (*FILES, *LEFT_OUT))
    return tmp_path


def failure(path: Path | str) -> GristmillError:
    with pytest.raises(GristmillError) as caught:
        resolve(str(path))
    return caught.value


def test_a_file_has_its_own_name(corpus: Path) -> None:
    path = corpus / "sub" / "z.parquet"
    assert resolve(str(path)) == (InputFile(path, "z.parquet", len("sub/z.parquet")),)


def test_a_hidden_file_given_by_name_is_read(corpus: Path) -> None:
    assert names(corpus / "_tmp.jsonl") == ["_tmp.jsonl"]


def test_a_folder_is_read_recursively_and_sorted_by_bytes(corpus: Path) -> None:
    files = resolve(str(corpus))
    assert [file.name for file in files] == SORTED
    assert all(file.path == corpus / file.name and file.bytes == len(file.name.encode()) for file in files)


@pytest.mark.parametrize("seed", range(3))
def test_order_of_creation_does_not_matter(tmp_path: Path, seed: int) -> None:
    shuffled = list(FILES)
    random.Random(seed).shuffle(shuffled)
    make(tmp_path, tuple(shuffled))
    assert names(tmp_path) == SORTED


@pytest.mark.parametrize(
    ("glob", "expected"),
    [
        ("*.jsonl", ["B.jsonl", "a10.jsonl", "a2.jsonl", "b.jsonl", "ä.jsonl"]),
        ("a?.jsonl", ["a2.jsonl"]),
        ("[ab]*.jsonl*", ["a.jsonl.gz", "a10.jsonl", "a2.jsonl", "b.jsonl"]),
        ("**", SORTED),
        ("**/*", SORTED),
        ("**/*.parquet", ["sub/z.parquet"]),
        ("*/*", ["sub-x/w.jsonl", "sub/z.parquet"]),
        ("sub*/**/*.jsonl*", ["sub-x/w.jsonl", "sub/deep/y.jsonl.zst"]),
        ("**/deep/**", ["sub/deep/y.jsonl.zst"]),
        ("_*", ["_tmp.jsonl"]),
        ("_*/*", ["_old/x.jsonl"]),
    ],
)
def test_globs(corpus: Path, glob: str, expected: list[str]) -> None:
    assert names(corpus / glob) == expected


def test_glob_names_start_at_the_folder_before_the_first_wildcard(corpus: Path) -> None:
    assert names(corpus / "sub/*.parquet") == ["z.parquet"]
    assert names(corpus / "sub/d*p/*.zst") == ["deep/y.jsonl.zst"]


def test_what_exists_under_exactly_this_name_is_no_glob(tmp_path: Path) -> None:
    make(tmp_path, ("a[1].jsonl", "a1.jsonl", "set[2]/b.jsonl"))
    assert names(tmp_path / "a[1].jsonl") == ["a[1].jsonl"]
    assert names(tmp_path / "set[2]") == ["b.jsonl"]


def test_relative_paths_home_and_file_uris(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(corpus)
    monkeypatch.setenv("HOME", str(corpus))
    assert resolve("sub") == resolve(str(corpus / "sub"))
    assert resolve("*.jsonl") == resolve(str(corpus / "*.jsonl"))
    assert resolve(".") == resolve("~") == resolve(f"file://{corpus}") == resolve(str(corpus))


@pytest.mark.parametrize("path", ["", "nope", "nope.jsonl", "nope/*.jsonl", "a\0b", "x" * 5000])
def test_nothing_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.chdir(tmp_path)
    error = failure(path)
    assert isinstance(error, ConfigError)
    assert error.code == "missing_path"
    assert error.where == path.replace("\0", "\\x00")


@pytest.mark.parametrize("path", ["", "*", "**", "*.json"])
def test_no_supported_file(tmp_path: Path, path: str) -> None:
    make(tmp_path, LEFT_OUT)
    error = failure(f"{tmp_path}/{path}")
    assert error.code == "no_files"
    assert ".jsonl, .jsonl.gz, .jsonl.zst, .parquet" in error.message


@pytest.mark.parametrize("name", ["c.json", "readme.md", "jsonl", "UPPER.JSONL"])
def test_a_file_of_another_kind(corpus: Path, name: str) -> None:
    error = failure(corpus / name)
    assert isinstance(error, ConfigError)
    assert (error.code, error.where) == ("unsupported_file", str(corpus / name))


def test_a_pipe_is_no_input(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    assert failure(tmp_path / "pipe.jsonl").code == "unsupported_file"
    # Not left out: it may stand for data.
    assert failure(tmp_path).code == "unreadable"
    (tmp_path / "pipe.jsonl").rename(tmp_path / "pipe")
    (tmp_path / "link.jsonl").symlink_to("pipe")
    error = failure(tmp_path)
    assert (error.code, error.where) == ("unreadable", str(tmp_path / "link.jsonl"))
    assert "is a pipe" in error.message


@pytest.mark.parametrize("uri", ["s3://bucket/a.jsonl", "gs://bucket", "https://host/a.jsonl"])
def test_remote_inputs_are_refused_by_name(uri: str) -> None:
    assert failure(uri).code == "remote_input"


def test_link_loops_end_and_no_folder_is_read_twice(tmp_path: Path) -> None:
    make(tmp_path, ("one/a.jsonl", "two/b.jsonl"))
    (tmp_path / "one" / "up").symlink_to(tmp_path)
    (tmp_path / "one" / "self").symlink_to(tmp_path / "one")
    (tmp_path / "two" / "other").symlink_to(tmp_path / "one")
    (tmp_path / "zzz").symlink_to(tmp_path / "two")
    assert names(tmp_path) == ["one/a.jsonl", "two/b.jsonl"]
    assert names(tmp_path / "**/*.jsonl") == ["one/a.jsonl", "two/b.jsonl"]


def test_links_to_files_and_folders_are_followed(tmp_path: Path) -> None:
    make(tmp_path, ("store/a.jsonl", "store/more/b.jsonl"))
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "first.jsonl").symlink_to(tmp_path / "store" / "a.jsonl")
    (tmp_path / "set" / "rest").symlink_to(tmp_path / "store" / "more")
    assert names(tmp_path / "set") == ["first.jsonl", "rest/b.jsonl"]


def test_a_dangling_link_is_an_error_and_not_an_empty_file(tmp_path: Path) -> None:
    make(tmp_path, ("a.jsonl",))
    (tmp_path / "b.jsonl").symlink_to(tmp_path / "gone")
    error = failure(tmp_path)
    assert isinstance(error, InputError)
    assert (error.code, error.where) == ("unreadable", str(tmp_path / "b.jsonl"))


def test_a_name_that_is_not_utf8(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"bad\xff.jsonl")).write_text("")
    error = failure(tmp_path)
    assert (error.code, error.where) == ("bad_file_name", r"bad\xff.jsonl")


def test_import_is_cheap() -> None:
    code = (
        "import tasks.inputs.files, sys; print({'pyarrow', 'numpy', 'fsspec', 'prefect'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
