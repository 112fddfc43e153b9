"""The Prefect tasks of train-tokenizer."""

from __future__ import annotations

from tasks.runtime.step import check, step
from tasks.tokenizer.train import train_tokenizer
from tasks.tokenizer.validate import check_written

train = step("train", train_tokenizer)
validate = check("validate", check_written)
