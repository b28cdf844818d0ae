"""What do virtual workers talk to? The shards of the daemons themselves, without a wire between.

Membership, modes, updates and the story are those of ps/shard.py. What a client does on its side is done here in few lines:
every push goes to every shard, with backup workers to ps 0 first, and in sync mode all shards are read at one version.

It must not know models or speeds. Next: ps/shard.py, ps/simulation/run.py (who calls this).
"""

from __future__ import annotations

import asyncio
import functools
import heapq
import math
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

import numpy as np

from protos.codec import Array
from ps.accounting import PushResult
from ps.aggregation import Contribution
from ps.apply import sum_of_squares
from ps.configuration import Configuration
from ps.consistency import Seat
from ps.initialization import Declaration
from ps.membership import JoinFacts, Membership, Session
from ps.shard import Shard
from ps.story import Event, Story
from ps.sums import Adder, Key, Parts, Totals
from ps.updates import Updates
from ps.variable import DenseGradient, Gradients, Paged, Partition, PartitionKey, ShardState

# Longer than any run: who waits for it waits for somebody who never comes, and the error says for whom.
WAIT_S = 1e12


class Cluster:
    """The shards of one job.

    clock: the time of the loop it lives on. told: hears of every event of every shard, (ps, event), when it happens.
    """

    def __init__(
        self, servers: int, workers: int, clock: Callable[[], float], told: Callable[[int, Event], None]
    ) -> None:
        self.workers = workers
        adder = Adder(servers)
        self.shards = [
            Shard(
                Membership(workers, ps_index=index, num_ps=servers),
                Configuration(),
                Story(functools.partial(told, index)),
                clock=clock,
                updates=Updates(_Sums(index, adder) if servers > 1 else None),
            )
            for index in range(servers)
        ]
        self._sessions: list[list[Session[PushResult]]] = []  # by worker, by ps
        self._names: list[list[str]] = [[] for _ in self.shards]  # the variables that each ps holds
        self._sequences = [0] * workers

    async def start(self, values: Mapping[str, Array], configuration: Configuration) -> None:
        """Every worker joins, and worker 0 initialises the model."""
        for worker in range(self.workers):
            facts = JoinFacts(f"worker {worker}", worker, origin="simulation", num_workers=self.workers)
            self._sessions.append([shard.join(facts) for shard in self.shards])
        self._names = place(values, len(self.shards))
        variables = tuple((name, value.dtype.name, value.shape, True) for name, value in sorted(values.items()))
        leader, session = self.shards[0], self._sessions[0][0]
        declaration = Declaration(variables, "whole variables")
        grant, settled, _ = await leader.begin_init(session.id, configuration, declaration, False, WAIT_S)
        for index in reversed(range(len(self.shards))):  # ps 0 last, as a client does it
            partitions = [_partition(name, values[name]) for name in self._names[index]]
            await self.shards[index].initialize(session.id, grant, settled, partitions)

    async def pull(self, worker: int) -> tuple[dict[str, Array], tuple[int, ...]]:
        """The values this worker may read, once the mode lets it, and the version of each shard."""
        states = [await shard.pull(session, 0, WAIT_S) for shard, session in zip(self.shards, self._sessions[worker])]
        while self._one_version and len({state.version for state in states}) > 1:
            newest = max(state.version for state in states)
            for index, state in enumerate(states):
                if state.version < newest:
                    states[index] = await self.shards[index].pull(self._sessions[worker][index], newest, WAIT_S)
        return self._values(states), tuple(state.version for state in states)

    async def push(
        self, worker: int, versions: Sequence[int], gradients: Mapping[str, Array]
    ) -> tuple[PushResult, ...]:
        """What became of it on each shard. versions: what the gradients were computed at."""
        self._sequences[worker] += 1
        leader = self.shards[0]
        norm = _norm(gradients) if leader.wants_norm() else None

        def push(index: int, seat: Seat = Seat.UNDECIDED) -> Coroutine[Any, Any, PushResult]:
            mine: Gradients = {
                partition: DenseGradient(Paged.of(gradients[name])) for partition, name in enumerate(self._names[index])
            }
            session, contribution = self._sessions[worker][index], Contribution(mine, norm=norm)
            return self.shards[index].push(session, self._sequences[worker], versions[index], contribution, seat)

        if len(self.shards) == 1:
            return (await push(0),)
        if not leader.configuration.backup_workers:
            return tuple(await asyncio.gather(*map(push, range(len(self.shards)))))
        first = await push(0)
        seat = Seat.PASSED_OVER if first.outcome == "stale" else Seat.COUNTED
        return first, *await asyncio.gather(*(push(index, seat) for index in range(1, len(self.shards))))

    async def leave(self, worker: int) -> None:
        """This worker is done: the others go on without it."""
        for shard, session in zip(self.shards, self._sessions[worker]):
            await shard.leave(session.id, "")

    @property
    def step(self) -> int:
        """The number of updates applied to the whole model."""
        return min(shard.state.version if shard.state is not None else 0 for shard in self.shards)

    def values(self) -> dict[str, Array]:
        """The present values, by name."""
        return self._values([shard.ready_state() for shard in self.shards])

    @property
    def _one_version(self) -> bool:
        return self.shards[0].configuration.mode == "sync"

    def _values(self, states: Sequence[ShardState]) -> dict[str, Array]:
        return {
            name: state.partitions[partition].value.whole()
            for names, state in zip(self._names, states)
            for partition, name in enumerate(names)
        }


class _Sums(Totals):
    """Sums over the shards (ps/sums.py): all of them ask the adder of ps 0, and no call is in between."""

    def __init__(self, index: int, adder: Adder) -> None:
        self._index, self._of_all = index, adder

    async def of(self, key: Key, parts: Parts) -> Parts:
        return await self._of_all.add(self._index, key, parts)

    async def failed(self, key: Key, failure: str) -> None:
        self._of_all.fail(self._index, key, failure)


def _norm(gradients: Mapping[str, Array]) -> float:
    """Of the whole gradient, as a client says it where a rule clips by it and no ps holds all of it."""
    return math.sqrt(math.fsum(map(sum_of_squares, gradients.values())))


def place(values: Mapping[str, Array], servers: int) -> list[list[str]]:
    """Which variables each ps holds: the largest first, each to the ps that holds the least. Variables are not cut."""
    held: list[list[str]] = [[] for _ in range(servers)]
    loads = [(0, 0, index) for index in range(servers)]  # bytes, variables, ps
    for name in sorted(values, key=lambda name: (-values[name].nbytes, name)):
        nbytes, count, index = heapq.heappop(loads)
        held[index].append(name)
        heapq.heappush(loads, (nbytes + values[name].nbytes, count + 1, index))
    return [sorted(names) for names in held]


def _partition(name: str, value: Array) -> Partition:
    rows = value.shape[0] if value.shape else 1
    return Partition(PartitionKey(name, value.dtype.name, value.shape, 0, rows, True), Paged.of(np.array(value)))
