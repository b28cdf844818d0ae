"""How is a process started so that it can always be found and stopped again?

Each one leads its own session, so `killpg` reaches what it started in turn, and a Ctrl-C of the terminal reaches
`ps-run` alone, which passes it on in order. The kernel stops it when `ps-run` itself is killed (PR_SET_PDEATHSIG).
There are no threads: exits are learnt from SIGCHLD. (An asyncio subprocess would start a watcher thread for each
child on Python 3.10 and 3.11, and code between fork and exec is safe only without threads.) This file must not know
what a ps or a worker is. Read next: `run_job.py`.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_POLL_S = 0.02
_AFTER_KILL_S = 5.0
_prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None  # looked up before any fork


def exit_status(returncode: int) -> int:
    """The status that a shell would report: the code, or 128+n for a process that signal n ended."""
    return returncode if returncode >= 0 else 128 - returncode


def describe_exit(returncode: int) -> str:
    if returncode >= 0:
        return f"exited with code {returncode}"
    try:
        return f"was killed by signal {-returncode} ({signal.Signals(-returncode).name})"
    except ValueError:  # a real-time signal has no name
        return f"was killed by signal {-returncode}"


def _living_members(group: int) -> list[int]:
    """The pids of a process group, zombies apart: in a container whose first process never reaps they stay for good."""
    members = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, pgrp = stat.read_text(errors="replace").rpartition(")")[2].split()[:3]
        except (OSError, ValueError):  # ended while we looked
            continue
        if int(pgrp) == group and state not in "ZX":
            members.append(int(stat.parent.name))
    return members


class Process:
    """One started process and the group it leads.

    Attributes:
        name: what people call it, such as `worker 0`.
        address: its `host:port` in the cluster.
        exited: resolves to the return code of the leader, -n when signal n ended it.
    """

    def __init__(self, name: str, address: str, popen: subprocess.Popen[bytes]) -> None:
        self.name = name
        self.address = address
        self.exited: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._popen = popen
        self._gone = False

    def __repr__(self) -> str:
        state = describe_exit(self.exited.result()) if self.exited.done() else "running"
        return f"<{self.name} at {self.address}, pid {self._popen.pid}, {state}>"

    @property
    def pipes(self) -> tuple[int, int]:
        """Our ends of its stdout and stderr."""
        assert self._popen.stdout is not None and self._popen.stderr is not None
        return self._popen.stdout.fileno(), self._popen.stderr.fileno()

    def notice_exit(self) -> None:
        """Learns whether the leader ended, without reaping it: while a zombie keeps the pid, no stranger gets it."""
        if not self.exited.done():
            result = os.waitid(os.P_PID, self._popen.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if result is not None:
                ended_itself = result.si_code == os.CLD_EXITED
                self.exited.set_result(result.si_status if ended_itself else -result.si_status)

    def signal_group(self, signum: int) -> None:
        if not self._gone:
            try:
                os.killpg(self._popen.pid, signum)
            except ProcessLookupError:
                self._gone = True
            except PermissionError:  # somebody in the group became another user; the others were signalled
                pass

    def gone(self) -> bool:
        """True once nothing of the group runs. Reaps the leader, so call it only when the job is ending."""
        self.notice_exit()
        if not self._gone and self.exited.done():
            self._popen.poll()
            try:
                os.killpg(self._popen.pid, 0)
            except ProcessLookupError:
                self._gone = True
            except PermissionError:
                self._gone = False
            else:
                self._gone = not _living_members(self._popen.pid)
        return self._gone


class ProcessTable:
    """Everything that the job started. Make it inside the running loop, and only one: it takes SIGCHLD."""

    def __init__(self) -> None:
        self._all: list[Process] = []
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self._notice_exits)

    def _notice_exits(self) -> None:
        for process in self._all:
            process.notice_exit()

    def start(
        self,
        name: str,
        address: str,
        argv: Sequence[str],
        environment: Mapping[str, str],
        pass_fds: Collection[int] = (),
    ) -> Process:
        """Starts one process in a session of its own, with no stdin and with pipes for stdout and stderr.

        Raises:
            OSError: the program cannot be executed.
        """
        parent = os.getpid()

        def die_with_parent() -> None:
            if _prctl is not None:
                _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
                if os.getppid() != parent:  # the parent died before the line above: no signal will come
                    os._exit(128 + signal.SIGTERM)

        popen = subprocess.Popen(
            argv,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
            pass_fds=pass_fds,
            preexec_fn=die_with_parent,
        )
        process = Process(name, address, popen)
        for fd in process.pipes:
            os.set_blocking(fd, False)
        self._all.append(process)
        return process

    def kill_now(self) -> None:
        for process in self._all:
            process.signal_group(signal.SIGKILL)

    async def until_gone(self, processes: Collection[Process], grace_s: float) -> list[Process]:
        """Waits until nothing of these groups runs; after `grace_s` they get SIGKILL. Returns what is left."""
        loop = asyncio.get_running_loop()
        for limit_s in (grace_s, _AFTER_KILL_S):
            deadline = loop.time() + limit_s
            while alive := [process for process in processes if not process.gone()]:
                if loop.time() >= deadline:
                    break
                # Grandchildren are not our children: no event tells of their end.
                await asyncio.sleep(_POLL_S)
            if not alive:
                return []
            for process in alive:
                process.signal_group(signal.SIGKILL)
        return alive
