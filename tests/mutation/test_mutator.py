"""Faults are Python, one line apart from what they stand for; what is listed exists."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from mutator import mutants
from targets import EQUIVALENT, TARGETS

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("line", "faults"),
    [
        ("a = b < c", ["a = (b <= c)", "a = (b >= c)"]),
        ("a = b is None", ["a = (b is not None)"]),
        ("a = b and c", ["a = (b or c)", "a = c", "a = b"]),
        ("a = not b", ["a = b"]),
        ("a = b if c else d", ["a = (b if not c else d)"]),
        ("a = b // c", ["a = (b * c)"]),
        ("a = 1e-6", ["a = 9.999999999999999e-06", "a = 1e-07"]),
        ("A = 2_000", ["A = 2001", "A = 200"]),
        ("a += b", ["pass", "a -= b"]),
        ("a[b] = c", ["pass"]),
        ("f(a)", ["pass"]),
        ("a = f(b, c=d)", ["a = f(b)"]),
        ("a = int(b * c)", ["a = round(b * c)", "a = int((b // c))"]),
        ("a = b.strip()", ["a = b"]),
        ("a = min(b)", ["a = max(b)"]),
        # Columns count bytes.
        ('a = "é", b < c', ['a = "é", (b <= c)', 'a = "é", (b >= c)']),
        # What changes nothing that a test should see.
        ("a: int | None = b", []),
        ("a = zip(b, c, strict=True)", []),
        ('a = f"{b + 1}"', []),
        ("raise E(1 + 2)", ["pass"]),
    ],
)
def test_faults_of_a_line(line: str, faults: list[str]) -> None:
    assert [mutant.after for mutant in mutants(line)] == faults
    assert all(mutant.before == line for mutant in mutants(line))


def test_every_fault_of_a_file_is_python() -> None:
    source = (ROOT / "tasks/run/drift.py").read_text()
    found = mutants(source)
    assert len({mutant.source for mutant in found}) == len(found) > 40
    for mutant in found:
        ast.parse(mutant.source)
        assert mutant.source != source


def test_what_is_listed_is_there() -> None:
    listed = [
        path for tests in TARGETS.values() for source, files in tests.items() for path in (source, *files)
    ]
    assert [path for path in (*listed, *EQUIVALENT) if not (ROOT / path).is_file()] == []
