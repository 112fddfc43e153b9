"""Links inside an output folder: nothing is written, changed or removed where they lead."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support import state_of

from schemas.errors import ConfigError, StorageError
from tasks.storage import atomic
from tasks.storage.atomic import AtomicFile, AtomicFolder, link_file, swap_symlink, write_file
from tasks.storage.flock import locked, try_lock, unlock
from tasks.storage.links import refuse_links
from tasks.storage.names import make_folder, remove_path, touch_folder

Act = Callable[[Path], object]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / ".gristmill.json").write_text("{}")
    (folder / "source").write_bytes(b"source")
    return folder


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    folder = tmp_path / "elsewhere"
    below = folder / "0123" / "sub"
    below.mkdir(parents=True)
    for place in (folder, below.parent, below):
        (place / "data").write_bytes(b"theirs")
        (place / ".gristmill.json").write_text("{}")
        (place / f".tmp-data.{atomic._HOST}.999999999-1").write_bytes(b"left over")
    return folder


def written(path: Path) -> None:
    write_file(path, b"ours")


def folder_written(path: Path) -> None:
    folder = AtomicFolder(path)
    folder.new_file("part").commit()
    folder.commit()


def lock_waited_for(path: Path) -> None:
    with locked(path):
        pass


ACTS: dict[str, Act] = {
    "write": written,
    "folder": folder_written,
    "link": lambda path: link_file(path.parents[2] / "source", path),
    "link from": lambda path: link_file(path, path.parents[2] / "new"),
    "symlink": lambda path: swap_symlink(path, "nowhere"),
    "make": lambda path: make_folder(path / "more"),
    "remove": remove_path,
    "touch": lambda path: touch_folder(path.parent),
    "try lock": try_lock,
    "lock": lock_waited_for,
}


@pytest.mark.parametrize("area", ["runs", "stages"])
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)
def test_a_folder_that_is_a_link_is_refused(
    out: Path, elsewhere: Path, area: str, depth: int, act: Act
) -> None:
    parts = [area, "0123", "sub"]
    link = out.joinpath(*parts[:depth])
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(elsewhere.joinpath(*parts[1:depth]))
    before = state_of(elsewhere)
    with pytest.raises(ConfigError) as caught:
        act(out.joinpath(*parts, "data"))
    assert (caught.value.code, caught.value.exit_code) == ("foreign_output", 2)
    assert caught.value.where == str(link)
    assert "remove it, then run again" in caught.value.message
    assert state_of(elsewhere) == before


@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)
def test_a_link_that_leads_nowhere_is_refused(out: Path, tmp_path: Path, act: Act) -> None:
    (out / "stages").mkdir()
    (out / "stages/0123").symlink_to(tmp_path / "not-there")
    with pytest.raises(ConfigError, match="not-there"):
        act(out / "stages/0123/data")
    assert not (tmp_path / "not-there").exists()


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("take", [try_lock, lock_waited_for])
def test_a_lock_file_that_is_a_link_is_refused(out: Path, elsewhere: Path, take: Act, there: bool) -> None:
    lock = out / "runs/.0123.lock"
    lock.parent.mkdir()
    lock.symlink_to(elsewhere / ("data" if there else "new"))
    before = state_of(elsewhere)
    with pytest.raises(ConfigError) as caught:
        take(lock)
    assert (caught.value.code, caught.value.where) == ("foreign_output", str(lock))
    assert state_of(elsewhere) == before


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("name", ["runs/0123/data", "data"])
def test_a_file_that_is_a_link_is_replaced(out: Path, elsewhere: Path, name: str, there: bool) -> None:
    acts: dict[str, Act] = {
        "write": written,
        "folder": folder_written,
        "link": lambda path: link_file(out / "source", path),
        "symlink": lambda path: swap_symlink(path, "nowhere"),
        "remove": remove_path,
    }
    before = state_of(elsewhere)
    path = out / name
    path.parent.mkdir(parents=True, exist_ok=True)
    for what, act in acts.items():
        remove_path(path)
        path.symlink_to(elsewhere / ("data" if there else "new"))
        act(path)
        assert path.is_symlink() == (what == "symlink"), what
        assert state_of(elsewhere) == before, what


@pytest.mark.parametrize("there", [True, False])
def test_a_temporary_name_that_is_a_link_is_not_written_through(
    out: Path, elsewhere: Path, there: bool
) -> None:
    path = out / "runs/0123/data"
    path.parent.mkdir(parents=True)
    before = state_of(elsewhere)
    for act in (ACTS["write"], ACTS["folder"], ACTS["link"], ACTS["symlink"]):
        remove_path(path)
        if act is ACTS["link"]:
            # A free name is given in one step, without a temporary one.
            path.write_bytes(b"old")
        atomic._temporary(path).symlink_to(elsewhere / ("data" if there else "new"))
        act(path)
        assert [entry.name for entry in path.parent.iterdir()] == ["data"]
        assert state_of(elsewhere) == before


def test_a_source_that_is_a_link_is_not_published(out: Path, elsewhere: Path) -> None:
    (out / "stages/0123").mkdir(parents=True)
    (out / "stages/0123/data").symlink_to(elsewhere / "data")
    before = state_of(elsewhere)
    with pytest.raises(ConfigError) as caught:
        link_file(out / "stages/0123/data", out / "runs/0123/data")
    assert caught.value.where == str(out / "stages/0123/data")
    assert state_of(elsewhere) == before


def test_a_folder_that_becomes_a_link_meanwhile_is_refused(out: Path, elsewhere: Path) -> None:
    path = out / "stages/0123/data"
    file, folder = AtomicFile(path), AtomicFolder(path)
    file.write(b"ours")
    (out / "stages/0123").rename(out / "stages/moved")
    (out / "stages/0123").symlink_to(elsewhere)
    (elsewhere / file._temporary.name).write_bytes(b"theirs")
    before = state_of(elsewhere)
    for one in (file, folder):
        with pytest.raises(ConfigError, match="symbolic link"):
            one.commit()
        one.discard()
    assert state_of(elsewhere) == before


def test_what_is_left_over_behind_a_link_inside_stays(out: Path, elsewhere: Path) -> None:
    folder = out / "runs/0123"
    folder.mkdir(parents=True)
    (folder / "sub").symlink_to(elsewhere)
    before = state_of(elsewhere)
    remove_path(folder)
    assert not folder.exists()
    assert state_of(elsewhere) == before


def test_links_above_the_output_folder_are_the_users_own(out: Path, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    for link in (tmp_path / "mine", tmp_path / "runs" / "stages"):
        link.symlink_to(out)
        for name in ("runs/0123/data", "stages/0123/data", "latest"):
            written(link / name)
        descriptor = try_lock(link / "runs/.0123.lock")
        assert descriptor is not None
        unlock(descriptor)
    assert (out / "runs/0123/data").read_bytes() == b"ours"


def test_links_outside_output_folders_are_followed(tmp_path: Path, elsewhere: Path) -> None:
    (tmp_path / "runs").symlink_to(elsewhere)
    written(tmp_path / "runs/new")
    assert (elsewhere / "new").read_bytes() == b"ours"


def test_relative_paths_are_checked_too(out: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (out / "runs").symlink_to(elsewhere)
    monkeypatch.chdir(out)
    with pytest.raises(ConfigError):
        refuse_links(Path("runs/0123/data"))
    monkeypatch.chdir(out.parent)
    with pytest.raises(ConfigError):
        refuse_links(Path("out/runs"))
    refuse_links(Path())


def test_a_folder_with_a_files_name_is_a_named_error(out: Path) -> None:
    path = out / "runs/0123/data"
    for place in (path, out / "latest"):
        (place / "theirs").mkdir(parents=True)
        for act in (written, lambda path: link_file(out / "source", path), ACTS["symlink"], try_lock):
            with pytest.raises(StorageError) as caught:
                act(place)
            assert (caught.value.code, caught.value.where) == ("not_a_file", str(place))
            assert "a folder is where this file belongs; move it away" in caught.value.message
        assert (place / "theirs").is_dir()
    # Nothing half-done stays beside it.
    assert sorted(os.listdir(path.parent)) == ["data"]  # noqa: PTH208
