"""How does a benchmark run real processes, tell them what to measure, and make sure that none outlives it?

A task is `python -m MODULE ARGUMENTS…`. It reads commands from its stdin, a JSON object a line, and answers each with one
line. When its stdin closes it ends at once, so that even a killed benchmark leaves nothing behind; what does not end when
asked is killed by pid. Both sides are here: Tasks for the one that starts, serve and follow_parent for the one started.
It must not know what is measured. Next: rounds.py.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

REPOSITORY = Path(__file__).resolve().parents[1]
# Reached only by what hangs: TensorFlow and Ray take their time to start on a busy machine.
DEADLINE_S = 180.0
END_GRACE_S = 15.0
LEAST_STEPS = 3
PR_SET_PDEATHSIG = 1
# Settings of the surroundings that would lead loopback elsewhere, or give a task a place in another cluster.
DROPPED = {"tf_config", "http_proxy", "https_proxy", "grpc_proxy", "all_proxy"}
SETTINGS = {
    "TF_CPP_MIN_LOG_LEVEL": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "GRPC_FAIL_FAST": "use_caller",  # TensorFlow: a call to a task that is still starting waits for it
    "PYTHONUNBUFFERED": "1",
}

Message = dict[str, Any]


class TaskFailed(RuntimeError):
    """A task ended early, or answered with an error, or not at all; the message has the end of its output."""


class Task:
    """One process that was started."""

    def __init__(self, name: str, popen: subprocess.Popen[bytes], log: Path) -> None:
        self.name, self.popen, self._log = name, popen, log
        self._answers: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            self._answers.put(line)
        self._answers.put(None)

    def send(self, message: Message) -> None:
        """Give it a command."""
        assert self.popen.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended: `answer` says so, with its output
            self.popen.stdin.write(json.dumps(message).encode() + b"\n")
            self.popen.stdin.flush()

    def answer(self, deadline_s: float = DEADLINE_S) -> Message:
        """Its answer to the command sent last. Raises TaskFailed."""
        try:
            line = self._answers.get(timeout=deadline_s)
        except queue.Empty:
            raise self._failed(f"no answer in {deadline_s:g} s") from None
        if line is None:
            raise self._failed(f"ended with {self.popen.wait()}")
        message: Message = json.loads(line)
        if "error" in message:
            raise self._failed(message["error"])
        return message

    def ask(self, message: Message, deadline_s: float = DEADLINE_S) -> Message:
        self.send(message)
        return self.answer(deadline_s)

    def pause(self) -> None:
        """Stop it where it is, for it would burn a core while it waits. It must have called end_with_parent_at_once."""
        self.popen.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.popen.send_signal(signal.SIGCONT)

    def end(self, grace_s: float) -> None:
        """Let it end, which it does when its stdin is closed; after that, kill it and what it has started, by pid."""
        try:
            self.popen.wait(grace_s)
        except subprocess.TimeoutExpired:
            kill([*descendants(self.popen.pid), self.popen.pid])
            self.popen.wait()

    def _failed(self, reason: str) -> TaskFailed:
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()[-30:]
        return TaskFailed("\n".join([f"{self.name}: {reason}", *(f"    {line}" for line in lines)]))


class Tasks:
    """The processes of one cluster: a context manager that ends them all."""

    def __init__(self) -> None:
        self.started: list[Task] = []
        self._directory = tempfile.TemporaryDirectory(prefix="benchmark-")

    def __enter__(self) -> Tasks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        ends_s = time.monotonic() + END_GRACE_S
        for task in self.started:
            assert task.popen.stdin is not None
            task.resume()
            with contextlib.suppress(OSError):
                task.popen.stdin.close()
        for task in self.started:
            task.end(max(0.0, ends_s - time.monotonic()))
        self._directory.cleanup()

    def start(self, name: str, module: str, *arguments: str, environment: Mapping[str, str] | None = None) -> Task:
        """Start `python -m module arguments…`."""
        log = Path(self._directory.name) / f"{len(self.started)}.log"
        with log.open("wb") as output:
            popen = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env=_environment() | dict(environment or {}),
                start_new_session=True,  # Ctrl-C reaches the benchmark alone, which then ends its tasks
            )
        task = Task(name, popen, log)
        self.started.append(task)
        return task


def ask_all(tasks: list[Task], message: Message, deadline_s: float = DEADLINE_S) -> list[Message]:
    """The same command to all of them at once, and their answers."""
    for task in tasks:
        task.send(message)
    return [task.answer(deadline_s) for task in tasks]


def descendants(pid: int) -> list[int]:
    """The processes that this one has started, and those that they have, without itself. Linux only; elsewhere none."""
    children: dict[int, list[int]] = {}
    for directory in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it may end while we look
            parent = int((directory / "stat").read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(directory.name))
    found: list[int] = []
    new = children.get(pid, [])
    while new:
        found += new
        new = [child for each in new for child in children.get(each, [])]
    return found


def kill(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _environment() -> dict[str, str]:
    environment = {key: value for key, value in os.environ.items() if key.lower() not in DROPPED} | SETTINGS
    environment["PYTHONPATH"] = os.pathsep.join([str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])])
    return environment


# -- in a task -----------------------------------------------------------------------------------------------------------


def follow_parent() -> Iterator[Message]:
    """Begin to watch stdin, now, and when it closes end this process and what it started; returns the commands as they come."""
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def watch() -> None:
        # The descriptor, not sys.stdin: a buffered reader that is blocked cannot be closed at interpreter exit.
        rest = b""
        while chunk := os.read(0, 1 << 16):
            *whole, rest = (rest + chunk).split(b"\n")
            for line in whole:
                lines.put(line)
        kill(descendants(os.getpid()))
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()
    return map(json.loads, iter(lines.get, None))


def end_with_parent_at_once() -> None:
    """Have the kernel kill this process when the one that started it ends. A process that is paused watches no stdin."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def answers() -> TextIO:
    """Where answers go: stdout, which from now on nobody else writes to. What is printed goes to the log."""
    own = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)
    return own


def serve(commands: Iterator[Message], output: TextIO, handle: Callable[[Message], Message]) -> None:
    """Answer commands until stdin closes. An error is an answer too: whoever asked stops with it."""
    for message in commands:
        try:
            answer = handle(message)
        except Exception as error:  # noqa: BLE001 - told to whoever asked
            answer = {"error": f"{type(error).__name__}: {error}"}
        output.write(json.dumps(answer) + "\n")


def steps_for(seconds: float, step: Callable[[], object]) -> Message:
    """Call `step` again and again for so long, but three times at least: how many steps, in how many seconds."""
    began_s = time.perf_counter()
    steps = 0
    while True:
        step()
        steps += 1
        now_s = time.perf_counter()
        if now_s - began_s >= seconds and steps >= LEAST_STEPS:
            return {"steps": steps, "seconds": now_s - began_s}
