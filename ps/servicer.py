"""RPC in, RPC out: how does a message become a call on the shard, and its result a message?

Nothing is decided here. Every handler is a coroutine, so that a thousand waiting workers cost no thread. Errors of ours go
back as a trailing entry (unary) or in band (Exchange, whose stream outlives a refusal).

Next: ps/shard.py (what the calls do), ps/intake.py (what is refused about blocks), ps/server.py (who serves this).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import grpc
import grpc.aio

from protos import parameter_server_pb2 as pb
from protos import status
from protos.codec import PROTOCOL_VERSION, batches, dtype_of, sparse_blocks, wire_text
from protos.errors import InternalError, InvalidInput, NotJoined, ParameterServerError, ServerStopping, UnknownVariable
from protos.service import METHODS, SERVICE
from ps.accounting import PushResult
from ps.aggregation import Contribution
from ps.apply import AVERAGE
from ps.configuration import Configuration
from ps.consistency import Seat
from ps.initialization import Declaration
from ps.intake import Intake, partition_key, partition_message
from ps.membership import JoinFacts, Session
from ps.rules.options import averages
from ps.shard import Shard
from ps.sums import Totals
from ps.variable import Indices, Paged, Partition, ShardState

log = logging.getLogger("paramserver.ps")

Context = Any  # grpc.aio.ServicerContext: grpc ships no types
OUTCOMES = {"applied": pb.OUTCOME_APPLIED, "buffered": pb.OUTCOME_BUFFERED, "stale": pb.OUTCOME_STALE}
OUTCOMES["duplicate"] = pb.OUTCOME_DUPLICATE
PUSHES = (pb.OPERATION_PUSH, pb.OPERATION_PUSH_PULL)
SEATS = {pb.SEAT_UNDECIDED: Seat.UNDECIDED, pb.SEAT_COUNTED: Seat.COUNTED, pb.SEAT_PASSED_OVER: Seat.PASSED_OVER}


class Servicer:
    """The service over one shard. on_stop: called with a reason when a client asks the ps to stop."""

    def __init__(self, shard: Shard, ps_addresses: list[str], totals: Totals, on_stop: Callable[[str], None]) -> None:
        self.shard = shard
        self._totals = totals
        self._ps_addresses = ps_addresses
        self._on_stop = on_stop
        self._started_s = time.monotonic()
        self._closing = asyncio.Event()

    def handlers(self) -> grpc.GenericRpcHandler:
        """What a grpc server needs to serve this."""
        kinds: dict[str, tuple[Any, Any]] = {
            "Join": (grpc.unary_stream_rpc_method_handler, self._join),
            "Exchange": (grpc.stream_stream_rpc_method_handler, self._exchange),
            "Leave": (grpc.unary_unary_rpc_method_handler, _unary(self._leave)),
            "BeginInit": (grpc.unary_unary_rpc_method_handler, _unary(self._begin_init)),
            "Describe": (grpc.unary_unary_rpc_method_handler, _unary(self._describe)),
            "Status": (grpc.unary_unary_rpc_method_handler, _unary(self._status)),
            "Stop": (grpc.unary_unary_rpc_method_handler, _unary(self._stop)),
            "Sum": (grpc.unary_unary_rpc_method_handler, _unary(self._totals.serve)),
        }
        return grpc.method_handlers_generic_handler(
            SERVICE.full_name,
            {
                name: make(
                    behavior,
                    request_deserializer=METHODS[name].request.FromString,
                    response_serializer=METHODS[name].reply.SerializeToString,
                )
                for name, (make, behavior) in kinds.items()
            },
        )

    def close(self, reason: str) -> None:
        """Refuse what comes, answer what waits, end the sessions' streams with the reason."""
        self.shard.stop(reason)
        self._closing.set()

    # -- sessions and control ----------------------------------------------------------------------------------------

    async def _join(self, request: pb.JoinRequest, context: Context) -> None:
        facts = JoinFacts(
            session=request.session,
            worker=request.worker if request.role == pb.ROLE_WORKER else None,
            run_id=request.run_id,
            parent_session=request.parent_session,
            origin=request.origin,
            protocol_version=request.protocol_version,
            num_ps=request.num_ps,
            num_workers=request.num_workers,
            ps_index=request.ps_index,
        )
        try:
            session = self.shard.join(facts)
        except ParameterServerError as error:
            await _abort(context, error)
        try:
            await context.write(
                pb.JoinReply(
                    protocol_version=PROTOCOL_VERSION,
                    run_id=self.shard.membership.run_id,
                    generation=session.generation,
                    guard_nonfinite=self.shard.guard_nonfinite,
                    ps_index=self.shard.membership.ps_index,
                )
            )
            await self._closing.wait()
        finally:
            self.shard.disconnected(session.id)
        await _abort(context, ServerStopping(got=self.shard.stopping))

    async def _leave(self, request: pb.LeaveRequest) -> pb.LeaveReply:
        await self.shard.leave(request.session, request.reason)
        return pb.LeaveReply()

    async def _begin_init(self, request: pb.BeginInitRequest) -> pb.BeginInitReply:
        for variable in request.variables:
            dtype_of(variable.dtype, variable.name)
        declaration = Declaration(
            tuple((v.name, v.dtype, tuple(v.shape), v.trainable) for v in request.variables), request.partitioner
        )
        wanted = _configuration(request.configuration)
        grant, configuration, elementwise = await self.shard.begin_init(
            request.session, wanted, declaration, request.after_chief, request.wait_ms / 1000
        )
        return pb.BeginInitReply(
            granted=grant > 0, grant=grant, elementwise=elementwise, configuration=_configuration_message(configuration)
        )

    async def _describe(self, request: pb.DescribeRequest) -> pb.DescribeReply:
        state = self.shard.state
        return pb.DescribeReply(
            partitions=[partition_message(partition.key) for partition in state.partitions] if state else [],
            configuration=_configuration_message(self.shard.configuration),
            version=state.version if state else 0,
            initialized=state is not None,
            wants_gradient_norm=self.shard.wants_norm(),
            has_averages=self.shard.rule is not None and averages(self.shard.rule),
        )

    async def _status(self, request: pb.StatusRequest) -> pb.StatusReply:
        shard, state = self.shard, self.shard.state
        waiting = shard.waiting()
        clocks = shard.consistency.clocks if shard.consistency else {}
        return pb.StatusReply(
            ps_index=shard.membership.ps_index,
            run_id=shard.membership.run_id,
            protocol_version=PROTOCOL_VERSION,
            configuration=_configuration_message(shard.configuration),
            initialized=state is not None,
            version=state.version if state else 0,
            value_bytes=state.value_bytes if state else 0,
            slot_bytes=state.slot_bytes if state else 0,
            partitions=len(state.partitions) if state else 0,
            workers=[
                pb.WorkerStatus(
                    worker=index,
                    state=member.state,
                    generation=member.generation,
                    clock=clocks.get(index, 0),
                    origin=member.origin,
                    waiting_for=waiting.get(index, ""),
                )
                for index, member in shard.membership.members.items()
            ],
            counters=pb.Counters(**vars(shard.counters)),
            uptime_s=time.monotonic() - self._started_s,
            pid=os.getpid(),
            ps_addresses=self._ps_addresses,
            guard_nonfinite=shard.guard_nonfinite,
            learning_rate=shard.rule.rate_at(state.version) if shard.rule and state else 0.0,
        )

    async def _stop(self, request: pb.StopRequest) -> pb.StopReply:
        self._on_stop(" ".join(request.reason.split()) or "stopped by a client")
        return pb.StopReply()

    # -- values and gradients ----------------------------------------------------------------------------------------

    async def _exchange(self, unused: Any, context: Context) -> None:
        session_id = ""
        while True:
            request = await context.read()
            if request is grpc.aio.EOF:
                return
            session_id = request.header.session or session_id
            pushes = request.header.operation in PUSHES
            try:
                operation = _Operation(self.shard, session_id, request.header)
                error: ParameterServerError | None = None
            except ParameterServerError as refusal:
                operation, error = None, refusal
            while True:  # read to the operation's end in any case: the next operation begins there
                if operation is not None and error is None:
                    try:
                        for block in request.blocks:
                            operation.intake.add(block)
                    except ParameterServerError as refusal:
                        error = refusal
                if request.last:
                    break
                request = await context.read()
                if request is grpc.aio.EOF:
                    return
            del request
            if error is not None and pushes:
                self.shard.counters.refused += 1  # what the shard itself refuses, it counts
            if operation is not None and error is None:
                try:
                    answer, blocks = await operation.perform()
                except ParameterServerError as refusal:
                    error = refusal
                except Exception as bug:
                    log.exception("internal error in %s", operation)
                    error = InternalError(field="exchange", got=f"{type(bug).__name__}: {bug}", expected="an answer")
            if error is not None:
                log.debug("refused: %s", error)
                await context.write(pb.Reply(error=status.to_message(error), last=True))
                operation, error = None, None  # an error's traceback holds the gradient too
                continue
            with self.shard.reading(operation.session if operation is not None else None):
                for group, last in batches(blocks):
                    await context.write(pb.Reply(answer=answer, blocks=group, last=last))
            operation, blocks = None, iter(())  # a stream at rest holds no gradient and no old state


class _Operation:
    """One operation of an Exchange stream: its header checked, its blocks taken in, then performed."""

    def __init__(self, shard: Shard, session_id: str, header: pb.Header) -> None:
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
        performers: dict[int, Callable[[], Awaitable[tuple[pb.Answer, Iterator[pb.Block]]]]] = {
            pb.OPERATION_INIT: self._init,
            pb.OPERATION_PULL: self._pull,
            pb.OPERATION_PUSH: self._push,
            pb.OPERATION_PUSH_PULL: self._push_pull,
            pb.OPERATION_ASSIGN: self._assign,
        }
        if self.kind not in performers:
            raise InvalidInput(field="operation", got=self.kind, expected="init, pull, push, push_pull or assign")
        self.perform = performers[self.kind]

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
        if self.header.averages and not (self.shard.rule is not None and averages(self.shard.rule)):
            raise InvalidInput(
                field="averages",
                got="a pull of moving averages",
                expected="a rule that keeps them",
                hint="Give the rule use_ema=true.",
            )
        if self.header.seat not in SEATS:
            raise InvalidInput(field="seat", got=self.header.seat, expected="counted, passed over or undecided")

    def __repr__(self) -> str:
        return f"{pb.Operation.Name(self.kind)} by worker {self.session.worker}"

    async def _init(self) -> tuple[pb.Answer, Iterator[pb.Block]]:
        values = self.intake.values(everything=True)
        partitions = [Partition(key, values[index]) for index, key in enumerate(self.keys)]
        wanted = _configuration(self.header.configuration)
        version = await self.shard.initialize(self.session.id, self.header.grant, wanted, partitions)
        return pb.Answer(version=version), iter(())

    async def _assign(self) -> tuple[pb.Answer, Iterator[pb.Block]]:
        version = await self.shard.assign(self.session, self.intake.values(everything=False))
        return pb.Answer(version=version), iter(())

    async def _push(self) -> tuple[pb.Answer, Iterator[pb.Block]]:
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
        return await self.shard.push(self.session, header.sequence, header.version, contribution, SEATS[header.seat])

    async def _pull(self) -> tuple[pb.Answer, Iterator[pb.Block]]:
        state = await self.shard.pull(self.session, self.header.at_least, self.header.wait_ms / 1000)
        return pb.Answer(version=state.version), _value_blocks(state, self.header, self.intake.rows())

    async def _push_pull(self) -> tuple[pb.Answer, Iterator[pb.Block]]:
        result = await self._push_gradients()
        state = await self.shard.pull(self.session, self.header.at_least, self.header.wait_ms / 1000)
        answer = _answer(result)
        answer.version = state.version
        return answer, _value_blocks(state, self.header, {})


def _value_blocks(state: ShardState, header: pb.Header, rows: dict[int, Indices]) -> Iterator[pb.Block]:
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


def _pages(index: int, value: Paged) -> Iterator[pb.Block]:
    return (pb.Block(partition=index, page=number, data=page.tobytes()) for number, page in enumerate(value.pages))


def _answer(result: PushResult) -> pb.Answer:
    first = OUTCOMES[result.first] if result.first else pb.OUTCOME_UNSPECIFIED
    return pb.Answer(outcome=OUTCOMES[result.outcome], first=first, staleness=result.staleness, version=result.version)


def _configuration(message: pb.Configuration) -> Configuration:
    return Configuration(
        message.mode,
        message.slack if message.HasField("slack") else None,
        message.backup_workers if message.HasField("backup_workers") else None,
        message.rule,
    )


def _configuration_message(configuration: Configuration) -> pb.Configuration:
    return pb.Configuration(
        mode=configuration.mode,
        slack=configuration.slack,
        backup_workers=configuration.backup_workers,
        rule=configuration.rule,
    )


def _unary(method: Callable[[Any], Awaitable[Any]]) -> Callable[[Any, Context], Awaitable[Any]]:
    """A unary handler whose errors of ours cross the wire whole."""

    async def handle(request: Any, context: Context) -> Any:
        try:
            return await method(request)
        except ParameterServerError as error:
            await _abort(context, error)

    return handle


async def _abort(context: Context, error: ParameterServerError) -> None:
    await context.abort(status.STATUS[type(error)], wire_text(str(error)), status.to_trailer(error))
