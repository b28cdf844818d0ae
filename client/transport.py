"""How does a client talk to one ps? A channel, a session, unary calls, and a pool of Exchange streams.

A Peer turns everything that grpc can say into a typed error that names the ps and its address, and puts a deadline on every
wait. It can let go of all its grpc objects and make new ones, which is what a fork needs. It must not know variables or modes.

Next: client/exchange.py (what is said on a stream), client/watchdog.py (deadlines), client/fork.py (forks).
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import grpc

from client.fork import CutByFork, Gate
from client.sharing import Sharing
from client.watchdog import Watchdog, Watched
from protos import parameter_server_pb2 as pb
from protos import status
from protos.errors import ParameterServerError, PeerUnavailable, WaitTimeout
from protos.service import METHODS, OPTIONS

CHANNEL_OPTIONS = (
    *OPTIONS,
    ("grpc.use_local_subchannel_pool", 1),  # a channel made after a fork must not share the parent's connection
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 5000),  # in truth how long one attempt to connect may take at least
    ("grpc.max_reconnect_backoff_ms", 1000),
)


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

    def __init__(self, channel: grpc.Channel, gate: Gate) -> None:
        method = METHODS["Exchange"]
        self._gate = gate
        self._outbox: queue.SimpleQueue[Iterator[bytes] | None] = queue.SimpleQueue()
        self.watched: Watched | None = None
        self.fresh = True  # whether the session has still to be said on it
        self.sharing = Sharing()
        # Bytes in, bytes out: protos/wire.py puts these messages together, without protobuf's copies.
        self.call: Any = channel.stream_stream(method.path)(self._requests())

    def _requests(self) -> Iterator[bytes]:
        while (messages := self._outbox.get()) is not None:
            for message in messages:
                yield message
                if self.watched is not None:
                    self.watched.moved()

    def send(self, messages: Iterator[bytes]) -> None:
        """Send these, in the background."""
        self._outbox.put(messages)

    def receive(self) -> bytes:
        """The next reply's bytes. grpc.RpcError or StopIteration if the stream breaks or ends; CutByFork."""
        with self._gate.using_grpc():
            call = self.call
            if call is None:
                raise CutByFork
            reply: bytes = next(call)
        if self.watched is not None:
            self.watched.moved()
        return reply

    def close(self) -> None:
        """Cancel it, and let go of it."""
        self._outbox.put(None)
        self.sharing.close()
        call, self.call = self.call, None
        if call is not None:
            call.cancel()


class Peer:
    """One ps, as one client sees it.

    `_joining` lets one thread join at a time. `_lock` guards `_channel`, `_join_call`, `_streams`, `_idle` and `_calls`; it is
    never held while anything is waited for.
    """

    def __init__(
        self,
        index: int,
        address: str,
        watchdog: Watchdog,
        connect_timeout_s: float,
        gate: Gate | None = None,
        on_broken: Callable[[Peer], None] = lambda peer: None,
    ) -> None:
        self.index, self.address = index, address
        self.reply = pb.JoinReply()
        self.watchdog = watchdog
        self.gate = gate or Gate(suspend=self.close, resume=lambda: None)
        self._connect_timeout_s = connect_timeout_s
        self._on_broken = on_broken
        self._joining = threading.Lock()
        self._lock = threading.Lock()
        self._channel: Any = None
        self._join_call: Any = None
        self._streams: set[Stream] = set()
        self._idle: list[Stream] = []
        self._calls: set[Any] = set()
        self.shares_memory = True  # until it says that it cannot

    def __repr__(self) -> str:
        joined = "joined" if self.joined else "not joined"
        return f"Peer(ps {self.index} at {self.address}, {joined}, {len(self._idle)} idle)"

    @property
    def joined(self) -> bool:
        """Whether the session's stream stands."""
        return self._join_call is not None and self._join_call.is_active()

    # -- the session -------------------------------------------------------------------------------------------------

    def join(self, identity: Identity, run_id: str, within_s: float | None = None) -> pb.JoinReply:
        """Open the session, or take it up again where its connection broke. Waits for a ps that is not up yet."""
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
        within_s = min(self._connect_timeout_s, within_s or self._connect_timeout_s)
        if not self._joining.acquire(timeout=within_s):
            raise self._no_answer(within_s)
        try:
            while True:
                try:
                    with self.gate.using_grpc():
                        return self._join(request, within_s)
                except CutByFork:
                    continue
        finally:
            self._joining.release()

    def _join(self, request: pb.JoinRequest, within_s: float) -> pb.JoinReply:
        if self._join_call is not None and self._join_call.is_active():
            return self.reply
        self._raise_if_ended()
        method = METHODS["Join"]
        stub = self._open().unary_stream(method.path, method.request.SerializeToString, method.reply.FromString)
        call = stub(request, wait_for_ready=True)
        with self._lock:
            self._join_call = call
        with self.watchdog.watch(call, within_s) as watched:
            try:
                self.reply = next(call)
            except grpc.RpcError as error:
                self._join_call = None
                raise (self._no_answer(within_s) if watched.expired else self.translate(error, "join")) from None
            except StopIteration:
                self._join_call = None
                raise self._unavailable("join", "the end of the stream") from None
        call.add_done_callback(self._join_ended)
        return self.reply

    def _join_ended(self, call: Any) -> None:
        """The session's stream is over, as grpc says on a thread of its own; and not by us, for close() forgets it first."""
        if call is self._join_call:
            self._on_broken(self)

    def _raise_if_ended(self) -> None:
        """If the ps itself ended the session, what it said is the reason for everything that failed since."""
        if self._join_call is not None:
            error = self.translate(self._join_call, "session")
            if not isinstance(error, PeerUnavailable):
                raise error

    def _no_answer(self, within_s: float) -> ParameterServerError:
        return PeerUnavailable(
            field=f"ps {self.index}",
            got=f"no answer from {self.address} in {within_s:g} s",
            expected="a ps that serves there",
            hint="See whether it is up and the address is right; the wait is set with connect_timeout_s.",
        ).at(self.index, self.address)

    def _unavailable(self, doing: str, got: str) -> ParameterServerError:
        return PeerUnavailable(field=doing, got=got, expected="a ps that answers").at(self.index, self.address)

    # -- calls -------------------------------------------------------------------------------------------------------

    def call(self, name: str, request: Any, timeout_s: float, *, wait_for_ready: bool = False) -> Any:
        """A unary call with a deadline. Cut by a fork it is made again, as all of them can be."""
        while True:
            try:
                with self.gate.using_grpc():
                    return self._call(METHODS[name], request, timeout_s, wait_for_ready)
            except CutByFork:
                continue
            except grpc.RpcError as error:
                if self._join_call is not None and not self._join_call.is_active():
                    self._raise_if_ended()
                raise self.translate(error, name.lower()) from None

    def _call(self, method: Any, request: Any, timeout_s: float, wait_for_ready: bool) -> Any:
        stub = self._open().unary_unary(method.path, method.request.SerializeToString, method.reply.FromString)
        future = stub.future(request, timeout=timeout_s, wait_for_ready=wait_for_ready)
        with self._lock:
            self._calls.add(future)
        try:
            return future.result()
        except grpc.FutureCancelledError:
            raise CutByFork from None
        finally:
            with self._lock:
                self._calls.discard(future)

    def wait_and_call(self, name: str, request: Any) -> Any:
        """A unary call to a ps that may not be up yet."""
        try:
            return self.call(name, request, self._connect_timeout_s, wait_for_ready=True)
        except WaitTimeout:
            raise self._no_answer(self._connect_timeout_s) from None

    def take_stream(self) -> Stream:
        """An Exchange stream for one operation. Give it back, or close it if it broke."""
        with self._lock:
            if self._idle:
                return self._idle.pop()
        with self.gate.using_grpc():
            stream = Stream(self._open(), self.gate)
            with self._lock:
                self._streams.add(stream)
            return stream

    def give_back(self, stream: Stream) -> None:
        with self._lock:
            if stream in self._streams:
                self._idle.append(stream)

    def close_stream(self, stream: Stream) -> None:
        """It broke, or its operation was given up: nobody may use it again."""
        with self._lock:
            self._streams.discard(stream)
        stream.close()

    def discard_idle(self) -> None:
        """Forget the streams at rest: their connection broke."""
        with self._lock:
            broken, self._idle = self._idle, []
            self._streams.difference_update(broken)
        for stream in broken:
            stream.close()

    def translate(self, error: grpc.RpcError, doing: str) -> ParameterServerError:
        """The error as one of ours, saying which ps it came from."""
        return status.from_rpc_error(error, doing).at(self.index, self.address)

    # -- the channel -------------------------------------------------------------------------------------------------

    def _open(self) -> Any:
        with self._lock:
            if self._channel is None:
                self._channel = grpc.insecure_channel(self.address, options=CHANNEL_OPTIONS)
            return self._channel

    def close(self) -> None:
        """End everything and let go of every grpc object. The next call makes new ones."""
        with self._lock:
            channel, self._channel = self._channel, None
            join_call, self._join_call = self._join_call, None
            streams, self._streams = self._streams, set()
            calls = list(self._calls)
            self._idle.clear()
        for stream in streams:
            stream.close()
        for call in (*calls, join_call):
            if call is not None:
                call.cancel()
        if channel is not None:
            channel.close()
