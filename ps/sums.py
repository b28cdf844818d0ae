"""How do several shards agree on a number that each knows a part of, such as the norm of the whole model's gradient?

Every ps sends its part to ps 0, which adds them up in the order of the ps and answers all of them: the same bits
everywhere. Only steps of sync mode need it: all shards make step t of the same contributions, so each part of it comes from
every ps. In the other modes the sender of a gradient knows the whole of it, and says the norm.

A step that has asked for a sum ends with a sum of nothing, which says that every ps could make it: all of them make it, or
none. Every wait is bounded, and a shard that fails says so, so that the others fail at once. It must not know what the
numbers mean. Next: ps/apply.py (who asks), ps/updates.py (who lets them).
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import grpc.aio
import numpy as np
import numpy.typing as npt

from protos import parameter_server_pb2 as pb
from protos import status
from protos.codec import wire_text
from protos.errors import InvalidInput, RuleFailed, WrongRun
from protos.service import METHODS, OPTIONS
from ps.membership import Membership

log = logging.getLogger("paramserver.ps")

Parts = npt.NDArray[np.float64]

# The part of the sum that ends a step.
DONE: Parts = np.empty(0)
# How long a shard waits for the others' parts of a step that it has all gradients for.
WAIT_S = 30.0
# How long it tries to say that it cannot make one: pushes wait meanwhile.
FAILURE_S = 2.0
# How many sums, and failures to make one, are remembered: for a ps that asks again, or late.
KEPT = 64


class Key(NamedTuple):
    """Of which step, after how many failures of it, and the so-manieth sum that it takes."""

    version: int
    attempt: int
    number: int


@dataclass
class _Pending:
    parts: dict[int, Parts] = field(default_factory=dict)
    done: asyncio.Event = field(default_factory=asyncio.Event)
    sums: Parts | None = None
    failure: str = ""


class Adder:
    """On ps 0: takes the parts of all ps and gives each the sums."""

    def __init__(self, num_ps: int) -> None:
        self._num_ps = num_ps
        self._pending: dict[Key, _Pending] = {}
        self._finished: OrderedDict[Key, Parts] = OrderedDict()
        self._failed: OrderedDict[Key, str] = OrderedDict()

    async def add(self, ps_index: int, key: Key, parts: Parts, wait_s: float = WAIT_S) -> Parts:
        """The sums, when every ps has sent its part; RuleFailed, naming the ps that are missing, if they do not come."""
        if (finished := self._already(key)) is not None:
            return finished
        if key in self._failed:
            raise _no_sum(key, self._failed[key])
        pending = self._pending.setdefault(key, _Pending())
        if any(other.shape != parts.shape for other in pending.parts.values()):
            self._end(key, pending, failure=f"ps {ps_index} sent {parts.shape[0]} numbers, others another count")
        else:
            pending.parts[ps_index] = parts
            if len(pending.parts) == self._num_ps:
                pending.sums = np.sum([pending.parts[index] for index in range(self._num_ps)], axis=0)
                self._finished[key] = pending.sums
                _forget_oldest(self._finished)
                self._end(key, pending)
        try:
            await asyncio.wait_for(pending.done.wait(), wait_s)
        except asyncio.TimeoutError:
            missing = [f"ps {index}" for index in range(self._num_ps) if index not in pending.parts]
            self._end(key, pending, failure=f"nothing from {', '.join(missing)} in {wait_s:g} s")
        if pending.sums is None:
            raise _no_sum(key, pending.failure)
        return pending.sums

    def fail(self, ps_index: int, key: Key, failure: str) -> None:
        """This ps cannot make the step: tell those who wait for its part."""
        pending = self._pending.setdefault(key, _Pending())
        self._end(key, pending, failure=f"ps {ps_index} failed: {failure}")

    def _end(self, key: Key, pending: _Pending, failure: str = "") -> None:
        if failure:
            pending.failure = self._failed[key] = failure  # remembered for those whose part is still on its way
            _forget_oldest(self._failed)
        pending.done.set()
        if self._pending.get(key) is pending:
            del self._pending[key]

    def _already(self, key: Key) -> Parts | None:
        """What the others took for this step, if they made it: a ps that never heard so goes the same way."""
        made = [
            other.attempt for other, sums in self._finished.items() if other.version == key.version and not sums.size
        ]
        return self._finished.get(key._replace(attempt=made[0]) if made else key)


def _forget_oldest(kept: OrderedDict[Key, Any]) -> None:
    while len(kept) > KEPT:
        kept.popitem(last=False)


def _no_sum(key: Key, why: str) -> RuleFailed:
    return RuleFailed(
        field=f"step {key.version}, a sum over all ps",
        got=why,
        expected="a part from every ps",
        hint="Nothing was applied here.",
    )


class Totals:
    """On any ps: asks ps 0 for the sums. It is ps 0's own Adder there, a call elsewhere."""

    def __init__(self, ps_index: int, ps_addresses: Sequence[str], membership: Membership[Any]) -> None:
        self._membership = membership  # knows the run id, once the ps does
        self._ps_index, self._ps_addresses = ps_index, ps_addresses
        self.adder = Adder(len(ps_addresses)) if ps_index == 0 else None
        self._channel: grpc.aio.Channel | None = None

    async def of(self, key: Key, parts: Parts) -> Parts:
        """The sums over all shards of these parts; RuleFailed if they cannot be had."""
        if self.adder is not None:
            return await self.adder.add(0, key, parts)
        reply = await self._call(self._request(key, parts=parts.tolist()))
        return np.array(reply.sums, np.float64)

    async def failed(self, key: Key, failure: str) -> None:
        """This shard cannot make the step: let the others know."""
        if self.adder is not None:
            self.adder.fail(0, key, failure)
            return
        try:
            await self._call(self._request(key, failure=wire_text(failure)), FAILURE_S)
        except RuleFailed as unheard:  # what failed first is what counts; the others' own waits end too
            log.warning("ps 0 could not be told that step %d failed here: %s", key.version, unheard)

    def _request(self, key: Key, parts: Sequence[float] = (), failure: str = "") -> pb.SumRequest:
        return pb.SumRequest(
            run_id=self._membership.run_id, ps_index=self._ps_index, parts=parts, failure=failure, **key._asdict()
        )

    async def _call(self, request: pb.SumRequest, timeout_s: float = WAIT_S + 5) -> pb.SumReply:
        if self._channel is None:
            self._channel = grpc.aio.insecure_channel(self._ps_addresses[0], options=OPTIONS)
        method = METHODS["Sum"]
        call = self._channel.unary_unary(method.path, method.request.SerializeToString, method.reply.FromString)
        try:
            reply: pb.SumReply = await call(request, timeout=timeout_s, wait_for_ready=True)
        except grpc.RpcError as error:
            reason = status.from_rpc_error(error, "sum")
            if isinstance(reason, RuleFailed):
                raise reason from None
            raise RuleFailed(
                field=f"step {request.version}, a sum over all ps",
                got=f"{type(reason).__name__} from ps 0 at {self._ps_addresses[0]}: {reason}",
                expected="the sum",
                hint="Nothing was applied here. See whether ps 0 is up, and reached from this ps.",
            ) from error
        return reply

    async def close(self) -> None:
        if self._channel is not None:
            await self._channel.close()

    async def serve(self, request: pb.SumRequest) -> pb.SumReply:
        """Answer another ps; only ps 0 is asked."""
        if self.adder is None:
            raise InvalidInput(field="sum", got=f"a request at ps {self._ps_index}", expected="ps 0")
        if request.run_id != self._membership.run_id:
            raise WrongRun(field="run id", got=repr(request.run_id), expected=repr(self._membership.run_id))
        if not 0 < request.ps_index < len(self._ps_addresses):
            raise InvalidInput(field="ps index", got=request.ps_index, expected=f"1 to {len(self._ps_addresses) - 1}")
        key = Key(request.version, request.attempt, request.number)
        if request.failure:
            self.adder.fail(request.ps_index, key, request.failure)
            return pb.SumReply()
        sums = await self.adder.add(request.ps_index, key, np.array(request.parts, np.float64))
        return pb.SumReply(sums=sums.tolist())
