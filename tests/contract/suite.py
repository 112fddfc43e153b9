"""What every flow promises, whatever it makes: two suites of tests that each flow subclasses.

A `Workload` says how an input of its flow is written and spoiled; the cases are the same for all. `FlowContract` runs
the flow's story without a server (`mill_of`); `PrefectContract` has two drivers at once, runners and workers.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
from commands import Cli
from manifests import edit_manifest
from serial_runs import Runs
from support import Serial, entry_of, mill_of, published_digests, state_of
from workloads import ROOT, environment, temporary_files

from flows.cli.summary import Summary
from schemas.errors import ConfigError, GristmillError, StorageError
from schemas.run import RunManifest
from schemas.verdict import Fault
from tasks.outputs.validate import validate_path
from tasks.run.history import completed_run, published_faults
from tasks.run.layout import (
    CONFIG,
    FINGERPRINTS,
    LATEST,
    MANIFEST,
    MARKER,
    NOTES,
    REPORT_PAGE,
    RUNS,
    STAGES,
)
from tasks.run.manifest import read_manifest
from tasks.run.prune import damaged_runs, find_unneeded, list_runs, remove
from tasks.run.receipts import Verify
from tasks.storage.atomic import TEMP_PREFIX

_KILLED = -signal.SIGKILL
_DAY_S = 86_400.0


def _flip(path: Path) -> None:
    content = path.read_bytes()
    # No place where only the layout of JSON would change.
    _flip_at(next(n for n in range(len(content) // 2, len(content)) if chr(content[n]).isalnum()), path)


def _flip_at(place: int, path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def _as_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _as_link(path: Path) -> None:
    elsewhere = path.parents[3] / "elsewhere"
    elsewhere.write_bytes(bytes(path.stat().st_size))
    path.unlink()
    path.symlink_to(elsewhere)


# What can happen to a file.
DAMAGE: dict[str, Callable[[Path], object]] = {
    "a bit flipped": _flip,
    "cut short": lambda path: os.truncate(path, path.stat().st_size // 2),
    "deleted": lambda path: path.unlink(),
    "other JSON": lambda path: path.write_text('{"format": 1}'),
    "emptied": lambda path: path.write_bytes(b""),
    "a folder": _as_folder,
    "a link": _as_link,
}
_SAME_SIZE = ("a bit flipped", "a link")


class Workload:
    """A flow and its input, as cases need them; one subclass for each flow.

    Attributes:
        flow: the flow's name on the command line, or `module:attribute` of its entry.
    """

    flow: ClassVar[str]

    @pytest.fixture(autouse=True)
    def _given(self, small_tokenizer: Path) -> None:
        self.tokenizer = small_tokenizer

    def write(self, source: Path, bad_rows: int = 0, good_rows: int = 60) -> None:
        """Write an input of at least three files into `source`, which holds so many rows of each kind."""
        raise NotImplementedError

    def spoil(self, source: Path) -> str:
        """Make one file of the input unreadable; returns a text that the error must hold."""
        raise NotImplementedError

    def raw(self, source: Path, output_dir: Path) -> dict[str, Any]:
        """The configuration that reads `source`, as YAML would give it."""
        raise NotImplementedError

    def change(self, raw: dict[str, Any]) -> dict[str, Any]:
        """The same configuration with a setting that changes the output."""
        raise NotImplementedError

    def config(self, source: Path, output_dir: Path, **changes: Any) -> Any:
        return entry_of(self.flow).parse({**self.raw(source, output_dir), **changes})

    def mill(self, source: Path, output_dir: Path, **changes: Any) -> tuple[RunManifest, Serial]:
        return mill_of(entry_of(self.flow), self.config(source, output_dir, **changes))

    @pytest.fixture
    def source(self, tmp_path: Path) -> Path:
        self.write(tmp_path / "in")
        return tmp_path / "in"


class FlowContract(Workload):
    """Cases of a flow's story, without a server."""

    # Caching.

    def test_a_second_run_does_nothing(self, source: Path, tmp_path: Path) -> None:
        first, done = self.mill(source, tmp_path / "out")
        before = _inodes(tmp_path / "out" / STAGES)
        second, again = self.mill(source, tmp_path / "out")
        assert done.executed and not again.executed
        assert second.outputs == first.outputs and second.run_hash == first.run_hash
        assert _inodes(tmp_path / "out" / STAGES) == before

    def test_a_complete_run_is_found_without_its_flow(self, source: Path, tmp_path: Path) -> None:
        manifest, _ = self.mill(source, tmp_path / "out")
        assert completed_run(tmp_path / "out", manifest.run_hash, Verify.SHA256) == manifest

    def test_a_moved_output_folder_keeps_everything(self, source: Path, tmp_path: Path) -> None:
        first, _ = self.mill(source, tmp_path / "out")
        (tmp_path / "out").rename(tmp_path / "moved")
        second, again = self.mill(source, tmp_path / "moved")
        assert not again.executed
        assert second.outputs == first.outputs

    def test_a_moved_input_keeps_everything(self, source: Path, tmp_path: Path) -> None:
        first, _ = self.mill(source, tmp_path / "out")
        source.rename(tmp_path / "in-moved")
        second, again = self.mill(tmp_path / "in-moved", tmp_path / "out")
        assert not again.executed
        assert second.run_hash == first.run_hash

    def test_what_is_missing_is_made_again_and_nothing_else(self, source: Path, tmp_path: Path) -> None:
        first, done = self.mill(source, tmp_path / "out")
        task, stage = done.executed[0]
        [receipt] = sorted((tmp_path / "out" / STAGES / stage / "receipts").glob("*-000000.json"))
        receipt.unlink()
        second, again = self.mill(source, tmp_path / "out")
        assert again.executed == [(task, stage)]
        assert second.outputs == first.outputs

    # Inputs.

    def test_its_own_output_is_refused_as_input(self, tmp_path: Path) -> None:
        self.write(tmp_path / "in", bad_rows=2)
        inside = self.inside(tmp_path / "in")
        self.mill(tmp_path / "in", inside / "out", max_reject_fraction=1)
        before = published_digests(inside / "out" / LATEST)
        with pytest.raises(ConfigError) as caught:
            self.mill(tmp_path / "in", inside / "out", max_reject_fraction=1)
        assert (caught.value.code, caught.value.exit_code) == ("input_is_output", 2)
        assert published_digests(inside / "out" / LATEST) == before

    def test_its_own_output_is_refused_through_a_link(self, tmp_path: Path) -> None:
        self.write(tmp_path / "in", bad_rows=2)
        inside = self.inside(tmp_path / "in")
        self.mill(tmp_path / "in", tmp_path / "out", max_reject_fraction=1)
        (inside / "more").symlink_to(tmp_path / "out" / RUNS)
        with pytest.raises(ConfigError) as caught:
            self.mill(tmp_path / "in", tmp_path / "out", max_reject_fraction=1)
        assert caught.value.code == "input_is_output"

    def inside(self, source: Path) -> Path:
        """The folder of `source` whose files are read."""
        return source

    def test_nothing_in_is_refused(self, tmp_path: Path) -> None:
        self.write(tmp_path / "in", good_rows=0)
        self.refused(tmp_path, "empty_input", 1)

    def test_nothing_left_is_refused(self, tmp_path: Path) -> None:
        self.write(tmp_path / "in", bad_rows=30, good_rows=0)
        self.refused(tmp_path, "empty_input", 1, max_reject_fraction=1)

    def test_too_many_rejects_are_refused(self, tmp_path: Path) -> None:
        self.write(tmp_path / "in", bad_rows=10)
        error = self.refused(tmp_path, "reject_limit", 3)
        assert "10 of 70 rows were rejected, more than max_reject_fraction 0.05 allows" in error.message
        [listed] = re.findall(r"listed in (\S+\.parquet)", error.message)
        assert Path(listed).is_file()

    def test_rejects_within_the_limit_are_listed(self, tmp_path: Path) -> None:
        import pyarrow.parquet as pq

        self.write(tmp_path / "in", bad_rows=10)
        manifest, _ = self.mill(tmp_path / "in", tmp_path / "out", max_reject_fraction=0.5)
        folder = tmp_path / "out" / LATEST
        tables = [pq.read_table(path) for path in sorted((folder / "rejects").iterdir())]
        assert manifest.ledger.rows_in == 70
        assert manifest.ledger.rows_rejected == sum(table.num_rows for table in tables) == 10
        for table in tables:
            assert table.column_names == ["source_file", "row", "reason", "detail"]

    def test_an_unreadable_file_is_named(self, source: Path, tmp_path: Path) -> None:
        published, _ = self.mill(source, tmp_path / "out")
        says = self.spoil(source)
        with pytest.raises(GristmillError) as caught:
            self.mill(source, tmp_path / "out")
        assert caught.value.exit_code == 1
        assert says in f"{caught.value.where} {caught.value.message}"
        assert read_manifest(tmp_path / "out" / LATEST).run_hash == published.run_hash

    def refused(self, tmp_path: Path, code: str, exit_code: int, **changes: Any) -> GristmillError:
        """Running fails, and publishes nothing."""
        with pytest.raises(GristmillError) as caught:
            self.mill(tmp_path / "in", tmp_path / "out", **changes)
        assert (caught.value.code, caught.value.exit_code) == (code, exit_code), caught.value
        assert not (tmp_path / "out" / LATEST).is_symlink()
        assert not list((tmp_path / "out").glob(f"{RUNS}/*/manifest.json"))
        return caught.value

    # Output folders.

    @pytest.mark.parametrize("name", [RUNS, STAGES, LATEST])
    def test_what_somebody_else_put_there_is_not_touched(
        self, source: Path, tmp_path: Path, name: str
    ) -> None:
        theirs = tmp_path / "out" / name / "data.bin"
        theirs.parent.mkdir(parents=True)
        theirs.write_text("mine")
        with pytest.raises(ConfigError) as caught:
            self.mill(source, tmp_path / "out")
        assert (caught.value.code, caught.value.exit_code) == ("foreign_output", 2)
        assert [path for path in (tmp_path / "out").rglob("*") if path.is_file()] == [theirs]

    def test_another_flows_folder_is_refused(self, source: Path, tmp_path: Path) -> None:
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / MARKER).write_text('{"flow": "another-flow", "layout": 1}')
        with pytest.raises(ConfigError) as caught:
            self.mill(source, tmp_path / "out")
        assert caught.value.code == "foreign_output"
        assert "this folder holds runs of 'another-flow'" in caught.value.message

    # Links in an output folder.

    def test_folders_that_became_links_are_refused_and_where_they_lead_nothing_changes(
        self, source: Path, tmp_path: Path
    ) -> None:
        out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
        manifest, _ = self.mill(source, out)
        elsewhere.mkdir()
        links = _folders(out)
        assert {out / RUNS, out / STAGES, out / RUNS / manifest.run_hash} < set(links)
        for link in links:
            link.rename(elsewhere / "moved")
            (elsewhere / "moved" / "theirs").write_text("theirs")
            link.symlink_to(elsewhere / "moved")
            before = state_of(elsewhere)
            with pytest.raises(ConfigError) as caught:
                self.mill(source, out)
            assert (caught.value.code, caught.value.exit_code) == ("foreign_output", 2)
            assert caught.value.where == str(link)
            assert state_of(elsewhere) == before
            if link.parent in (out, out / RUNS, out / STAGES):
                with pytest.raises(ConfigError, match=re.escape(str(link))):
                    find_unneeded(out, keep=0, min_age_s=0, now_s=time.time() + _DAY_S)
            link.unlink()
            (elsewhere / "moved" / "theirs").unlink()
            (elsewhere / "moved").rename(link)
        again, done = self.mill(source, out)
        assert again.outputs == manifest.outputs and not done.executed

    def test_files_that_became_links_are_made_again_and_where_they_lead_nothing_changes(
        self, source: Path, tmp_path: Path
    ) -> None:
        out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
        manifest, _ = self.mill(source, out)
        elsewhere.mkdir()
        for number, path in enumerate(_files(out)):
            (elsewhere / str(number)).write_text("theirs")
            path.unlink()
            path.symlink_to(elsewhere / str(number))
        before = state_of(elsewhere)
        again, _ = self.mill(source, out)
        assert state_of(elsewhere) == before
        assert again.outputs == manifest.outputs
        assert not [path for path in _files(out) if path.is_symlink()]
        assert not list(published_faults(out / LATEST, again, Verify.SHA256))

    def test_files_of_others_are_not_published_through_links(self, source: Path, tmp_path: Path) -> None:
        out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
        manifest, _ = self.mill(source, out)
        elsewhere.mkdir()
        # Not every flow publishes files of its stages.
        published = [path for path in _files(out / STAGES) if path.stat().st_nlink > 1]
        for path in published[:1]:
            path.rename(elsewhere / "moved")
            path.symlink_to(elsewhere / "moved")
            before = state_of(elsewhere)
            with pytest.raises(ConfigError) as caught:
                self.mill(source, out)
            assert (caught.value.code, caught.value.where) == ("foreign_output", str(path))
            assert state_of(elsewhere) == before
            path.unlink()
            (elsewhere / "moved").rename(path)
        assert not list(published_faults(out / LATEST, manifest, Verify.SHA256))

    def test_a_folder_where_a_file_belongs_is_named_and_kept(self, source: Path, tmp_path: Path) -> None:
        out = tmp_path / "out"
        self.mill(source, out)
        for path in _files(out):
            path.rename(tmp_path / "moved")
            path.mkdir()
            (path / "theirs").write_text("theirs")
            with pytest.raises(StorageError) as caught:
                self.mill(source, out)
            assert (caught.value.code, caught.value.where) == ("not_a_file", str(path))
            assert (path / "theirs").read_text() == "theirs"
            shutil.rmtree(path)
            (tmp_path / "moved").rename(path)
            assert not list(temporary_files(out))

    @pytest.mark.parametrize("kind", ["folder", "link"])
    def test_a_marker_that_is_no_file_is_refused(self, source: Path, tmp_path: Path, kind: str) -> None:
        out = tmp_path / "out"
        self.mill(source, out)
        (out / MARKER).rename(tmp_path / "marker")
        (out / MARKER).mkdir() if kind == "folder" else (out / MARKER).symlink_to(tmp_path / "marker")
        with pytest.raises(ConfigError) as caught:
            self.mill(source, out)
        assert (caught.value.code, caught.value.where) == ("foreign_output", str(out / MARKER))

    # Damage.

    @pytest.mark.parametrize("name", [MANIFEST, *NOTES, "an output"])
    def test_damage_to_a_published_file_is_found_and_repaired(
        self, source: Path, tmp_path: Path, name: str
    ) -> None:
        out = tmp_path / "out"
        manifest, _ = self.mill(source, out)
        path = out / RUNS / manifest.run_hash / name.replace("an output", manifest.outputs[-1].path)
        for how, damage in DAMAGE.items():
            intact = path.read_bytes()
            # A file of its own: a link to its stage would share the damage, which that stage's receipt finds.
            path.unlink()
            path.write_bytes(intact)
            damage(path)
            assert str(path) in {fault.where for fault in _errors(out)}, how
            assert completed_run(out, manifest.run_hash, Verify.SHA256) is None, how
            if how not in _SAME_SIZE or name == MANIFEST:
                assert _errors(out, full=False), how
                assert completed_run(out, manifest.run_hash, Verify.SIZE) is None, how
            if path.is_dir() and not path.is_symlink():
                with pytest.raises(StorageError, match="move it away"):
                    self.mill(source, out)
                shutil.rmtree(path)
            again, _ = self.mill(source, out)
            assert not _errors(out) and not path.is_symlink(), how
            assert completed_run(out, manifest.run_hash, Verify.SHA256) == again, how
            assert again.outputs == manifest.outputs, how
            assert path.read_bytes() == intact or name in (MANIFEST, REPORT_PAGE), how

    def test_damage_to_a_published_link_is_found_and_repaired(self, source: Path, tmp_path: Path) -> None:
        out = tmp_path / "out"
        self.mill(source, out)
        for link in [path for path in out.rglob("*") if path.is_symlink() and path.name != LATEST]:
            target = link.readlink()
            for other in (None, LATEST, "nowhere"):
                link.unlink()
                if other is not None:
                    link.symlink_to(other)
                faults = validate_path(out).faults
                assert str(link) in {fault.where for fault in faults}, other
                # A run killed just after it moved `latest` lacks the other names at the top: a warning.
                assert bool(_errors(out)) == (other is not None or link.parent != out)
                if other is not None and link.parent == out:
                    with pytest.raises(ConfigError, match="was not made by Gristmill"):
                        self.mill(source, out)
                    link.unlink()
                self.mill(source, out)
                assert link.readlink() == target and not _errors(out), other

    def test_damage_to_a_reject_file_is_a_finding_with_its_name(self, cli: Cli, tmp_path: Path) -> None:
        out = tmp_path / "out"
        self.write(tmp_path / "in", bad_rows=6)
        manifest, _ = self.mill(tmp_path / "in", out, max_reject_fraction=1)
        rejects = next(record.path for record in manifest.outputs if record.path.startswith("rejects/"))
        path = out / RUNS / manifest.run_hash / rejects
        intact = path.read_bytes()
        flips = {f"byte {n}": partial(_flip_at, n) for n in range(0, len(intact), 101)}
        for how, damage in {**DAMAGE, **flips}.items():
            path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
            path.write_bytes(intact)
            damage(path)
            found = cli("validate", out, "--json")
            assert found.code == 3 and not found.err, (how, found.err)
            assert str(path) in {fault["where"] for fault in json.loads(found.out)["faults"]}, how
            # Its footer has no checksum: some flips in it change nothing that is read.
            for command in ("validate", "inspect"):
                alone = cli(command, path.parent)
                assert alone.code in (0, 1, 2, 3), how
                assert alone.code in (0, 3) or alone.message, how

    @pytest.mark.parametrize("value", [7, "text", [1], {"train": 1}, {"train": {"chats": []}}, None])
    def test_statistics_of_another_type_are_an_error_and_no_traceback(
        self, source: Path, tmp_path: Path, value: object
    ) -> None:
        out = tmp_path / "out"
        manifest, _ = self.mill(source, out)
        names = dict.fromkeys(
            [*manifest.statistics, "splits", "buckets", "bytes_per_token", "probe_splits"], value
        )
        edit_manifest(out / LATEST, lambda fields: fields["statistics"].update(names))
        for full in (True, False):
            validate_path(out, full)
        assert [run.manifest.statistics for run in list_runs(out)] == [names]
        crafted = completed_run(out, manifest.run_hash, Verify.SHA256)
        assert crafted is not None
        summary = Summary(crafted, str(out / LATEST), True, 0.0)
        assert json.dumps(summary.as_dict())
        with pytest.raises(GristmillError) as caught:
            summary.lines()
        assert (caught.value.code, caught.value.exit_code) == ("bad_manifest", 3)
        # A run of another configuration is compared with this one.
        newer, _ = self.mill(source, out, **self.change({}))
        assert not _errors(out) and newer.run_hash != manifest.run_hash

    def test_json_that_is_nested_too_deeply_is_damage(self, source: Path, tmp_path: Path) -> None:
        out, deep = tmp_path / "out", b"[" * 100_000
        manifest, _ = self.mill(source, out)
        run = out / RUNS / manifest.run_hash
        documents = [record.path for record in manifest.outputs if record.path.endswith(".json")]
        for path in (out / STAGES / FINGERPRINTS, *(run / name for name in (MANIFEST, CONFIG, *documents))):
            path.unlink(missing_ok=True)
            path.write_bytes(deep)
            assert path.parent.name == STAGES or _errors(out)
            self.mill(source, out)
            assert not _errors(out)
        (out / MARKER).write_bytes(deep)
        with pytest.raises(ConfigError) as caught:
            self.mill(source, out)
        assert (caught.value.code, caught.value.where) == ("foreign_output", str(out / MARKER))

    def test_a_file_that_the_manifest_does_not_name_is_found(self, source: Path, tmp_path: Path) -> None:
        manifest, _ = self.mill(source, tmp_path / "out")
        folder = tmp_path / "out" / RUNS / manifest.run_hash
        (folder / "deep").mkdir()
        (folder / "deep" / "train-99999.parquet").write_bytes(b"theirs")
        # Being written, or left over from a kill.
        (folder / f"{TEMP_PREFIX}{MANIFEST}.elsewhere.1-1").write_bytes(b"half")
        for full in (True, False):
            [fault] = _errors(tmp_path / "out", full)
            assert (fault.rule, fault.where) == ("unlisted_file", str(folder / "deep/train-99999.parquet"))

    def test_a_manifest_without_a_digest_is_of_an_earlier_version_and_proves_nothing(
        self, source: Path, tmp_path: Path
    ) -> None:
        out = tmp_path / "out"
        manifest, _ = self.mill(source, out)
        old = manifest.model_dump(exclude={"notes", "manifest_sha256"}, mode="json") | {"format": 1}
        (out / LATEST / MANIFEST).write_text(json.dumps(old))
        (out / LATEST / CONFIG).write_text((out / LATEST / CONFIG).read_text() + " ")
        assert not _errors(out)
        told = [fault.detail for fault in validate_path(out).faults]
        assert any("no digest of its own, published by an earlier version" in detail for detail in told)
        # No earlier version made a run of this hash: someone took the digest out.
        assert completed_run(out, manifest.run_hash, Verify.SIZE) is None
        again, _ = self.mill(source, out)
        assert completed_run(out, manifest.run_hash, Verify.SHA256) == again and again.is_proven
        assert again.outputs == manifest.outputs

    # History and pruning.

    def test_runs_are_listed_and_old_ones_pruned(self, source: Path, tmp_path: Path) -> None:
        out = tmp_path / "out"
        old, _ = self.mill(source, out)
        new, _ = self.mill(source, out, **self.change({}))
        assert old.run_hash != new.run_hash
        assert {run.manifest.run_hash: run.latest for run in list_runs(out)} == {
            old.run_hash: False,
            new.run_hash: True,
        }
        later = max(run.published_s for run in list_runs(out)) + _DAY_S
        remove(out, find_unneeded(out, keep=1, min_age_s=0, now_s=later))
        assert [run.manifest.run_hash for run in list_runs(out)] == [new.run_hash]
        assert {path.name for path in (out / STAGES).iterdir() if path.is_dir()} == set(new.stages.values())
        assert not list(published_faults(out / LATEST, new, Verify.SHA256))

    def test_a_damaged_run_is_not_pruned_and_can_be_repaired(self, source: Path, tmp_path: Path) -> None:
        out = tmp_path / "out"
        old, _ = self.mill(source, out)
        latest, _ = self.mill(source, out, **self.change({}))
        path, head = out / RUNS / old.run_hash / MANIFEST, out / LATEST / MANIFEST
        whole, later = path.read_bytes(), time.time() + _DAY_S
        for damage in (b"", whole[:-5], whole.replace(b'"rows_in": ', b'"rows_in": 1'), b'{"format": 99}'):
            path.write_bytes(damage)
            unneeded = find_unneeded(out, keep=0, min_age_s=0, now_s=later)
            assert [folder.name for folder in unneeded.damaged] == [old.run_hash]
            assert [folder.name for folder in damaged_runs(out)] == [old.run_hash]
            assert (unneeded.runs, unneeded.stages) == ((), ())
        path.write_bytes(whole)
        # Where `latest` leads, a missing manifest is damage, too.
        head.rename(tmp_path / "moved")
        unneeded = find_unneeded(out, keep=0, min_age_s=0, now_s=later)
        assert [folder.name for folder in unneeded.damaged] == [latest.run_hash]
        assert ([folder.name for folder in unneeded.runs], unneeded.stages) == ([old.run_hash], ())
        remove(out, unneeded)
        again, done = self.mill(source, out, **self.change({}))
        assert again.outputs == latest.outputs and not done.executed
        assert find_unneeded(out, keep=0, min_age_s=0, now_s=later).damaged == {}

    def test_pruning_during_a_run_leaves_it_alone(self, source: Path, tmp_path: Path) -> None:
        out = tmp_path / "out"
        old, _ = self.mill(source, out)
        pruned = self.meddle(source, out, lambda: _prune(out, min_age_s=7 * _DAY_S))
        assert pruned.run_hash != old.run_hash
        assert not list(published_faults(out / LATEST, pruned, Verify.SHA256))

    def test_even_pruning_everything_during_a_run_publishes_nothing_broken(
        self, source: Path, tmp_path: Path
    ) -> None:
        out = tmp_path / "out"
        old, _ = self.mill(source, out)
        try:
            self.meddle(source, out, lambda: _prune(out, min_age_s=0))
        except GristmillError:
            assert read_manifest(out / LATEST).run_hash == old.run_hash
        _check_published(out)
        done, _ = self.mill(source, out, **self.change({}))
        expected, _ = self.mill(source, tmp_path / "undisturbed", **self.change({}))
        assert _data(done) == _data(expected)

    def meddle(self, source: Path, out: Path, act: Callable[[], None]) -> RunManifest:
        """Run a changed configuration, and do something once the first step is done."""
        entry = entry_of(self.flow)
        config = self.config(source, out, **self.change({}))
        return mill_of(entry, config, after_first_step=act)[0]

    # Limits of the process.

    @pytest.mark.parametrize("limit", ["NOFILE", "FSIZE"])
    def test_a_limit_of_the_process_is_named_and_lifting_it_resumes_the_run(
        self, runs: Runs, source: Path, tmp_path: Path, limit: str
    ) -> None:
        undisturbed, out = tmp_path / "undisturbed", tmp_path / "out"
        new = self.change(self.raw(source, out))
        assert runs.run({**new, "output_dir": str(undisturbed)}, flow=self.flow) == 0
        expected = published_digests(undisturbed / LATEST)
        sizes = sorted(path.stat().st_size for path in _files(undisturbed))
        assert runs.run(self.raw(source, out), flow=self.flow) == 0
        old = (out / LATEST).resolve()
        # From nothing on, until it is enough.
        values = range(40) if limit == "NOFILE" else [0, *sizes[:: len(sizes) // 3], sizes[-1] - 1, 2**30]
        for value in values:
            if runs.run(new, flow=self.flow, limits={limit: value}) == 0:
                break
            error = runs.error
            assert error is not None and error["code"] in ("limit", "storage"), error
            assert ("ulimit -n" if limit == "NOFILE" else "ulimit -f") in error["message"], error
            assert (out / LATEST).resolve() == old and not list(temporary_files(out)), value
        assert value > values[0]
        assert published_digests(out / LATEST) == expected
        assert not list(published_faults(out / LATEST, read_manifest(out / LATEST), Verify.SHA256))

    # Kills.

    def test_a_kill_at_each_commit_point_loses_nothing(
        self, runs: Runs, source: Path, tmp_path: Path
    ) -> None:
        undisturbed = tmp_path / "undisturbed"
        assert runs.run(self.raw(source, undisturbed), flow=self.flow) == 0
        expected = published_digests(undisturbed / LATEST)
        moments = _commit_points(runs.events)
        assert len(moments) >= 8, moments
        for number, event in moments.items():
            out = tmp_path / f"{number:04d}"
            assert runs.run(self.raw(source, out), die_before=number, flow=self.flow) == _KILLED, event
            _check_published(out)
            assert runs.run(self.raw(source, out), flow=self.flow) == 0, event
            assert published_digests(out / LATEST) == expected, event
            assert not list(temporary_files(out)), event
            shutil.rmtree(out)

    def test_a_kill_while_a_newer_run_is_published_keeps_the_old_one(
        self, runs: Runs, source: Path, tmp_path: Path
    ) -> None:
        out = tmp_path / "out"
        assert runs.run(self.raw(source, out), flow=self.flow) == 0
        old = (out / LATEST).resolve()
        new = self.change(self.raw(source, out))
        shutil.copytree(out, tmp_path / "copy", symlinks=True)
        assert runs.run(self.change(self.raw(source, tmp_path / "copy")), flow=self.flow) == 0
        swap = max(n for n, event in enumerate(runs.events, 1) if event.startswith("os.rename latest"))
        assert runs.run(new, die_before=swap, flow=self.flow) == _KILLED
        assert (out / LATEST).resolve() == old
        _check_published(out)
        assert runs.run(new, flow=self.flow) == 0
        assert (out / LATEST).resolve() != old
        _check_published(out)


class PrefectContract(Workload):
    """Cases of a flow on Prefect."""

    def test_two_drivers_do_the_work_once(self, prefect_api: str, source: Path, tmp_path: Path) -> None:
        job = json.dumps({"config": self.raw(source, tmp_path / "out")})
        drivers = [_drive(prefect_api, self.flow, job) for _ in range(2)]
        told = [json.loads(driver.communicate()[0].splitlines()[-1]) for driver in drivers]
        assert all("error" not in one for one in told), told
        assert len({one["run_dir"] for one in told}) == 1
        assert [driver.returncode for driver in drivers] == [0, 0]
        _check_published(tmp_path / "out")
        expected, _ = self.mill(source, tmp_path / "alone")
        assert _data(read_manifest(tmp_path / "out" / LATEST)) == _data(expected)

    def test_bytes_do_not_depend_on_runner_workers_folder_or_hash_seed(
        self, prefect_api: str, source: Path, tmp_path: Path
    ) -> None:
        setups = {"one": ("threads", 1, 200), "four": ("threads", 4, 200), "processes": ("processes", 2, 200)}
        # All parts in one batch.
        setups["batches"] = ("processes", 2, 1)
        jobs = [
            json.dumps(
                {
                    "config": {**self.raw(source, tmp_path / name), "workers": workers},
                    "runner": runner,
                    "most_tasks": most,
                }
            )
            for name, (runner, workers, most) in setups.items()
        ]
        driver = _drive(prefect_api, self.flow, *jobs, cwd=tmp_path, PYTHONHASHSEED="7")
        told = [json.loads(line) for line in driver.communicate()[0].splitlines()]
        assert [one.get("cached") for one in told] == [False] * len(setups), told
        made = {name: read_manifest(tmp_path / name / LATEST) for name in setups}
        expected, _ = self.mill(source, tmp_path / "serial")
        for name, manifest in made.items():
            assert manifest.run_hash == expected.run_hash, name
            assert _data(manifest) == _data(expected), name
            assert manifest.stages == expected.stages, name


def _drive(api: str, flow: str, *jobs: str, cwd: Path = ROOT, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "contract.drive", flow, *jobs],
        stdout=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env=environment(PREFECT_API_URL=api, **variables),
    )


def _data(manifest: RunManifest) -> dict[str, str]:
    """Digest of every published file, by path."""
    return {record.path: record.sha256 for record in manifest.outputs}


def _files(out: Path) -> list[Path]:
    """The files that runs and stages consist of: no links of ours, no locks."""
    return [
        path
        for path in sorted(out.rglob("*"))
        if path.is_file() and (not path.is_symlink() or path.readlink().is_absolute())
        if not path.name.endswith(".lock") and path.name not in (FINGERPRINTS, MARKER)
    ]


def _folders(out: Path) -> list[Path]:
    """The folders that runs and stages consist of, one of each kind: with the same names below, but for numbers."""
    kinds: dict[str, Path] = {}
    for path in sorted(out.rglob("*")):
        if path.is_dir() and not path.is_symlink():
            held = sorted(below.relative_to(path).as_posix() for below in path.rglob("*"))
            kinds.setdefault(re.sub(r"[0-9a-f]{16}|\d+", "#", str(held)), path)
    return list(kinds.values())


def _inodes(folder: Path) -> dict[str, tuple[int, int]]:
    return {
        str(path): (path.stat().st_ino, path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file() and not path.name.endswith(".lock") and path.name != FINGERPRINTS
    }


def _errors(out: Path, full: bool = True) -> list[Fault]:
    """What `validate` finds, apart from a flow that only the tests have."""
    return [fault for fault in validate_path(out, full).errors if fault.rule != "flow"]


def _prune(out: Path, min_age_s: float) -> None:
    later = max(run.published_s for run in list_runs(out)) + 60
    remove(out, find_unneeded(out, keep=1, min_age_s=min_age_s, now_s=later))


def _check_published(out: Path) -> None:
    """`latest` leads to a complete run, or is not there, and then no other published name is."""
    if not (out / LATEST).is_symlink():
        links = [path.name for path in out.glob("*") if path.is_symlink()]
        assert not [name for name in links if not name.startswith(TEMP_PREFIX)]
        return
    manifest = read_manifest(out / LATEST)
    assert not list(published_faults(out / LATEST, manifest, Verify.SHA256))


def _commit_points(events: list[str]) -> dict[int, str]:
    """The first and the last of each kind of change that makes something visible, by its number from 1."""
    kinds: dict[str, list[int]] = {}
    for number, event in enumerate(events, 1):
        if event.startswith(("os.rename", "os.link", "os.symlink")):
            kinds.setdefault(re.sub(r"[0-9a-f]{16}|\d+", "#", event), []).append(number)
    chosen = sorted({number for numbers in kinds.values() for number in (numbers[0], numbers[-1])})
    return {number: events[number - 1] for number in chosen}
