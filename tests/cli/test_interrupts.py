"""Ctrl-C while threads read large inputs."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from pathlib import Path

from workloads import command, environment, raw_config, save_config

# The promise is 10 s.
STOP_S = 10


def test_ctrl_c_does_not_wait_until_large_inputs_are_hashed(tmp_path: Path, small_tokenizer: Path) -> None:
    inputs = tmp_path / "inputs"
    inputs.mkdir()
    big = [inputs / "a.jsonl", inputs / "b.jsonl"]
    for path in big:
        with path.open("wb") as file:
            # Sparse: it takes no space, and a quarter of an hour to hash.
            file.truncate(1 << 40)
    raw = raw_config(tmp_path / "out", inputs, small_tokenizer)
    raw["datasets"] = [{"name": "big", "path": f"{inputs}/*.jsonl"}]
    process = subprocess.Popen(
        command("pack-sft", save_config(tmp_path / "c.json", raw)),
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + 60
        while not set(map(str, big)) & _open_files(process.pid):
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.05)
        asked = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        took = time.monotonic() - asked
    finally:
        process.kill()
        process.communicate()
    # Another test of this process may have started a server, and the run says where it shows.
    said = [line for line in errors.splitlines() if not line.startswith("follow it at ")]
    assert (process.returncode, said) == (
        130,
        ["gristmill: interrupted; run the same command again to resume"],
    )
    assert took < STOP_S


def _open_files(pid: int) -> set[str]:
    found = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed since
            found.add(str(entry.readlink()))
    return found


def test_an_interrupt_in_a_destructor_is_not_forgotten() -> None:
    script = """
import signal, sys, time
from flows.cli.main import interrupt_again, terminate

class Interrupted:
    def __del__(self):
        raise KeyboardInterrupt

signal.signal(signal.SIGTERM, terminate)
sys.unraisablehook = interrupt_again
try:
    one = Interrupted()
    del one
    time.sleep(30)
except KeyboardInterrupt:
    print("interrupted")
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=25)
    assert (ended.stdout, ended.stderr) == ("interrupted\n", "")
