"""`up`, `status` and `down` on real processes; and a server that ends with the run it is embedded in."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
from local import Gristmill, Local

from tasks.server.http import answers, wait_until
from tasks.server.processes import MARK, Started, end, marked
from tasks.server.state import STATE_VARIABLE, State

ROOT = Path(__file__).resolve().parents[2]


def test_up_twice_at_once_starts_nothing_anew(local: Local, gristmill: Gristmill) -> None:
    with ThreadPoolExecutor(2) as pool:
        both = [future.result() for future in [pool.submit(gristmill.run, "up", "--json") for _ in range(2)]]
    for done in both:
        assert done.returncode == 0
        again = json.loads(done.stdout)
        assert [again[key] for key in ("url", "server", "worker")] == [
            local.status[key] for key in ("url", "server", "worker")
        ]
    assert len(local.status["deployments"]) == 10
    assert (local.status["running"], local.status["api"]) == (True, f"{local.ui}/api")


def test_status_says_what_runs(local: Local, gristmill: Gristmill) -> None:
    done = gristmill.run("status")
    assert done.returncode == 0
    for said in (local.ui, str(local.status["server"]["pid"]), str(local.status["worker"]["pid"]), "10,"):
        assert said in done.stdout


def test_the_state_is_readable_by_the_user_alone(local: Local, gristmill: Gristmill) -> None:
    folder = gristmill.state.folder
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for name in ("server.json", "server.log", "worker.log"):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600, name


def test_the_server_listens_on_loopback_only(local: Local) -> None:
    process = psutil.Process(local.status["server"]["pid"])
    listening = [each.laddr for each in process.net_connections("tcp") if each.status == psutil.CONN_LISTEN]
    assert {address.ip for address in listening} == {"127.0.0.1"}


def test_up_replaces_a_killed_worker(local: Local, gristmill: Gristmill) -> None:
    os.kill(local.status["worker"]["pid"], signal.SIGKILL)
    assert wait_until(lambda: gristmill.run("status").returncode == 1, 30)
    done = gristmill.run("up", "--json")
    assert done.returncode == 0, done.stderr
    again = json.loads(done.stdout)
    assert again["server"] == local.status["server"]
    assert again["worker"]["pid"] not in (None, local.status["worker"]["pid"])


def test_up_replaces_a_killed_server_and_leaves_no_orphan(local: Local, gristmill: Gristmill) -> None:
    os.kill(local.status["server"]["pid"], signal.SIGKILL)
    done = gristmill.run("status")
    assert done.returncode == 1 and "is not running" in done.stdout
    done = gristmill.run("up", "--json")
    assert done.returncode == 0, done.stderr
    again = json.loads(done.stdout)
    # The deployments are in the database, so they are still there.
    assert again["deployments"] == local.status["deployments"]
    assert sorted(process.pid for process in marked(str(gristmill.state.folder))) == sorted(
        [again["server"]["pid"], again["worker"]["pid"]]
    )


def test_the_command_line_uses_the_server_and_says_where_to_look(
    local: Local, gristmill: Gristmill, tmp_path: Path
) -> None:
    config = gristmill.state.files / "config.json"
    inputs = gristmill.state.files / "demo-output" / "inputs"
    config.write_text(
        json.dumps({"output_dir": str(tmp_path / "out"), "input": str(inputs / "measurements")})
    )
    done = gristmill.run("build-probe-rows", str(config))
    assert done.returncode == 0, done.stderr
    [line] = [line for line in done.stderr.splitlines() if line.startswith("follow it at")]
    assert line.startswith(f"follow it at {local.ui}/v2/runs/flow-run/")
    assert local.ended(line.rpartition("/")[2])["state_name"] == "Completed"


def test_down_ends_everything_also_what_ignores_it(local: Local, gristmill: Gristmill) -> None:
    # A run's process in a session of its own, that does not listen to TERM and whose parent is gone.
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)"
    deaf = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, MARK: str(gristmill.state.folder)},
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    with deaf:
        assert deaf.stdout is not None
        deaf.stdout.readline()
        done = gristmill.run("down")
        assert done.returncode == 0 and re.search(r"stopped \d+ processes", done.stdout)
        assert deaf.wait(10) == -signal.SIGKILL
    assert marked(str(gristmill.state.folder)) == []
    assert not local.record.answers()
    assert gristmill.run("status").returncode == 1
    seen = json.loads(gristmill.run("status", "--json").stdout)
    assert (seen["running"], seen["ui"], seen["api"]) == (False, None, None)
    exports = gristmill.run("status", "--env")
    assert exports.returncode == 1 and exports.stdout == "" and "no server is running" in exports.stderr
    assert "nothing was running" in gristmill.run("down").stdout


def test_a_number_used_again_is_not_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        recycled = Started(other.pid, "another boot 12345")
        assert not recycled.running
        end([recycled], term_s=0)
        assert other.poll() is None
        assert other.stdin is not None
        other.stdin.close()
        assert other.wait() in (0, 1)


def test_a_record_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    state = State(tmp_path)
    assert state.read() is None
    for text in ("", "[]", "{}", '{"url": 1, "server": 2, "worker": null, "deployed": ""}'):
        state.record_path.write_text(text)
        assert state.read() is None, text


def test_an_embedded_server_ends_with_its_run(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from tasks.server.embedded import EmbeddedServer;"
        "from tasks.server.state import State; server = EmbeddedServer(State(Path(sys.argv[1])));"
        "print(server.url, server.token, server._process.pid, flush=True); time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT), STATE_VARIABLE: str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    ) as run:
        assert run.stdout is not None
        url, token, pid = run.stdout.readline().split()
        server = psutil.Process(int(pid))
        assert answers(url, token)
        run.kill()
    assert wait_until(lambda: not server.is_running() or server.status() == psutil.STATUS_ZOMBIE, 15)
    assert not answers(url, token)
