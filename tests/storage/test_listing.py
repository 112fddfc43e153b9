"""What a pattern matches, on the local disk and behind a URI, held against Python's glob and against each other."""

from __future__ import annotations

import glob as python_glob
import os
from pathlib import Path

import fsspec
import numpy as np
import pytest

from schemas.errors import ConfigError, InputError
from tasks.storage.listing import entries, files_below, glob, is_pattern, matches, stored_bytes, walk
from tasks.storage.remote import open_uri, store_at
from tasks.storage.store import LOCAL, Store

FILES = (
    "a.parquet", "b.txt", ".hidden.parquet", "one/a.parquet", "one/two/b.parquet", "one/two/three/c.parquet",
    "one/.tmp/x.parquet", "two/two/d.parquet", "with[bracket]/e.parquet", "_private/f.parquet",
)  # fmt: skip
PATTERNS = (
    "*", "*.parquet", "**", "**/*.parquet", "*/*.parquet", "one/**/*.parquet", "**/two/*", "**/two/**", "one/t?o/*",
    "[ot]*/two/*.parquet", "*.nothing", "nothing/*", "**/**/*.txt", "one/*/*/*.parquet", "**/with[[]*/*",
)  # fmt: skip


def make(root: Path) -> None:
    for name in FILES:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(name.encode())


def by_python(pattern: str) -> set[str]:
    return {path.rstrip("/") for path in python_glob.glob(pattern, recursive=True)}  # noqa: PTH207


@pytest.fixture(params=["local", "memory", "file"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Store, str]:
    """The same files in three stores: the disk, fsspec's memory, and the disk as fsspec sees it."""
    if request.param == "memory":
        root = f"memory://{tmp_path}"
        for name in FILES:
            with fsspec.open(f"{root}/{name}", "wb") as file:
                file.write(name.encode())
        return store_at(root)
    make(tmp_path)
    return (LOCAL, str(tmp_path)) if request.param == "local" else store_at(f"file://{tmp_path}")


@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_store_matches_what_python_matches(
    place: tuple[Store, str], pattern: str, tmp_path: Path
) -> None:
    store, root = place
    make(tmp_path)
    found = glob(f"{root}/{pattern}", store)
    assert found == sorted(found)
    assert [path.removeprefix(root) for path in found] == sorted(
        path.removeprefix(str(tmp_path)) for path in by_python(f"{tmp_path}/{pattern}")
    )


def test_random_patterns_match_what_python_matches(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    make(tmp_path)
    parts = ["*", "**", "one", "two", "t*", "*.parquet", "[!o]*", "?.parquet", "three"]
    for _ in range(300):
        # Not with `**` at the end: there Python asks for a folder before it, and we for anything.
        pattern = "/".join([*rng.choice(parts, rng.integers(0, 4)), rng.choice(["*", "two", "?.parquet"])])
        assert set(glob(f"{tmp_path}/{pattern}")) == by_python(f"{tmp_path}/{pattern}"), pattern


def test_hidden_names_are_matched_by_who_spells_them(tmp_path: Path) -> None:
    make(tmp_path)
    assert glob(f"{tmp_path}/.h*") == [f"{tmp_path}/.hidden.parquet"]
    assert glob(f"{tmp_path}/one/.tmp/*") == [f"{tmp_path}/one/.tmp/x.parquet"]
    found = glob(f"{tmp_path}/**/*.parquet", hidden="._")
    assert not [path for path in found if "/_private/" in path or "/." in path.removeprefix(str(tmp_path))]


def test_relative_patterns_give_relative_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert glob("*.parquet") == ["a.parquet"]
    assert glob("one/t*/*.parquet") == ["one/two/b.parquet"]
    assert "/" in glob("/*")[0] and os.path.isabs(glob("/*")[0])  # noqa: PTH117


def test_a_folder_is_entered_once_and_loops_end(tmp_path: Path) -> None:
    make(tmp_path)
    (tmp_path / "one" / "up").symlink_to(tmp_path)
    (tmp_path / "zzz").symlink_to(tmp_path / "one")
    (tmp_path / "round").symlink_to("round")
    found = [name for name in glob(f"{tmp_path}/**/c.parquet") if not Path(name).is_dir()]
    assert found == [f"{tmp_path}/one/two/three/c.parquet"]
    # By another name, where the pattern asks for that one alone.
    assert glob(f"{tmp_path}/z*/a.parquet") == [f"{tmp_path}/zzz/a.parquet"]


def test_one_folder_at_two_places_of_a_pattern_is_entered_for_both(tmp_path: Path) -> None:
    (tmp_path / "d" / "b" / "c" / "y").mkdir(parents=True)
    (tmp_path / "d" / "b" / "c" / "x.p").touch()
    (tmp_path / "d" / "b" / "c" / "y" / "x.p").touch()
    (tmp_path / "d" / "a").symlink_to(tmp_path / "d" / "b" / "c")
    assert glob(f"{tmp_path}/d/*/[cy]/*.p") == [
        f"{tmp_path}/d/a/y/x.p",
        f"{tmp_path}/d/b/c/x.p",
    ]


def test_what_is_no_file_is_listed_so_that_someone_names_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "dangling").symlink_to("nowhere")
    assert {entry.name for entry in matches(str(tmp_path), ("*",))} == {"dangling", "pipe"}


def test_a_folder_that_cannot_be_listed_is_an_error() -> None:
    class Refusing:
        def __getattr__(self, name: str) -> object:
            def refuse(*_: object, **__: object) -> None:
                raise PermissionError(13, "Permission denied", "/a")

            return refuse

    with pytest.raises(InputError) as caught:
        glob("/a/*", Refusing())  # type: ignore[arg-type]
    assert (caught.value.code, caught.value.where) == ("unreadable", "/a")


def test_files_below(place: tuple[Store, str]) -> None:
    store, root = place
    found = files_below(root, store)
    assert [path.removeprefix(f"{root}/") for path in found] == sorted(
        name for name in FILES if "/." not in f"/{name}"
    )
    assert files_below(f"{root}/a.parquet", store) == [f"{root}/a.parquet"]
    assert files_below(f"{root}/nothing", store) == []


def test_a_file_behind_a_uri_is_read_by_ranges(tmp_path: Path) -> None:
    make(tmp_path)
    store, path = store_at(f"file://{tmp_path}/one/a.parquet")
    with open_uri(store.uri(path)) as file:
        file.seek(4)
        assert file.read(1) == b"a"


def test_a_uri_without_a_handler() -> None:
    with pytest.raises(ConfigError) as caught:
        store_at("nothing://a/b")
    assert caught.value.code == "unsupported_uri"


def test_entries_and_walk(tmp_path: Path) -> None:
    make(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "one")
    assert [path.name for path in entries(tmp_path, "*.parquet")] == [".hidden.parquet", "a.parquet"]
    assert entries(tmp_path / "nothing") == entries(tmp_path / "a.parquet") == []
    assert walk(tmp_path, "*.parquet") == sorted(
        tmp_path / name for name in FILES if name.endswith(".parquet")
    )
    assert stored_bytes(tmp_path / "one" / "two" / "three") == stored_bytes(
        tmp_path / "one" / "two" / "three" / "c.parquet"
    )


def test_is_pattern() -> None:
    assert [is_pattern(text) for text in ("a", "a*", "a?", "[a", "a]")] == [False, True, True, True, False]
