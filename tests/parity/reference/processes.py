"""How does a reference program start a cluster of real processes, and make sure that none outlives it?

The first process starts the tasks as `python -m MODULE --task JOB:INDEX --cluster JSON ...`, waits with a deadline, and
ends them by pid. Each task holds the read end of a pipe from it and ends by itself when the pipe closes, so even a
killed starter leaves nothing behind. It must not know TensorFlow. Next: pss.py and sync_replicas.py, which use it.
"""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO

import click

Cluster = dict[str, list[str]]

REPOSITORY = Path(__file__).resolve().parents[3]
END_GRACE_S = 5.0
POLL_S = 0.02
# Below Linux's range of ephemeral ports, so that no outgoing connection takes one between the choice and the bind.
PORTS = range(15000, 32000)
# Settings of the surroundings that would change the bits, the devices or the way to loopback.
DROPPED = {"tf_config", "http_proxy", "https_proxy", "grpc_proxy", "all_proxy"}
SETTINGS = {
    "TF_ENABLE_ONEDNN_OPTS": "0",
    "TF_CPP_MIN_LOG_LEVEL": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "GRPC_FAIL_FAST": "use_caller",  # a call to a task that is still starting waits for it
    "PYTHONUNBUFFERED": "1",
}


class ProcessFailed(RuntimeError):
    """A task ended early, failed, or missed the deadline; the message carries the end of every log."""


class Processes:
    """The tasks of one cluster: a context manager that starts them, waits for some, and ends them all.

    `module` is what `python -m` runs. The deadline, in seconds, counts from the construction.
    """

    def __init__(self, module: str, deadline_s: float) -> None:
        self._module = module
        self._deadline_s = deadline_s
        self._deadline = time.monotonic() + deadline_s
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._logs: dict[str, IO[bytes]] = {}

    def __enter__(self) -> Processes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for process in self._running.values():
            assert process.stdin is not None
            process.stdin.close()  # asks the task to end, see end_with_parent
        grace_ends = time.monotonic() + END_GRACE_S
        for process in self._running.values():
            try:
                process.wait(max(0.0, grace_ends - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for log in self._logs.values():
            log.close()

    def start(self, task: str, cluster: Cluster, arguments: Iterable[str] = ()) -> None:
        """Start `task`, "JOB:INDEX", with its output in a log of its own."""
        environment = task_environment()
        log = self._logs[task] = tempfile.TemporaryFile()  # noqa: SIM115 (closed by __exit__)
        self._running[task] = subprocess.Popen(
            [sys.executable, "-m", self._module, "--task", task, "--cluster", json.dumps(cluster), *arguments],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,  # Ctrl-C reaches the starter alone, which then ends the tasks
        )

    def wait(self, tasks: Iterable[str]) -> None:
        """Return when all of `tasks` ended with 0. Raises ProcessFailed if one fails, another ends, or time is up."""
        waited = set(tasks)
        while True:
            codes = {task: process.poll() for task, process in self._running.items()}
            for task, code in codes.items():
                if code is not None and (code != 0 or task not in waited):
                    raise self._failed(f"{task} ended early with code {code}")
            missing = sorted(task for task in waited if codes[task] is None)
            if not missing:
                return
            if time.monotonic() > self._deadline:
                raise self._failed(f"{', '.join(missing)} not done after {self._deadline_s:g} s")
            time.sleep(POLL_S)

    def _failed(self, reason: str) -> ProcessFailed:
        return ProcessFailed("\n".join([reason, *(f"--- {task}\n{_tail(log)}" for task, log in self._logs.items())]))


def run_cluster(module: str, tasks: Mapping[str, int], wait_for: str, deadline_s: float) -> None:
    """Start this program again as every task of a cluster, with the arguments it was given, and wait for one job.

    Raises click.ClickException, with the logs, when a task fails or the deadline passes.
    """
    cluster = free_cluster(tasks)
    names = {job: [f"{job}:{index}" for index in range(number)] for job, number in tasks.items()}
    with Processes(module, deadline_s) as processes:
        for name in (name for job in names.values() for name in job):
            processes.start(name, cluster, sys.argv[1:])
        try:
            processes.wait(names[wait_for])
        except ProcessFailed as error:
            raise click.ClickException(str(error)) from error


def free_cluster(tasks: Mapping[str, int]) -> Cluster:
    """A cluster of so many tasks a job, each with a port of loopback that was free a moment ago."""
    count = sum(tasks.values())
    held: list[socket.socket] = []
    try:
        while len(held) < count:
            candidate = socket.socket()
            try:
                candidate.bind(("", random.choice(PORTS)))  # TensorFlow's servers bind every interface
            except OSError:  # taken: try another
                candidate.close()
            else:
                held.append(candidate)
        addresses = iter([f"127.0.0.1:{server.getsockname()[1]}" for server in held])
    finally:
        for server in held:
            server.close()
    return {job: [next(addresses) for _ in range(number)] for job, number in tasks.items()}


def task_environment() -> dict[str, str]:
    """The surroundings of a task: nothing that changes the bits, and this checkout on the path.

    A task keeps the working directory, for paths among its arguments, and finds its module from anywhere.
    """
    environment = {key: value for key, value in os.environ.items() if key.lower() not in DROPPED} | SETTINGS
    environment["PYTHONPATH"] = os.pathsep.join([str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])])
    return environment


def end_with_parent() -> threading.Thread:
    """In a task: end this process at once when the one that started it ends or says so.

    Returns the thread that watches; a server joins it, to serve until then.
    """

    def watch() -> None:
        # The descriptor, not sys.stdin: a buffered reader that is blocked cannot be closed at interpreter exit.
        while os.read(0, 1):
            pass
        os._exit(0)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


def _tail(log: IO[bytes], lines: int = 40) -> str:
    # pread leaves alone the offset, at which the task may still be writing.
    content = os.pread(log.fileno(), os.fstat(log.fileno()).st_size, 0)
    return b"\n".join(content.splitlines()[-lines:]).decode(errors="replace")
