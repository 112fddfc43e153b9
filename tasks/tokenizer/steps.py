"""The Prefect tasks of train-tokenizer."""

from __future__ import annotations

from tasks.runtime.step import check, step
from tasks.tokenizer.compare import compare_tokenizer
from tasks.tokenizer.train import train_tokenizer
from tasks.tokenizer.validate import check_written

train = step("train", train_tokenizer)
compare = step("compare", compare_tokenizer)
validate = check("validate", check_written)
