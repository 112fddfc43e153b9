"""Everything that can change a token is in a tokenizer's digest, and is fetched from the hub."""

from __future__ import annotations

import ast
import importlib.util
import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from schemas.errors import ConfigError
from schemas.sft import TokenizerConfig
from tasks.inputs.tokenizers import TOKENIZER_FILES, tokenizer_files
from tasks.sft.chat.tokenizer_source import find_tokenizer


def digest(folder: Path) -> str:
    return find_tokenizer(TokenizerConfig(path=str(folder))).digest


@pytest.fixture
def folder(small_tokenizer: Path, tmp_path: Path) -> Path:
    """A tokenizer as model folders have it: every kind of file that transformers looks for."""
    copy = shutil.copytree(small_tokenizer, tmp_path / "tokenizer")
    for name, content in {
        "config.json": {"model_type": "qwen2"},
        "special_tokens_map.json": {"eos_token": "<|im_end|>"},
        "added_tokens.json": {},
        "vocab.json": {"a": 0},
        "chat_template.json": {"chat_template": "x"},
        "processor_config.json": {},
    }.items():
        (copy / name).write_text(json.dumps(content))
    for name in (
        "merges.txt",
        "vocab.txt",
        "tokenizer.model",
        "spiece.model",
        "tokenizer.model.v3",
        "a.tiktoken",
    ):
        (copy / name).write_text("a")
    (copy / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    (copy / "additional_chat_templates").mkdir()
    (copy / "additional_chat_templates" / "tool_use.jinja").write_text("{{ messages }}")
    return copy


def test_each_file_changes_the_digest(folder: Path) -> None:
    before = digest(folder)
    files = tokenizer_files(folder)
    assert len(files) >= 15
    for file in files:
        content = file.read_bytes()
        file.write_bytes(content + b" ")
        assert digest(folder) != before, file.name
        file.unlink()
        if file.name != "tokenizer.json":
            assert digest(folder) != before, file.name
        file.write_bytes(content)
    assert digest(folder) == before


def test_weights_and_notes_do_not_change_the_digest(folder: Path) -> None:
    before = digest(folder)
    for name in ("model.safetensors", "pytorch_model.bin", "README.md", "model.safetensors.index.json",
                 "generation_config.json", "trainer_state.json"):  # fmt: skip
        (folder / name).write_text("{}")
    (folder / "checkpoint-1").mkdir()
    (folder / "checkpoint-1" / "tokenizer.json").write_text("{}")
    assert digest(folder) == before


def test_every_file_a_class_of_transformers_names_is_covered() -> None:
    package = importlib.util.find_spec("transformers")
    assert package is not None and package.submodule_search_locations
    root = Path(next(iter(package.submodule_search_locations)))
    names = {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"}
    names |= {"config.json", "chat_template.jinja", "tekken.json", "tiktoken.model", "tokenizer.4.0.0.json"}
    tables = 0
    # Parsed, not imported: many of these modules need packages of their own.
    for source in root.glob("models/*/tokenization_*.py"):
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "VOCAB_FILES_NAMES":
                tables += 1
                names |= {
                    v.value for v in ast.walk(node.value) if isinstance(v, ast.Constant) and "." in v.value
                }
    assert tables > 50
    assert [
        name for name in sorted(names) if not any(fnmatchcase(name, kind) for kind in TOKENIZER_FILES)
    ] == []


@contextmanager
def opened_below(folder: Path) -> Iterator[set[Path]]:
    """Record the files that Python opens below a folder."""
    seen: set[Path] = set()
    recording = True

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if recording and event == "open" and isinstance(arguments[0], str):
            path = Path(arguments[0])
            if folder in path.parents:
                seen.add(path)

    sys.addaudithook(hook)  # cannot be removed, so it is told to stop
    try:
        yield seen
    finally:
        recording = False


def test_whatever_is_opened_while_loading_is_in_the_digest(folder: Path) -> None:
    from transformers import AutoTokenizer

    with opened_below(folder) as seen:
        AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    assert {path.name for path in seen} >= {"config.json", "tokenizer_config.json"}
    assert seen <= set(tokenizer_files(folder))


def test_another_model_type_is_another_tokenizer(folder: Path) -> None:
    """The class comes from config.json, and with it the pre-tokenizer: other ids from the same tokenizer.json."""
    from transformers import AutoTokenizer

    settings = folder / "tokenizer_config.json"
    plain = {
        k: v for k, v in json.loads(settings.read_text()).items() if k not in ("tokenizer_class", "backend")
    }
    settings.write_text(json.dumps(plain))
    found = {}
    for model_type in ("qwen2", "llama"):
        (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
        found[digest(folder)] = tokenizer.encode("Hello  world, 12345 tokens", add_special_tokens=False)
    assert len(found) == 2
    assert len({tuple(ids) for ids in found.values()}) == 2


@pytest.mark.parametrize("name", ["gpt2", "openai-community/gpt2", "some.model-1/x_y"])
def test_hub_ids_with_and_without_an_owner(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    asked: dict[str, Any] = {}

    def download(repo: str, **options: Any) -> str:
        asked.update(options, repo=repo)
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    source = find_tokenizer(TokenizerConfig(path=name, revision="main"))
    assert (asked["repo"], asked["revision"], source.digest) == (name, "main", digest(folder))
    allowed, ignored = asked["allow_patterns"], asked["ignore_patterns"]

    def fetched(file: str) -> bool:
        return any(fnmatchcase(file, kind) for kind in allowed) and not any(
            fnmatchcase(file, kind) for kind in ignored
        )

    assert all(fetched(str(path.relative_to(folder))) for path in tokenizer_files(folder))
    assert not any(map(fetched, ("model.safetensors", "checkpoint-1/tokenizer.json", "a.index.json")))


@pytest.mark.parametrize(
    "path", ["./tokenizer", "/nowhere/tokenizer", "~/none", "a/b/c", "a b", "-", "x/../y"]
)
def test_what_cannot_be_a_hub_id_is_a_missing_folder(path: str) -> None:
    with pytest.raises(ConfigError, match="no such folder") as caught:
        find_tokenizer(TokenizerConfig(path=path, revision="main"))
    assert (caught.value.code, caught.value.where) == ("missing_tokenizer", "tokenizer.path")


def test_a_name_without_a_revision_may_be_a_folder_or_a_hub_id() -> None:
    with pytest.raises(ConfigError, match=r"there is no folder .gpt2..* set tokenizer.revision") as caught:
        find_tokenizer(TokenizerConfig(path="gpt2"))
    assert caught.value.where == "tokenizer.revision"


def test_home_is_expanded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder.parent))
    assert find_tokenizer(TokenizerConfig(path="~/tokenizer")).folder == str(folder)
