"""A process ends after one of its worker processes was killed, whatever that one was doing."""

from __future__ import annotations

import subprocess
import sys

from prefect.task_runners import ProcessPoolTaskRunner
from workloads import ROOT, environment

# The child dies with the lock of the queue, so nothing that is put into it is ever written.
KILLED_WHILE_WRITING = """
import multiprocessing, os, signal, types
from prefect.context import FlowRunContext
from tasks.runtime.pool import drop_messages

def die(messages):
    messages._wlock.acquire()
    os.kill(os.getpid(), signal.SIGKILL)

context = multiprocessing.get_context("fork")
messages = context.Queue()
child = context.Process(target=die, args=(messages,))
child.start()
child.join()
runner = types.SimpleNamespace(_subprocess_message_queue=messages)
FlowRunContext.get = classmethod(lambda cls: types.SimpleNamespace(task_runner=runner))
messages.put("a log")
{drop}
"""


def ends(drop: str, timeout_s: float) -> bool:
    code = KILLED_WHILE_WRITING.replace("{drop}", drop)
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, env=environment()) as process:
        try:
            return process.wait(timeout_s) == 0
        except subprocess.TimeoutExpired:
            process.kill()
            return False


def test_a_process_ends_although_a_worker_died_with_the_lock_of_their_messages() -> None:
    assert ends("drop_messages()", 60)
    # Without it, it does not.
    assert not ends("", 15)


def test_the_runner_has_the_queue_where_it_is_looked_for() -> None:
    assert ProcessPoolTaskRunner(max_workers=1)._subprocess_message_queue is None
