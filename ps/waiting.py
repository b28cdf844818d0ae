"""Who waits on this shard, for what, and how long yet? Waiting without threads: a parked coroutine for each call.

It must not know why a call must wait: it asks again whenever something has happened. Next: ps/shard.py, which asks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from ps.consistency import Wait


@dataclass(eq=False)
class _Waiter:
    worker: int | None
    wait: Wait
    future: asyncio.Future[None]


class Waiters:
    """The calls that wait. Used on one event loop only."""

    def __init__(self) -> None:
        self._waiters: dict[int, _Waiter] = {}

    def __len__(self) -> int:
        return len(self._waiters)

    async def until(self, worker: int | None, must_wait: Callable[[], Wait | None], wait_s: float) -> Wait | None:
        """Wait until `must_wait` answers None, which is returned; or, after wait_s, return what it still waits for."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + wait_s
        while (wait := must_wait()) is not None:
            waiter = _Waiter(worker, wait, loop.create_future())
            self._waiters[id(waiter)] = waiter
            try:
                await asyncio.wait_for(waiter.future, max(0.0, deadline_s - loop.time()))
            except asyncio.TimeoutError:
                return must_wait()
            finally:
                self._waiters.pop(id(waiter), None)
        return None

    def wake(self) -> None:
        """Something has happened: let everybody look again."""
        waiters, self._waiters = self._waiters, {}
        for waiter in waiters.values():
            if not waiter.future.done():
                waiter.future.set_result(None)

    def by_worker(self) -> dict[int, Wait]:
        """What each waiting worker waits for."""
        return {waiter.worker: waiter.wait for waiter in self._waiters.values() if waiter.worker is not None}
