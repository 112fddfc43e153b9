"""What is pinned of configurations: every default, and what the examples in deployments/ become.

A default enters no hash, so that an option more keeps old runs valid. That is why a changed default needs a new
format version: otherwise the old key would name other bytes.
"""

from __future__ import annotations

import contextlib
import importlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

import yaml
from golden.cases import INPUTS, ROOT, TOKENIZER, format_versions
from golden.digests import digest_of
from golden.record import UPDATE, Change, Values, inputs_digest, remedy
from pydantic_core import to_jsonable_python

from flows.cli.registry import FLOWS, FlowEntry
from schemas.canonical import canonical_json
from schemas.config import Config

DEPLOYMENTS = ROOT / "deployments"
# Their default is the number of processors.
_OF_THE_MACHINE = {"workers", "io_workers"}


def record_defaults() -> dict[str, Values]:
    """For each flow the default of every option, by its path."""
    return {f"{flow.name}.defaults": _defaults(flow) for flow in FLOWS}


def _defaults(flow: FlowEntry) -> Values:
    model = getattr(importlib.import_module(flow.schema), flow.config)
    hashed: dict[str, Any] = {}
    not_hashed: dict[str, Any] = {}
    for path, default, counts in _walk(model, "", None, True):
        (hashed if counts else not_hashed)[path] = default
    return {"formats": format_versions(flow.name), "hashed": hashed, "not_hashed": not_hashed}


def _walk(
    model: type[Config], prefix: str, instance: Config | None, counts: bool
) -> Iterator[tuple[str, Any, bool]]:
    """Path, default and whether it enters hashes, of each option of a model and of the models in it.

    Args:
        instance: the default of the whole group, where it has one.
        counts: whether the group enters hashes.
    """
    for name, field in model.model_fields.items():
        if name in _OF_THE_MACHINE:
            continue
        extra = field.json_schema_extra
        enters = counts and not (isinstance(extra, dict) and extra.get("x-not-hashed"))
        if instance is not None:
            default = getattr(instance, name)
        elif field.is_required():
            default = "(required)"
        else:
            default = field.get_default(call_default_factory=True, validated_data={})
        group = default if isinstance(default, Config) else None
        if group is None:
            yield prefix + name, to_jsonable_python(default), enters
        for inner, mark in _models(field.annotation, ""):
            yield from _walk(inner, f"{prefix}{name}{mark}.", group, enters)


def _models(annotation: Any, mark: str) -> Iterator[tuple[type[Config], str]]:
    if isinstance(annotation, type) and issubclass(annotation, Config):
        yield annotation, mark
    mark += {tuple: "[]", list: "[]", dict: "{}"}.get(get_origin(annotation), "")
    for argument in get_args(annotation):
        yield from _models(argument, mark)


def changed_defaults(recorded: Values | None, found: Values) -> Change | None:
    """The difference between two descriptions of defaults, or nothing.

    A new option may be recorded: at its default it enters no hash. So may a default that changes no bytes.
    """
    if recorded is None:
        return Change(("everything",), f"nothing is recorded: run {UPDATE}", True)
    if recorded["formats"] != found["formats"]:
        return Change((str(found["formats"]),), f"a format version changed: run {UPDATE}", True)
    before, after = recorded["hashed"], found["hashed"]
    lost = [
        f"{path}: {value} -> {after.get(path, '(gone)')}"
        for path, value in before.items()
        if path not in after or after[path] != value
    ]
    if lost:
        return Change(
            tuple(lost), f"a default changed and the format version did not: {remedy(found)}", False
        )
    if recorded != found:
        every = {**after, **found["not_hashed"]}
        old = {**before, **recorded["not_hashed"]}
        what = [path for path in {**old, **every} if old.get(path, ()) != every.get(path, ())]
        return Change(tuple(what), f"an option is new, or changes no bytes: run {UPDATE}", True)
    return None


def record_examples(folder: Path) -> dict[str, Values]:
    """For each flow its example configurations, as they enter a hash and as a run over committed inputs.

    Args:
        folder: where copies of inputs may go.
    """
    found: dict[str, Values] = {}
    for flow in FLOWS:
        raws = dict(examples(flow))
        found[f"{flow.name}.examples"] = {
            "given": digest_of([raws, inputs_digest()]),
            "formats": format_versions(flow.name),
            "packages": {},
            "examples": {name: _example(flow, raw, folder) for name, raw in raws.items()},
        }
    return found


def examples(flow: FlowEntry) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and content of a flow's example configurations."""
    yield f"{flow.module}.yaml", _plain(yaml.safe_load((DEPLOYMENTS / f"{flow.module}.yaml").read_text()))
    for entry in yaml.safe_load((DEPLOYMENTS / "prefect.yaml").read_text())["deployments"]:
        if entry["entrypoint"].endswith(f".{flow.module}"):
            yield f"prefect.yaml {entry['name']}", _plain(entry["parameters"]["config"])


def _plain(value: Any) -> Any:
    """As JSON has it: keys that YAML reads as numbers are texts."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value


def _example(flow: FlowEntry, raw: dict[str, Any], folder: Path) -> Values:
    identity = importlib.import_module(flow.identity)
    with contextlib.chdir(ROOT):
        completed = flow.parse({**_COMPLETED[flow.name](raw, folder), "output_dir": str(folder / "out")})
        run_hash = identity.identify(completed).run_hash
    return {"hash_fields": canonical_json(flow.parse(raw).hash_fields()).decode(), "run_hash": run_hash}


def _with_chats(raw: dict[str, Any], folder: Path) -> dict[str, Any]:
    datasets = [{**dataset, "path": f"{INPUTS}/chats"} for dataset in raw["datasets"]]
    return {**raw, "datasets": datasets, "tokenizer": {**raw["tokenizer"], "path": TOKENIZER}}


def _with_corpus(raw: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Each bucket that the example names becomes a copy of one committed file."""
    datasets = {}
    for key, dataset in raw["datasets"].items():
        for bucket in dataset.get("buckets") or dataset["stars_filter"]:
            target = folder / "corpus" / key / bucket
            target.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / INPUTS / "corpus/docs/3/a.parquet", target / "a.parquet")
        datasets[key] = {**dataset, "source": str(folder / "corpus" / key)}
    return {**raw, "datasets": datasets}


_COMPLETED: dict[str, Callable[[dict[str, Any], Path], dict[str, Any]]] = {
    "pack-sft": _with_chats,
    "sample-corpus": _with_corpus,
    "train-tokenizer": lambda raw, folder: {**raw, "sample": f"{INPUTS}/corpus/docs"},
    "build-probe-rows": lambda raw, folder: {**raw, "input": f"{INPUTS}/measurements"},
}
