"""A short campaign with a fixed seed: a few tries of each kind, none of which may break a rule."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

from workloads import ROOT, environment

_TRIES = 3


def test_a_short_campaign_breaks_no_rule(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "torture", "--seed", "1", "--no-server", "--json", str(tmp_path / "tries.json"),
         "--minutes", "4", "--tries", str(_TRIES)],
        env=environment(TMPDIR=str(tmp_path)), cwd=ROOT, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    tries = json.loads((tmp_path / "tries.json").read_bytes())["tries"]
    counts = Counter(one["kind"] for one in tries)
    assert counts == dict.fromkeys(("kills", "faults", "damages", "drivers", "crafted", "fuzzed"), _TRIES)
    # Every kind did something; a single kill may come after the run has ended.
    assert {one["kind"] for one in tries if one["done"]} == counts.keys(), tries
