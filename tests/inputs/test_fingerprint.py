"""Digests of inputs, and the memo that saves reading them again."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from schemas.errors import InputError
from tasks.inputs import survey as survey_module
from tasks.inputs.fingerprint import Fingerprints, check_unchanged
from tasks.inputs.survey import (
    Block,
    BlockContent,
    FileContent,
    TooMuchToReadError,
    survey_few,
    survey_here,
)


@pytest.fixture(autouse=True)
def every_file_is_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of a change of status cannot be set."""
    monkeypatch.setattr("tasks.inputs.fingerprint._SETTLED_NS", -(10**18))


def settled(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    os.utime(path, (1_000_000_000, 1_000_000_000))
    return path


@pytest.mark.parametrize(
    "files", ["null", "3", "[]", '{"%s": 3}', '{"%s": [1, 2]}', '{"%s": [1, 2, 3, 4, "a", 5]}']
)
def test_damaged_entries_are_not_used(tmp_path: Path, files: str) -> None:
    files = files.replace("%s", json.dumps(str(tmp_path / "a"))[1:-1])
    digest = hashlib.sha256(json.dumps(json.loads(files), sort_keys=True).encode()).hexdigest()
    memo = f'{{"format": 3, "sha256": "{digest}", "files": {files}}}'
    test_a_damaged_memo_is_an_empty_one(tmp_path, memo)


def test_a_flipped_digest_is_not_believed(tmp_path: Path) -> None:
    source = settled(tmp_path / "a", b"content")
    path = tmp_path / "memo.json"
    prints = Fingerprints(path)
    prints.contents([source])
    prints.save()
    memo = path.read_bytes()
    digest = hashlib.sha256(b"content").hexdigest()
    place = memo.index(digest.encode())
    for at in range(place, place + len(digest)):
        path.write_bytes(memo[:at] + (b"0" if memo[at : at + 1] != b"0" else b"1") + memo[at + 1 :])
        assert Fingerprints(path).contents([source]) == [FileContent(digest)]


@pytest.mark.parametrize(
    "memo", ["{", "[]", "null", "{}", '{"format": 3}', "\n", "{}\n{}", '{"%s": [1, 2, 3, 4, "a", []]}']
)
def test_a_damaged_memo_is_an_empty_one(tmp_path: Path, memo: str) -> None:
    source = settled(tmp_path / "a", b"content")
    path = tmp_path / "memo.json"
    path.write_text(memo.replace("%s", json.dumps(str(source))[1:-1]))
    digest = hashlib.sha256(b"content").hexdigest()
    prints = Fingerprints(path)
    assert prints.contents([source]) == [FileContent(digest)]
    prints.save()
    assert json.loads(path.read_text())["files"][str(source)][4] == digest


def test_a_changed_input_is_noticed(tmp_path: Path) -> None:
    source = settled(tmp_path / "a", b"content")
    prints = Fingerprints(tmp_path / "memo.json")
    prints.contents([source])
    check_unchanged(prints.identities())
    source.write_bytes(b"contenT")
    with pytest.raises(InputError, match="changed while the run was reading it") as caught:
        check_unchanged(prints.identities())
    assert (caught.value.code, caught.value.where) == ("input_changed", str(source))
    source.unlink()
    with pytest.raises(InputError, match="cannot read"):
        check_unchanged(prints.identities())


def test_only_what_changed_is_read_again(tmp_path: Path) -> None:
    # Cut into 3 pieces.
    large = settled(tmp_path / "large.jsonl", (b"x" * 99_999 + b"\n") * 30)
    small = settled(tmp_path / "small.jsonl", b"{}")
    memo, asked = tmp_path / "memo.json", []

    def survey(blocks: Sequence[Block]) -> list[BlockContent]:
        asked.extend(blocks)
        return survey_here(blocks)

    def read() -> list[FileContent]:
        prints = Fingerprints(memo)
        found = prints.contents([large, small, large], survey)
        prints.save()
        return found

    first = read()
    assert [len(content.cuts) for content in first] == [3, 0, 3]
    assert [Path(block.path).name for block in asked] == ["large.jsonl", "small.jsonl"]
    assert read() == first
    assert len(asked) == 2
    os.utime(large, (1_100_000_000, 1_100_000_000))
    assert read() == first
    assert [Path(block.path).name for block in asked[2:]] == ["large.jsonl"]


def test_much_is_not_read_where_only_little_should_be(tmp_path: Path) -> None:
    source = settled(tmp_path / "a", b"content")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(survey_module, "FEW_BYTES", 10_000)
        with pytest.raises(TooMuchToReadError):
            Fingerprints(tmp_path / "memo.json").contents([source], survey_few)
    assert len(Fingerprints(tmp_path / "memo.json").contents([source], survey_few)) == 1
