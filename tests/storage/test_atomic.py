from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from crashes import record

from schemas.errors import InputError, StorageError
from tasks.inputs.fingerprint import Fingerprints, check_unchanged
from tasks.inputs.survey import Survey, survey_here
from tasks.storage.atomic import AtomicFile, AtomicFolder, link_file, swap_symlink, write_file
from tasks.storage.names import make_folder


def test_a_file_appears_whole_with_its_record(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "data.bin"
    with AtomicFile(path) as file:
        file.write(b"abc")
        assert not path.exists()
        file.write(memoryview(b"def"))
    assert path.read_bytes() == b"abcdef"
    record = file.record(tmp_path)
    assert (record.path, record.bytes) == ("sub/data.bin", 6)
    assert record.sha256 == hashlib.sha256(b"abcdef").hexdigest()
    assert [p.name for p in path.parent.iterdir()] == ["data.bin"]


def test_a_failure_keeps_the_old_file_and_leaves_no_new_one(tmp_path: Path) -> None:
    path = tmp_path / "data.bin"
    write_file(path, b"old")
    with pytest.raises(RuntimeError), AtomicFile(path) as file:
        file.write(b"new")
        raise RuntimeError
    assert path.read_bytes() == b"old"
    assert len(list(tmp_path.iterdir())) == 1


def test_leftovers_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from tasks.storage.atomic import AtomicFile\n"
        "file = AtomicFile(Path(sys.argv[1])); file.write(b'half'); file.flush(); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "data.bin")], check=False)
    assert [path.name.startswith(".tmp-data.bin.") for path in tmp_path.iterdir()] == [True]
    write_file(tmp_path / "data.bin", b"whole")
    assert [path.name for path in tmp_path.iterdir()] == ["data.bin"]


def test_a_new_folder_is_synced_from_the_first_that_was_there(tmp_path: Path) -> None:
    with record(tmp_path) as operations:
        make_folder(tmp_path / "a" / "b")
    done = [(operation.name, operation.path) for operation in operations]
    assert sorted(done[-2:]) == [("sync_folder", ""), ("sync_folder", "a")]


def test_a_shared_folder_that_nobody_may_list_holds_our_folders() -> None:
    """Such as a scratch file system with mode 1733. Root may do everything, so this is another user."""
    code = (
        "import os, sys; from pathlib import Path; from tasks.storage.atomic import write_file\n"
        "if os.getuid() == 0: os.setuid(65534)\n"
        "write_file(Path(sys.argv[1], 'out', 'deep', 'data.bin'), b'data')"
    )
    with tempfile.TemporaryDirectory() as top:
        Path(top).chmod(0o755)
        shared = Path(top, "shared")
        shared.mkdir()
        shared.chmod(0o333)
        try:
            done = subprocess.run([sys.executable, "-c", code, str(shared)], check=False, capture_output=True)
            assert (done.returncode, done.stderr) == (0, b"")
        finally:
            shared.chmod(0o755)
        assert (shared / "out" / "deep" / "data.bin").read_bytes() == b"data"


def test_storage_errors_are_one_readable_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError) as caught:
        write_file(tmp_path / "file" / "below", b"x")
    assert "cannot write" in caught.value.message
    assert caught.value.where == str(tmp_path / "file" / "below")


def test_two_writers_of_a_folder_leave_a_whole_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, theirs, rename = AtomicFolder(tmp_path / "shard"), ["first", "second"], Path.rename
    for name in "ab":
        with folder.new_file(name) as file:
            file.write(b"ours")
    (tmp_path / "shard").mkdir()
    (tmp_path / "shard" / "old").write_text("old")

    def interleaved(self: Path, target: Path) -> Path:
        moved = rename(self, target)
        # Another process publishes its own each time when the name is free.
        if self.name == "shard" and theirs:
            self.mkdir()
            (self / theirs.pop(0)).write_text("theirs")
        return moved

    monkeypatch.setattr(Path, "rename", interleaved)
    folder.commit()
    assert theirs == []
    assert {file.name: file.read_text() for file in (tmp_path / "shard").iterdir()} == {
        "a": "ours",
        "b": "ours",
    }
    assert [path.name for path in tmp_path.iterdir()] == ["shard"]


def test_a_link_replaces_what_was_there(tmp_path: Path) -> None:
    write_file(tmp_path / "source", b"new")
    write_file(tmp_path / "target", b"old")
    for _ in range(2):
        link_file(tmp_path / "source", tmp_path / "target")
        assert (tmp_path / "target").samefile(tmp_path / "source")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source", "target"]


def test_a_copy_where_links_are_impossible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, target: Path) -> None:
        raise OSError

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    write_file(tmp_path / "source", b"bytes")
    link_file(tmp_path / "source", tmp_path / "target")
    assert (tmp_path / "target").read_bytes() == b"bytes"
    assert not (tmp_path / "target").samefile(tmp_path / "source")
    assert len(list(tmp_path.iterdir())) == 2


def test_a_symlink_is_swapped(tmp_path: Path) -> None:
    for target in ("one", "two"):
        swap_symlink(tmp_path / "latest", target)
        assert (tmp_path / "latest").readlink() == Path(target)


def digests(prints: Fingerprints, paths: list[Path], survey: Survey = survey_here) -> list[str]:
    return [content.digest for content in prints.contents(paths, survey)]


def settled(path: Path, content: bytes) -> Path:
    """A file whose times lie far enough back to be remembered."""
    path.write_bytes(content)
    os.utime(path, (1_700_000_000, 1_700_000_000))
    return path


def test_digests_are_remembered_until_the_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.inputs.fingerprint._SETTLED_NS", -(10**18))
    path, memo = settled(tmp_path / "in.jsonl", b"one"), tmp_path / "memo.json"
    first = Fingerprints(memo)
    assert digests(first, [path]) == [hashlib.sha256(b"one").hexdigest()]
    first.save()

    def unexpected(blocks: Any) -> Any:
        raise AssertionError(f"read {blocks} again")

    assert digests(Fingerprints(memo), [path], unexpected) == [hashlib.sha256(b"one").hexdigest()]
    settled(path, b"two")
    assert digests(Fingerprints(memo), [path]) == [hashlib.sha256(b"two").hexdigest()]


def test_a_file_changed_a_moment_ago_is_not_remembered(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(b"one")
    fingerprints = Fingerprints(tmp_path / "memo.json")
    digests(fingerprints, [tmp_path / "in.jsonl"])
    fingerprints.save()
    assert not (tmp_path / "memo.json").exists()


def test_a_torn_memo_is_an_empty_memo(tmp_path: Path) -> None:
    (tmp_path / "memo.json").write_bytes(b'{"half')
    path = settled(tmp_path / "in.jsonl", b"one")
    assert (
        digests(Fingerprints(tmp_path / "memo.json"), [path, path])[1] == hashlib.sha256(b"one").hexdigest()
    )


def test_a_changed_input_is_noticed(tmp_path: Path) -> None:
    path = settled(tmp_path / "in.jsonl", b"one")
    fingerprints = Fingerprints(tmp_path / "memo.json")
    digests(fingerprints, [path])
    check_unchanged(fingerprints.identities())
    path.write_bytes(b"two")
    with pytest.raises(InputError) as caught:
        check_unchanged(fingerprints.identities())
    assert (caught.value.code, caught.value.where) == ("input_changed", str(path))
    path.unlink()
    with pytest.raises(InputError):
        check_unchanged(fingerprints.identities())
