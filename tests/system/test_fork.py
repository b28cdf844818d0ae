"""Does a worker that forks after its first pull still work, in the parent and in the child?

Real processes: a ps-server, and a worker program that forks in every way Python has. The child shares the worker's index and
has a session of its own; nothing that either pushes is lost or applied twice.
"""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from client.run_ports import choose_addresses

REPOSITORY = Path(__file__).resolve().parents[2]
PRELUDE = """
import concurrent.futures, json, multiprocessing, os, sys, threading
import numpy as np
import client

cluster = json.loads(sys.argv[1])
server = client.connect(cluster, worker=0, connect_timeout_s=30, wait_timeout_s=60)
server.init({"w": np.zeros(3, np.float32)}, rule="sgd:learning_rate=1")
server.pull()

def push(times=1):
    for _ in range(times):
        assert server.push({"w": -np.ones(3, np.float32)}).outcome == "applied"
    return float(server.pull()["w"][0])

def ended(pid):
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0, status
"""
EPILOGUE = """
server.leave()
"""


def run_worker(body: str, *, workers: int = 1, mode: str = "async") -> None:
    """Run `body` in a worker program against two ps processes; all must end with 0."""
    addresses = choose_addresses(2 + workers)
    cluster = json.dumps({"ps": addresses[:2], "worker": addresses[2:]})
    servers = [
        subprocess.Popen(
            [sys.executable, "-m", "ps", "--cluster", cluster, "--index", str(index), "--mode", mode],
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for index in range(2)
    ]
    try:
        program = PRELUDE + textwrap.dedent(body) + EPILOGUE
        command = [sys.executable, "-c", program, cluster]
        run = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=False)
        assert run.returncode == 0, run.stdout + run.stderr
        for server in servers:
            assert server.wait(20) == 0
    finally:
        for server in servers:
            server.kill()
            server.communicate()


@pytest.mark.parametrize("ending", ["os._exit(0)", "sys.exit(0)"])
def test_parent_and_child_go_on_after_every_fork(ending: str) -> None:
    run_worker(
        f"""
        for _ in range(20):
            pid = os.fork()
            if pid == 0:
                push()
                {ending}
            push()
            ended(pid)
        assert push() == 41, server.pull()
        generations = server.status()["workers"][0]["generation"]
        assert generations == 21, generations  # a session of its own for each child
        """
    )


def test_multiprocessing_and_pools() -> None:
    run_worker(
        """
        fork = multiprocessing.get_context("fork")
        child = fork.Process(target=push, args=(2,))
        child.start()
        push()
        child.join()
        assert child.exitcode == 0
        with fork.Pool(2) as pool:
            pool.map(push, [1, 1, 1, 1])
        with concurrent.futures.ProcessPoolExecutor(2, mp_context=fork) as pool:
            list(pool.map(push, [1, 1, 1, 1]))
        assert push() == 12, server.pull()
        """
    )


def test_a_fork_while_other_threads_are_in_calls_loses_and_doubles_nothing() -> None:
    run_worker(
        """
        threads = [threading.Thread(target=push, args=(100,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(15):
            pid = os.fork()
            if pid == 0:
                push()
                os._exit(0)
            ended(pid)
        for thread in threads:
            thread.join()
        assert push() == 416, server.pull()
        """
    )


def test_a_fork_while_a_thread_waits_at_the_barrier() -> None:
    run_worker(
        """
        gradient = {"w": -np.ones(3, np.float32)}
        other = client.connect(cluster, worker=1)
        other.init({"w": np.zeros(3, np.float32)})
        values = []
        waiting = threading.Thread(target=lambda: values.append(server.push_pull(gradient)))
        waiting.start()
        while not server.status()["workers"][0]["waiting_for"]:
            pass
        for _ in range(3):
            pid = os.fork()
            if pid == 0:
                assert server.status()["step"] == 0
                os._exit(0)
            ended(pid)
        other.push(gradient)
        waiting.join()
        (pulled, result), = values
        assert result.outcome == "applied" and pulled["w"][0] == 1, (pulled, result)
        other.leave()
        """,
        workers=2,
        mode="sync",
    )


def test_a_child_that_never_calls_disturbs_nobody() -> None:
    run_worker(
        """
        pid = os.fork()
        if pid == 0:
            sys.exit(0)
        ended(pid)
        assert push() == 1
        """
    )
