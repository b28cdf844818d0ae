"""Where is an update computed, and how do the shards of a step agree on what none knows alone?

A small update of a quick rule is made on the event loop, where handing it to a thread would cost more than it takes; all
others in a thread, on states that nobody can change, and the pages of large variables in several (ps/threads.py). Whenever
the core asks for a sum over the model (ps/apply.py), the answer comes from all ps (ps/sums.py), or is this shard's own part
where it holds the model alone.

It must not know modes or messages. Next: ps/shard.py, which decides what is updated when.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from protos.errors import RuleFailed
from ps.aggregation import Contribution
from ps.apply import Exchange, Sums
from ps.rules import UpdateRule
from ps.step import stepping
from ps.sums import DONE, Key, Totals
from ps.threads import Threads
from ps.variable import ShardState

# Below both, a quick rule's update is made on the event loop.
INLINE_BYTES = 1 << 21
INLINE_PARTITIONS = 64


class Updates:
    """Computes the states of one shard, one at a time.

    totals: the sums over all ps, None where there is one ps. on_sums: hears what they came to. threads: for how many at most.
    """

    def __init__(
        self, totals: Totals | None = None, on_sums: Callable[[Sums], None] = lambda sums: None, threads: int = 1
    ) -> None:
        self._totals, self._on_sums, self._threads = totals, on_sums, Threads(threads)
        self._failures: tuple[int, int] = (0, 0)  # of which version, how many times its step has failed

    async def compute(
        self,
        state: ShardState,
        rule: UpdateRule | None,
        contributions: Mapping[int, Contribution],
        *,
        staleness: int = 0,
        worker: int | None = None,
        read_state: ShardState | None = None,
    ) -> ShardState:
        """The state after one update with what the contributions, by worker, become. RuleFailed changes nothing.

        worker: whose update it is, outside sync mode; None for a step of all.
        """
        exchange = stepping(
            state,
            rule,
            contributions,
            staleness=staleness,
            worker=worker,
            read_state=read_state,
            each=self._threads.each,
        )
        return await self._drive(exchange, state.version, inline=is_small(state, rule, contributions.values()))

    async def _drive(self, exchange: Exchange[ShardState], version: int, *, inline: bool) -> ShardState:
        loop = asyncio.get_running_loop()
        attempt = self._failures[1] if self._failures[0] == version else 0
        sums: Sums | None = None
        number = 0
        try:
            while True:
                resume = (exchange, sums)
                done, result = _resume(*resume) if inline else await loop.run_in_executor(None, _resume, *resume)
                if done:
                    if self._totals is not None and number:  # whom a sum has bound together
                        await self._totals.of(Key(version, attempt, number), DONE)
                    final: ShardState = result
                    return final
                sums = result
                if self._totals is not None:
                    sums = await self._totals.of(Key(version, attempt, number), result)
                    self._on_sums(sums)
                number += 1
        except Exception as error:
            self._failures = (version, attempt + 1)
            if self._totals is not None:
                with contextlib.suppress(RuleFailed):  # who cannot be told waits in vain, for a while; `error` says why
                    await self._totals.failed(Key(version, attempt, number), f"{type(error).__name__}: {error}")
            raise


def _resume(exchange: Exchange[ShardState], sums: Sums | None) -> tuple[bool, Any]:
    """(True, the state), or (False, this shard's part of the sums it needs). StopIteration cannot cross a future."""
    try:
        return False, next(exchange) if sums is None else exchange.send(sums)
    except StopIteration as done:
        return True, done.value


def is_small(state: ShardState, rule: UpdateRule | None, contributions: Iterable[Contribution]) -> bool:
    """Whether an update with these is made on the event loop, at once."""
    if rule is None:
        return True
    touched = [state.partitions[index].value.nbytes for pushed in contributions for index in pushed.gradients]
    return rule.quick and len(touched) <= INLINE_PARTITIONS and sum(touched) <= INLINE_BYTES
