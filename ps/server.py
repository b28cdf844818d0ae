"""How does a ps start, live and end? Binding a port, serving, watching leases, stopping for a reason.

A ps ends by itself when every worker has left and no observer reads any more; or because somebody said so: a signal, or the
Stop call. Whatever the reason, those who wait are told it before the port closes.

Next: ps/servicer.py (what is served), ps/command.py (the program), ps/local.py (several in one process).
"""

from __future__ import annotations

import asyncio
import errno
import logging
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health

from protos.codec import PROTOCOL_VERSION
from protos.errors import AddressInUse, ClusterError
from protos.service import OPTIONS, SERVICE
from ps.accounting import PushResult
from ps.configuration import Configuration
from ps.exchange import Exchanges
from ps.membership import Membership
from ps.record import Recorder, path_of
from ps.servicer import Servicer
from ps.shard import Shard
from ps.story import Event, Story
from ps.sums import Totals
from ps.threads import usable_cpus
from ps.updates import Updates

log = logging.getLogger("paramserver.ps")

TICK_S = 0.1
# How long calls that are under way at a stop may take to hear of it.
GRACE_S = 1.0
# How long a ps stays, when every worker has left, for observers that are still connected: they may want the final values.
LINGER_S = 5.0

# What is worth a line in the log; the story has everything.
_SAID = {
    "join": "worker {event.worker} joined, generation {event.generation}",
    "init": "initialised by worker {event.worker}: {event.names}",
    "leave": "worker {event.worker} left at version {event.version}{reason}",
    "lost": "worker {event.worker} lost at version {event.version}{reason}",
}


@dataclass(frozen=True)
class Settings:
    """All that can be set about one ps. bind: where to listen, by default the address that the others know."""

    index: int
    ps_addresses: tuple[str, ...]
    num_workers: int
    bind: str = ""
    run_id: str = ""
    configuration: Configuration = field(default_factory=Configuration)
    guard_nonfinite: bool = False
    lease_s: float = 10.0
    story_dir: Path | None = None
    record: Path | None = None
    shared_memory: bool = True
    apply_threads: int = field(default_factory=usable_cpus)
    exit_when_done: bool = True


class Server:
    """One ps. start() binds and serves; run() lasts until it has ended and says why."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._story_file: TextIO | None = None
        membership: Membership[PushResult] = Membership(
            settings.num_workers,
            # Without a name of its own a run gets one from ps 0, and the other ps take it from the first client.
            run_id=settings.run_id or (secrets.token_hex(8) if settings.index == 0 else ""),
            ps_index=settings.index,
            num_ps=len(settings.ps_addresses),
            protocol_version=PROTOCOL_VERSION,
        )
        self.ps_addresses = list(settings.ps_addresses)
        self._totals = Totals(settings.index, self.ps_addresses, membership)
        self.shard = Shard(membership, settings.configuration, Story(self._write_event), settings.guard_nonfinite)
        self.shard.updates = Updates(
            self._totals if len(self.ps_addresses) > 1 else None,
            on_sums=lambda sums: self.shard.recorder.sums(sums),
            threads=settings.apply_threads,
        )
        exchanges = Exchanges(self.shard, shared_memory=settings.shared_memory)
        self.servicer = Servicer(self.shard, self.ps_addresses, self._totals, exchanges, self._told_to_stop)
        self._server = grpc.aio.server(options=OPTIONS)
        self._server.add_generic_rpc_handlers((self.servicer.handlers(),))
        self._health = health.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        self._ended: asyncio.Future[str] | None = None
        self._done_at_s: float | None = None

    async def start(self) -> int:
        """Bind and serve; the port. AddressInUse if that cannot be."""
        bind = self.settings.bind or self.settings.ps_addresses[self.settings.index]
        self._ended = asyncio.get_running_loop().create_future()
        try:
            _check_free(bind)
            port: int = self._server.add_insecure_port(bind)
        except (socket.gaierror, UnicodeError) as error:
            raise _not_ours(bind, error) from error
        except (OSError, RuntimeError) as error:
            if getattr(error, "errno", None) == errno.EADDRNOTAVAIL:
                raise _not_ours(bind, error) from error
            raise AddressInUse(
                field=f"ps {self.settings.index}",
                got=f"{bind} ({_short(error)})",
                expected="a free port of this machine",
                hint=f"See who listens there: ss -ltnp 'sport = :{bind.rpartition(':')[2]}'.",
            ) from error
        if (
            self.settings.story_dir is not None
        ):  # only now: the story of a ps that has the port already is not ours to end
            self.settings.story_dir.mkdir(parents=True, exist_ok=True)
            path = self.settings.story_dir / f"story-ps{self.settings.index}.jsonl"
            self._story_file = path.open("w", encoding="utf-8")
        if self.settings.record is not None:
            path = path_of(self.settings.record, self.settings.index)
            self.shard.recorder = Recorder.to(path, self.settings.index, len(self.ps_addresses))
        await self._server.start()
        for service in ("", SERVICE.full_name):
            await self._health.set(service, health_pb2.HealthCheckResponse.SERVING)
        return port

    def stop(self, reason: str) -> None:
        """End, for this reason. Call on the event loop; the first reason stands."""
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(reason)

    def _told_to_stop(self, reason: str) -> None:
        """By a client, such as ps-ctl. Said before anybody else hears of it: ps-run reads this line and ends the job."""
        log.warning("ps %d is told to stop: %s", self.settings.index, reason)
        self.stop(reason)

    async def run(self) -> str:
        """Serve until the end and return the reason. Everybody who waits has been told, and the port is free again."""
        assert self._ended is not None, "start() first"
        watch = asyncio.ensure_future(self._watch())
        watch.add_done_callback(self._watch_ended)
        try:
            reason = await self._ended
        finally:
            watch.cancel()
        self.servicer.close(reason)
        await self._health.enter_graceful_shutdown()
        await self._server.stop(GRACE_S)
        await self._totals.close()
        self._with_story(lambda file: file.close())
        self.shard.recorder.close()
        return reason

    def _watch_ended(self, watch: asyncio.Future[None]) -> None:
        if not watch.cancelled() and watch.exception() is not None:
            log.error("the lease watch failed", exc_info=watch.exception())
            self.stop(f"an internal error: {watch.exception()}")

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            await self.shard.expire(self.settings.lease_s)
            self._with_story(lambda file: file.flush())
            self.shard.recorder.flush()
            if self.settings.exit_when_done and self._is_over():
                self.stop("every worker has left")

    def _is_over(self) -> bool:
        """Whether every worker has left, and observers have had their time to read what came of it."""
        if not self.shard.membership.done():
            self._done_at_s = None
            return False
        if self._done_at_s is None:
            self._done_at_s = time.monotonic()
        lingered = time.monotonic() - self._done_at_s > LINGER_S and not self.shard.observers_reading
        return lingered or not self.shard.membership.observed()

    def summary(self) -> str:
        """What became of it all, for the last line of the log."""
        counters, state = self.shard.counters, self.shard.state
        told = ", ".join(f"{name} {count}" for name, count in vars(counters).items())
        return f"version {state.version if state else 'none, never initialised'}; {told}"

    def lost_workers(self) -> list[int]:
        """Workers that went without leaving."""
        return [index for index, member in self.shard.membership.members.items() if member.state == "lost"]

    def _write_event(self, event: Event) -> None:
        if event.kind in _SAID:
            log.info(_SAID[event.kind].format(event=event, reason=f" ({event.reason})" if event.reason else ""))
        self._with_story(lambda file: file.write(event.to_json() + "\n"))
        self.shard.recorder.event(event)

    def _with_story(self, act: Callable[[TextIO], object]) -> None:
        """A story that cannot be written is told once and given up: training goes on."""
        if self._story_file is None:
            return
        try:
            act(self._story_file)
        except OSError as error:
            log.error("the story ends here, for it cannot be written: %s", error)
            self._story_file = None


def _not_ours(bind: str, error: Exception) -> ClusterError:
    return ClusterError(
        field="address to listen on",
        got=f"{bind} ({_short(error)})",
        expected="an address of this machine",
        hint="Where the address that others know is not this machine's own, give --bind 0.0.0.0:PORT.",
    )


def _check_free(address: str) -> None:
    """OSError, which says why, if a socket cannot be bound to one of the addresses that this name stands for.

    grpc is content with any: where 127.0.0.1 is taken, it would serve localhost on ::1, and clients find the other.
    """
    host, _, port = address.rpartition(":")
    failures: list[OSError] = []
    found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    for family, kind, protocol, _, where in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as grpc does
                probe.bind(where)
        except OSError as error:
            failures.append(error)
    in_use = [error for error in failures if error.errno == errno.EADDRINUSE]
    if in_use or len(failures) == len(found):  # a machine without IPv6 may still have a name for ::1
        raise (in_use or failures)[0]


def _short(error: Exception) -> str:
    """The first line of what grpc says, without its dump of internals."""
    return str(error).splitlines()[0].split("; ")[0]
