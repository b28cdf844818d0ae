"""What is done with a live shard in its lessons: a push, a look around, an update that stops half way until it is let go."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import numpy as np

from ps.consistency import Seat
from ps.membership import Session
from ps.rules import UpdateRule
from ps.shard import PushResult, Shard
from ps.updates import INLINE_BYTES
from ps.variable import Gradients
from tests.core.builders import dense, ready_shard

LARGE = INLINE_BYTES  # float32 elements: far more bytes than are updated on the event loop


def grad(*numbers: float) -> Gradients:
    return {0: dense(np.array(numbers or (1.0, 1.0), np.float32))}


async def push(
    shard: Shard,
    session: Session[PushResult],
    sequence: int,
    version: int,
    gradients: Gradients | None = None,
    seat: Seat = Seat.UNDECIDED,
) -> PushResult:
    return await shard.push(session, sequence, version, grad() if gradients is None else gradients, seat)


async def settled() -> None:
    """Let everything happen that can happen now."""
    for _ in range(20):
        await asyncio.sleep(0)


class Gated(UpdateRule):
    """Plain descent that stops in the middle of an update until it is let go."""

    def gate(self) -> tuple[threading.Event, threading.Event]:
        """(begun, go): begun is set when an update is under way; it ends when go is set."""
        begun, go = threading.Event(), threading.Event()
        object.__setattr__(self, "_events", (begun, go))
        return begun, go

    def update(self, ctx: Any, value: Any, grad: Any) -> Any:
        begun, go = self._events  # type: ignore[attr-defined]
        begun.set()
        assert go.wait(30), "the test never let the update go"
        return value - grad


async def gated_shard(mode: str, workers: int) -> tuple[Shard, list[Session[PushResult]], Any, Any]:
    """A shard with a variable so large that its updates leave the event loop; and the gate of its rule."""
    shard, sessions = await ready_shard(mode, workers, values={"w": np.zeros(LARGE, np.float32)})
    shard.rule = Gated()
    begun, go = shard.rule.gate()
    return shard, sessions, begun, go


async def happened(event: threading.Event) -> None:
    assert await asyncio.get_running_loop().run_in_executor(None, event.wait, 30)


ONES = np.ones(LARGE, np.float32)
