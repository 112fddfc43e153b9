"""What lies at a path is told by structure: runs by any of their names, what is unpublished, loose folders, files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import fsspec
import pytest
from manifests import RUN_HASH, publish_by_hand

from schemas.errors import ConfigError, InputError, IntegrityError
from tasks.run.find import Found, Kind, content_of, files_below, find, find_uri, names_below

OTHER = "fedcba9876543210"


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """An output folder with a published run of two files, a run that is not finished, and a stage."""
    output = tmp_path / "out"
    for name in (f"runs/{RUN_HASH}/rejects/r.bin", f"runs/{RUN_HASH}/a.bin", f"runs/{OTHER}/deep/b.bin"):
        (output / name).parent.mkdir(parents=True, exist_ok=True)
        (output / name).write_text(name)
    (output / "stages" / OTHER).mkdir(parents=True)
    (output / "stages" / OTHER / "part.bin").write_text("x")
    publish_by_hand(output, "some-flow")
    return output


@pytest.fixture
def bucket(output: Path) -> str:
    """The same folder behind a URI, copied by a tool that follows links."""
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    memory.pseudo_dirs.clear()
    for file in output.rglob("*"):
        if file.is_file():
            memory.pipe(f"/bucket/out/{file.relative_to(output)}", file.read_bytes())
    for file in (output / "latest").rglob("*"):
        if file.is_file():
            memory.pipe(f"/bucket/out/latest/{file.relative_to(output / 'latest')}", file.read_bytes())
    return "memory://bucket/out"


@pytest.mark.parametrize("name", [".", "latest", f"runs/{RUN_HASH}"])
def test_a_run_is_found_by_any_of_its_names(name: str, output: Path) -> None:
    found = find(output / name)
    run = output / "runs" / RUN_HASH
    assert (found.kind, found.folder, found.named) == (Kind.RUN, run, output / name)
    assert found.manifest.flow == "some-flow"
    assert found.outputs() == (run / "a.bin", run / "rejects" / "r.bin")
    assert found.outputs("rejects/") == found.outputs(ending="r.bin") == (run / "rejects" / "r.bin",)
    assert found.manifest_of("some-flow", "rows") is found.manifest


def test_a_run_found_stays_what_it_is_when_latest_moves(output: Path) -> None:
    found = find(output)
    publish_by_hand(output, "some-flow", OTHER)
    assert found.folder.name == RUN_HASH and find(output).folder.name == OTHER


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("stages", Kind.UNPUBLISHED),
        (f"stages/{OTHER}", Kind.UNPUBLISHED),
        (f"runs/{OTHER}/deep", Kind.UNPUBLISHED),
        (f"runs/{RUN_HASH}/rejects", Kind.FOLDER),
        (f"runs/{RUN_HASH}/a.bin", Kind.FILE),
        (f"stages/{OTHER}/part.bin", Kind.FILE),
        ("..", Kind.FOLDER),
    ],
)
def test_parts_of_an_output_folder(name: str, kind: Kind, output: Path) -> None:
    found = find(output / name)
    assert (found.kind, found.folder, found.is_run) == (kind, output / name, False)
    if kind is Kind.UNPUBLISHED:
        with pytest.raises(ConfigError, match="not in a published run; run the flow to the end") as caught:
            found.refuse_unpublished()
        assert (caught.value.code, caught.value.where) == ("unpublished", str(output / name))
    else:
        found.refuse_unpublished()
    with pytest.raises(ConfigError, match="this is not a run"):
        _ = found.manifest


def test_a_stage_is_one_by_a_link_too_and_none_without_a_marker(output: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(output / "stages" / OTHER)
    assert find(tmp_path / "link").kind is Kind.UNPUBLISHED
    (output / ".gristmill.json").unlink()
    assert find(tmp_path / "link").kind is Kind.FOLDER


def test_a_run_without_a_manifest_says_so(output: Path) -> None:
    found = find(output / "runs" / OTHER)
    assert found.is_run
    with pytest.raises(IntegrityError) as broken:
        _ = found.manifest
    assert broken.value.code == "no_manifest"
    with pytest.raises(ConfigError, match=r"has no manifest.json, so it is not published") as caught:
        found.manifest_of("some-flow", "rows")
    assert caught.value.code == "unpublished"


def test_a_run_of_another_flow_is_refused_by_name(output: Path) -> None:
    with pytest.raises(
        ConfigError, match="a run of 'some-flow', which holds no rows; name a run of 'other'"
    ) as caught:
        find(output).manifest_of("other", "rows", "not_rows")
    assert (caught.value.code, caught.value.where) == ("not_rows", str(output / "runs" / RUN_HASH))


DAMAGE: dict[str, tuple[Callable[[str], str], str]] = {
    "cut short": (lambda text: text[: len(text) // 2], "bad_manifest"),
    "no JSON object": (lambda text: "[]", "bad_manifest"),
    "a key more": (lambda text: json.dumps({**json.loads(text), "more": 1}), "bad_manifest"),
    "a ledger that is off": (lambda text: text.replace('"rows_in":0', '"rows_in":1'), "ledger"),
    "deep": (lambda text: "[" * 100_000, "bad_manifest"),
}


@pytest.mark.parametrize("place", ["in its output folder", "copied"])
@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_manifest_is_a_runs_all_the_same(
    case: str, place: str, output: Path, tmp_path: Path
) -> None:
    damage, code = DAMAGE[case]
    run = output / "runs" / RUN_HASH
    if place == "copied":
        run = Path(shutil.copytree(run, tmp_path / "copy"))
    manifest = run / "manifest.json"
    manifest.write_text(damage(manifest.read_text()))
    with pytest.raises(IntegrityError) as caught:
        _ = find(run).manifest
    assert (caught.value.code, caught.value.where) == (code, str(manifest))
    with pytest.raises(ConfigError) as refused:
        find(run).manifest_of("some-flow", "rows", "not_rows")
    assert refused.value.code == "not_rows"


@pytest.mark.parametrize("content", ['{"format": "memmap_padded"}', "{", "[1]", ""])
def test_a_manifest_of_another_tool_makes_no_run(content: str, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(content)
    assert find(tmp_path).kind is Kind.FOLDER


def test_an_output_folder_without_a_run_says_what_to_do(output: Path) -> None:
    (output / "latest").unlink()
    with pytest.raises(
        ConfigError, match="no published run in this output folder yet; run its flow"
    ) as caught:
        find(output)
    assert (caught.value.code, caught.value.where) == ("missing_path", str(output))


@pytest.mark.parametrize("name", ["nowhere", "a\0b", "x" * 300, "out/runs/nowhere"])
def test_nothing_is_there(name: str, output: Path) -> None:
    with pytest.raises(ConfigError, match="nothing is there") as caught:
        find(output.parent / name)
    assert caught.value.code == "missing_path"


# Loose folders.


def is_shard(path: Path) -> bool:
    return path.is_dir() and path.name.endswith(".shard")


def test_files_of_a_loose_folder_come_in_order(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    for name in (
        "b/2.bin",
        "b/1.bin",
        "a.bin",
        ".tmp-c.bin",
        "b/.hidden/3.bin",
        "d.shard/array.bin",
        "c.bin",
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    (folder / "again").symlink_to("b")
    (folder / "e.shard").symlink_to("d.shard")
    (folder / "link.bin").symlink_to("a.bin")
    names = [path.relative_to(folder).as_posix() for path in files_below(folder, is_shard)]
    assert names == ["a.bin", "b/1.bin", "b/2.bin", "c.bin", "d.shard", "e.shard", "link.bin"]


@pytest.mark.parametrize("as_copy", [True, False])
def test_runs_below_a_loose_folder_are_named_not_mixed(as_copy: bool, output: Path, tmp_path: Path) -> None:
    run = "an output folder" if not as_copy else "a run"
    if as_copy:
        folder = tmp_path / "copies"
        shutil.copytree(output / "latest", folder / "one")
    else:
        folder = output.parent
    with pytest.raises(ConfigError, match=f"{run} is in this folder: .*; name that instead") as caught:
        list(files_below(folder, is_shard))
    assert caught.value.code == "run_below"
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    memory.put(str(folder), "/loose", recursive=True)
    with pytest.raises(ConfigError, match=f"{run} is in this folder") as caught:
        names_below("memory://loose")
    assert caught.value.code == "run_below"


# Behind a URI.


@pytest.mark.parametrize("name", ["", "/", "/latest", f"/runs/{RUN_HASH}"])
def test_a_copied_run_is_found_behind_a_uri(name: str, bucket: str, output: Path) -> None:
    found = find_uri(bucket + name)
    assert (found.kind, found.manifest) == (Kind.RUN, find(output).manifest)
    # The names stay good when another run becomes the latest.
    assert found.folder == f"memory:///bucket/out/runs/{RUN_HASH}"
    assert [content_of(uri) for uri in found.outputs()] == [
        path.read_bytes() for path in find(output).outputs()
    ]


def test_latest_alone_is_a_run_too(bucket: str) -> None:
    fsspec.filesystem("memory").rm("/bucket/out/runs", recursive=True)
    assert find_uri(bucket).folder == "memory:///bucket/out/latest"


def test_unpublished_behind_a_uri(bucket: str) -> None:
    for name in ("stages", f"stages/{OTHER}", f"runs/{OTHER}/deep"):
        assert find_uri(f"{bucket}/{name}").kind is Kind.UNPUBLISHED
    with pytest.raises(ConfigError, match="it is not published"):
        find_uri(f"{bucket}/runs/{OTHER}").manifest_of("some-flow", "rows")
    fsspec.filesystem("memory").rm("/bucket/out/latest", recursive=True)
    with pytest.raises(ConfigError, match="no published run in this output folder yet"):
        find_uri(bucket)


def test_files_and_folders_behind_a_uri(tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    for name in ("b/2.bin", "a.bin", "b/.tmp-1.bin"):
        memory.pipe(f"/plain/{name}", b"x")
    assert find_uri("memory://plain/a.bin").kind is Kind.FILE
    assert find_uri("memory://plain") == Found("memory://plain", Kind.FOLDER, "memory:///plain")
    assert names_below("memory://plain") == ["a.bin", "b/2.bin"]
    with pytest.raises(ConfigError, match="nothing is there"):
        find_uri("memory://nowhere")
    with pytest.raises(ConfigError) as caught:
        find_uri("nosuch://bucket")
    assert caught.value.code == "unsupported_uri"


def test_what_cannot_be_read_is_an_input_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **keywords: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(type(fsspec.filesystem("memory")), "info", refuse)
    with pytest.raises(InputError, match="Permission denied") as caught:
        find_uri("memory://x")
    assert caught.value.code == "unreadable"
