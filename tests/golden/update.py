"""Records the golden values anew: `make golden`.

Refuses, and changes nothing, where values differ from the recorded ones under an unchanged format version.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tasks.runtime.settings import quiet_environment


def main() -> int:
    """Run everything that is pinned; returns the exit code."""
    # Before anything imports prefect: no network, no usage data.
    quiet_environment()
    from golden.cases import CASES
    from golden.configs import changed_defaults, record_defaults, record_examples
    from golden.record import VALUES, Values, change, load, record_run, save, unlocked

    strangers = unlocked({package for case in CASES.values() for package in case.packages})
    if strangers:
        print(f"install requirements.lock first: {'; '.join(strangers)}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        found: dict[str, Values] = {
            name: record_run(case, Path(folder, name)) for name, case in CASES.items()
        }
        found |= record_examples(Path(folder, "examples"))
    changes = {name: change(load(name), values) for name, values in found.items()}
    defaults = record_defaults()
    changes |= {name: changed_defaults(load(name), values) for name, values in defaults.items()}
    found |= defaults
    refused = {name: c for name, c in changes.items() if c is not None and not c.allowed}
    for name, why in refused.items():
        print(f"{name}: {why}", file=sys.stderr)
    if refused:
        return 1
    for name, values in found.items():
        if changes[name] is not None:
            save(name, values)
            print(f"recorded {name}: {changes[name]}")
    for path in VALUES.glob("*.json"):
        if path.stem not in found:
            path.unlink()
            print(f"removed {path.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
