"""Golden values: what a run gives now, what is recorded of it, and whether a difference is allowed.

The rule: as long as a flow keeps its format version, equal configurations over equal inputs give equal bytes, because
they give equal keys: old and new files would lie in one stage. So a difference under an unchanged format version is a
fault, and `make golden` refuses to record it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from golden.cases import INPUTS, ROOT, TOKENIZER, Case, format_versions, run_case
from golden.digests import byte_digest, digest_of, logical_digest
from supply.lock import requirements

VALUES = Path(__file__).resolve().parent / "values"
UPDATE = "`make golden`"

Values = dict[str, Any]


class Kind(Enum):
    """What a recorded entry is compared as."""

    LOGICAL = "values"
    BYTES = "bytes"


def load(name: str) -> Values | None:
    """What is recorded under a name; nothing if there is no such file."""
    path = VALUES / f"{name}.json"
    return json.loads(path.read_bytes()) if path.is_file() else None


def save(name: str, values: Values) -> None:
    """Record."""
    (VALUES / f"{name}.json").write_text(json.dumps(values, indent=1, ensure_ascii=False) + "\n")


def record_run(case: Case, folder: Path) -> Values:
    """Run a case below `folder` and describe what it published, and what its stages keep.

    `receipts` has the files of a stage that are not published, and the names of its statistics: a stage of an
    older run is used again, so both must stay. So must the names in a manifest, for runs are compared with the last.
    """
    with contextlib.chdir(ROOT):
        manifest = run_case(case, folder)
        given = digest_of([case.raw, inputs_digest()])
    run = folder / "runs" / manifest.run_hash
    files = {
        record.path: {"sha256": byte_digest(run / record.path), "logical": logical_digest(run / record.path)}
        for record in manifest.outputs
    }
    published = {entry["sha256"] for entry in files.values()}
    receipts = {}
    for path in sorted(folder.glob("stages/*/receipts/*.json")):
        receipt = json.loads(json.loads(path.read_bytes())["result"])
        receipts[path.relative_to(folder).as_posix()] = {
            "files": {
                Path(file["path"]).name: {"sha256": file["sha256"]}
                for file in receipt["files"]
                if file["sha256"] not in published
            },
            "statistics": sorted(receipt["statistics"]),
        }
    return {
        "given": given,
        "formats": format_versions(case.flow),
        "packages": {name: importlib.metadata.version(name) for name in case.packages},
        "run_hash": manifest.run_hash,
        "ledger": manifest.ledger.model_dump(),
        "manifest": sorted(manifest.model_dump()),
        "statistics": sorted(manifest.statistics),
        "links": dict(manifest.links),
        "receipts": receipts,
        "files": files,
    }


@functools.cache
def inputs_digest() -> str:
    """Digest of the committed inputs, names included."""
    paths = sorted(path for folder in (INPUTS, TOKENIZER) for path in (ROOT / folder).rglob("*"))
    return digest_of(
        [path.relative_to(ROOT).as_posix(), byte_digest(path)] for path in paths if path.is_file()
    )


@dataclass(frozen=True)
class Change:
    """How what is found differs from what is recorded.

    Attributes:
        what: paths of the entries that differ, or are on one side only.
        why: what may explain it, or that nothing does.
        allowed: whether it may be recorded.
    """

    what: tuple[str, ...]
    why: str
    allowed: bool

    def __str__(self) -> str:
        shown = "\n".join(f"  {name}" for name in self.what[:12])
        more = f"\n  and {len(self.what) - 12} more" if len(self.what) > 12 else ""
        return f"{self.why}\n{shown}{more}"


def change(recorded: Values | None, found: Values, kind: Kind | None = None) -> Change | None:
    """The difference between two descriptions of one thing, or nothing.

    Args:
        kind: look only at values, or only at bytes.
    """
    if recorded is None:
        return Change(("everything",), f"nothing is recorded: run {UPDATE}", True)
    for name, why in (
        ("given", "the configuration or the inputs of this golden value changed"),
        ("formats", "a format version changed"),
    ):
        if recorded[name] != found[name]:
            return Change(_differing(recorded[name], found[name], name), f"{why}: run {UPDATE}", True)
    before, after = _flat(recorded), _flat(found)
    names = [name for name in before.keys() | after.keys() if before.get(name) != after.get(name)]
    names = sorted(name for name in names if name.split(".")[0] != "packages")
    # Digests of files follow the libraries that write them; all else does not, nor which files there are.
    both = before.keys() & after.keys()
    of_bytes = tuple(name for name in names if name.endswith(".sha256") and name in both)
    of_values = tuple(name for name in names if name not in of_bytes)
    # A new name in a receipt or manifest leaves those readable that do not have it yet.
    if names and all(name not in before and _is_name(name) for name in names):
        return (
            Change(tuple(names), f"a statistic is new: run {UPDATE}", True)
            if kind is not Kind.BYTES
            else None
        )
    if of_values and kind is not Kind.BYTES:
        return Change(of_values, f"values changed and the format version did not: {remedy(found)}", False)
    if of_bytes and kind is not Kind.LOGICAL:
        if recorded["packages"] != found["packages"]:
            return Change(of_bytes, f"other libraries write other bytes: run {UPDATE}", True)
        return Change(of_bytes, f"bytes changed and the format version did not: {remedy(found)}", False)
    return None


def _is_name(path: str) -> bool:
    return path.rpartition(".")[0].rpartition(".")[2] in ("statistics", "manifest")


def remedy(found: Values) -> str:
    """What to do about a change that the format version does not announce."""
    [flow] = found["formats"].keys() - {"receipt", "manifest", "memmap", "spill"}
    return f"undo it, or raise the format version of {flow} and run {UPDATE}"


def _differing(before: Any, after: Any, name: str) -> tuple[str, ...]:
    if not isinstance(before, Mapping) or not isinstance(after, Mapping):
        return (f"{name}: {before} -> {after}",)
    keys = sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
    return tuple(f"{name}.{key}: {before.get(key)} -> {after.get(key)}" for key in keys)


def _flat(value: Any, name: str = "") -> dict[str, Any]:
    """Leaves by path; a name in a list is one, and so is a mapping without entries."""
    if isinstance(value, list):
        return {f"{name}.{item}": True for item in value}
    if not isinstance(value, dict) or not value:
        return {name: value}
    return {
        path: leaf
        for key, item in value.items()
        for path, leaf in _flat(item, f"{name}.{key}" if name else key).items()
    }


def locked() -> dict[str, set[str]]:
    """Versions that requirements.lock names, for any Python."""
    found: dict[str, set[str]] = {}
    for requirement in requirements():
        found.setdefault(requirement.name, set()).update(s.version for s in requirement.specifier)
    return found


def unlocked(packages: Iterable[str]) -> list[str]:
    """Which packages are installed in another version than the lock has for this Python, in words."""
    here = {
        r.name: next(iter(r.specifier)).version
        for r in requirements()
        if r.marker is None or r.marker.evaluate()
    }
    installed = {name: importlib.metadata.version(name) for name in packages}
    return [
        f"{name} {version}, locked is {here[name]}"
        for name, version in installed.items()
        if version != here[name]
    ]
