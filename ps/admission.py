"""How many gradients may be on their way in at the same time? As many as memory is set aside for; the others wait their turn.

A ps reads a push whole before it applies it. Without a bound, 64 workers that push at once would make it hold 64 gradients;
here the rest stays where it is, in the senders, held back by the flow control of their streams. In order of arrival, so that
nobody starves. What lies in shared memory is the sender's and counts for nothing.

It must not know what is read. Next: ps/exchange.py, which asks.
"""

from __future__ import annotations

import asyncio
from collections import deque

# A ps with small shards lets in many pushes at once, one with large shards at least two: one is read while one is applied.
LEAST_BYTES = 256 << 20
LEAST_PUSHES = 2


class Admission:
    """Bytes set aside for pushes that are being read. All calls come from one event loop."""

    def __init__(self, least_bytes: int = LEAST_BYTES) -> None:
        self._least_bytes = least_bytes
        self.admitted_bytes = 0
        self._waiting: deque[tuple[int, int, asyncio.Future[None]]] = deque()

    async def enter(self, nbytes: int, shard_bytes: int) -> None:
        """Wait until there is room for a push of so many bytes to a shard of this size. Say `leave` with the same number."""
        if not self._waiting and self._has_room(nbytes, shard_bytes):
            self.admitted_bytes += nbytes
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (nbytes, shard_bytes, turn)
        self._waiting.append(entry)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave(nbytes)  # it was let in at the same moment
            else:
                self._waiting.remove(entry)
                self._let_in()
            raise

    def leave(self, nbytes: int) -> None:
        """The push has been taken, or given up."""
        self.admitted_bytes -= nbytes
        self._let_in()

    def _has_room(self, nbytes: int, shard_bytes: int) -> bool:
        most = max(self._least_bytes, LEAST_PUSHES * shard_bytes)
        return not self.admitted_bytes or self.admitted_bytes + nbytes <= most

    def _let_in(self) -> None:
        while self._waiting:
            nbytes, shard_bytes, turn = self._waiting[0]
            if turn.cancelled():
                self._waiting.popleft()
            elif self._has_room(nbytes, shard_bytes):
                self._waiting.popleft()
                self.admitted_bytes += nbytes
                turn.set_result(None)
            else:
                return
