"""RPC in, RPC out: how does a message become a call on the shard, and its result a message?

Nothing is decided here. Every handler is a coroutine, so that a thousand waiting workers cost no thread. Errors of ours go
back as a trailing entry.

Next: ps/exchange.py (values and gradients), ps/shard.py (what the calls do), ps/server.py (who serves this).
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from protos import parameter_server_pb2 as pb
from protos import status
from protos.codec import PROTOCOL_VERSION, dtype_of
from protos.errors import ParameterServerError, ServerStopping
from protos.service import METHODS, SERVICE
from ps.configuration import Configuration
from ps.exchange import Exchanges, configuration_of
from ps.initialization import Declaration
from ps.intake import partition_message
from ps.membership import JoinFacts
from ps.rules import make_rule
from ps.rules.options import averages, may_be_cut
from ps.shard import Shard
from ps.sums import Totals

log = logging.getLogger("paramserver.ps")

Context = Any  # grpc.aio.ServicerContext: grpc ships no types


class Servicer:
    """The service over one shard. on_stop: called with a reason when a client asks the ps to stop."""

    def __init__(
        self,
        shard: Shard,
        ps_addresses: list[str],
        totals: Totals,
        exchanges: Exchanges,
        on_stop: Callable[[str], None],
    ) -> None:
        self.shard = shard
        self._totals = totals
        self._exchange = exchanges
        self._ps_addresses = ps_addresses
        self._on_stop = on_stop
        self._started_s = time.monotonic()
        self._closing = asyncio.Event()

    def handlers(self) -> grpc.GenericRpcHandler:
        """What a grpc server needs to serve this."""
        kinds: dict[str, tuple[Any, Any]] = {
            "Join": (grpc.unary_stream_rpc_method_handler, self._join),
            "Exchange": (grpc.stream_stream_rpc_method_handler, self._exchange.handle),
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
                    request_deserializer=None if name == "Exchange" else METHODS[name].request.FromString,
                    response_serializer=None if name == "Exchange" else METHODS[name].reply.SerializeToString,
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
            await status.abort(context, error)
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
        await status.abort(context, ServerStopping(got=self.shard.stopping))

    async def _leave(self, request: pb.LeaveRequest) -> pb.LeaveReply:
        await self.shard.leave(request.session, request.reason)
        return pb.LeaveReply()

    async def _begin_init(self, request: pb.BeginInitRequest) -> pb.BeginInitReply:
        for variable in request.variables:
            dtype_of(variable.dtype, variable.name)
        declaration = Declaration(
            tuple((v.name, v.dtype, tuple(v.shape), v.trainable) for v in request.variables), request.partitioner
        )
        wanted = configuration_of(request.configuration)
        grant, configuration, elementwise = await self.shard.begin_init(
            request.session, wanted, declaration, request.after_chief, request.wait_ms / 1000
        )
        return pb.BeginInitReply(
            granted=grant > 0,
            grant=grant,
            elementwise=elementwise,
            packed=bool(configuration.rule) and may_be_cut(make_rule(configuration.rule)),
            configuration=_configuration_message(configuration),
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
        sessions = shard.membership.sessions
        sharing = {sessions[id].worker for id in self._exchange.with_shared_memory() if id in sessions}
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
            partitions=sum(len(partition.key.parts) for partition in state.partitions) if state else 0,
            workers=[
                pb.WorkerStatus(
                    worker=index,
                    state=member.state,
                    generation=member.generation,
                    clock=clocks.get(index, 0),
                    origin=member.origin,
                    waiting_for=waiting.get(index, ""),
                    shared_memory=index in sharing,
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
            await status.abort(context, error)

    return handle
