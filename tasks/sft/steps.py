"""The Prefect tasks of pack-sft."""

from __future__ import annotations

from tasks.runtime.step import check, step
from tasks.sft.plan import plan_packs
from tasks.sft.screen import screen_dataset
from tasks.sft.tokenize import tokenize_part
from tasks.sft.validate import check_written
from tasks.sft.write import write_shards

screen = step("screen", screen_dataset)
tokenize = step("tokenize", tokenize_part)
plan = step("plan", plan_packs)
write = step("write", write_shards)
validate = check("validate", check_written)
