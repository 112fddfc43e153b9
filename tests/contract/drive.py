"""Runs a flow through Prefect as the command line does, also one that the command line does not know.

`python -m contract.drive FLOW JOB...`; a job is JSON: `{"config": ..., "runner": "threads", "most_tasks": 200}`.
The jobs are done one after the other; a line of JSON tells of each.
"""

from __future__ import annotations

import json
import sys


def main() -> None:
    """Do the jobs."""
    from support import entry_of

    from flows.cli.registry import run_or_find
    from schemas.errors import GristmillError
    from tasks.run.receipts import Verify
    from tasks.runtime import batches, mapping

    entry = entry_of(sys.argv[1])
    for argument in sys.argv[2:]:
        job = json.loads(argument)
        mapping.MOST_TASKS = job.get("most_tasks", batches.MOST_TASKS)
        try:
            summary = run_or_find(
                entry, entry.parse(job["config"]), job.get("runner", "threads"), Verify.SIZE, force=False
            )
            print(json.dumps({"cached": summary.cached, "run_dir": summary.run_dir}), flush=True)
        except GristmillError as error:
            print(json.dumps({"error": error.as_dict()}), flush=True)


# Worker processes import this module again.
if __name__ == "__main__":
    main()
