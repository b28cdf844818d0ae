"""How does a test start real processes, hear what they say, and leave none behind?

A Program is one process whose output is read line by line as it comes; a Programs starts them, all in one directory and
marked through their environment, so that whatever they started in turn is found again. Nothing here sleeps for a while and
hopes: every wait is for an event, and its deadline only bounds a failure. It must not know what a ps or a worker does,
only how one is started.

Read next: tests/system/conftest.py (the fixture).
"""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from client.run_ports import choose_addresses
from tests.harness.threads import until

ROOT = Path(__file__).resolve().parents[2]
# Long enough for a busy machine; reached only by a test that fails.
DEADLINE_S = 60.0
MARK = "PARAMSERVER_TEST_MARK"


class Program:
    """One process. `lines`: all that it has written so far, of stdout and stderr, as (stream name, line)."""

    def __init__(self, name: str, popen: subprocess.Popen[bytes]) -> None:
        self.name = name
        self.popen = popen
        self.lines: list[tuple[str, str]] = []
        self._changed = threading.Condition()
        self._readers = [
            threading.Thread(target=self._read, args=(stream, getattr(popen, stream)), daemon=True)
            for stream in ("stdout", "stderr")
            if getattr(popen, stream) is not None
        ]
        for reader in self._readers:
            reader.start()

    def __repr__(self) -> str:
        code = self.popen.poll()
        return f"<{self.name}, pid {self.pid}, {'running' if code is None else f'exit {code}'}>"

    @property
    def pid(self) -> int:
        return self.popen.pid

    def _read(self, stream: str, pipe: Any) -> None:
        for line in pipe:
            with self._changed:
                self.lines.append((stream, line.decode(errors="replace").rstrip("\n")))
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    def text(self, stream: str | None = None) -> str:
        """What it has written so far, to one stream or to both."""
        with self._changed:
            return "\n".join(line for where, line in self.lines if stream in (None, where))

    @property
    def stdout(self) -> str:
        return self.text("stdout")

    @property
    def stderr(self) -> str:
        return self.text("stderr")

    def expect(self, pattern: str, timeout_s: float = DEADLINE_S) -> re.Match[str]:
        """The first match of `pattern` in any line, past or to come. Fails at the deadline, or once no line can come."""

        def found() -> re.Match[str] | None:
            return next((match for _, line in self.lines if (match := re.search(pattern, line))), None)

        with self._changed:
            self._changed.wait_for(lambda: found() or not self._readable(), timeout_s)
            match = found()
        assert match is not None, f"{self!r} did not say {pattern!r}; it said:\n{self.text()}"
        return match

    def _readable(self) -> bool:
        return any(reader.is_alive() for reader in self._readers)

    def wait(self, timeout_s: float = DEADLINE_S) -> int:
        """The exit code as a shell has it (128 + n for signal n), when all its output is here."""
        try:
            code = self.popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self!r} did not end in {timeout_s:g} s; it said:\n{self.text()}") from None
        for reader in self._readers:
            reader.join(timeout_s)
        return code if code >= 0 else 128 - code

    def signal(self, number: int) -> None:
        """Send a signal to this process alone."""
        self.popen.send_signal(number)

    def say(self, line: str) -> None:
        """Write a line to its stdin."""
        assert self.popen.stdin is not None
        self.popen.stdin.write(f"{line}\n".encode())
        self.popen.stdin.flush()


class Programs:
    """Starts processes in `directory`, ends them all, and can say which are left of what they started."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.started: list[Program] = []
        self._mark = secrets.token_hex(8)
        self._pipes: list[Any] = []

    # -- starting ----------------------------------------------------------------------------------------------------

    def start(
        self, name: str, argv: Sequence[str | Path], env: Mapping[str, str] | None = None, **options: Any
    ) -> Program:
        """Any program. env: added to an environment without anything of ours. options: as for subprocess.Popen."""
        ours = ("PARAMSERVER_", "TF_CONFIG")
        clean = {key: value for key, value in os.environ.items() if not key.startswith(ours)}
        environment = clean | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", MARK: self._mark} | dict(env or {})
        settings: dict[str, Any] = {
            "cwd": self.directory,
            "stdin": subprocess.PIPE,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "bufsize": 0,
            "start_new_session": True,
        }
        popen = subprocess.Popen([str(word) for word in argv], env=environment, **(settings | options))
        program = Program(name, popen)
        self.started.append(program)
        return program

    def python(
        self, *argv: str | Path, name: str = "", env: Mapping[str, str] | None = None, **options: Any
    ) -> Program:
        """This Python with these arguments."""
        return self.start(name or " ".join(str(word) for word in argv[:3]), [sys.executable, *argv], env, **options)

    def server(self, *flags: str, env: Mapping[str, str] | None = None, name: str = "ps-server") -> Program:
        """A ps-server, which may not be serving yet, or never will."""
        return self.python("-m", "ps", *flags, name=name, env=env)

    def servers(
        self, cluster: Mapping[str, Sequence[str]], *flags: str, env: Mapping[str, str] | None = None
    ) -> list[Program]:
        """Every ps of the cluster, serving."""
        given = [
            self.server(*flags, name=f"ps {index}", env={"TF_CONFIG": task(cluster, "ps", index)} | dict(env or {}))
            for index in range(len(cluster["ps"]))
        ]
        for index, program in enumerate(given):
            program.expect(rf"^ps {index} serving on ")
        return given

    def script(
        self, source: str, env: Mapping[str, str] | None = None, name: str = "script", **options: Any
    ) -> Program:
        """A Python program with this source."""
        return self.python(self.file(source), name=name, env=env, **options)

    def file(self, source: str, name: str = "") -> Path:
        """A file in the directory, with this content."""
        path = self.directory / (name or f"script_{len(list(self.directory.iterdir()))}.py")
        path.write_text(source, encoding="utf-8")
        return path

    def run(self, *argv: str | Path, env: Mapping[str, str] | None = None, **options: Any) -> Program:
        """ps-run with these arguments."""
        return self.python("-m", "client.run", *argv, name="ps-run", env=env, **options)

    def ctl(self, *argv: str, env: Mapping[str, str] | None = None) -> Program:
        """ps-ctl with these arguments."""
        return self.python("-m", "client.ctl", *argv, name="ps-ctl", env=env)

    # -- ending ------------------------------------------------------------------------------------------------------

    def left(self) -> dict[int, str]:
        """Command lines by pid of the living processes that were started here, or by one that was, however remote."""
        found = {}
        for directory in Path("/proc").glob("[0-9]*"):
            try:
                if f"{MARK}={self._mark}".encode() in (directory / "environ").read_bytes().split(b"\0"):
                    found[int(directory.name)] = (directory / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue  # ended while we looked, or another user's
        return found

    def assert_none_left(self, timeout_s: float = DEADLINE_S) -> None:
        """Fails if any process is still there at the deadline."""
        try:
            until(lambda: not self.left(), timeout_s)
        except AssertionError:
            raise AssertionError(f"still running: {self.left()}") from None

    def signal(self, pid: int, number: int) -> None:
        """Send a signal to one process that a program of ours has started."""
        assert pid in self.left(), f"{pid} is none of {self.left()}"
        os.kill(pid, number)

    def end_all(self) -> None:
        """Kill, by pid, whatever is left; print what each program said, which pytest shows for a test that failed."""
        while left := self.left():
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            for program in self.started:
                program.popen.poll()
        for program in self.started:
            code = program.wait()
            for pipe in (program.popen.stdin, program.popen.stdout, program.popen.stderr):
                if pipe is not None:
                    pipe.close()
            print(f"---- {program.name}, pid {program.pid}, exit {code}\n{program.text()}")


def free_cluster(ps: int = 1, workers: int = 1, **others: int) -> dict[str, list[str]]:
    """A cluster on free ports of this machine. others: chief=1, evaluator=1."""
    counts = {"ps": ps, "worker": workers, **others}
    addresses = iter(choose_addresses(sum(counts.values())))
    return {kind: [next(addresses) for _ in range(count)] for kind, count in counts.items()}


def task(cluster: Mapping[str, Sequence[str]], kind: str, index: int = 0) -> str:
    """The text of TF_CONFIG for one task of the cluster."""
    return json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})


def assert_free(*addresses: str) -> None:
    """Fails unless a server could bind each of these now."""
    for address in addresses:
        host, _, port = address.rpartition(":")
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: a connection at rest is no one
            probe.bind((host, int(port)))
