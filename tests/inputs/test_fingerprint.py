"""Digests of inputs, and the memo that saves reading them again."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from schemas.errors import InputError
from tasks.inputs.fingerprint import Fingerprints, check_unchanged


def settled(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    os.utime(path, (1_000_000_000, 1_000_000_000))
    return path


@pytest.mark.parametrize(
    "memo", ["{", "[]", "null", '{"%s": 3}', '{"%s": [1, 2]}', '{"%s": [1, 2, 3, 4, 5]}']
)
def test_a_damaged_memo_is_an_empty_one(tmp_path: Path, memo: str) -> None:
    source = settled(tmp_path / "a", b"content")
    path = tmp_path / "memo.json"
    path.write_text(memo.replace("%s", json.dumps(str(source))[1:-1]))
    assert Fingerprints(path).digests([source]) == [hashlib.sha256(b"content").hexdigest()]


def test_a_changed_input_is_noticed(tmp_path: Path) -> None:
    source = settled(tmp_path / "a", b"content")
    prints = Fingerprints(tmp_path / "memo.json")
    prints.digests([source])
    check_unchanged(prints.identities())
    source.write_bytes(b"contenT")
    with pytest.raises(InputError, match="changed while the run was reading it") as caught:
        check_unchanged(prints.identities())
    assert (caught.value.code, caught.value.where) == ("input_changed", str(source))
    source.unlink()
    with pytest.raises(InputError, match="cannot read"):
        check_unchanged(prints.identities())
