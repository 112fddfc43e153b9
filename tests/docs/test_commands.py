"""Every command and snippet that is printed, by documents and by programs, works as printed.

The blocks of a document are pasted one after the other into shells in one folder, which has what they name: a small
corpus, chats, measurements, a tokenizer, `.venv`. What cannot be had here is listed in `STAND_INS`, with the reason.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from docs.markdown import COMMENTED, DOCUMENTS, ROOT, Block, blocks, inline_commands
from support import chat, write_jsonl

from flows.cli.registry import PACK_SFT
from tasks.server.control import down
from tasks.server.state import STATE_VARIABLE, State
from tasks.server.tokens import AUTH_VARIABLE

# What is pasted, what is run instead, and why.
STAND_INS = (
    (r"git clone \S+ && cd gristmill", "true", "no network; the address is compared with the project's"),
    (r'pip install "gristmill\[.*', "true", "no network; its extras are compared with the project's"),
    (r"(?m)^make ", "make --dry-run ", "CI runs all of this, in what `make setup` made"),
    (r"(?m)^pytest (\S+)", r"(cd $PROJECT && pytest --collect-only -q \1)", "they are tests of this suite"),
    (r"http://HOST:4200/api", "$SERVER", "HOST is the reader's"),
    (r"prefect worker start --pool local", r"\g<0> --run-once", "a worker runs until it is stopped"),
    (r"(?m)^docker build .*", "true", "no Docker engine"),
    (r"(?m)^pip install prefect-docker .*", "true", "no network, no Docker engine"),
    (r"(?m)^prefect deploy .*prefect-docker.yaml", "true", "a pool of type docker needs that package"),
    (r"(?m)^prefect worker start --pool docker", "true", "no Docker engine"),
)
ACTIVATE = ". .venv/bin/activate"
TIMEOUT_S = 600
# Trainers, which a reader has and a test may not.
MISSING = [name for name in ("torch", "maxtext") if importlib.util.find_spec(name) is None]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, small_tokenizer: Path) -> Path:
    """Where a reader would be: beside the project's files, with small data where the examples look for them."""
    here = tmp_path_factory.mktemp("reader")
    for name in ("Makefile", "pyproject.toml", "requirements.lock", "tests", "deployments"):
        (here / name).symlink_to(ROOT / name)
    (here / ".venv").symlink_to(sys.prefix)
    data = here / "data"
    rng = np.random.default_rng(0)
    words = np.array(
        ["the", "mill", "grinds", "slowly", "but", "exceedingly", "fine", "grain", "and", "chaff"]
    )

    def text() -> str:
        return " ".join(rng.choice(words, rng.integers(5, 60)))

    write_jsonl(data / "gsm8k.jsonl", (chat(text(), text()) for _ in range(1_000)))
    (data / "tokenizer").symlink_to(small_tokenizer)
    for bucket, column in (("fineweb/3", "text"), ("fineweb/4.0", "text"), ("github/10", "content")):
        (data / bucket).mkdir(parents=True)
        pq.write_table(pa.table({column: [text() for _ in range(300)]}), data / bucket / "part.parquet")
    from tasks.demo.measurements import write_measurements

    write_measurements(data / "measurements")
    return here


class Reader:
    """Pastes what documents show; each document once.

    Attributes:
        folder: where.
        environ: of shells in which the environment is activated.
    """

    def __init__(self, folder: Path, environ: dict[str, str]) -> None:
        self.folder = folder
        self.bare = environ | {"PATH": "/usr/local/bin:/usr/bin:/bin"}
        self.environ = environ | {"PATH": f"{folder}/.venv/bin:{self.bare['PATH']}"}
        self._printed: dict[str, str] = {}

    def read(self, document: str) -> str:
        """Paste all blocks of a document, unless that was done; returns what they printed."""
        if document not in self._printed:
            self._printed[document] = "".join(self._try(block) for block in blocks(document))
        return self._printed[document]

    def _try(self, block: Block) -> str:
        if block.language == "sh":
            # A shell starts without the environment where the block itself activates it.
            return self.paste(block.text, block.where, self.bare if ACTIVATE in block.text else self.environ)
        if block.language == "python" and not any(
            re.search(rf"^(import|from) {name}\b", block.text, re.M) for name in MISSING
        ):
            return self._run(["python", "-c", block.text], block.where, self.environ)
        return ""

    def paste(self, commands: str, where: str, environ: dict[str, str] | None = None) -> str:
        """Run commands in one shell, all of which must succeed; returns what they print."""
        for shown, instead, _ in STAND_INS:
            commands = re.sub(shown, instead, commands)
        return self._run(["bash", "-euo", "pipefail", "-c", commands], where, environ or self.environ)

    def fail(self, command: str, environ: dict[str, str]) -> str:
        """What a command says that fails."""
        done = subprocess.run(
            ["bash", "-c", command], cwd=self.folder, env=environ, capture_output=True, text=True, check=False
        )
        assert done.returncode in (1, 2), done
        return done.stdout + done.stderr

    def _run(self, command: list[str], where: str, environ: dict[str, str]) -> str:
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=environ,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, f"{where}: {command[-1]}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr


@pytest.fixture(scope="module")
def reader(folder: Path, prefect_api: str) -> Iterator[Reader]:
    """With a state folder, and a Prefect configuration, of these tests."""
    state = State(folder / "state")
    # Not the tests' own path: it has folders that would hide ours.
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "PYTHON"))}
    own = {STATE_VARIABLE: str(state.folder), "PREFECT_HOME": str(folder / "prefect"), "SERVER": prefect_api}
    own |= {"PROJECT": str(ROOT), AUTH_VARIABLE: os.environ[AUTH_VARIABLE]}
    # The temporary server that a bare `prefect deploy` starts makes its database first.
    own |= {"PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120"}
    try:
        yield Reader(folder, kept | own)
    finally:
        down(state)


@pytest.mark.parametrize("document", [*DOCUMENTS, *COMMENTED])
def test_what_is_shown_works_as_pasted(document: str, reader: Reader) -> None:
    """The README comes first: what it makes, the others look at."""
    reader.read("README.md")
    reader.read(document)


def test_what_the_programs_print_works_as_pasted(reader: Reader) -> None:
    printed = re.findall(r"^(?:inspect|validate|stop it) +(.+)$", reader.read("README.md"), re.M)
    assert [line.split()[:2] for line in printed] == [
        ["gristmill", "inspect"],
        ["gristmill", "validate"],
        *[["gristmill", "down"]] * 2,
    ]
    for command in dict.fromkeys(printed):
        reader.paste(command, "printed")


@pytest.mark.parametrize(
    ("called", "activated"),
    [("gristmill", True), (".venv/bin/gristmill", False), (".venv/bin/python -m flows", False)],
)
def test_hints_work_where_they_are_printed(
    called: str, activated: bool, reader: Reader, tmp_path: Path
) -> None:
    environ = (reader.environ if activated else reader.bare) | {STATE_VARIABLE: str(tmp_path)}
    [up] = re.findall("start it with: (.+ up)$", reader.fail(f"{called} status", environ), re.M)
    reader.paste(f"{up} --help", "status", environ)
    [usage] = re.findall("see: (.+ pack-sft --help)$", reader.fail(f"{called} pack-sft", environ), re.M)
    assert "CONFIG" in reader.paste(usage, "usage", environ)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_block_says_what_it_is(document: str) -> None:
    for block in blocks(document):
        assert block.language in ("sh", "python", "yaml", "text"), block.where
        if block.language == "yaml":
            PACK_SFT.parse(
                yaml.safe_load((ROOT / "deployments" / "pack_sft.yaml").read_text())
                | yaml.safe_load(block.text)
            )


def test_every_stand_in_stands_for_something() -> None:
    shown = "\n".join(block.text for document in (*DOCUMENTS, *COMMENTED) for block in blocks(document))
    for command, _, reason in STAND_INS:
        assert re.search(command, shown), f"nothing shows {command}, {reason}"


def test_addresses_and_extras_are_those_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    readme = (ROOT / "README.md").read_text()
    shown = set(re.findall(r"https://github\.com/[\w-]+/[\w-]+", readme))
    assert shown == {project["urls"]["Homepage"]}
    sources = [path.read_text() for top in ("tasks", "flows") for path in (ROOT / top).rglob("*.py")]
    extras = {
        extra for text in sources for extra in re.findall(r'MissingExtraError\.of\([^)]*?, "(\w+)",', text)
    }
    named = re.findall(r"gristmill\[([\w,]+)\]", readme)
    assert extras and named
    assert extras | set(",".join(named).split(",")) <= project["optional-dependencies"].keys()


@pytest.mark.parametrize(("document", "command"), sorted(set(inline_commands())))
def test_commands_in_running_text_exist(document: str, command: str, reader: Reader) -> None:
    program, *words = command.split()
    if program == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)
        assert {word for word in words if "=" not in word} <= set(targets)
        return
    name = list(itertools.takewhile(lambda word: re.fullmatch("[a-z-]+", word) and word[0] != "-", words))
    name = name if program == "prefect" else name[:1]
    usage = reader.paste(" ".join([program, *name, "--help"]), document)
    for option in (word for word in words if word.startswith("--")):
        assert option in usage, f"{document}: {command}"
