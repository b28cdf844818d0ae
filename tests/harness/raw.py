"""How does a test say to a ps what no client of ours would say? The bare calls, without any check.

A RawPeer joins and speaks on one Exchange stream; `say` sends Requests as they are and returns the Replies up to the last
one. Used by tests/wire/test_raw.py.
"""

from __future__ import annotations

import queue
import secrets
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any

import grpc

from protos import parameter_server_pb2 as pb
from protos import status
from protos.codec import PROTOCOL_VERSION
from protos.service import METHODS, OPTIONS
from protos.wire import Block

DEADLINE_S = 30.0


class RawPeer:
    """One joined session on one ps, and one Exchange stream."""

    def __init__(
        self, address: str, *, worker: int | None = 0, ps: int = 0, num_ps: int = 1, num_workers: int = 1
    ) -> None:
        self.session = secrets.token_hex(8)
        self.channel = grpc.insecure_channel(address, options=OPTIONS)
        role = pb.ROLE_OBSERVER if worker is None else pb.ROLE_WORKER
        self.join_request = pb.JoinRequest(
            protocol_version=PROTOCOL_VERSION,
            role=role,
            worker=worker or 0,
            session=self.session,
            ps_index=ps,
            num_ps=num_ps,
            num_workers=num_workers,
            origin="a raw peer",
        )
        self._join = self.stream("Join")(self.join_request)
        self.joined = next(self._join)
        self._outbox: queue.SimpleQueue[pb.Request | None] = queue.SimpleQueue()
        exchange = METHODS["Exchange"]
        self._replies = self.channel.stream_stream(
            exchange.path, exchange.request.SerializeToString, exchange.reply.FromString
        )(iter(self._outbox.get, None), timeout=DEADLINE_S)

    def __enter__(self) -> RawPeer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._outbox.put(None)
        self._join.cancel()
        self._replies.cancel()
        self.channel.close()

    def stream(self, name: str) -> Any:
        method = METHODS[name]
        return self.channel.unary_stream(method.path, method.request.SerializeToString, method.reply.FromString)

    def call(self, name: str, request: Any) -> Any:
        """A unary call; an error of ours is raised as what it is."""
        method = METHODS[name]
        stub = self.channel.unary_unary(method.path, method.request.SerializeToString, method.reply.FromString)
        try:
            return stub(request, timeout=DEADLINE_S)
        except grpc.RpcError as error:
            raise status.from_rpc_error(error, name) from None

    def call_stream(self, name: str, request: Any) -> Any:
        """The first reply of a streaming call."""
        try:
            return next(self.stream(name)(request, timeout=DEADLINE_S))
        except grpc.RpcError as error:
            raise status.from_rpc_error(error, name) from None

    def call_bytes(self, name: str, request: bytes) -> bytes:
        """A call with these bytes in place of a message."""
        path = METHODS[name].path
        try:
            if name == "Exchange":
                reply: bytes = next(self.channel.stream_stream(path)(iter([request]), timeout=DEADLINE_S))
            else:
                reply = self.channel.unary_unary(path)(request, timeout=DEADLINE_S)
        except grpc.RpcError as error:
            raise status.from_rpc_error(error, name) from None
        return reply

    def say(self, *requests: pb.Request) -> list[pb.Reply]:
        """Send these, the last of which ends an operation, and return the replies; an error in band is raised."""
        for request in requests:
            self._outbox.put(request)
        return list(self._until_last())

    def begin(self, request: pb.Request) -> None:
        """Send this and wait for nothing: an operation that may never end."""
        self._outbox.put(request)

    def _until_last(self) -> Iterator[pb.Reply]:
        while True:
            reply = next(self._replies)
            if reply.HasField("error"):
                raise status.from_message(reply.error)
            yield reply
            if reply.last:
                return

    def operation(
        self, operation: pb.Operation, blocks: Sequence[pb.Block | Block] = (), **header: Any
    ) -> list[pb.Reply]:
        """One operation in one Request. session: as given, else this peer's."""
        header.setdefault("session", self.session)
        messages = [pb.Block(**_bytes(block)) if isinstance(block, Block) else block for block in blocks]
        return self.say(pb.Request(header=pb.Header(operation=operation, **header), blocks=messages, last=True))


def _bytes(block: Block) -> dict[str, Any]:
    return block._asdict() | {"data": bytes(block.data), "indices": bytes(block.indices)}
