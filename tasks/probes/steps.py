"""The Prefect tasks of build-probe-rows."""

from __future__ import annotations

from tasks.probes.gather import gather_shard
from tasks.probes.merge import merge_runs
from tasks.probes.scatter import scatter_rows
from tasks.probes.validate import check_written
from tasks.runtime.step import step

scatter = step("scatter", scatter_rows)
merge = step("merge", merge_runs)
gather = step("gather", gather_shard)
validate = step("validate", check_written)
