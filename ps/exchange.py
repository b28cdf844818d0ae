"""How do values and gradients come and go on a stream? One operation at a time: header, blocks, answer.

An operation is read to its end whatever is wrong with it, as the next one begins there; what it is refused for goes back in
band, so that the stream outlives it. Nothing is decided here.

Next: protos/wire.py (the messages), ps/intake.py (what is refused about blocks), ps/shard.py (what the operations do).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import grpc.aio
import numpy as np

from protos import parameter_server_pb2 as pb
from protos import status
from protos.codec import batches, sparse_blocks
from protos.errors import InternalError, InvalidInput, NotJoined, ParameterServerError, RuleFailed, UnknownVariable
from protos.segment import Address, Region, Segment, placed
from protos.wire import Block, Buffer, DecodeError, Request, decode_request, encode_reply
from ps.accounting import PushResult
from ps.admission import Admission
from ps.aggregation import Contribution
from ps.apply import AVERAGE
from ps.configuration import Configuration
from ps.consistency import Seat
from ps.faults import log_once
from ps.intake import Intake, partition_key
from ps.membership import Session
from ps.rules.options import averages
from ps.shard import Shard
from ps.updates import INLINE_BYTES
from ps.variable import Indices, Paged, Partition, ShardState

log = logging.getLogger("paramserver.ps")

Context = Any  # grpc.aio.ServicerContext: grpc ships no types
OUTCOMES = {"applied": pb.OUTCOME_APPLIED, "buffered": pb.OUTCOME_BUFFERED, "stale": pb.OUTCOME_STALE}
OUTCOMES["duplicate"] = pb.OUTCOME_DUPLICATE
PUSHES = (pb.OPERATION_PUSH, pb.OPERATION_PUSH_PULL)
SEATS = {pb.SEAT_UNDECIDED: Seat.UNDECIDED, pb.SEAT_COUNTED: Seat.COUNTED, pb.SEAT_PASSED_OVER: Seat.PASSED_OVER}
NO_HEADER = pb.Header()
LEAST_SCALE, MOST_SCALE = float(np.finfo(np.float32).smallest_normal), float(np.finfo(np.float32).max)
# How long a push that is let in may say nothing before its place goes to another. It is read on, if it goes on.
STALL_S = 1.0


class Exchanges:
    """The Exchange streams of one shard. shared_memory: whether to take what clients on this host offer."""

    def __init__(self, shard: Shard, *, shared_memory: bool = True) -> None:
        self.shard = shard
        self.shared_memory = shared_memory
        self.admission = Admission()
        self._streams: set[_Stream] = set()

    async def handle(self, unused: Any, context: Context) -> None:
        """One stream, from its first message to its end."""
        stream = _Stream(self.shard, context, self.admission, self.shared_memory)
        self._streams.add(stream)
        try:
            while await stream.operation():
                pass
        finally:
            self._streams.discard(stream)

    def with_shared_memory(self) -> set[str]:
        """The sessions that have a stream with shared memory."""
        return {stream.session_id for stream in self._streams if stream.segment is not None}


class _Stream:
    """One stream: whose it is, and the shared memory that goes with it."""

    def __init__(self, shard: Shard, context: Context, admission: Admission, shared_memory: bool) -> None:
        self.shard, self.context, self._admission = shard, context, admission
        self._admitted_bytes = 0
        self.session_id = ""
        self.segment: Segment | None = None
        self._may_share = shared_memory

    async def operation(self) -> bool:
        """Take one operation and answer it; False at the end of the stream."""
        try:
            return await self._operation()
        finally:
            self._taken()

    def _taken(self) -> None:
        """What was sent has reached the shard, or will not: another may be read."""
        admitted, self._admitted_bytes = self._admitted_bytes, 0
        if admitted:
            self._admission.leave(admitted)

    async def _may_be_long(self) -> None:
        """A push in several messages begins, or one that grows when it is decoded: there is room for so many at a time."""
        state = self.shard.state
        shard_bytes = state.value_bytes if state is not None else 0
        await self._admission.enter(shard_bytes, shard_bytes)
        self._admitted_bytes = shard_bytes

    async def _following(self) -> Request | None:
        """The operation's next message. A sender that has stopped on its way keeps nobody else waiting."""
        stalled = asyncio.get_running_loop().call_later(STALL_S, self._taken)
        try:
            return await _next_request(self.context)
        finally:
            stalled.cancel()

    async def _operation(self) -> bool:
        request = await _next_request(self.context)
        if request is None:
            return False
        header = request.header or NO_HEADER
        self.session_id = header.session or self.session_id
        operation: _Operation | None = None
        region: Region | None = None
        error: ParameterServerError | None = None
        try:
            operation = _Operation(self.shard, self.session_id, header, self._taken)
            region = self._reply_region(header)
        except ParameterServerError as refusal:
            error = refusal.with_traceback(None)  # which would keep the gradient
        long = not request.last or any(block.encoding for block in request.blocks)
        if long and operation is not None and header.operation in PUSHES:
            await self._may_be_long()
        while True:  # read to the operation's end in any case: the next operation begins there
            if operation is not None and error is None:
                try:
                    for block in request.blocks:
                        operation.intake.add(self._fetched(block, operation) if block.shared_bytes else block)
                except ParameterServerError as refusal:
                    error = refusal.with_traceback(None)
            if request.last:
                break
            following = await self._following()
            if following is None:
                return False
            request = following
        del request
        if error is not None and header.operation in PUSHES:
            self.shard.counters.refused += 1  # what the shard itself refuses, it counts
        if operation is not None and error is None:
            try:
                answer, blocks = await operation.perform()
            except ParameterServerError as refusal:
                error = refusal.with_traceback(None)
            except Exception as bug:
                log.exception("internal error in %s", operation)
                error = InternalError(field="exchange", got=f"{type(bug).__name__}: {bug}", expected="an answer")
        if error is not None:
            log.debug("refused: %s", error)
            if isinstance(error, RuleFailed):
                log_once(error)
            await self.context.write(pb.Reply(error=status.to_message(error), last=True).SerializeToString())
            return True
        assert operation is not None
        with self.shard.reading(operation.session):
            if region is not None:
                blocks = await self._shared(region, header.reply_bytes, blocks)
            first: pb.Answer | None = answer
            if header.HasField("segment"):
                answer.segment_mapped = self._map(header.segment)
            for group, last in batches(blocks):
                await self.context.write(encode_reply(first, group, last))
                first = None
        return True  # and nothing of the operation is kept: a stream at rest holds no gradient and no old state

    # -- shared memory -----------------------------------------------------------------------------------------------

    def _map(self, offered: pb.Segment) -> bool:
        """Take the shared memory that the client offers, if it can be had."""
        if not self._may_share:
            return False
        try:
            self.segment = Segment.open(Address(offered.pid, offered.fd, offered.nbytes, offered.nonce, offered.host))
        except (OSError, ValueError) as error:
            log.debug("no shared memory with %s: %s", self.session_id, error)
            return False
        return True

    def _fetched(self, block: Block, operation: _Operation) -> Block:
        """The block with its data as it lies in shared memory, or a copy of it where it outlives the operation."""
        if self.segment is None:
            raise InvalidInput(field="shared memory", got="a block in it", expected="a stream that has some")
        data: Buffer = self.segment.at(block.shared_offset, block.shared_bytes)
        return block._replace(data=data if operation.is_over_when_answered else bytes(data), shared_bytes=0)

    def _reply_region(self, header: pb.Header) -> Region | None:
        """Where in shared memory the client wants the reply's values; None for in the reply."""
        if not header.reply_bytes:
            return None
        if self.segment is None:
            raise InvalidInput(field="shared memory", got="a reply in it", expected="a stream that has some")
        return Region(self.segment, header.reply_offset, header.reply_bytes)

    async def _shared(self, region: Region, nbytes: int, blocks: Iterator[Block]) -> Iterator[Block]:
        """The blocks, with as much of their data in that region as fits."""
        filled = placed(blocks, region)
        if nbytes <= INLINE_BYTES:
            return filled
        first = await asyncio.get_running_loop().run_in_executor(
            None, next, filled, None
        )  # all is copied before the first
        return iter(()) if first is None else itertools.chain([first], filled)


async def _next_request(context: Context) -> Request | None:
    """The next message; None at the end of the stream. What is no message ends the call with a typed error."""
    data = await context.read()
    if data is grpc.aio.EOF:
        return None
    try:
        return decode_request(data)
    except DecodeError as error:
        refusal = InvalidInput(field="request", got=f"bytes that are no message ({error})", expected="a Request")
        await status.abort(context, refusal)
        return None


class _Operation:
    """One operation of an Exchange stream: its header checked, its blocks taken in, then performed."""

    def __init__(self, shard: Shard, session_id: str, header: pb.Header, taken: Callable[[], None]) -> None:
        self._taken = taken
        if not session_id:
            raise NotJoined(field="session", got="none", expected="a joined session", hint="Join first.")
        self.shard = shard
        self.session: Session[PushResult] = shard.membership.session(session_id)
        self.header = header
        self.kind = header.operation
        if self.kind == pb.OPERATION_INIT:
            self.keys = [partition_key(spec) for spec in header.table]
        else:
            self.keys = [partition.key for partition in shard.ready_state().partitions]
        self._check_header()
        self.intake = Intake(self.keys, gradients=self.kind in PUSHES)
        if self.kind not in PERFORMERS:
            raise InvalidInput(field="operation", got=self.kind, expected="init, pull, push, push_pull or assign")

    async def perform(self) -> tuple[pb.Answer, Iterator[Block]]:
        """Do it: the answer, and the values that go with it."""
        return await PERFORMERS[self.kind](self)

    def _check_header(self) -> None:
        bad = next((partition for partition in self.header.partitions if partition >= len(self.keys)), None)
        if bad is not None:
            raise UnknownVariable(
                field="partition", got=bad, expected=f"an id below {len(self.keys)}", hint="Describe again."
            )
        for field in ("weight", "gradient_scale", "gradient_norm"):
            number = getattr(self.header, field)
            if number < 0 or not (math.isfinite(number) or field == "gradient_norm"):
                raise InvalidInput(field=field, got=number, expected="a finite number above 0")
        scale = self.header.gradient_scale
        if scale and not LEAST_SCALE <= scale <= MOST_SCALE:  # else all would become 0, or infinite
            expected = f"{LEAST_SCALE:g} to {MOST_SCALE:g}: gradients are divided in float32"
            raise InvalidInput(field="gradient_scale", got=scale, expected=expected)
        if self.header.averages and not (self.shard.rule is not None and averages(self.shard.rule)):
            raise InvalidInput(
                field="averages",
                got="a pull of moving averages",
                expected="a rule that keeps them",
                hint="Give the rule use_ema=true.",
            )
        if self.header.seat not in SEATS:
            raise InvalidInput(field="seat", got=self.header.seat, expected="counted, passed over or undecided")

    @property
    def is_over_when_answered(self) -> bool:
        """Whether nothing refers to what was sent once the answer is on its way: a gradient that was applied, not held."""
        return self.kind in PUSHES and self.shard.configuration.mode != "sync"

    def __repr__(self) -> str:
        return f"{pb.Operation.Name(self.kind)} by worker {self.session.worker}"

    async def _init(self) -> tuple[pb.Answer, Iterator[Block]]:
        values = self.intake.values()
        partitions = [Partition(key, values[index]) for index, key in enumerate(self.keys)]
        wanted = configuration_of(self.header.configuration)
        version = await self.shard.initialize(self.session.id, self.header.grant, wanted, partitions)
        return pb.Answer(version=version), iter(())

    async def _assign(self) -> tuple[pb.Answer, Iterator[Block]]:
        version = await self.shard.assign(self.session, self.intake.assigned())
        return pb.Answer(version=version), iter(())

    async def _push(self) -> tuple[pb.Answer, Iterator[Block]]:
        return _answer(await self._push_gradients()), iter(())

    async def _push_gradients(self) -> PushResult:
        header = self.header
        try:
            gradients = self.intake.gradients(
                guard_nonfinite=self.shard.guard_nonfinite, scale=header.gradient_scale or 1.0
            )
        except ParameterServerError:
            self.shard.counters.refused += 1
            raise
        norm = header.gradient_norm / (header.gradient_scale or 1.0) if header.HasField("gradient_norm") else None
        contribution = Contribution(gradients, header.weight or 1.0, norm)
        result = await self.shard.push(self.session, header.sequence, header.version, contribution, SEATS[header.seat])
        self._taken()
        return result

    async def _pull(self) -> tuple[pb.Answer, Iterator[Block]]:
        state = await self.shard.pull(self.session, self.header.at_least, self.header.wait_ms / 1000)
        return pb.Answer(version=state.version), _value_blocks(state, self.header, self.intake.rows())

    async def _push_pull(self) -> tuple[pb.Answer, Iterator[Block]]:
        result = await self._push_gradients()
        state = await self.shard.pull(self.session, self.header.at_least, self.header.wait_ms / 1000)
        answer = _answer(result)
        answer.version = state.version
        return answer, _value_blocks(state, self.header, {})


# Not kept as bound methods: an operation that refers to itself keeps its gradient until garbage is collected.
PERFORMERS: dict[int, Callable[[_Operation], Awaitable[tuple[pb.Answer, Iterator[Block]]]]] = {
    pb.OPERATION_INIT: _Operation._init,
    pb.OPERATION_PULL: _Operation._pull,
    pb.OPERATION_PUSH: _Operation._push,
    pb.OPERATION_PUSH_PULL: _Operation._push_pull,
    pb.OPERATION_ASSIGN: _Operation._assign,
}


def _value_blocks(state: ShardState, header: pb.Header, rows: dict[int, Indices]) -> Iterator[Block]:
    """The values that a pull asked for."""
    wanted: Iterator[int] | list[int] = list(header.partitions)
    if not wanted and not header.by_rows:
        wanted = list(range(len(state.partitions)))
    dense = itertools.chain.from_iterable(_pages(index, _wanted(state.partitions[index], header)) for index in wanted)
    sparse = itertools.chain.from_iterable(
        sparse_blocks(index, indices, _wanted(state.partitions[index], header).rows(indices))
        for index, indices in rows.items()
    )
    return itertools.chain(dense, sparse)


def _wanted(partition: Partition, header: pb.Header) -> Paged:
    """The value, or its moving average in the value's dtype; state that is not trainable has no average."""
    if not header.averages or AVERAGE not in partition.slots:
        return partition.value
    dtype = partition.value.dtype
    pages = tuple(page.astype(dtype, copy=False) for page in partition.slots[AVERAGE].pages)
    return Paged(partition.value.shape, dtype, pages)


def _pages(index: int, value: Paged) -> Iterator[Block]:
    return (Block(index, number, page.view(np.uint8).data) for number, page in enumerate(value.pages))


def _answer(result: PushResult) -> pb.Answer:
    first = OUTCOMES[result.first] if result.first else pb.OUTCOME_UNSPECIFIED
    return pb.Answer(outcome=OUTCOMES[result.outcome], first=first, staleness=result.staleness, version=result.version)


def configuration_of(message: pb.Configuration) -> Configuration:
    """A configuration as the wire has it."""
    return Configuration(
        message.mode,
        message.slack if message.HasField("slack") else None,
        message.backup_workers if message.HasField("backup_workers") else None,
        message.rule,
    )
