"""The Prefect tasks of pack-sft."""

from __future__ import annotations

from tasks.runtime.step import step
from tasks.sft.cut import cut_dataset
from tasks.sft.pack import pack_shards
from tasks.sft.repeats import find_repeats
from tasks.sft.screen import screen_dataset
from tasks.sft.tokenize import tokenize_part
from tasks.sft.validate import check_written

screen = step("screen", screen_dataset)
tokenize = step("tokenize", tokenize_part)
cut = step("cut", cut_dataset)
repeats = step("repeats", find_repeats)
pack = step("pack", pack_shards)
validate = step("validate", check_written)
