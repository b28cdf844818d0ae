"""Many workers, one shard, any order of events: a seed decides what happens next, and after each event everything is checked.

The oracle knows the gradients that were pushed and reads the story; from these alone it computes the value that the shard
must hold, bit for bit. Time is a number that only this file moves. Used by test_shard_simulator.py.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from protos.errors import AlreadyPushed
from ps.consistency import Seat
from ps.membership import JoinFacts, Session
from ps.shard import PushResult
from ps.variable import Gradients, ShardState
from tests.core.builders import WAIT_S, Clock, dense, facts, ready_shard, sparse, value_of
from tests.core.lessons import settled

LEASE_S = 10.0
ROWS, WIDTH = 6, 2
GradientId = tuple[int, int, int]  # worker, generation, sequence


@dataclass
class Actor:
    """One worker's process: what it has read, what it has sent, what it waits for."""

    joined: JoinFacts
    session: Session[PushResult]
    sequence: int = 0
    version: int = 0
    answers: dict[int, PushResult] = field(default_factory=dict)
    sent: dict[int, tuple[int, Gradients]] = field(default_factory=dict)
    pull: asyncio.Task[ShardState] | None = None
    gone: bool = False


class Simulation:
    """`run` plays `events` events of this seed. An AssertionError says what is wrong; the caller says with which seed."""

    def __init__(self, seed: int, mode: str, workers: int, backup_workers: int | None = None, slack: int = 0) -> None:
        self.rng = random.Random(seed)
        self.mode, self.workers, self.backup_workers, self.slack = mode, workers, backup_workers, slack
        self.clock = Clock()
        self.processes = 0
        self.gradients: dict[GradientId, Any] = {}
        self.log: list[str] = []

    async def run(self, events: int) -> None:
        zeros = {"w": np.zeros((ROWS, WIDTH), np.float32)}
        slack = self.slack if self.mode == "ssp" else None
        self.shard, sessions = await ready_shard(
            self.mode,
            self.workers,
            "momentum:learning_rate=0.5",
            zeros,
            slack=slack,
            backup_workers=self.backup_workers,
            clock=self.clock,
        )
        self.actors = [Actor(facts(f"w{w}", w, self.workers), session) for w, session in enumerate(sessions)]
        for _ in range(events):
            actor = self.rng.choice(self.actors)
            event = self.rng.choice(self._possible(actor))
            self.log.append(f"{event.__name__} {actor.session.id}")
            await event(actor)
            await settled()
            self.check()
        await self._everyone_leaves()

    def _possible(self, actor: Actor) -> list[Any]:
        if actor.gone:
            return [self.start_again]
        if actor.pull is not None and not actor.pull.done():
            return [self.crash, self.look_up, self.look_up, self.send_again]
        often = [self.push, self.push, self.push, self.start_pull, self.start_pull]
        return [*often, self.send_again, self.push_and_vanish, self.break_and_return, self.leave, self.crash]

    # -- events --------------------------------------------------------------------------------------------------------

    async def push(self, actor: Actor) -> None:
        self._note(actor)
        answer = await self._send(actor, actor.sequence)
        if answer is not None:
            actor.answers[actor.sequence] = answer

    async def push_and_vanish(self, actor: Actor) -> None:
        """The caller goes away at some point of the push; later it sends it again."""
        self._note(actor)
        sending = asyncio.ensure_future(self._send(actor, actor.sequence))
        for _ in range(self.rng.randrange(4)):
            await asyncio.sleep(0)
        sending.cancel()
        await asyncio.wait([sending])
        if not sending.cancelled() and sending.result() is not None:
            actor.answers[actor.sequence] = sending.result()  # type: ignore[assignment]

    async def send_again(self, actor: Actor) -> None:
        if actor.sent:
            sequence = self.rng.choice(list(actor.sent))
            answer = await self._send(actor, sequence)
            first = actor.answers.get(sequence)
            if first is not None:
                assert answer == PushResult("duplicate", first.staleness, first.version, first=first.outcome)
            elif answer is not None:
                outcome = answer.first or answer.outcome
                actor.answers[sequence] = PushResult(outcome, answer.staleness, answer.version)

    async def start_pull(self, actor: Actor) -> None:
        actor.pull = asyncio.ensure_future(self.shard.pull(actor.session, 0, WAIT_S))

    async def look_up(self, actor: Actor) -> None:
        """Time passes for somebody who waits."""

    async def break_and_return(self, actor: Actor) -> None:
        """Its connection breaks, perhaps for so long that it is counted out; then the same process is back."""
        self.shard.disconnected(actor.session.id)
        if self.rng.random() < 0.5:
            self.clock.now_s += LEASE_S + 1
            await self.shard.expire(LEASE_S)
        assert self.shard.join(actor.joined) is actor.session

    async def leave(self, actor: Actor) -> None:
        actor.gone = True
        await self.shard.leave(actor.session.id, "")

    async def crash(self, actor: Actor) -> None:
        actor.gone = True
        if actor.pull is not None:
            actor.pull.cancel()
            await asyncio.wait([actor.pull])
        self.shard.disconnected(actor.session.id)
        if self.rng.random() < 0.7:
            self.clock.now_s += LEASE_S + 1
            await self.shard.expire(LEASE_S)

    async def start_again(self, actor: Actor) -> None:
        """Another process takes the index, perhaps before the lease of the old one is over."""
        self.processes += 1
        worker = actor.joined.worker
        joined = facts(f"w{worker} process {self.processes}", worker, self.workers)
        at = self.actors.index(actor)
        self.actors[at] = Actor(joined, self.shard.join(joined), version=self.shard.ready_state().version)

    def _note(self, actor: Actor) -> None:
        """A new gradient, remembered under its number."""
        actor.sequence += 1
        numbers = np.array([self.rng.gauss(0, 1) for _ in range(ROWS * WIDTH)], np.float32).reshape(ROWS, WIDTH)
        kind = self.rng.choice(["dense", "dense", "sparse", "nothing"])
        rows = sorted(self.rng.sample(range(ROWS), 2))
        gradient = {0: dense(numbers) if kind == "dense" else sparse(rows, numbers[:2])} if kind != "nothing" else {}
        version = max(0, actor.version - self.rng.choice([0, 0, 0, 0, 1]))
        actor.sent[actor.sequence] = version, gradient
        assert actor.session.worker is not None
        self.gradients[actor.session.worker, actor.session.generation, actor.sequence] = gradient

    async def _send(self, actor: Actor, sequence: int) -> PushResult | None:
        version, gradient = actor.sent[sequence]
        try:
            return await self.shard.push(actor.session, sequence, version, gradient, Seat.UNDECIDED)
        except AlreadyPushed:
            return None  # in sync mode, of a worker that did not pull: it is told, and nothing is kept

    # -- what must be true after every event ----------------------------------------------------------------------------

    def check(self) -> None:
        shard, counted = self.shard, self.shard.counters
        assert counted.sent == counted.applied + counted.stale + counted.duplicate + counted.buffered  # claim 3
        assert counted.buffered == len(shard.pending)
        version = shard.ready_state().version
        assert shard.consistency is not None
        assert shard.consistency.version == version
        self._check_story(version)
        for actor in self.actors:
            if actor.pull is not None and actor.pull.done() and not actor.pull.cancelled():
                state = actor.pull.result()
                assert state.version >= actor.version  # nobody reads backwards
                actor.version, actor.pull = state.version, None
        for worker, wait in shard._waiters.by_worker().items():
            assert shard.consistency.pull(worker) is not None, f"worker {worker} waits for nothing: {wait}"

    def _check_story(self, version: int) -> None:
        """Every update once, in order, each of gradients of one version (claims 2 and 5), and their sum is the value."""
        events, seen = list(self.shard.story.events), set()
        computed_at = {(e.worker, e.generation, e.sequence): e.at_version for e in events if e.kind == "push"}
        assert len(computed_at) == sum(e.kind == "push" for e in events), "a push is in the story twice"
        value, velocity, steps = np.zeros((ROWS, WIDTH), np.float32), np.zeros((ROWS, WIDTH), np.float32), 0
        for event in events:
            if event.kind == "step":
                contributors = event.contributors
                completing = set(contributors) - computed_at.keys()
                assert not completing, "a step of a gradient that nobody pushed"
                assert {computed_at[contributor] for contributor in contributors} == {steps}
                assert len({worker for worker, _, _ in contributors}) == len(contributors)
            elif event.kind == "push" and event.outcome == "applied" and self.mode != "sync":
                contributors = ((event.worker or 0, event.generation or 0, event.sequence or 0),)
                assert event.staleness == steps - (event.at_version or 0)
            else:
                continue
            assert not seen & set(contributors), "a gradient is in two updates"
            seen |= set(contributors)
            value, velocity = _momentum(value, velocity, [self.gradients[each] for each in contributors])
            steps += 1
            assert event.version == steps
        assert steps == version
        np.testing.assert_array_equal(value_of(self.shard), value)

    async def _everyone_leaves(self) -> None:
        """Nobody is left waiting when the last has gone (claim 4), and nothing is left undone."""
        for actor in self.actors:
            if actor.gone:
                continue
            await self.shard.leave(actor.session.id, "")
            if actor.pull is not None:
                await asyncio.wait([actor.pull])
        self.clock.now_s += LEASE_S + 1
        await self.shard.expire(LEASE_S)
        await settled()
        assert not self.shard.pending
        assert not len(self.shard._waiters)
        assert self.shard.membership.done()
        for actor in self.actors:
            if actor.pull is not None and not actor.pull.cancelled():
                actor.pull.exception()  # it left while it waited, and was told so


def _momentum(value: Any, velocity: Any, gradients: list[Gradients]) -> tuple[Any, Any]:
    """The update in numpy, a second time: mean in the order of workers, then momentum, on the rows that have a gradient."""
    present = [gradient[0] for gradient in gradients if 0 in gradient]
    if not present:
        return value, velocity
    total, rows = np.zeros((ROWS, WIDTH), np.float32), np.zeros(ROWS, bool)
    for gradient in present:
        if hasattr(gradient, "indices"):
            total[gradient.indices] += gradient.rows
            rows[gradient.indices] = True
        else:
            total += gradient.value.whole()
            rows[:] = True
    mean = total / np.float32(len(gradients)) if len(gradients) > 1 else total
    new_velocity = np.float32(0.9) * velocity - np.float32(0.5) * mean
    new_value = value + new_velocity
    return np.where(rows[:, None], new_value, value), np.where(rows[:, None], new_velocity, velocity)
