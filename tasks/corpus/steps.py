"""The Prefect tasks of sample-corpus."""

from __future__ import annotations

from tasks.corpus.inventory import look_into
from tasks.corpus.screen import screen_files
from tasks.corpus.select import select_bucket
from tasks.corpus.validate import check_written
from tasks.corpus.write import write_sample
from tasks.runtime.step import step

inventory = step("inventory", look_into)
screen = step("screen", screen_files)
select = step("select", select_bucket)
write = step("write", write_sample)
validate = step("validate", check_written)
