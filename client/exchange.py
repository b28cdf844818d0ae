"""What is said on an Exchange stream: one operation sent, its reply received, and tried again when the connection breaks.

begin() sends without waiting, finish() waits: so a client begins an operation on every ps and then collects. Trying again is
safe because a push carries its sequence, and everything else can be repeated. It must not know what the blocks mean.

Next: client/transport.py (the stream itself), client/client.py (who begins and finishes).
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator

import grpc

from client.fork import CutByFork
from client.outgoing import MakeBlocks
from client.receiver import Receiver
from client.retry import Retry
from client.transport import Peer, Stream
from protos import parameter_server_pb2 as pb
from protos import status
from protos.codec import batches
from protos.errors import InternalError, ParameterServerError, PeerUnavailable, WaitTimeout
from protos.wire import DecodeError, decode_reply, encode_request

# One for all: seeding a generator for each exchange cost as much as a small exchange itself.
_rng = random.Random()


class Exchange:
    """One operation on one ps.

    header: its sequence is what makes a second try safe. quiet_s: how long nothing may move before it is given up.
    receiver: takes the blocks of the reply, if any are expected. rejoin: joins again, in a time.
    shard_bytes: how much a push or a reply may carry, for which shared memory is worth having; 0 for none.
    """

    def __init__(
        self,
        peer: Peer,
        header: pb.Header,
        session: str,
        blocks: MakeBlocks,
        receiver: Receiver | None,
        *,
        quiet_s: float,
        rejoin: Callable[[Peer, float | None], object],
        shard_bytes: int = 0,
    ) -> None:
        self.peer, self.header, self.session, self.blocks, self.receiver = peer, header, session, blocks, receiver
        self._quiet_s, self._rejoin, self._shard_bytes = quiet_s, rejoin, shard_bytes
        self._stream: Stream | None = None
        self._broken_by: ParameterServerError = PeerUnavailable()

    def begin(self) -> Exchange:
        """Send the operation, in the background."""
        while self._stream is None:
            with contextlib.suppress(CutByFork):
                self._stream = self.peer.take_stream()
        self._stream.send(self._requests(self._stream, self._header(self._stream)))
        return self

    def _header(self, stream: Stream) -> pb.Header:
        """The operation's header with what this stream has to say besides."""
        header = pb.Header()
        header.CopyFrom(self.header)
        if stream.fresh:
            header.session, stream.fresh = self.session, False
        if self.peer.shares_memory and (offer := stream.sharing.offer(self._shard_bytes)) is not None:
            header.segment.CopyFrom(offer)
        if self.receiver is not None:
            header.reply_offset, header.reply_bytes = stream.sharing.reply_place()
        return header

    def _requests(self, stream: Stream, header: pb.Header) -> Iterator[bytes]:
        first = True
        for group, last in batches(stream.sharing.filled(self.blocks())):
            yield encode_request(header if first else None, group, last)
            first = False

    def abandon(self) -> None:
        """Give it up: another ps has refused. The stream is closed, as a reply may still come on it."""
        if self._stream is not None:
            self.peer.close_stream(self._stream)
            self._stream = None

    def finish(self, retry: Retry) -> pb.Answer:
        """The answer, when the whole reply is here. A broken connection is tried again within the retry's budget."""
        delays = retry.delays(_rng)
        gives_up_s = 0.0
        while True:
            try:
                return self._receive()
            except CutByFork:
                self._again()
            except PeerUnavailable as broken:
                now_s = time.monotonic()
                gives_up_s = gives_up_s or now_s + retry.budget_s
                delay_s = next(delays, None)
                if delay_s is None or now_s + delay_s >= gives_up_s:
                    broken.hint = f"Gave up after trying again for {retry.budget_s:g} s."
                    raise
                time.sleep(delay_s)
                self.peer.discard_idle()
                with contextlib.suppress(PeerUnavailable):  # the next round sees the same, until the budget is spent
                    self._again(gives_up_s - now_s - delay_s)

    def _again(self, within_s: float | None = None) -> None:
        self._rejoin(self.peer, within_s)
        self.begin()

    def _receive(self) -> pb.Answer:
        stream = self._stream
        if stream is None:
            raise self._broken_by  # and could not be mended yet
        if self.receiver is not None:
            self.receiver.start(self.peer.index)
        answer = pb.Answer()
        with self.peer.watchdog.watch(stream.call, self._quiet_s) as watched:
            stream.watched = watched
            try:
                while True:
                    reply = decode_reply(stream.receive())
                    if reply.error is not None:
                        stream.sharing.refused()
                        raise status.from_message(reply.error).at(self.peer.index, self.peer.address)
                    if reply.answer is not None:
                        answer = reply.answer
                        self._hear_of_memory(stream, answer.segment_mapped)
                    if self.receiver is not None:
                        for block in reply.blocks:
                            self.receiver.take(self.peer.index, stream.sharing.fetched(block))
                    if reply.last:
                        break
                if self.receiver is not None:
                    self.receiver.finish()
            except ParameterServerError:
                self._release(stream)  # refused in band: the stream is at the end of the operation
                raise
            except DecodeError as error:
                self.abandon()
                raise self._garbled(error) from None
            except (grpc.RpcError, StopIteration) as error:
                self.abandon()
                self._broken_by = self._broken(error, watched.expired)
                raise self._broken_by from None
            except BaseException:
                self.abandon()  # a fork, or KeyboardInterrupt: a reply may still come, so nobody may use it again
                raise
        self._release(stream)
        return answer

    def _hear_of_memory(self, stream: Stream, mapped: bool) -> None:
        """The first answer after an offer says whether the ps could take it."""
        if stream.sharing.offered:
            stream.sharing.answered(mapped)
            self.peer.shares_memory = mapped

    def _release(self, stream: Stream) -> None:
        stream.watched = None
        self._stream = None
        self.peer.give_back(stream)

    def _garbled(self, error: DecodeError) -> ParameterServerError:
        return InternalError(
            field="reply",
            got=f"bytes that are no message ({error})",
            expected="a Reply",
            hint="Is it a ps that answers?",
        ).at(self.peer.index, self.peer.address)

    def _broken(self, error: grpc.RpcError | StopIteration, expired: bool) -> ParameterServerError:
        at = self.peer.index, self.peer.address
        doing = pb.Operation.Name(self.header.operation).removeprefix("OPERATION_").lower()
        if expired:
            return WaitTimeout(
                field=doing,
                got=f"nothing for {self._quiet_s:g} s",
                expected="an answer",
                hint="See whether that ps is stuck.",
            ).at(*at)
        if isinstance(error, StopIteration):
            return PeerUnavailable(field=doing, got="the end of the stream", expected="an answer").at(*at)
        return self.peer.translate(error, doing)
