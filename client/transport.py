"""How does a client talk to one ps? A channel, a session, unary calls, and a pool of Exchange streams.

A Peer turns everything that grpc can say into a typed error that names the ps and its address, and puts a deadline on every
wait: a watchdog thread cancels calls on which nothing has moved for too long. It must not know variables or modes.

Next: client/exchange.py (what is said on a stream), client/client.py (several peers at once).
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import grpc

from protos import parameter_server_pb2 as pb
from protos import status
from protos.errors import ParameterServerError, PeerUnavailable, WaitTimeout
from protos.service import METHODS, OPTIONS

CHANNEL_OPTIONS = (
    *OPTIONS,
    ("grpc.use_local_subchannel_pool", 1),  # a channel made after a fork must not share the parent's connection
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 1000),
)


class Watchdog:
    """Cancels calls whose deadline has passed: grpc's synchronous streams have none of their own that can move.

    `_lock` guards `_watched`; nothing is called under it but dict methods.
    """

    PERIOD_S = 0.1

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watched: dict[int, Watched] = {}
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()

    @contextlib.contextmanager
    def watch(self, call: grpc.Call, quiet_s: float) -> Iterator[Watched]:
        """While in the block, `call` is cancelled once `quiet_s` have passed since the last `moved()`."""
        watched = Watched(call, quiet_s)
        with self._lock:
            self._watched[id(watched)] = watched
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="paramserver-watchdog", daemon=True)
                self._thread.start()
        try:
            yield watched
        finally:
            with self._lock:
                del self._watched[id(watched)]

    def _run(self) -> None:
        while not self._closed.wait(self.PERIOD_S):
            with self._lock:
                late = [watched for watched in self._watched.values() if watched.late()]
            for watched in late:
                watched.expired = True
                watched.call.cancel()

    def close(self) -> None:
        self._closed.set()


class Watched:
    """One call under watch."""

    def __init__(self, call: grpc.Call, quiet_s: float) -> None:
        self.call = call
        self.quiet_s = quiet_s
        self.expired = False
        self._moved_s = time.monotonic()

    def moved(self) -> None:
        """Something was sent or received."""
        self._moved_s = time.monotonic()

    def late(self) -> bool:
        return time.monotonic() - self._moved_s > self.quiet_s


@dataclass(frozen=True)
class Identity:
    """Who joins, as it is said to every ps."""

    session: str
    role: pb.Role
    worker: int
    num_ps: int
    num_workers: int
    origin: str
    protocol_version: int
    parent_session: str = ""


class Stream:
    """One Exchange stream: requests go in by a queue that grpc's sender thread drains, replies come out by iteration."""

    def __init__(self, channel: grpc.Channel) -> None:
        method = METHODS["Exchange"]
        self._outbox: queue.SimpleQueue[Iterator[pb.Request] | None] = queue.SimpleQueue()
        self.watched: Watched | None = None
        self.fresh = True  # whether the session has still to be said on it
        self.call = channel.stream_stream(method.path, method.request.SerializeToString, method.reply.FromString)(
            self._requests()
        )

    def _requests(self) -> Iterator[pb.Request]:
        while (messages := self._outbox.get()) is not None:
            for message in messages:
                yield message
                if self.watched is not None:
                    self.watched.moved()

    def send(self, messages: Iterator[pb.Request]) -> None:
        """Send these, in the background."""
        self._outbox.put(messages)

    def receive(self) -> pb.Reply:
        """The next reply; grpc.RpcError if the stream breaks, also when it ends."""
        reply: pb.Reply = next(self.call)
        if self.watched is not None:
            self.watched.moved()
        return reply

    def close(self) -> None:
        self._outbox.put(None)
        self.call.cancel()


class Peer:
    """One ps, as one client sees it.

    `_lock` guards `_idle`, `_join_call` and `reply`; it is held while joining, so that only one thread joins, and never
    while an operation is under way.
    """

    def __init__(self, index: int, address: str, watchdog: Watchdog, connect_timeout_s: float) -> None:
        self.index, self.address = index, address
        self.reply = pb.JoinReply()
        self.watchdog = watchdog
        self._connect_timeout_s = connect_timeout_s
        self._channel = grpc.insecure_channel(address, options=CHANNEL_OPTIONS)
        self._lock = threading.Lock()
        self._idle: list[Stream] = []
        self._join_call: Any = None

    def __repr__(self) -> str:
        joined = self._join_call is not None and self._join_call.is_active()
        return (
            f"Peer(ps {self.index} at {self.address}, {'joined' if joined else 'not joined'}, {len(self._idle)} idle)"
        )

    def join(self, identity: Identity, run_id: str) -> pb.JoinReply:
        """Open the session, or take it up again where its connection broke. Waits for a ps that is not up yet."""
        with self._lock:
            if self._join_call is not None and self._join_call.is_active():
                return self.reply
            self._raise_if_ended()
            method = METHODS["Join"]
            request = pb.JoinRequest(
                protocol_version=identity.protocol_version,
                run_id=run_id,
                role=identity.role,
                worker=identity.worker,
                session=identity.session,
                parent_session=identity.parent_session,
                ps_index=self.index,
                num_ps=identity.num_ps,
                num_workers=identity.num_workers,
                origin=identity.origin,
            )
            stub = self._channel.unary_stream(method.path, method.request.SerializeToString, method.reply.FromString)
            call = stub(request, wait_for_ready=True)
            with self.watchdog.watch(call, self._connect_timeout_s) as watched:
                try:
                    self.reply = next(call)
                except grpc.RpcError as error:
                    if watched.expired:
                        raise self._no_answer() from None
                    raise self.translate(error, "join") from None
                except StopIteration:
                    raise PeerUnavailable(field="join", got="no answer", expected="a ps").at(
                        self.index, self.address
                    ) from None
            self._join_call = call
            return self.reply

    def _no_answer(self) -> ParameterServerError:
        return PeerUnavailable(
            field=f"ps {self.index}",
            got=f"no answer from {self.address} in {self._connect_timeout_s:g} s",
            expected="a ps that serves there",
            hint="See whether it is up and the address is right; the wait is set with connect_timeout_s.",
        ).at(self.index, self.address)

    def _raise_if_ended(self) -> None:
        """If the ps itself ended the session, what it said is the reason for everything that failed since."""
        if self._join_call is not None and not self._join_call.is_active():
            error = self.translate(self._join_call, "session")
            if not isinstance(error, PeerUnavailable):
                raise error

    def call(self, name: str, request: Any, timeout_s: float) -> Any:
        """A unary call with a deadline."""
        method = METHODS[name]
        stub = self._channel.unary_unary(method.path, method.request.SerializeToString, method.reply.FromString)
        try:
            return stub(request, timeout=timeout_s)
        except grpc.RpcError as error:
            raise self.translate(error, name.lower()) from None

    def wait_and_call(self, name: str, request: Any) -> Any:
        """A unary call to a ps that may not be up yet."""
        method = METHODS[name]
        stub = self._channel.unary_unary(method.path, method.request.SerializeToString, method.reply.FromString)
        try:
            return stub(request, timeout=self._connect_timeout_s, wait_for_ready=True)
        except grpc.RpcError as error:
            translated = self.translate(error, name.lower())
            raise self._no_answer() if isinstance(translated, WaitTimeout) else translated from None

    def take_stream(self) -> Stream:
        """An Exchange stream for one operation. Give it back, or close it if it broke."""
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return Stream(self._channel)

    def give_back(self, stream: Stream) -> None:
        with self._lock:
            self._idle.append(stream)

    def discard_idle(self) -> None:
        """Forget the streams at rest: their connection broke."""
        with self._lock:
            broken, self._idle = self._idle, []
        for stream in broken:
            stream.close()

    def translate(self, error: grpc.RpcError, doing: str) -> ParameterServerError:
        """The error as one of ours, saying which ps it came from."""
        return status.from_rpc_error(error, doing).at(self.index, self.address)

    def close(self) -> None:
        """End the session's stream and everything else on the channel."""
        with self._lock:
            for stream in self._idle:
                stream.close()
            self._idle.clear()
            if self._join_call is not None:
                self._join_call.cancel()
        self._channel.close()
