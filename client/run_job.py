"""In which order does a job start, run and end?

The ps first, until each one serves; then the workers, until all have ended; then the ps again, which end by
themselves. Whatever happens on the way, `Job.run` returns one exit code, has said why, and leaves no process of the
job behind. Only a process that moved to a session of its own (a daemon) is out of reach. Must not know how bytes move
(`run_output.py`) or how a process is kept findable (`run_processes.py`). Read next: those two.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from dataclasses import dataclass
from typing import Any

from client.run_display import Display
from client.run_members import worker_states
from client.run_output import Relay, Sink
from client.run_ports import choose_addresses, tf_config
from client.run_processes import Process, ProcessTable, describe_exit, exit_status

_EXIT_FAILED = 1
_EXIT_PORT_IN_USE = 3
_EXIT_UNREACHABLE = 4
_EXIT_CANNOT_EXECUTE = 127
_NEW_PORTS_AT_MOST = 3
_LAST_WORDS_S = 0.5
_FLUSH_S = 2.0
_ASK_AGAIN_S = 0.5
# What a ps writes to its log when a client, such as ps-ctl, asks it to stop, before anybody else hears of it.
_TOLD_TO_STOP = re.compile(rb"ps \d+ is told to stop: (.*)")


@dataclass(frozen=True)
class Settings:
    """What was resolved from flags, environment and defaults."""

    workers: int
    servers: int
    command: tuple[str, ...]
    server: tuple[str, ...]  # the command line of a ps
    environment: dict[str, str]  # of every child, before what is its own
    run_id: str
    grace_s: float
    connect_timeout_s: float
    leave_s: float  # how long the ps may take to end by themselves once all workers have ended
    size: str  # such as `2 workers, 1 ps`
    summary: str


class JobFailed(Exception):
    """Ends the job early. `code` is the exit code of `ps-run`."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Interrupt:
    """What ended the job from outside: the signal to pass on, what to say, and the exit code."""

    signum: int
    cause: str
    code: int


class Job:
    """One run of `ps-run`. Create it inside the running loop."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._stdout = Sink(1, self._lost_output)
        self._stderr = Sink(2, self._lost_output)
        self._display = Display(self._stdout, self._stderr, settings.workers)
        self._table = ProcessTable()
        self._servers: list[Process] = []
        self._workers: list[Process] = []
        self._relays: dict[Process, list[Relay]] = {}
        self._interrupted: asyncio.Future[Interrupt] = self._loop.create_future()
        self._ending = False
        self._hurry = asyncio.Event()

    async def run(self) -> int:
        """Returns the exit code of `ps-run`."""
        started_s = time.monotonic()
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(signum) != signal.SIG_IGN:  # nohup and background jobs: the caller wants it ignored
                self._loop.add_signal_handler(signum, self._on_signal, signum)
        self._display.say(f"ps-run: {self._settings.summary}, run id {self._settings.run_id}")
        work = self._loop.create_task(self._work())
        try:
            ends: list[asyncio.Future[Any]] = [work, self._interrupted]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if self._interrupted.done():
                work.cancel()
                await asyncio.wait([work])
                interrupt = self._interrupted.result()
                self._display.complain(f"{interrupt.cause}; stopping the job")
                code = interrupt.code
                await self._pass_on(interrupt.signum)
            else:
                code = self._outcome(work)
        finally:
            await self._stop_everything()
        done = f"done: {self._settings.size}, {time.monotonic() - started_s:.1f} s" if code == 0 else None
        await self._finish_output(done)
        return code

    def _outcome(self, work: asyncio.Task[None]) -> int:
        try:
            work.result()
        except JobFailed as failure:
            self._display.complain(str(failure))
            return failure.code
        return 0

    # Signals and lost output: what ends a job from outside.

    def _on_signal(self, signum: int) -> None:
        if not self._ending and not self._interrupted.done():
            cause = f"got {signal.Signals(signum).name}"
            self._interrupted.set_result(Interrupt(signum, cause, exit_status(-signum)))
        elif signum == signal.SIGINT:
            self._table.kill_now()
        if self._ending:
            self._hurry.set()

    def _lost_output(self, error: OSError) -> None:
        """Nobody reads any more: as any program in a pipeline, the job ends. A disk that is full is no reason to stop."""
        if not isinstance(error, BrokenPipeError):
            self._display.complain(f"output is lost from here on ({error.strerror}); the job goes on")
        elif not self._ending and not self._interrupted.done():
            cause = f"the output cannot be written any more ({error.strerror})"
            self._interrupted.set_result(Interrupt(signal.SIGTERM, cause, exit_status(-signal.SIGPIPE)))

    def _told_to_stop(self, name: str, reason: str) -> None:
        """A ps stops because somebody said so: then the failures of the workers that follow are no news."""
        done = self._workers and all(worker.exited.done() and worker.exited.result() == 0 for worker in self._workers)
        if not done and not self._ending and not self._interrupted.done():
            self._interrupted.set_result(
                Interrupt(signal.SIGTERM, f"{name} was {reason}", exit_status(-signal.SIGTERM))
            )

    # The job itself.

    async def _work(self) -> None:
        cluster = await self._start_servers()
        self._start_workers(cluster)
        await self._watch()
        await self._until_servers_leave()

    async def _start_servers(self) -> dict[str, list[str]]:
        for attempt in range(_NEW_PORTS_AT_MOST + 1):
            try:
                addresses = choose_addresses(self._settings.servers + self._settings.workers)
            except OSError as error:
                raise JobFailed(f"cannot choose ports: {error}", _EXIT_FAILED) from error
            cluster = {"ps": addresses[: self._settings.servers], "worker": addresses[self._settings.servers :]}
            serving = [self._start_server(i, cluster) for i in range(self._settings.servers)]
            taken = await self._until_serving(serving)
            if not taken:
                return cluster
            where = ", ".join(f"{process.name} at {process.address}" for process in taken)
            if attempt == _NEW_PORTS_AT_MOST:
                raise JobFailed(
                    f"a port was taken before {where} could use it, {attempt + 1} times; what else starts them here?",
                    _EXIT_PORT_IN_USE,
                )
            self._display.complain(f"a port was taken before {where} could use it; choosing new ports")
            self._signal(self._servers, signal.SIGTERM)
            await self._until_gone(self._servers)
            self._servers = []
        raise AssertionError("unreachable")

    def _start_server(self, index: int, cluster: dict[str, list[str]]) -> asyncio.Future[None]:
        """Returns a future that resolves when the ps says that it serves."""
        serving: asyncio.Future[None] = self._loop.create_future()
        address = cluster["ps"][index]
        announcement = f"ps {index} serving on {address}".encode()

        def watch(line: bytes) -> None:
            if line.strip() == announcement and not serving.done():
                serving.set_result(None)

        def listen(line: bytes) -> None:
            if match := _TOLD_TO_STOP.search(line):
                self._told_to_stop(f"ps {index}", match[1].decode(errors="replace"))

        environment = {**self._settings.environment, "TF_CONFIG": tf_config(cluster, "ps", index)}
        process = self._table.start(f"ps {index}", address, self._settings.server, environment)
        self._servers.append(process)
        out, err = process.pipes
        self._relays[process] = [
            self._display.relay(process.name, out, False, watch),
            self._display.relay(process.name, err, True, listen),
        ]
        return serving

    async def _until_serving(self, serving: list[asyncio.Future[None]]) -> list[Process]:
        """Returns the ps whose port was in use; none of them when all serve."""
        timeout_s = self._settings.connect_timeout_s
        deadline = self._loop.time() + timeout_s
        waiting = dict(zip(self._servers, serving, strict=True))
        while waiting:
            ended = {process: process.exited.result() for process in self._servers if process.exited.done()}
            if taken := [
                process for process, code in ended.items() if code == _EXIT_PORT_IN_USE and process in waiting
            ]:
                return taken
            for process, code in ended.items():
                await self._hear_out(process)
                what = f"{process.name} at {process.address} {describe_exit(code)} before all ps served"
                raise JobFailed(f"{what}; its own lines above say why", exit_status(code) or _EXIT_FAILED)
            left_s = deadline - self._loop.time()
            if left_s <= 0:
                who = ", ".join(f"{process.name} at {process.address}" for process in waiting)
                raise JobFailed(f"not serving within {timeout_s:g} s (--connect-timeout): {who}", _EXIT_UNREACHABLE)
            futures: list[asyncio.Future[Any]] = [*waiting.values(), *(process.exited for process in self._servers)]
            await asyncio.wait(futures, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            waiting = {process: future for process, future in waiting.items() if not future.done()}
        return []

    def _start_workers(self, cluster: dict[str, list[str]]) -> None:
        for index in range(self._settings.workers):
            environment = {**self._settings.environment, "TF_CONFIG": tf_config(cluster, "worker", index)}
            name, address = f"worker {index}", cluster["worker"][index]
            pass_fds: tuple[int, ...] = ()
            if self._display.bars is not None:
                read_fd, write_fd = os.pipe()
                os.set_blocking(read_fd, False)
                environment["PARAMSERVER_PROGRESS_FD"] = str(write_fd)
                pass_fds = (write_fd,)
            try:
                process = self._table.start(name, address, self._settings.command, environment, pass_fds)
            except OSError as error:
                what = f"{name}: cannot execute {self._settings.command[0]}: {error.strerror}"
                raise JobFailed(what, _EXIT_CANNOT_EXECUTE) from error
            finally:
                for fd in pass_fds:
                    os.close(fd)  # else the pipe would never end
            self._workers.append(process)
            out, err = process.pipes
            self._relays[process] = [self._display.relay(name, out, False), self._display.relay(name, err, True)]
            if pass_fds:
                self._relays[process].append(self._display.relay_progress(index, read_fd))

    async def _watch(self) -> None:
        """Waits until all workers have ended with 0. The first that fails, and any ps that fails, ends the job."""
        while True:
            for process in self._servers + self._workers:  # a ps first: when one dies, the workers fail because of it
                await self._raise_if_failed(process)
            running = [process.exited for process in self._workers if not process.exited.done()]
            if not running:
                return
            serving = [process.exited for process in self._servers if not process.exited.done()]
            await asyncio.wait(running + serving, return_when=asyncio.FIRST_COMPLETED)

    async def _until_servers_leave(self) -> None:
        """The ps end when all workers have left, or were lost. For one that never came they would wait for ever: so we ask."""
        deadline = self._loop.time() + self._settings.leave_s
        while waiting := [process for process in self._servers if not process.exited.done()]:
            states = await worker_states([process.address for process in waiting])
            never = [worker for worker, seen in states.items() if seen == {"expected"}]
            if never and not any("active" in seen for seen in states.values()):
                self._say_who_never_came(never)
                if lost := ", ".join(f"worker {worker}" for worker, seen in states.items() if "lost" in seen):
                    raise JobFailed(f"lost without leaving: {lost}", _EXIT_FAILED)
                return  # and the ps are stopped
            left_s = deadline - self._loop.time()
            if left_s <= 0:
                names = ", ".join(process.name for process in waiting)
                what = f"all workers ended, but {names} did not within {self._settings.leave_s:g} s: stopped"
                self._display.complain(what)
                break
            await asyncio.wait([process.exited for process in waiting], timeout=min(left_s, _ASK_AGAIN_S))
        for process in self._servers:
            await self._raise_if_failed(process)

    def _say_who_never_came(self, never: list[int]) -> None:
        alone = len(never) == self._settings.workers
        who = "the command" if alone else ", ".join(f"worker {worker}" for worker in never)
        self._display.complain(f"{who} ended without ever connecting to the ps")

    async def _raise_if_failed(self, process: Process) -> None:
        if process.exited.done() and (code := process.exited.result()) != 0:
            await self._hear_out(process)
            where = f"{process.name} at {process.address}" if process in self._servers else process.name
            raise JobFailed(f"{where} {describe_exit(code)}; stopping the job", exit_status(code))

    async def _hear_out(self, process: Process) -> None:
        """Lets the last words of an ended process come out before we comment on its end."""
        await asyncio.wait([relay.task for relay in self._relays[process]], timeout=_LAST_WORDS_S)

    # The end.

    async def _pass_on(self, signum: int) -> None:
        """The workers first, to let them leave while the ps answer; then, or after the grace, the ps."""
        self._signal(self._workers, signum)
        if running := [process.exited for process in self._workers if not process.exited.done()]:
            await asyncio.wait(running, timeout=self._settings.grace_s)
        self._signal(self._workers, signal.SIGTERM)
        self._signal(self._servers, signum)
        await self._until_gone(self._workers + self._servers)

    async def _stop_everything(self) -> None:
        self._ending = True
        for processes in (self._workers, self._servers):
            self._signal(processes, signal.SIGTERM)
            await self._until_gone(processes)
        for relays in self._relays.values():
            for relay in relays:
                relay.end()

    def _signal(self, processes: list[Process], signum: int) -> None:
        for process in processes:
            process.signal_group(signum)

    async def _until_gone(self, processes: list[Process]) -> None:
        for process in await self._table.until_gone(processes, self._settings.grace_s):
            self._display.complain(f"{process.name} is still there after SIGKILL: {process!r}")

    async def _finish_output(self, last_line: str | None) -> None:
        """Waits for a slow reader of our output, but once there was a signal only for a moment."""

        async def all_out() -> None:
            await asyncio.gather(*(relay.task for relays in self._relays.values() for relay in relays))
            self._display.stop()
            if last_line is not None:
                self._display.say(last_line)
            await self._stdout.flushed()
            await self._stderr.flushed()

        out, hurry = self._loop.create_task(all_out()), self._loop.create_task(self._hurry.wait())
        timeout_s = _FLUSH_S if self._interrupted.done() else None
        await asyncio.wait([out, hurry], timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
