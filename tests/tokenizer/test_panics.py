from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from schemas.errors import InputError
from schemas.tokenizer import TrainTokenizerConfig
from tasks.tokenizer import learn
from tasks.tokenizer.rows import count_held_out
from tasks.tokenizer.train import TrainJob, train_tokenizer

# Every `a` can be in one group or the next: the search tries all ways, up to a limit at which the code panics.
ENDLESS = pre_tokenizers.Split(Regex("(a+)+$"), "isolated")
TEXTS = ["a b", "a" * 40 + "c", "b"]


@pytest.fixture
def shards(tmp_path: Path) -> list[tuple[str, str]]:
    path = tmp_path / "sample" / "train.parquet"
    path.parent.mkdir()
    pq.write_table(pa.table({"text": TEXTS}), path)
    return [(str(path), path.name)]


def test_a_panic_while_counting_names_the_text(shards: list[tuple[str, str]]) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = ENDLESS
    with pytest.raises(InputError, match=r"panicked.*has 41 characters and begins with 'aaa") as caught:
        count_held_out(tokenizer, shards, seed=0, share=1.0)
    assert (caught.value.code, caught.value.where) == ("tokenizer_failed", "a held-out row of all")


def test_a_panic_while_training_is_an_error_with_a_remedy(
    shards: list[tuple[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    untrained = learn.untrained

    def fragile(config: TrainTokenizerConfig) -> Tokenizer:
        tokenizer = untrained(config)
        tokenizer.pre_tokenizer = ENDLESS
        return tokenizer

    monkeypatch.setattr(learn, "untrained", fragile)
    job = TrainJob(
        output_dir=str(tmp_path / "out"),
        stage="0123456789abcdef",
        config=TrainTokenizerConfig(sample=str(tmp_path / "sample"), output_dir=str(tmp_path / "out")),
        shards=tuple(shards),
        chat_template="",
        base="",
        seen={},
    )
    with pytest.raises(InputError, match=r"panicked.*choose another pre_tokenizer") as caught:
        train_tokenizer(job)
    assert (caught.value.code, caught.value.where) == ("tokenizer_failed", str(tmp_path / "sample"))
