"""Manifests of many outputs: listed beside them, and as quick to read as they are strict."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from manifests import digest_of_manifest, edit_manifest

from schemas.errors import IntegrityError
from schemas.run import FileRecord, RowLedger, RunManifest
from tasks.run import manifest as module
from tasks.run.find import find, find_uri
from tasks.run.history import completed_run, published_faults, unlisted_files
from tasks.run.layout import MARKER
from tasks.run.manifest import format_manifest, parse_manifest, read_manifest, sealed
from tasks.run.publish import Publication, publish_run
from tasks.run.receipts import Verify

RUN = "0123456789abcdef"
DOCUMENTS = {f"data/part-{number}.json": b"%d" % number for number in range(8)}


def manifest_of(outputs: int, **changes: object) -> RunManifest:
    records = tuple(
        FileRecord(path=f"data/{n:06d}", bytes=n, sha256=hashlib.sha256(b"%d" % n).hexdigest())
        for n in range(outputs)
    )
    made = RunManifest(
        flow="a-flow", run_hash=RUN, outputs=records, ledger=RowLedger(), statistics={}, stages={}, versions={},
        environment={},
    )  # fmt: skip
    return made.model_copy(update=changes)


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a run of eight outputs, of which a manifest lists three."""
    monkeypatch.setattr(module, "MOST_LISTED", 3)
    publish(tmp_path / "out")
    return tmp_path / "out" / "runs" / RUN


def publish(output_dir: Path) -> RunManifest:
    output_dir.mkdir(exist_ok=True)
    (output_dir / MARKER).write_text('{"flow": "a-flow", "layout": 1}')
    run = Publication(
        flow="a-flow", published={}, output_dir=str(output_dir), run_hash=RUN, links={}, ledger=RowLedger(),
        statistics={}, stages={}, config="{}", inputs=(), seen={}, documents=DOCUMENTS,
    )  # fmt: skip
    return publish_run(run)


def test_many_outputs_are_listed_beside_the_manifest(published: Path) -> None:
    head = json.loads((published / "manifest.json").read_bytes())
    assert head["outputs"] == []
    names = [record["path"] for record in head["lists"]]
    assert names == ["manifest-000000.json", "manifest-000001.json", "manifest-000002.json"]
    listed = []
    for record in head["lists"]:
        content = (published / record["path"]).read_bytes()
        assert hashlib.sha256(content).hexdigest() == record["sha256"]
        listed += json.loads(content)
    assert [record["path"] for record in listed] == sorted(DOCUMENTS)
    assert head["manifest_sha256"] == digest_of_manifest((published / "manifest.json").read_bytes())


def test_readers_see_all_outputs(published: Path) -> None:
    manifest = read_manifest(published)
    assert [record.path for record in manifest.outputs] == sorted(DOCUMENTS)
    assert not list(published_faults(published, manifest, Verify.SHA256))
    assert not list(unlisted_files(published, manifest))
    assert completed_run(published.parents[1], RUN, Verify.SHA256) == manifest
    for found in (find(published), find(published.parents[1])):
        assert [Path(file).name for file in found.outputs("data/")] == [Path(name).name for name in DOCUMENTS]
    remote = find_uri(published.as_uri())
    assert remote.manifest == manifest


def test_publishing_again_changes_nothing(published: Path) -> None:
    before = read_manifest(published)
    after = publish(published.parents[1])
    assert (after.outputs, after.lists) == (before.outputs, before.lists)
    assert read_manifest(published) == after
    (published / "data" / "part-3.json").unlink()
    assert [fault.code for fault in published_faults(published, after, Verify.SIZE)] == ["missing_output"]


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (Path.unlink, "is missing"),
        (lambda path: path.write_bytes(path.read_bytes()[:-3]), "is not as it was written"),
        (lambda path: path.write_bytes(path.read_bytes().replace(b"part-4", b"part-9")), "is not as it was"),
    ],
)
def test_a_damaged_list_is_named(published: Path, spoil: Callable[[Path], object], says: str) -> None:
    whole = publish(published.parents[1])
    place = published / "manifest-000001.json"
    spoil(place)
    with pytest.raises(IntegrityError, match=says) as caught:
        read_manifest(published)
    assert (caught.value.code, caught.value.where) == ("bad_manifest", str(place))
    assert completed_run(published.parents[1], RUN, Verify.SIZE) is None
    assert publish(published.parents[1]).outputs == whole.outputs == read_manifest(published).outputs


@pytest.mark.parametrize("name", ["../manifest-000000.json", "data/part-0.json"])
def test_a_list_lies_beside_its_manifest(published: Path, name: str) -> None:
    edit_manifest(published, lambda fields: fields["lists"][0].update(path=name))
    with pytest.raises(IntegrityError, match="is missing"):
        read_manifest(published)


def test_few_outputs_are_in_the_manifest() -> None:
    made = sealed(manifest_of(3))
    assert made.lists == () and len(json.loads(format_manifest(made))["outputs"]) == 3
    assert parse_manifest(format_manifest(made), "x", {}.get) == made


@pytest.mark.parametrize(
    "changes",
    [
        {"links": {"splits/é/数据": "../x\u007f\t"}, "stages": {"tokenize/🙂": "0"}},
        {"statistics": {"share": 1.0, "large": 2**90, "small": 1e-20, "more": 1e16, "text": "é"}},
        {"notes": (FileRecord(path="é", bytes=2**70, sha256="0" * 64),)},
    ],
)
def test_the_quick_way_to_a_digest_is_only_quicker(changes: dict[str, object]) -> None:
    made = manifest_of(2, **changes)
    content = format_manifest(sealed(made))
    assert json.loads(content)["manifest_sha256"] == digest_of_manifest(content)
    assert parse_manifest(content, "x", {}.get) == sealed(made)
    spoiled = content.replace(b'"a-flow"', b'"b-flow"')
    with pytest.raises(IntegrityError, match="not as it was written"):
        parse_manifest(spoiled, "x", {}.get)


@pytest.mark.parametrize("unusual", ["\ud800", 2**70, float("nan"), 1.5, None])
@pytest.mark.parametrize("name", ["stages", "statistics"])
def test_an_unsealed_manifest_is_refused_whatever_it_holds(name: str, unusual: object) -> None:
    fields = {**json.loads(manifest_of(2).model_dump_json()), name: {"a": unusual}}
    with pytest.raises(IntegrityError) as caught:
        parse_manifest(json.dumps(fields).encode(), "x", {}.get)
    assert caught.value.code == "bad_manifest"


def test_a_manifest_of_20000_outputs_is_read_whole() -> None:
    # How long that takes is measured by benchmarks/scale.py.
    made = sealed(replace_stages(manifest_of(20_000)))
    assert parse_manifest(format_manifest(made), "x", {}.get) == made


def replace_stages(made: RunManifest) -> RunManifest:
    return made.model_copy(update={"stages": {f"tokenize/a/{n:06d}": f"{n:016x}" for n in range(20_000)}})
