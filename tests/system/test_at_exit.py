"""A worker's script that ends without leave(): after a normal end it has left, after an exception it is lost.

Where it must have left the lease is an hour, so that nobody can take a lost worker for one that left.
"""

from __future__ import annotations

import signal

import pytest

from tests.harness.processes import Programs, free_cluster, task

WORK = """
import os, sys, client, numpy as np

def work(server):
    server.init({"w": np.zeros(3, np.float32)})
    return server.push_pull({"w": np.ones(3, np.float32)})
"""
NORMAL = {
    "at its last line": "server = client.connect()\nwork(server)\n",
    "by sys.exit": "server = client.connect()\nwork(server)\nsys.exit(0)\n",
    "when nothing refers to the client any more": "work(client.connect())\n",
    "after an exception that was caught": "try:\n    work(client.connect()).nothing\nexcept AttributeError:\n    pass\n",
}


@pytest.mark.parametrize("ending", NORMAL)
def test_a_script_that_ends_normally_has_left(programs: Programs, ending: str) -> None:
    cluster = free_cluster(ps=2)
    servers = programs.servers(cluster, "--rule", "sgd", "--lease", "3600")
    script = programs.script(WORK + NORMAL[ending], env={"TF_CONFIG": task(cluster, "worker")})
    assert (script.wait(), script.text()) == (0, "")
    assert [server.wait() for server in servers] == [0, 0]
    servers[0].expect(r"worker 0 left at version 1 \(its program ended without leave\(\)\)")


DEATHS = {
    "of an exception": ("raise ValueError('too bad')\n", 1),
    "of os._exit": ("os._exit(0)\n", 0),
    "of a signal": ("os.kill(os.getpid(), 15)\n", 128 + signal.SIGTERM),
}


@pytest.mark.parametrize("death", DEATHS)
def test_a_script_that_dies_is_lost(programs: Programs, death: str) -> None:
    ending, code = DEATHS[death]
    cluster = free_cluster()
    (server,) = programs.servers(cluster, "--rule", "sgd", "--lease", "0.5")
    script = programs.script(
        WORK + "server = client.connect()\nwork(server)\n" + ending, env={"TF_CONFIG": task(cluster, "worker")}
    )
    assert script.wait() == code
    assert server.wait() == 1
    assert "lost without leaving: worker 0" in server.stderr


def test_a_forked_child_that_ends_normally_does_not_leave_for_its_parent(programs: Programs) -> None:
    cluster = free_cluster()
    (server,) = programs.servers(cluster, "--rule", "sgd:learning_rate=1", "--lease", "3600")
    forking = (
        "server = client.connect()\n"
        "work(server)\n"
        "for uses_it in (True, False):\n"
        "    if os.fork() == 0:\n"
        "        if uses_it:\n"
        "            work(server)\n"
        "        sys.exit(0)\n"
        "    assert os.wait()[1] == 0\n"
        "    assert server.status()['workers'][0]['state'] == 'active'\n"
        "print(work(server)[0]['w'].tolist())\n"
    )
    script = programs.script(WORK + forking, env={"TF_CONFIG": task(cluster, "worker")})
    assert script.wait() == 0
    assert script.stdout == "[-3.0, -3.0, -3.0]"
    assert server.wait() == 0
    assert server.stderr.count("worker 0 left") == 1


def test_a_script_whose_ps_is_gone_ends_quietly(programs: Programs) -> None:
    cluster = free_cluster()
    (server,) = programs.servers(cluster, "--rule", "sgd")
    waiting = "server = client.connect()\nwork(server)\nprint('ready', flush=True)\nsys.stdin.readline()\n"
    script = programs.script(WORK + waiting, env={"TF_CONFIG": task(cluster, "worker")})
    script.expect("^ready$")
    server.signal(signal.SIGKILL)
    server.wait()
    script.say("go on")
    assert (script.wait(), script.text()) == (0, "ready")
