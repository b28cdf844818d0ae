"""How a job ends: by itself, by a signal to any of its processes, by the death of one, by `ps-ctl stop`.

Each process ends within its grace time, with the cause in words and the right code, and leaves neither process nor port.
"""

from __future__ import annotations

import functools
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import client
from client import errors
from tests.harness.processes import Program, Programs, assert_free, free_cluster, task
from tests.harness.threads import Task, until

ZEROS = {"w": np.zeros(3, np.float32)}
ONES = {"w": np.ones(3, np.float32)}
STOPS = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]

TRAIN = """
import sys, client, numpy as np
with client.connect() as server:
    server.init({"w": np.zeros(3, np.float32)})
    for step in range(int(sys.argv[1])):
        values, result = server.push_pull({"w": np.ones(3, np.float32)})
        print("step", values.step, flush=True)
"""
# In mode sync: worker 0 waits at the barrier for worker 1, which has joined and does nothing.
STUCK = """
import signal, client, numpy as np
with client.connect() as server:
    server.init({"w": np.zeros(3, np.float32)})
    print(f"worker {server.worker} goes on", flush=True)
    if server.worker == 1:
        signal.pause()
    server.push_pull({"w": np.ones(3, np.float32)})
"""


def waits(server: client.Client, worker: int = 0) -> bool:
    """Whether every ps says that this worker waits for somebody."""
    return all(ps["workers"][worker]["waiting_for"] for ps in server.status()["ps"])


def addresses_of(job: Program, servers: int) -> list[str]:
    """Where the ps of a ps-run serve."""
    return [job.expect(rf"\[ps {index}\] ps {index} serving on (\S+)").group(1) for index in range(servers)]


def status_of(addresses: list[str]) -> dict[str, Any]:
    with client.connect({"ps": addresses, "worker": []}, observer=True) as observer:
        return observer.status()


def stuck_job(programs: Programs, *flags: str) -> tuple[Program, list[str]]:
    """A sync job under ps-run in which worker 0 waits at the barrier of both ps, for worker 1; and the ps addresses."""
    script = programs.file(STUCK)
    job = programs.run(*flags, "-n", "2", "-s", "2", "--mode", "sync", "--rule", "sgd", "--", sys.executable, script)
    addresses = addresses_of(job, 2)
    job.expect("worker 1 goes on")
    until(lambda: all(ps["workers"][0]["waiting_for"] for ps in status_of(addresses)["ps"]))
    return job, addresses


def assert_nothing_left(programs: Programs, addresses: list[str]) -> None:
    programs.assert_none_left()
    assert_free(*addresses)


# ---- by itself -----------------------------------------------------------------------------------------------------


def test_when_all_workers_are_done_every_ps_ends_and_its_port_is_free(programs: Programs) -> None:  # claim 10
    cluster = free_cluster(ps=2, workers=2)
    servers = programs.servers(cluster, "--mode", "sync", "--rule", "sgd")
    script = programs.file(TRAIN)
    workers = [
        programs.python(script, "3", name=f"worker {index}", env={"TF_CONFIG": task(cluster, "worker", index)})
        for index in range(2)
    ]
    assert [worker.wait() for worker in workers] == [0, 0]
    assert [server.wait(timeout_s=10) for server in servers] == [0, 0]
    assert_nothing_left(programs, cluster["ps"])
    for server in programs.servers(cluster):  # the same ports, at once
        server.signal(signal.SIGTERM)
        assert server.wait() == 128 + signal.SIGTERM


def test_a_worker_that_runs_out_leaves_and_nobody_hangs(programs: Programs) -> None:
    cluster = free_cluster(workers=2)
    (server,) = programs.servers(cluster, "--mode", "sync", "--rule", "sgd")
    script = programs.file(TRAIN)
    short, long = (
        programs.python(script, steps, env={"TF_CONFIG": task(cluster, "worker", index)})
        for index, steps in enumerate(("2", "5"))
    )
    assert (short.wait(), long.wait()) == (0, 0)
    long.expect("step 5")
    assert server.wait() == 0


# ---- a signal to a ps ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", STOPS)
def test_a_ps_that_is_stopped_tells_the_worker_at_its_barrier_why(programs: Programs, number: signal.Signals) -> None:
    cluster = free_cluster(workers=2)
    (server,) = programs.servers(cluster, "--mode", "sync", "--rule", "sgd")
    worker = client.connect(cluster, worker=0)
    worker.init(ZEROS)
    waiting = Task(lambda: worker.push_pull(ONES))
    until(lambda: waits(worker))
    server.signal(number)
    stopped = waiting.error(errors.ServerStopping)
    assert str(stopped) == f"ps 0 ({cluster['ps'][0]}): the job is over: stopped by {number.name}"
    assert (stopped.ps, stopped.address) == (0, cluster["ps"][0])
    with pytest.raises(errors.ServerStopping, match=number.name):  # also who comes later hears it
        worker.pull()
    worker.leave()  # there is nothing left to leave, which is no error
    assert server.wait() == 128 + number
    assert f"ps 0 ends: stopped by {number.name}" in server.stderr
    assert "Traceback" not in server.stderr
    assert_nothing_left(programs, cluster["ps"])


def test_a_ps_that_is_stopped_while_its_clients_are_at_rest_says_one_line_about_it(programs: Programs) -> None:
    cluster = free_cluster(workers=2)
    (server,) = programs.servers(cluster, "--rule", "sgd")
    workers = [client.connect(cluster, worker=index) for index in range(2)]
    for worker in workers:
        worker.init(ZEROS)
        worker.push_pull(ONES)
    server.signal(signal.SIGTERM)
    assert server.wait() == 128 + signal.SIGTERM
    assert "Traceback" not in server.stderr
    assert "ERROR" not in server.stderr


def test_a_ps_ends_in_time_though_a_rule_never_returns(programs: Programs) -> None:  # claim 10
    cluster = free_cluster()
    rules = programs.file(
        "import threading\n"
        "from ps.rules import UpdateRule, register\n"
        "@register('endless')\n"
        "class Endless(UpdateRule):\n"
        "    def update(self, ctx, value, grad):\n"
        "        print('the rule is at work', flush=True)\n"
        "        threading.Event().wait()\n"
    )
    (server,) = programs.servers(cluster, "--rules", str(rules), "--rule", "endless")
    worker = client.connect(cluster, worker=0, retry_budget_s=0.1)
    worker.init(ZEROS)
    pushing = Task(lambda: worker.push(ONES))
    server.expect("the rule is at work")
    server.signal(signal.SIGTERM)
    assert server.wait(timeout_s=20) == 128 + signal.SIGTERM
    assert "ps 0 ends: stopped by SIGTERM" in server.stderr
    pushing.error(errors.Unavailable)
    assert_nothing_left(programs, cluster["ps"])


def test_a_ps_under_nohup_does_not_hear_that_the_terminal_went_away(programs: Programs) -> None:
    cluster = free_cluster()
    environment = {"TF_CONFIG": task(cluster, "ps")}
    server = programs.start("nohup", ["nohup", sys.executable, "-m", "ps", "--rule", "sgd"], env=environment)
    server.expect("serving on")
    server.signal(signal.SIGHUP)
    with client.connect(cluster, worker=0) as worker:
        worker.init(ZEROS)
        assert worker.push_pull(ONES)[1].outcome == "applied"
    assert server.wait() == 0


@pytest.mark.slow
def test_a_frozen_worker_is_lost_and_the_barrier_goes_on_without_it(programs: Programs) -> None:  # claim 4
    # Its connection is never closed: only keepalive notices. That takes its 5 + 10 s, and the lease another.
    cluster = free_cluster(workers=2)
    (server,) = programs.servers(cluster, "--mode", "sync", "--rule", "sgd:learning_rate=1", "--lease", "1")
    frozen = programs.python(programs.file(STUCK), name="worker 1", env={"TF_CONFIG": task(cluster, "worker", 1)})
    with client.connect(cluster, worker=0) as worker:
        worker.init(ZEROS)
        frozen.expect("worker 1 goes on")
        frozen.signal(signal.SIGSTOP)
        values, result = Task(lambda: worker.push_pull(ONES)).result()
        assert (result.outcome, values["w"].tolist()) == ("applied", [-1, -1, -1])
        assert [each["state"] for each in worker.status()["workers"]] == ["active", "lost"]
    assert server.wait() == 1
    assert "lost without leaving: worker 1" in server.stderr


def test_a_second_ctrl_c_does_not_break_the_first(programs: Programs) -> None:
    cluster = free_cluster(workers=2)
    (server,) = programs.servers(cluster)
    client.connect(cluster, worker=0)
    server.signal(signal.SIGINT)
    server.signal(signal.SIGINT)
    assert server.wait() == 128 + signal.SIGINT
    assert "Traceback" not in server.stderr


# ---- a signal to ps-run --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", STOPS)
def test_a_job_that_is_stopped_with_a_worker_at_the_barrier_leaves_nothing(
    programs: Programs, number: signal.Signals
) -> None:
    job, addresses = stuck_job(programs)
    job.signal(number)
    assert job.wait() == 128 + number
    assert f"ps-run: got {number.name}; stopping the job" in job.stderr
    assert_nothing_left(programs, addresses)


def test_a_second_ctrl_c_kills_at_once_what_does_not_listen(programs: Programs) -> None:
    script = programs.file(
        "import signal\n"
        "for number in (signal.SIGINT, signal.SIGTERM):\n"
        "    signal.signal(number, lambda *_: print('not now', flush=True))\n"
        "print('deaf', flush=True)\n"
        "while True: signal.pause()\n"
    )
    job = programs.run("-n", "1", "--grace", "3600", "--", sys.executable, script)
    addresses = addresses_of(job, 1)
    job.expect("deaf")
    job.signal(signal.SIGINT)
    job.expect("not now")
    job.signal(signal.SIGINT)
    assert job.wait() == 128 + signal.SIGINT
    assert_nothing_left(programs, addresses)


def test_what_does_not_listen_is_killed_when_its_grace_is_over(programs: Programs) -> None:
    script = programs.file(
        "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('deaf', flush=True)\nsignal.pause()\n"
    )
    job = programs.run("-n", "1", "--grace", "0.5", "--", sys.executable, script)
    addresses = addresses_of(job, 1)
    job.expect("deaf")
    job.signal(signal.SIGTERM)
    assert job.wait() == 128 + signal.SIGTERM
    assert_nothing_left(programs, addresses)


def test_a_killed_ps_run_leaves_nothing(programs: Programs) -> None:
    job, addresses = stuck_job(programs)
    job.popen.kill()
    programs.assert_none_left()
    assert_free(*addresses)


# ---- the death of a ps or a worker ---------------------------------------------------------------------------------


def test_a_ps_that_dies_under_ps_run_ends_the_job_and_is_named(programs: Programs) -> None:
    job, addresses = stuck_job(programs)
    programs.signal(status_of(addresses)["ps"][1]["pid"], signal.SIGKILL)
    assert job.wait() == 128 + signal.SIGKILL
    assert f"ps-run: ps 1 at {addresses[1]} was killed by signal 9 (SIGKILL); stopping the job" in job.stderr
    assert_nothing_left(programs, addresses)


def test_a_killed_worker_is_counted_out_after_its_lease_and_the_others_go_on(programs: Programs) -> None:  # claim 5
    cluster = free_cluster(workers=3)
    (server,) = programs.servers(cluster, "--mode", "sync", "--rule", "sgd:learning_rate=1", "--lease", "0.5")
    victim = programs.script(STUCK, env={"TF_CONFIG": task(cluster, "worker", 1)})
    victim.expect("worker 1 goes on")
    others = [client.connect(cluster, worker=index) for index in (0, 2)]
    for other in others:
        other.init(ZEROS)
    waiting = [Task(functools.partial(other.push_pull, ONES)) for other in others]
    with client.connect(cluster, observer=True) as observer:
        until(lambda: waits(observer, 0) and waits(observer, 2))
        assert f"pid {victim.pid}" in observer.status()["workers"][0]["waiting_for"]
        victim.signal(signal.SIGKILL)
        results = [task.result() for task in waiting]  # the barrier shrank to two, and the mean is of two
        assert [result.outcome for _, result in results] == ["applied", "applied"]
        assert [values["w"].tolist() for values, _ in results] == [[-1, -1, -1]] * 2
        assert [worker["state"] for worker in observer.status()["workers"]] == ["active", "lost", "active"]
        for other in others:
            other.leave()
    assert server.wait(timeout_s=10) == 1
    assert "lost without leaving: worker 1" in server.stderr


@pytest.mark.parametrize("number", STOPS)
def test_a_signal_to_one_worker_ends_the_job_with_its_code_and_name(programs: Programs, number: signal.Signals) -> None:
    job, addresses = stuck_job(programs)
    origin = status_of(addresses)["workers"][1]["origin"]  # "host, pid 123"
    programs.signal(int(origin.rpartition(" ")[2]), number)
    assert job.wait() == 128 + number
    assert f"ps-run: worker 1 was killed by signal {int(number)} ({number.name}); stopping the job" in job.stderr
    assert_nothing_left(programs, addresses)


def test_ctrl_c_in_a_worker_leaves_so_that_the_others_need_not_wait_for_a_lease(programs: Programs) -> None:
    cluster = free_cluster(workers=2)
    (server,) = programs.servers(cluster, "--mode", "sync", "--rule", "sgd", "--lease", "3600")
    worker = programs.script(STUCK, env={"TF_CONFIG": task(cluster, "worker", 1)})
    worker.expect("worker 1 goes on")
    with client.connect(cluster, worker=0) as other:
        other.init(ZEROS)
        waiting = Task(lambda: other.push_pull(ONES))
        until(lambda: waits(other))
        worker.signal(signal.SIGINT)
        _, result = waiting.result()
        assert result.outcome == "applied"
    assert worker.wait() == 128 + signal.SIGINT
    assert server.wait() == 0
    assert "failed: KeyboardInterrupt" in server.stderr


# ---- ps-ctl stop ---------------------------------------------------------------------------------------------------


def test_ps_ctl_stop_ends_all_ps_while_a_worker_waits(programs: Programs) -> None:
    cluster = free_cluster(ps=2, workers=2)
    servers = programs.servers(cluster, "--mode", "sync", "--rule", "sgd")
    worker = client.connect(cluster, worker=0)
    worker.init(ZEROS)
    waiting = Task(lambda: worker.push_pull(ONES))
    until(lambda: waits(worker))
    control = programs.ctl("stop", "--target", cluster["ps"][1])
    assert "ps-ctl stop" in str(waiting.error(errors.ServerStopping))
    assert control.wait() == 0
    assert control.stdout.splitlines() == [f"ps {i} at {a}: stopped" for i, a in enumerate(cluster["ps"])]
    assert [server.wait() for server in servers] == [0, 0]
    assert_nothing_left(programs, cluster["ps"])


def test_ps_run_says_in_one_line_that_its_job_was_stopped_by_ps_ctl(programs: Programs) -> None:
    job, addresses = stuck_job(programs, "--grace", "3600")
    control = programs.ctl("stop", "--target", addresses[0])
    assert control.wait() == 0
    assert job.wait() == 128 + signal.SIGTERM
    said = [line for line in job.stderr.splitlines() if line.startswith("ps-run: ")]
    assert len(said) == 1, said  # the workers fail because of it, or are stopped: that is no news
    job.expect(rf"^ps-run: ps \d was stopped by ps-ctl stop \(.*, pid {control.pid}\); stopping the job$")
    assert_nothing_left(programs, addresses)


# ---- many ----------------------------------------------------------------------------------------------------------

# Some of the workers, all in one process; each is one client in one thread.
CROWD = """
import json, os, sys, threading, client, numpy as np
cluster = json.loads(os.environ["TF_CONFIG"])["cluster"]
done = []

def work(index):
    with client.connect(cluster, worker=index) as server:
        server.init({"w": np.zeros(3, np.float32)})
        values, result = server.push_pull({"w": np.full(3, index, np.float32)})
        done.append((values["w"].tolist(), result.outcome))

threads = [threading.Thread(target=work, args=(index,)) for index in range(int(sys.argv[1]), int(sys.argv[2]))]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(len(done), set(map(str, done)))
"""


def threads_of(program: Program) -> int:
    status = Path(f"/proc/{program.pid}/status").read_text()
    return int(status.split("Threads:")[1].split()[0])


def test_200_workers_wait_at_one_barrier_without_a_thread_each(programs: Programs) -> None:  # claim 4, claim 5
    count, processes = 200, 4
    cluster = free_cluster(workers=count)
    cluster["worker"] = [f"worker-{index}:1" for index in range(count)]
    (server,) = programs.servers(cluster, "--mode", "sync", "--rule", "sgd:learning_rate=1")
    last = client.connect(cluster, worker=count - 1)
    last.init(ZEROS)
    before = threads_of(server)
    script, each = programs.file(CROWD), count // processes
    bounds = [(start, min(start + each, count - 1)) for start in range(0, count, each)]
    crowd = [
        programs.python(script, str(start), str(stop), env={"TF_CONFIG": task(cluster, "worker", 0)})
        for start, stop in bounds
    ]
    until(lambda: all(waits(last, worker) for worker in range(count - 1)), timeout_s=120)
    assert threads_of(server) - before < 20, "threads of the ps grow with the workers that wait"
    last.push_pull({"w": np.full(3, count - 1, np.float32)})
    last.leave()
    mean = sum(range(count)) / count
    for program, (start, stop) in zip(crowd, bounds):
        assert program.wait() == 0
        assert program.stdout == f"{stop - start} {{\"([{-mean}, {-mean}, {-mean}], 'applied')\"}}"
    assert server.wait(timeout_s=10) == 0
