"""Packed runs behind a URI: the same shards, order, items and blend as the local run, and each shard once."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from manifests import edit_manifest
from support import chat, config_of, mill_serially, write_jsonl

from flows.cli.main import main
from schemas.errors import ConfigError, InputError
from schemas.run import FileRecord, RunManifest
from tasks.outputs.validate import validate_path
from tasks.run.history import published_faults
from tasks.run.manifest import read_manifest
from tasks.run.receipts import Verify
from tasks.sft.datasets import BlendedDataset, PackedParquetDataset, create_sft_dataset
from tasks.sft.shards.find import find_shards
from tasks.sft.shards.remote import find_uri_shards


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory, small_tokenizer: Path) -> Path:
    """An output folder: `z` before `a`, so that the order of the blend is not that of the names."""
    folder = tmp_path_factory.mktemp("remote")
    datasets = []
    for name, count in (("z", 200), ("a", 60)):
        rows = [chat(f"{name} {n}?", "Yes. " * (n % 9 + 1)) for n in range(count)]
        datasets.append({"name": name, "path": str(write_jsonl(folder / f"{name}.jsonl", rows))})
    changes = {"storage": {"shard_tokens": 1500}, "splits": {"train": 0.7, "valid": 0.3, "test": 0}}
    mill_serially(config_of(folder / "out", folder, small_tokenizer, datasets=datasets, **changes))
    return folder / "out"


class WebServer(MemoryFileSystem):
    """Files as fsspec's handler of a web server shows them: a folder is a page, and a missing one is not found."""

    protocol = "weblike"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    lists = True

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.replace("weblike://", "memory://")))

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        found: dict[str, Any] = super().info(path, **options)
        if found["type"] == "directory":
            if not self.lists:
                raise FileNotFoundError(path)
            return {**found, "type": "file", "mimetype": "text/html; charset=utf-8"}
        return {**found, "mimetype": "application/octet-stream"}


fsspec.register_implementation("weblike", WebServer)


@pytest.fixture(params=["memory", "local", "weblike"])
def copied(request: pytest.FixtureRequest, output: Path, tmp_path: Path) -> Iterator[str]:
    """The output folder copied by a tool that makes files of links."""
    shutil.copytree(output, tmp_path / "copy")
    if request.param == "local":
        yield f"local://{tmp_path}/copy"
        return
    system = fsspec.filesystem(request.param)
    system.put(str(tmp_path / "copy"), "/bucket/copy", recursive=True)
    yield f"{request.param}://bucket/copy"
    system.rm("/bucket", recursive=True)


@pytest.fixture(params=["cp -rL", "file://"])
def copy(request: pytest.FixtureRequest, output: Path, tmp_path: Path) -> str:
    """A copy on the same machine, whose links are files."""
    shutil.copytree(output, tmp_path / "copy")
    return f"{'' if request.param == 'cp -rL' else 'file://'}{tmp_path}/copy"


def below(run: str | Path, shards: list[Any]) -> list[str]:
    return [str(shard).partition(f"{Path(run).name}/")[2] for shard in shards]


def local(output: Path, split: str | None = None) -> list[str]:
    return below(output / "latest", [shard.resolve() for shard in find_shards(output, split)])


@pytest.mark.parametrize("split", ["train", "valid"])
def test_every_shard_of_a_split_is_found_once_in_the_order_of_the_run(
    split: str, copied: str, output: Path
) -> None:
    run = (output / "latest").resolve()
    wanted = below(run, find_shards(output, split))
    assert len(set(wanted)) == len(list((run / "splits" / split).iterdir())) > 2
    for uri in (copied, f"{copied}/latest", f"{copied}/runs/{run.name}"):
        assert below(run, find_uri_shards(uri, split)) == wanted
    # By links, not by names: the data sets keep the order of the configuration.
    assert wanted[0].startswith("datasets/z/") and wanted[-1].startswith("datasets/a/")


def test_a_run_gives_its_blend(copied: str, output: Path) -> None:
    run = (output / "latest").resolve().name
    for split in ("train", "valid"):
        wanted = create_sft_dataset(output, split)
        for uri in (
            copied,
            f"{copied}/runs/{run}",
            f"{copied}/blend.json",
            f"{copied}/runs/{run}/blend.json",
        ):
            blend = create_sft_dataset(uri, split)
            assert isinstance(blend, BlendedDataset) and isinstance(wanted, BlendedDataset)
            assert blend.weights == wanted.weights
            assert [items(item) for item in blend] == [items(item) for item in wanted]


def forms_of(output: Path) -> list[str]:
    """Every way to name a run, or a part of it."""
    run = (output / "latest").resolve()
    at = f"runs/{run.name}"
    [shards] = (run / "datasets" / "z").glob("*/train")
    folder = f"{at}/{shards.relative_to(run)}"
    return [
        "", "latest", at, "blend.json", "latest/blend.json", f"{at}/blend.json",
        "splits", "splits/train", "splits/train/*.parquet", "latest/splits/train", f"{at}/splits",
        f"{at}/datasets", f"{at}/datasets/z", folder, f"{folder}/shard_000001.parquet",
        f"{at}/datasets/*/*/train/*.parquet", f"{at}/datasets/**/train/*.parquet",
    ]  # fmt: skip


def same_everywhere(base: str, output: Path) -> None:
    for form in forms_of(output):
        wanted, found = create_sft_dataset(output / form), create_sft_dataset(f"{base}/{form}".rstrip("/"))
        assert type(found) is type(wanted), form
        assert found[0] == wanted[0] and len(found) == len(wanted), form
        assert [items(item) for item in found] == [items(item) for item in wanted], form
        if isinstance(wanted, BlendedDataset):
            assert isinstance(found, BlendedDataset) and found.weights == wanted.weights


def test_every_form_of_a_run_gives_the_same_behind_a_uri(copied: str, output: Path) -> None:
    same_everywhere(copied, output)


def test_every_form_of_a_run_gives_the_same_in_a_copy(copy: str, output: Path) -> None:
    same_everywhere(copy, output)


def test_a_server_that_does_not_list_folders(
    copied: str, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WebServer, "lists", False)
    for form in ("", "latest", "blend.json"):
        found, wanted = create_sft_dataset(f"{copied}/{form}".rstrip("/")), create_sft_dataset(output / form)
        assert [items(item) for item in found] == [items(item) for item in wanted]


def test_a_run_is_valid_wherever_it_is(copied: str, output: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, local = (output / "latest").resolve().name, validate_path(output)
    assert local.ok and local.counts["bins"] > 10
    for uri in (copied, f"{copied}/latest", f"{copied}/runs/{run}"):
        verdict = validate_path(uri)
        assert (verdict.counts, verdict.faults) == (local.counts, ())
        assert validate_path(uri, full=False).ok
    wanted = validate_path(output / "splits" / "train")
    for form in ("splits/train", "splits/train/*.parquet"):
        assert validate_path(f"{copied}/{form}").counts == wanted.counts
    assert main(["validate", copied, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["counts"] == local.counts


def test_a_copy_is_valid_though_its_links_are_files(copy: str, output: Path) -> None:
    verdict = validate_path(copy)
    assert (verdict.counts, verdict.faults) == (validate_path(output).counts, ())
    assert validate_path(copy, full=False).ok


def test_a_data_set_is_valid_wherever_it_is(copied: str, output: Path) -> None:
    wanted = create_sft_dataset(output).validate()
    assert wanted.ok and wanted.counts == validate_path(output / "splits" / "train").counts
    for form in ("", "splits/train"):
        verdict = create_sft_dataset(f"{copied}/{form}".rstrip("/")).validate()
        assert (verdict.counts, verdict.faults) == (wanted.counts, ())


def damaged(path: Path, how: str) -> None:
    content = path.read_bytes()
    if how == "cut":
        path.write_bytes(content[:-1])
    elif how == "changed":
        middle = len(content) // 2
        path.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
    else:
        path.unlink()


@pytest.mark.parametrize("how", ["cut", "changed", "lost"])
@pytest.mark.parametrize("place", ["datasets", "splits"])
@pytest.mark.parametrize("scheme", ["", "local://"])
def test_damage_in_a_copy_is_found(how: str, place: str, scheme: str, output: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree((output / "latest").resolve(), tmp_path / "copy"))
    victim = sorted((run / place).rglob("*.parquet"))[1]
    damaged(victim, how)
    where = f"{scheme}{run}"
    verdict = validate_path(where)
    assert not verdict.ok
    # fsspec's own name of local:// is file://.
    assert str(victim) in {fault.where.removeprefix("file://") for fault in verdict.errors}
    # A quick look compares sizes.
    assert validate_path(where, full=False).ok == (how == "changed")


@pytest.mark.parametrize("how", ["cut", "changed", "lost"])
@pytest.mark.parametrize("scheme", ["", "local://"])
def test_damage_at_the_top_of_a_copied_output_folder_is_found(
    how: str, scheme: str, output: Path, tmp_path: Path
) -> None:
    """A trainer opens `splits/train` there, which in a copy is not the one in `latest`."""
    copy = Path(shutil.copytree(output, tmp_path / "copy"))
    victims = [min((copy / "splits" / "train").iterdir())]
    if how != "lost":  # as if it had not been copied, which is no fault
        victims.append(copy / "blend.json")
    for victim in victims:
        damaged(victim, how)
    verdict = validate_path(f"{scheme}{copy}")
    assert [fault.where.rpartition("://")[2] for fault in verdict.errors] == [
        str(victim) for victim in sorted(victims)
    ]
    code = "missing_output" if how == "lost" else "changed_output"
    assert {fault.rule for fault in verdict.errors} == {code}
    assert validate_path(f"{scheme}{copy}", full=False).ok == (how == "changed")
    shutil.rmtree(copy / "splits")
    (copy / "blend.json").unlink()
    assert validate_path(f"{scheme}{copy}").ok


def test_a_copied_link_says_what_is_wrong_with_the_copy(output: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree((output / "latest").resolve(), tmp_path / "copy"))
    cut, lost, linked = sorted((copy / "splits" / "train").iterdir())[:3]
    size = cut.stat().st_size
    damaged(cut, "cut")
    lost.unlink()
    linked.unlink()
    linked.symlink_to("elsewhere")
    manifest = read_manifest(copy)
    faults = {Path(error.where).name: error for error in published_faults(copy, manifest, Verify.SHA256)}
    assert set(faults) == {cut.name, lost.name, linked.name}
    assert faults[cut.name].code == "changed_output"
    assert f"expected {size:,} bytes, found {size - 1:,}" in faults[cut.name].message
    for name in (lost.name, linked.name):
        assert faults[name].code == "missing_output" and "should be a link" in faults[name].message


def test_a_copied_memmap_shard_says_which_array_is_missing(tmp_path: Path) -> None:
    run, arrays = tmp_path / "run", ("input_ids.npy", "loss_mask.npy")
    for name in arrays:
        for folder in ("datasets/a/s", "splits/train/0__s"):
            (run / folder).mkdir(parents=True, exist_ok=True)
            (run / folder / name).write_bytes(b"data")
    digest = hashlib.sha256(b"data").hexdigest()
    manifest = RunManifest.model_construct(
        outputs=tuple(FileRecord(path=f"datasets/a/s/{name}", bytes=4, sha256=digest) for name in arrays),
        links={"splits/train/0__s": "../../datasets/a/s"},
    )
    assert list(published_faults(run, manifest, Verify.SHA256)) == []
    (run / "splits/train/0__s" / arrays[1]).unlink()
    [fault] = published_faults(run, manifest, Verify.SHA256)
    assert (fault.code, fault.where) == ("missing_output", str(run / "splits/train/0__s" / arrays[1]))
    shutil.rmtree(run / "splits")
    [fault] = published_faults(run, manifest, Verify.SHA256)
    assert fault.where == str(run / "splits/train/0__s") and "should be a link" in fault.message


def test_what_cannot_be_validated_behind_a_uri_says_so(tmp_path: Path, small_tokenizer: Path) -> None:
    source = write_jsonl(tmp_path / "c.jsonl", [chat(f"{n}?", "Yes.") for n in range(20)])
    mill_serially(config_of(tmp_path / "out", source, small_tokenizer, storage={"format": "memmap"}))
    with pytest.raises(ConfigError, match="other formats can only be read from local or mounted folders"):
        validate_path(f"local://{tmp_path}/out")
    assert validate_path(f"file://{tmp_path}/out").ok
    edit_manifest(tmp_path / "out" / "latest", lambda fields: fields.update(flow="train-tokenizer"))
    with pytest.raises(InputError, match="tokenizer behind a URI cannot be validated") as caught:
        validate_path(f"local://{tmp_path}/out")
    assert caught.value.code == "remote_input"


def items(item: dict[str, Any]) -> dict[str, Any]:
    return {name: values.tolist() for name, values in item.items()}


def test_static_shapes_are_read_from_the_runs_own_metadata(copied: str, output: Path) -> None:
    options = {"max_seq_length": 128, "pad_cu_seqlens": True}
    remote, wanted = create_sft_dataset(copied, **options), create_sft_dataset(output, **options)
    assert remote.collate_fn.static == wanted.collate_fn.static is not None


def test_splits_are_never_mixed(copied: str) -> None:
    for uri in (copied, f"{copied}/latest/datasets"):
        with pytest.raises(ConfigError) as caught:
            PackedParquetDataset(uri)
        assert caught.value.code == "several_splits"
    with pytest.raises(ConfigError) as caught:
        create_sft_dataset(copied, split="test")
    assert caught.value.code == "missing_split"


def test_a_folder_above_runs_is_refused(copied: str, output: Path) -> None:
    for find, place in ((find_uri_shards, f"{copied}/runs"), (find_shards, output / "runs")):
        with pytest.raises(ConfigError, match="is in this folder") as caught:
            find(place, "train")  # type: ignore[operator]
        assert caught.value.code == "run_below"


def test_a_local_copy_without_links_is_a_run(output: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree((output / "latest").resolve(), tmp_path / "copy"))
    run = (output / "latest").resolve()
    for split in ("train", None):
        wanted = [shard.relative_to(run) for shard in find_shards(output, split)]
        assert [shard.relative_to(copy) for shard in find_shards(copy, split)] == wanted
        assert len(set(wanted)) == len(wanted)


def test_a_lost_shard_is_named(output: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree((output / "latest").resolve(), tmp_path / "copy"))
    lost = find_shards(copy, "train")[1]
    lost.unlink()
    with pytest.raises(ConfigError, match="shard of the run is missing; run its flow again") as caught:
        find_shards(copy, "train")
    assert caught.value.where == str(lost)


def test_a_run_that_is_not_published_is_refused(output: Path, tmp_path: Path) -> None:
    shutil.copytree(output, tmp_path / "out", symlinks=True)
    run = (tmp_path / "out" / "latest").resolve()
    (run / "manifest.json").unlink()
    for spec in (run, tmp_path / "out", f"local://{run}"):
        with pytest.raises(ConfigError, match="not published; run the flow to the end") as caught:
            create_sft_dataset(spec)
        assert caught.value.code == "unpublished"


def test_other_formats_behind_a_uri_are_refused_with_their_reason(
    tmp_path: Path, small_tokenizer: Path
) -> None:
    source = write_jsonl(tmp_path / "c.jsonl", [chat(f"{n}?", "Yes.") for n in range(20)])
    mill_serially(config_of(tmp_path / "out", source, small_tokenizer, storage={"format": "npy"}))
    for reader in (create_sft_dataset, lambda uri: find_uri_shards(uri, "train")):
        with pytest.raises(ConfigError, match="other formats can only be read from local or mounted folders"):
            reader(f"local://{tmp_path}/out")


def test_a_loose_blend_behind_a_uri(output: Path) -> None:
    """Another tool's blend: no manifest says which shards there are."""
    run = (output / "latest").resolve()
    memory = fsspec.filesystem("memory")
    for name in [path.relative_to(run) for path in (run / "datasets").rglob("*.parquet")] + [
        Path("blend.json")
    ]:
        memory.pipe(f"/loose/{name}", (run / name).read_bytes())
    blend, wanted = create_sft_dataset("memory://loose/blend.json"), create_sft_dataset(output)
    assert [items(item) for item in blend] == [items(item) for item in wanted]
    folder = create_sft_dataset("memory://loose")
    assert [items(item) for item in folder] == [items(item) for item in wanted]
    memory.pipe("/loose/blend.json", b'{"train": ["1", "datasets/x"]}')
    with pytest.raises(ConfigError, match="the blend names 'datasets/x', which does not exist as Parquet"):
        create_sft_dataset("memory://loose/blend.json")
    memory.rm("/loose", recursive=True)
