"""What tries share: a small input of each flow, its configuration, and the output that nobody disturbed."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from contract.flows_under_test import BuildProbeRows, PackSft, SampleCorpus, TrainTokenizer
from contract.suite import Workload
from support import published_digests
from torture.events import counted
from torture.room import Ended, Failed, Room
from workloads import ROOT, temporary_files

from tasks.storage.atomic import TEMP_PREFIX

TOKENIZER = ROOT / "tests" / "fixtures" / "tokenizer"


class PackMemmap(PackSft):
    """Shards that are folders."""

    def raw(self, source: Path, output_dir: Path) -> dict[str, Any]:
        raw = super().raw(source, output_dir)
        return {**raw, "storage": {**raw["storage"], "format": "memmap"}}


_WORKLOADS = {
    "pack-sft": PackSft,
    "sample-corpus": SampleCorpus,
    "build-probe-rows": BuildProbeRows,
    "train-tokenizer": TrainTokenizer,
    "pack-sft to memmap": PackMemmap,
}
# Differ between two runs of one configuration.
_FREE = {"environment", "manifest_sha256", "notes"}
_NOTES = ("config.json", "inputs.json")


@dataclass(frozen=True)
class Known:
    """A run that nobody disturbed: its hash, the digests of its files, what it says of itself."""

    run_hash: str
    digests: dict[str, str]
    notes: dict[str, Any]


@dataclass
class Work:
    """A flow with an input.

    Attributes:
        name: of the flow, perhaps with what is special.
        base: a finished output folder, never changed.
        known: what each of its configurations gives, by run hash.
        changes: how often a run changes its output folder.
        seconds: how long it takes.
    """

    name: str
    workload: Workload
    source: Path
    base: Path
    known: dict[str, Known] = field(default_factory=dict)
    changes: int = 0
    seconds: float = 0.0

    @property
    def flow(self) -> str:
        return self.workload.flow

    def raw(self, out: Path, changed: bool = False) -> dict[str, Any]:
        """Its configuration; `changed` is another one, with other bytes."""
        raw = self.workload.raw(self.source, out)
        return self.workload.change(raw) if changed else raw

    def run(self, room: Room, out: Path, *options: str, changed: bool = False, **how: Any) -> Ended:
        """Run it in a fork."""
        return room.run(*self.arguments(room, out, *options, changed=changed), **how)

    def arguments(self, room: Room, out: Path, *options: str, changed: bool = False) -> tuple[str, ...]:
        name = f"{self.name}-{'changed' if changed else 'plain'}-{out.name}"
        return (self.flow, str(room.config(self.raw(out, changed), name)), *options)

    def finish(self, room: Room, out: Path, *options: str, changed: bool = False) -> None:
        """Run it to its end; everything must be there then.

        Raises:
            Failed: it does not end well, or something is wrong with what it leaves.
        """
        ended = room.judged(self.run(room, out, *options, changed=changed))
        if not ended.ok:
            raise Failed("not resumable", f"run again undisturbed: {ended.said}")
        self.check_whole(room, out)

    def check_view(self, out: Path) -> Known | None:
        """`latest` leads to a complete run of the right bytes, or is not there.

        Raises:
            Failed: `half-visible run`.
        """
        latest = out / "latest"
        if not latest.is_symlink():
            return None
        known = self.known.get(latest.resolve().name)
        if known is None:
            raise Failed("half-visible run", f"latest -> {latest.readlink()}, which is not a run of ours")
        if not (latest / "manifest.json").is_file():
            raise Failed("half-visible run", "latest leads to a run without a manifest")
        # Another driver may be publishing the same run once more.
        found = {
            name: digest
            for name, digest in published_digests(latest.resolve()).items()
            if TEMP_PREFIX not in name
        }
        if difference := _difference(known.digests, found):
            raise Failed("half-visible run", f"latest is not what its run gives: {difference}")
        return known

    def check_whole(self, room: Room, out: Path) -> None:
        """After an undisturbed end: the right bytes, nothing left lying about, and `validate` agrees.

        Raises:
            Failed: `wrong bytes`, `temporary file left`.
        """
        latest = out / "latest"
        known = self.known.get(latest.resolve().name) if latest.is_symlink() else None
        if known is None:
            raise Failed("silent success", f"exit 0, but latest is not a run of this configuration: {out}")
        if difference := _difference(known.digests, published_digests(latest.resolve())):
            raise Failed("wrong bytes", f"published files: {difference}")
        if difference := _difference(known.notes, notes_of(latest)):
            raise Failed("wrong bytes", f"notes of the run: {difference}")
        verdict = room.judged(room.run("validate", out))
        if not verdict.ok:
            raise Failed(
                "wrong bytes", f"validate after an undisturbed end: {verdict.out[-400:]} {verdict.said}"
            )
        if list(temporary_files(out)):
            room.judged(room.run("prune", out, "--min-age", "0s", "--keep", "9"))
            if left := [str(path.relative_to(out)) for path in temporary_files(out)]:
                raise Failed("temporary file left", f"neither the next run nor prune removes {left}")


@dataclass(frozen=True)
class Kit:
    """What every try can use.

    Attributes:
        works: by name.
        server: state folder of a server that `up` started, if there is one.
    """

    folder: Path
    works: dict[str, Work]
    server: Path | None = None

    def work(self, number: int) -> Work:
        """The work of a try: each in turn."""
        return list(self.works.values())[number % len(self.works)]


def make_kit(folder: Path, server: Path | None) -> Kit:
    """Write the inputs and run each flow undisturbed, in this process."""
    works = {}
    for name, of in _WORKLOADS.items():
        workload = of()
        workload.tokenizer = TOKENIZER
        source = folder / name / "in"
        workload.write(source, bad_rows=2, good_rows=90)
        work = Work(name, workload, source, folder / name / "base")
        room = Room(Kit(folder, {}), "kit", 0, Random(0), folder / name)
        for changed in (True, False):
            # In a fork: no fork could follow what native libraries start in this process.
            out, log = folder / name / ("changed" if changed else "base"), folder / name / "events"
            ended = room.judged(work.run(room, out, changed=changed, fault=counted(out, log)))
            if not ended.ok:
                raise Failed("campaign", f"{name} undisturbed: {ended.said}")
            work.changes, work.seconds = log.stat().st_size, ended.seconds
            log.unlink()
            latest = (out / "latest").resolve()
            work.known[latest.name] = Known(latest.name, published_digests(latest), notes_of(latest))
        works[name] = work
    return Kit(folder, works, server)


def notes_of(run: Path) -> dict[str, Any]:
    """What a run says about itself, without what may differ: manifest, configuration, fingerprints."""
    notes: dict[str, Any] = {}
    try:
        manifest = json.loads((run / "manifest.json").read_bytes())
        manifest["outputs"] = [
            one for one in manifest["outputs"] if one["path"] not in (*_NOTES, "report.html")
        ]
        notes |= {f"manifest {key}": value for key, value in manifest.items() if key not in _FREE}
        config = json.loads((run / "config.json").read_bytes())
        notes |= {f"config {key}": value for key, value in config.items() if key != "output_dir"}
        notes["inputs"] = json.loads((run / "inputs.json").read_bytes())
        notes["report"] = b"</html>" in (run / "report.html").read_bytes()[-100:]
    except (OSError, ValueError, TypeError, KeyError) as error:
        notes["unreadable"] = f"{type(error).__name__}: {error}"
    return notes


def _difference(expected: dict[str, Any], found: dict[str, Any]) -> str:
    different = sorted(key for key in expected.keys() | found.keys() if expected.get(key) != found.get(key))
    return ", ".join(
        f"{key} ({'missing' if key not in found else 'unexpected' if key not in expected else 'differs'})"
        for key in different[:5]
    )
