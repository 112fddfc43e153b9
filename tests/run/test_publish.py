"""Publishing: names, records and pointers of a run, and what is left of an attempt that was killed."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from pathlib import Path

import pytest
from crashes import record as recorded
from manifests import digest_of_manifest

from schemas.corpus import SampleCorpusConfig
from schemas.errors import InputError, StorageError
from schemas.run import FileRecord, InputRecord, Receipt, RowLedger, RunManifest
from tasks.inputs.files import InputFile
from tasks.run.contract import Domain
from tasks.run.history import published_faults
from tasks.run.identity import Identity, Source
from tasks.run.manifest import read_manifest, sealed
from tasks.run.publish import (
    Contents,
    Publication,
    commit_run,
    fill_run,
    json_document,
    part_stages,
    point_latest,
    publication_of,
    publish_run,
    publishing,
)
from tasks.run.receipts import Verify
from tasks.storage.atomic import write_file

RUN = "0123456789abcdef"
FOLDER = f"runs/{RUN}"


def record(path: str, data: bytes) -> FileRecord:
    return FileRecord(path=path, bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


def stage_file(root: Path, name: str = "stages/x/part.bin", data: bytes = b"heavy") -> FileRecord:
    return write_file(root / name, data).record(root)


def names(folder: Path) -> list[str]:
    """Everything below a folder that is no folder."""
    found = (path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    return sorted(path.relative_to(folder).as_posix() for path in found)


def leads_to(link: Path) -> str:
    return str(link.readlink())


def manifest(outputs: tuple[FileRecord, ...] = ()) -> RunManifest:
    return RunManifest(
        flow="a-flow", run_hash=RUN, outputs=outputs, ledger=RowLedger(), statistics={"n": 1}, stages={}, versions={},
        environment={},
    )  # fmt: skip


def publication(root: Path, **changes: object) -> Publication:
    source = root.parent / "input"
    source.write_bytes(b"input")
    seen = source.stat()
    made = Publication(
        flow="a-flow",
        published={"blend.json": "latest/blend.json"},
        output_dir=str(root),
        run_hash=RUN,
        links={"data/shard.bin": stage_file(root)},
        ledger=RowLedger(rows_in=3, rows_used=2, filtered=1),
        statistics={"tokens": 7},
        stages={"x": "tokenize"},
        config='{"size":8}',
        inputs=(InputRecord(source="a", path="input", bytes=5, digest="d"),),
        seen={str(source): [seen.st_ino, seen.st_size, seen.st_mtime_ns, 0]},
        symlinks={"splits/train": "../data"},
        documents={"blend.json": b"[1]"},
        report=b"<html>",
    )
    return replace(made, **changes)  # type: ignore[arg-type]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "output"
    folder.mkdir()
    return folder


def test_a_published_run_is_whole(root: Path) -> None:
    made = publish_run(publication(root))

    folder = root / FOLDER
    assert made.outputs == (record("blend.json", b"[1]"), record("data/shard.bin", b"heavy"))
    assert (made.flow, made.run_hash, made.format) == ("a-flow", RUN, 2)
    assert made.links == {"splits/train": "../data"}
    assert made.ledger == RowLedger(rows_in=3, rows_used=2, filtered=1)
    assert (made.statistics, made.stages) == ({"tokens": 7}, {"x": "tokenize"})
    assert made.versions and made.environment
    assert RunManifest.model_validate_json((folder / "manifest.json").read_bytes()) == made
    notes = {name: (folder / name).read_bytes() for name in ("config.json", "inputs.json", "report.html")}
    assert made.notes == tuple(record(name, content) for name, content in notes.items())
    assert made.manifest_sha256 == digest_of_manifest((folder / "manifest.json").read_bytes())
    assert names(folder) == [
        "blend.json",
        "config.json",
        "data/shard.bin",
        "inputs.json",
        "manifest.json",
        "report.html",
        "splits/train",
    ]
    assert (folder / "config.json").read_bytes() == b'{"size":8}\n'
    assert json.loads((folder / "inputs.json").read_bytes()) == [
        {"source": "a", "path": "input", "bytes": 5, "digest": "d"}
    ]
    assert (folder / "report.html").read_bytes() == b"<html>"
    assert leads_to(folder / "splits/train") == "../data"
    assert (folder / "data/shard.bin").samefile(root / "stages/x/part.bin")
    assert leads_to(root / "latest") == FOLDER
    assert leads_to(root / "blend.json") == "latest/blend.json"
    assert (root / "blend.json").read_bytes() == b"[1]"


def test_a_run_without_a_report_has_no_page(root: Path) -> None:
    full = publication(root)
    optional = {"symlinks", "documents", "report"}
    least = {field.name: getattr(full, field.name) for field in fields(full) if field.name not in optional}
    publish_run(Publication(**least | {"published": {}}))
    assert names(root / FOLDER) == ["config.json", "data/shard.bin", "inputs.json", "manifest.json"]
    assert sorted(path.name for path in root.iterdir()) == ["latest", "runs", "stages"]


def test_an_input_that_changed_stops_the_run_before_it_is_seen(root: Path) -> None:
    made = publication(root)
    (root.parent / "input").write_bytes(b"other input")
    with pytest.raises(InputError) as caught:
        publish_run(made)
    assert caught.value.code == "input_changed"
    assert sorted(path.name for path in root.iterdir()) == ["stages"]


def test_a_run_waits_until_nobody_else_publishes_it(root: Path) -> None:
    made = publication(root)
    with ThreadPoolExecutor(1) as pool:
        with publishing(root, RUN):
            waiting = pool.submit(publish_run, made)
            time.sleep(0.2)
            assert not waiting.done()
            assert not (root / FOLDER).exists()
        assert waiting.result(30).outputs
    assert leads_to(root / "latest") == FOLDER


def test_the_lock_excludes_and_is_given_back(root: Path) -> None:
    path = root / f"runs/.{RUN}.lock"
    with publishing(root, RUN), path.open() as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    # Again, with the file and its folder there; another run has a lock of its own.
    with publishing(root, RUN), publishing(root, "f" * 16):
        pass
    assert path.read_bytes() == b""


def test_a_lock_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "runs").write_bytes(b"in the way")
    with pytest.raises(StorageError) as caught, publishing(tmp_path, RUN):
        pass
    assert caught.value.where == str(tmp_path / f"runs/.{RUN}.lock")


def test_records_are_in_the_order_of_their_names(root: Path) -> None:
    links = {"z": stage_file(root), "b/a": stage_file(root, "stages/x/2", b"2")}
    records = fill_run(root, RUN, links, {}, {"m": b"m", "a": b"a"})
    assert records == (record("a", b"a"), record("b/a", b"2"), record("m", b"m"), record("z", b"heavy"))


def test_links_lead_where_they_are_told(root: Path) -> None:
    for target in ("../one", "../one", "../two"):
        assert fill_run(root, RUN, {}, {"splits/train/data": target, "top": target}, {}) == ()
        assert leads_to(root / FOLDER / "splits/train/data") == target
        assert leads_to(root / FOLDER / "top") == target


def test_what_an_attempt_left_behind_goes(root: Path) -> None:
    folder = root / FOLDER
    stage_file(root)
    # A folder that a link leads out to is not ours to clear.
    (root / "elsewhere").mkdir()
    (root / "elsewhere/kept").write_bytes(b"kept")
    for name in (
        "old.bin",
        "data/old.bin",
        "data/.tmp-shard.bin.host.1-2",
        ".tmp-wanted",
        "manifest.json",
        "config.json",
        "note",
    ):
        write_file(folder / name, b"old")
    (folder / "data/dangling").symlink_to("nowhere")
    (folder / "outside").symlink_to(root / "elsewhere")
    (folder / "empty").mkdir()
    links = {"data/shard.bin": stage_file(root)}

    fill_run(root, RUN, links, {"splits": "data"}, {"document": b"d"})

    # The manifest and the notes stay: a run that was published once is repaired in place.
    assert names(folder) == ["config.json", "data/shard.bin", "document", "manifest.json", "splits"]
    assert (root / "elsewhere/kept").read_bytes() == b"kept"


def test_a_second_attempt_replaces_what_is_there(root: Path) -> None:
    first = publish_run(publication(root))
    (root / FOLDER / "data/shard.bin").unlink()
    (root / FOLDER / "data/shard.bin").write_bytes(b"damaged")
    (root / FOLDER / "blend.json").write_bytes(b"damaged")
    again = publish_run(publication(root))
    assert again.outputs == first.outputs
    assert (root / FOLDER / "data/shard.bin").read_bytes() == b"heavy"
    assert (root / FOLDER / "blend.json").read_bytes() == b"[1]"


def test_while_notes_are_replaced_the_run_stays_complete(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At each change of its folder the manifest that is there bears out the notes that are there."""
    publish_run(publication(root))
    folder, checked = root / FOLDER, []

    def check(path: Path, data: bytes) -> object:
        made = write_file(path, data)
        assert not list(published_faults(folder, read_manifest(folder), Verify.SHA256)), path
        checked.append(path.name)
        return made

    monkeypatch.setattr("tasks.run.publish.write_file", check)
    other = publish_run(publication(root, report=b"<html> of another run", config='{"workers":9}'))
    assert checked == [
        "blend.json",
        "manifest.json",
        "config.json",
        "inputs.json",
        "report.html",
        "manifest.json",
    ]
    assert other.notes == tuple(record(name, (folder / name).read_bytes()) for name in checked[2:5])
    publish_run(publication(root, report=None))
    assert not (folder / "report.html").exists()


def test_a_file_in_the_way_of_a_folder_is_an_error(root: Path) -> None:
    write_file(root / FOLDER / "splits", b"in the way")
    with pytest.raises(StorageError) as caught:
        fill_run(root, RUN, {}, {"splits/train": "../data"}, {})
    assert caught.value.where == str(root / FOLDER / "splits/train")


def test_the_manifest_comes_before_the_pointers(root: Path) -> None:
    (root / "latest").mkdir()
    with pytest.raises(StorageError):
        commit_run(root, manifest(), {}, {"splits": "latest/splits"})
    assert (root / FOLDER / "manifest.json").is_file()
    # `latest` comes before the names that lead through it.
    assert not os.path.lexists(root / "splits")
    (root / "latest").rmdir()
    commit_run(root, manifest(), {}, {"splits": "latest/splits"})
    written = (root / FOLDER / "manifest.json").read_bytes()
    assert RunManifest.model_validate_json(written) == sealed(manifest())
    # For people, too: indented, with a line end.
    assert written.startswith(b'{\n  "format": 2,\n') and written.endswith(b"}\n")
    assert [leads_to(root / name) for name in ("latest", "splits")] == [FOLDER, "latest/splits"]


def test_the_folders_of_a_killed_attempt_are_synced_before_latest_moves(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir(parents=True)
    (tmp_path / "stages").mkdir()
    with recorded(tmp_path) as operations:
        point_latest(tmp_path, RUN, {})
    done = [(operation.name, operation.path) for operation in operations]
    moved = next(number for number, operation in enumerate(operations) if operation.other == "latest")
    assert {("sync_folder", name) for name in (FOLDER, "runs", "stages", "")} <= set(done[:moved])


def test_pointers_are_moved_only_where_they_lead_elsewhere(root: Path) -> None:
    point_latest(root, RUN, {"splits": "latest/splits"})
    before = {name: (root / name).lstat().st_ino for name in ("latest", "splits")}
    held = (root / "latest").lstat().st_mtime_ns
    point_latest(root, RUN, {"splits": "latest/splits"})
    assert {name: (root / name).lstat().st_ino for name in ("latest", "splits")} == before
    assert (root / "latest").lstat().st_mtime_ns == held
    point_latest(root, "f" * 16, {"splits": "latest/other"})
    assert [leads_to(root / name) for name in ("latest", "splits")] == [f"runs/{'f' * 16}", "latest/other"]


def test_documents_are_indented_for_people() -> None:
    assert json_document({"a": [1], "b": "ü"}) == b'{\n  "a": [\n    1\n  ],\n  "b": "\\u00fc"\n}\n'


def test_the_lineage_names_every_part() -> None:
    receipts = [Receipt(task="pack", stage=stage, part=9) for stage in ("x", "y")]
    assert part_stages("pack", iter(receipts)) == {"pack/000000": "x", "pack/000001": "y"}
    assert part_stages("pack", receipts[1:], "train/web") == {"pack/train/web/000000": "y"}
    assert part_stages("pack", []) == {}


def test_what_a_domain_publishes_and_what_every_run_says() -> None:
    config = SampleCorpusConfig.parse(
        {
            "output_dir": "/out",
            "datasets": {"web": {"name": "Web", "source": "/in", "buckets": {"4": {"count": 1}}}},
        }
    )
    file = InputFile(Path("/in/4/a.parquet"), "a.parquet", 5)
    source = Source("web", "datasets.web", (file,), ("d" * 64,))
    contents = Contents(
        links={"data": record("stages/x/1", b"1")},
        ledger=RowLedger(rows_in=1, rows_used=1),
        statistics={"n": 1},
        stages={"pack": "x"},
        symlinks={"splits": "data"},
        documents={"d.json": b"{}"},
    )
    domain = Domain("a-flow", 3, {"d.json": "latest/d.json"})
    identity = Identity(run_hash=RUN, sources=(source,), seen={"/in/4/a.parquet": [1, 2, 3]})
    assert publication_of(domain, config, identity, contents) == Publication(
        flow="a-flow",
        published={"d.json": "latest/d.json"},
        output_dir="/out",
        run_hash=RUN,
        links=contents.links,
        ledger=contents.ledger,
        statistics={"n": 1},
        stages={"pack": "x"},
        config=config.model_dump_json(indent=2),
        inputs=(InputRecord(source="web", path="a.parquet", bytes=5, digest="sha256:" + "d" * 64),),
        seen={"/in/4/a.parquet": [1, 2, 3]},
        symlinks={"splits": "data"},
        documents={"d.json": b"{}"},
        report=None,
    )
