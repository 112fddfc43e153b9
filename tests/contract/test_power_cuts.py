"""Power cuts: whatever a strict file system keeps, the old run or the new one is complete, and work resumes."""

from __future__ import annotations

from pathlib import Path

import pytest
from contract.power_cuts import FLOWS, campaign
from contract.suite import Workload
from crashes import Disk, Operation


@pytest.mark.parametrize("earlier", ["none", "other", "same"])
@pytest.mark.parametrize("kind", FLOWS, ids=[kind.flow for kind in FLOWS])
def test_a_power_cut_leaves_the_old_run_or_the_new_one(
    kind: type[Workload], earlier: str, small_tokenizer: Path, tmp_path: Path
) -> None:
    workload = kind()
    workload.tokenizer = small_tokenizer
    found = campaign(workload, tmp_path, reruns=1, seeds=1, earlier=earlier)
    assert found.faults == []
    # It recorded what it should, and it loses something.
    assert found.prefixes > 40 and found.cuts == 5 * (found.prefixes + 1) and found.trees > 10


def disk(tmp_path: Path, *operations: Operation) -> Disk:
    (tmp_path / "before").mkdir()
    (tmp_path / "before" / "old").write_bytes(b"old")
    made = Disk(tmp_path / "before")
    for operation in operations:
        made.do(operation)
    return made


def test_a_name_is_lost_until_its_folder_is_synced(tmp_path: Path) -> None:
    steps = (Operation("create", "new"), Operation("sync_file", "new", data=b"new"))
    made = disk(tmp_path, *steps, Operation("rename", "new", "old"))
    assert made.after("lost") == {"old": b"old"}
    assert made.after("kept") == made.after("names") == {"old": b"new"}
    made.do(Operation("sync_folder", ""))
    assert made.after("lost") == {"old": b"new"}


def test_content_is_lost_until_it_is_synced(tmp_path: Path) -> None:
    made = disk(tmp_path, Operation("create", "new"), Operation("content", "new", data=b"data"))
    made.do(Operation("sync_folder", ""))
    assert made.after("lost")["new"] == made.after("names")["new"] == b""
    assert (made.after("zeros")["new"], made.after("kept")["new"]) == (b"\0\0\0\0", b"data")
    made.do(Operation("sync_file", "new", data=b"data"))
    assert made.after("lost")["new"] == b"data"


def test_what_is_in_a_folder_is_lost_with_its_name(tmp_path: Path) -> None:
    made = disk(tmp_path, Operation("mkdir", "folder"), Operation("symlink", "folder/link", data=b"old"))
    made.do(Operation("sync_folder", "folder"))
    assert made.after("lost") == {"old": b"old"}
    assert made.after("kept") == {"folder": ("",), "folder/link": ("old",), "old": b"old"}
