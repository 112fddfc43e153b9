"""Power cuts at every moment of a run that is published over an earlier one, for every flow.

`PYTHONPATH=tests python -m contract.power_cuts [FLOW...] [--reruns N] [--seeds N]` replays every prefix of the
recorded operations in every variant (see `crashes`), and prints a line a flow. What the published names lead to is
checked with hashlib and json alone; of the trees that differ, N a flow are written to disk, validated, and run again.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import posixpath
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from contract.flows_under_test import BuildProbeRows, PackSft, SampleCorpus, TrainTokenizer
from contract.suite import Workload
from crashes import Disk, Operation, Tree, record, write_tree
from manifests import digest_of_manifest
from support import entry_of, mill_of, published_digests

from tasks.outputs.validate import validate_path
from tasks.run.layout import LATEST, MANIFEST, RUNS

FLOWS: tuple[type[Workload], ...] = (PackSft, SampleCorpus, TrainTokenizer, BuildProbeRows)
_PLAIN = ("lost", "kept", "names", "zeros")


@dataclass
class Findings:
    """What a campaign over one flow tried and found.

    Attributes:
        prefixes, cuts, trees: operations, power cuts after them, and different trees that these left.
        reruns: how many of the trees were validated and run again.
        faults: what was wrong, a sentence each.
    """

    flow: str
    prefixes: int = 0
    cuts: int = 0
    trees: int = 0
    reruns: int = 0
    faults: list[str] = field(default_factory=list)


@functools.cache
def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def run_fault(tree: Tree, folder: str) -> str | None:
    """Why a run's folder is not complete, by its manifest; `None` if it is."""
    content = tree.get(f"{folder}/{MANIFEST}")
    if not isinstance(content, bytes):
        return f"{folder} has no manifest"
    try:
        fields: dict[str, Any] = json.loads(content)
        whole = fields.get("manifest_sha256", "") in ("", digest_of_manifest(content))
    except ValueError:
        whole = False
    if not whole:
        return f"{folder} has a damaged manifest"
    notes: dict[str, set[str]] = {}
    for entry in (*fields["outputs"], *fields.get("notes", ())):
        notes.setdefault(entry["path"], set()).add(entry["sha256"])
    for name, digests in notes.items():
        found = tree.get(f"{folder}/{name}")
        if not isinstance(found, bytes) or _sha256(found) not in digests:
            return f"{folder}/{name} is {'damaged' if isinstance(found, bytes) else 'missing'}"
    for name, target in fields["links"].items():
        if tree.get(f"{folder}/{name}") != (target,):
            return f"{folder}/{name} is not a link to {target}"
    return None


def tree_fault(tree: Tree, must_have: str | None) -> str | None:
    """Why what is published is not a complete run; `None` if it is.

    Args:
        must_have: the run that was the latest before, if any: then there must be a latest one.
    """
    for path in sorted(tree):
        if posixpath.basename(path) == MANIFEST and path.count("/") == 2 and path.startswith(f"{RUNS}/"):
            fault = run_fault(tree, posixpath.dirname(path))
            if fault is not None:
                return fault
    latest = tree.get(LATEST)
    if latest is None:
        return "latest is gone" if must_have else None
    return run_fault(tree, str(latest[0]))


def cuts(
    before: Path, operations: Sequence[Operation], seeds: int, never_synced: Any
) -> Iterator[tuple[str, Tree]]:
    """What each power cut leaves, with its name."""
    disk = Disk(before, never_synced)
    for number, operation in enumerate((None, *operations)):
        if operation is not None:
            disk.do(operation)
        for variant in _PLAIN:
            yield f"{number}/{variant}", disk.after(variant)
        for seed in range(seeds):
            yield f"{number}/random {seed}", disk.after("random", number * 1000 + seed)


def campaign(workload: Workload, folder: Path, reruns: int, seeds: int, earlier: str = "other") -> Findings:
    """Publish a run over an earlier one, and cut the power at every moment.

    Args:
        folder: empty; a fast file system helps.
        reruns: how many of the trees to validate and to run again.
        seeds: random power cuts after each operation.
        earlier: `none`; `other`: another run was published; `same`: the same, to be published again with `force`.
    """
    source, out, before = folder / "in", folder / "out", folder / "before"
    workload.write(source)
    entry = entry_of(workload.flow)
    raw = workload.change(workload.raw(source, out))
    old = None
    before.mkdir(parents=True)
    if earlier != "none":
        first = workload.raw(source, out) if earlier == "other" else raw
        old = mill_of(entry, entry.parse(first))[0].run_hash
        shutil.rmtree(before)
        shutil.copytree(out, before, symlinks=True)
    with record(out) as operations:
        new, _ = mill_of(entry, entry.parse(raw))
    expected = published_digests(out / RUNS / new.run_hash)
    found = Findings(workload.flow, len(operations))
    trees: dict[frozenset[Any], tuple[str, Tree]] = {}
    # Prefect writes receipts without syncing them.
    for name, tree in cuts(before, operations, seeds, lambda path: "/receipts/" in path):
        found.cuts += 1
        key = frozenset(tree.items())
        if key in trees:
            continue
        trees[key] = (name, tree)
        fault = tree_fault(tree, old)
        if fault is not None:
            found.faults.append(f"{name}: {fault}")
    found.trees = len(trees)
    if tree_fault(Disk(out).after("kept"), new.run_hash) is not None:
        found.faults.append("the model is wrong: it does not accept an undisturbed run")
    chosen = list(trees.values())
    random.Random(0).shuffle(chosen)
    for name, tree in chosen[:reruns]:
        again = folder / "again"
        write_tree(tree, again)
        found.faults += [f"{name}: {fault}" for fault in _rerun(workload, tree, source, again, expected)]
        found.reruns += 1
        shutil.rmtree(again)
    return found


def _rerun(
    workload: Workload, tree: Tree, source: Path, again: Path, expected: dict[str, str]
) -> Iterator[str]:
    for run in sorted((again / RUNS).glob("*/")) if (again / RUNS).is_dir() else ():
        name = run.relative_to(again).as_posix()
        if f"{name}/{MANIFEST}" in tree and validate_path(run).ok != (run_fault(tree, name) is None):
            yield f"validate and the digests of {name} differ"
    entry = entry_of(workload.flow)
    done, _ = mill_of(entry, entry.parse(workload.change(workload.raw(source, again))))
    if published_digests(again / RUNS / done.run_hash) != expected:
        yield "another run gives other bytes"
    verdict = validate_path(again)
    if not verdict.ok:
        yield f"after another run: {verdict.errors[0].detail}"


def main() -> int:
    """Run the long campaign."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("flows", nargs="*")
    parser.add_argument("--reruns", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=8)
    options = parser.parse_args()
    failed = False
    for kind in FLOWS:
        if options.flows and kind.flow not in options.flows:
            continue
        for earlier in ("none", "other", "same"):
            workload = kind()
            workload.tokenizer = Path(__file__).resolve().parents[1] / "fixtures" / "tokenizer"
            with tempfile.TemporaryDirectory() as folder:
                found = campaign(workload, Path(folder), options.reruns, options.seeds, earlier)
            print(
                f"{found.flow} over {earlier}: {found.prefixes} operations, {found.cuts} power cuts, {found.trees} "
                f"trees, {found.reruns} run again, {len(found.faults)} faults",
                flush=True,
            )
            for fault in found.faults[:5]:
                print(f"  {fault}", flush=True)
            failed = failed or bool(found.faults)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
