"""Sync means sync: which gradients a step is the mean of, proved from the story; and what happens when a step fails."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from protos.errors import RuleFailed
from ps.consistency import Seat
from ps.rules import UpdateRule
from tests.core.builders import WAIT_S, Clock, ready_shard, run, value_of
from tests.core.lessons import grad, push, settled


def test_a_sync_step_is_the_mean_of_the_gradients_of_its_version_as_the_story_proves() -> None:
    # claim 5
    async def lesson() -> None:
        shard, sessions = await ready_shard("sync", 3)
        for step in range(4):
            order = [(worker + step) % 3 for worker in range(3)]
            outcomes = []
            for worker in order:
                gradient = grad(3.0 * worker, step)
                outcomes.append((await push(shard, sessions[worker], step + 1, step, gradient)).outcome)
            assert outcomes == ["buffered", "buffered", "applied"]
            assert value_of(shard).tolist() == [-3.0 * (step + 1), -sum(range(step + 1))]
        steps = [event for event in shard.story.events if event.kind == "step"]
        pushed_at = {
            (event.worker, event.generation, event.sequence): event.at_version
            for event in shard.story.events
            if event.kind == "push"
        }
        assert [event.version for event in steps] == [1, 2, 3, 4]
        for event in steps:
            assert event.contributors == tuple((worker, 1, event.version) for worker in range(3))
            assert {pushed_at[contributor] for contributor in event.contributors} == {event.version - 1}

    run(lesson())


def test_a_worker_that_leaves_shrinks_the_barrier_and_those_who_wait_go_on() -> None:
    # claim 5: the step is the mean of those who count, and of nobody else.
    async def lesson() -> None:
        shard, (zero, one, _) = await ready_shard("sync", 3)
        await push(shard, zero, 1, 0, grad(2, 2))
        await push(shard, one, 1, 0, grad(4, 4))
        waits = [asyncio.ensure_future(shard.pull(session, 0, WAIT_S)) for session in (zero, one)]
        await settled()
        assert not any(wait.done() for wait in waits)
        await shard.leave("w2", "out of data")
        assert [(await wait).version for wait in waits] == [1, 1]
        assert value_of(shard).tolist() == [-3, -3]

    run(lesson())


def test_a_worker_that_is_lost_shrinks_the_barrier_too_but_its_gradient_is_not_lost() -> None:
    # claim 5
    async def lesson() -> None:
        clock = Clock()
        shard, (zero, one) = await ready_shard("sync", 2, clock=clock)
        await push(shard, one, 1, 0, grad(4, 4))
        shard.disconnected("w1")
        clock.now_s = 11
        assert await shard.expire(lease_s=10) == [1]
        assert (await push(shard, zero, 1, 0, grad(2, 2))).outcome == "applied"
        assert value_of(shard).tolist() == [-3, -3]
        (step,) = (event for event in shard.story.events if event.kind == "step")
        assert step.contributors == ((0, 1, 1), (1, 1, 1))

    run(lesson())


def test_with_backup_workers_the_slowest_is_told_stale() -> None:
    # claims 3 and 5
    async def lesson() -> None:
        shard, (zero, one, two) = await ready_shard("sync", 3, backup_workers=1)
        assert (await push(shard, two, 1, 0, grad(2, 2))).outcome == "buffered"
        assert (await push(shard, zero, 1, 0, grad(4, 4))).outcome == "applied"
        late = await push(shard, one, 1, 0, grad(100, 100))
        assert (late.outcome, late.staleness) == ("stale", 1)
        assert value_of(shard).tolist() == [-3, -3]

    run(lesson())


def test_a_counted_worker_that_dies_between_two_ps_holds_nobody_up() -> None:
    # claim 4: ps 0 counted 0 and 1. This is another ps: 1 never came, and 2, passed over, makes the step due.
    async def lesson() -> None:
        clock = Clock()
        shard, (zero, _, two) = await ready_shard("sync", 3, backup_workers=1, clock=clock)
        await push(shard, zero, 1, 0, grad(2, 2), Seat.COUNTED)
        shard.disconnected("w1")
        clock.now_s = 11
        await shard.expire(lease_s=10)
        waiting = asyncio.ensure_future(shard.pull(zero, 0, WAIT_S))
        await settled()
        assert not waiting.done()
        assert (await push(shard, two, 1, 0, grad(9, 9), Seat.PASSED_OVER)).outcome == "stale"
        assert value_of(await waiting).tolist() == [-2, -2]

    run(lesson())


# -- a rule that fails ---------------------------------------------------------------------------------------------------


class Picky(UpdateRule):
    """Plain descent that fails on large gradients."""

    def update(self, ctx: Any, value: Any, grad: Any) -> Any:
        if np.max(grad) > 10:
            raise OverflowError("too steep")
        return value - grad


@pytest.mark.parametrize("mode", ["async", "ssp"])
def test_a_push_whose_rule_failed_changes_nothing_and_may_be_sent_again(mode: str) -> None:
    # claim 11
    async def lesson() -> None:
        shard, (zero,) = await ready_shard(mode)
        shard.rule = Picky()
        state, events = shard.state, len(shard.story.events)
        with pytest.raises(RuleFailed):
            await push(shard, zero, 1, 0, grad(100, 0))
        assert shard.state is state
        assert shard.consistency is not None
        assert shard.consistency.clocks.get(0, 0) == 0
        assert len(shard.story.events) == events
        assert (shard.counters.sent, shard.counters.refused) == (0, 1)
        assert (await push(shard, zero, 1, 0)).outcome == "applied"

    run(lesson())


def test_a_step_whose_rule_failed_is_told_to_every_contributor_once() -> None:
    # claims 3 and 11: the one that completed it at once, the others, who were told `buffered`, when they wait for it.
    async def lesson() -> None:
        shard, sessions = await ready_shard("sync", 3)
        shard.rule = Picky()
        await push(shard, sessions[0], 1, 0)
        early = asyncio.ensure_future(shard.pull(sessions[0], 0, WAIT_S))
        await push(shard, sessions[1], 1, 0)
        with pytest.raises(RuleFailed, match="too steep"):
            await push(shard, sessions[2], 1, 0, grad(100, 0))
        for waiting in (early, asyncio.ensure_future(shard.pull(sessions[1], 0, WAIT_S))):
            with pytest.raises(RuleFailed, match="too steep"):
                await waiting
        assert value_of(shard).tolist() == [0, 0]
        counted = shard.counters
        assert (counted.sent, counted.applied, counted.buffered, counted.refused) == (0, 0, 0, 3)
        # Each has been told once. They go on, and nobody hears of it again.
        for worker, session in enumerate(sessions):
            await push(shard, session, 2, 0, grad(worker, worker))
        for session in sessions:
            assert value_of(await shard.pull(session, 0, WAIT_S)).tolist() == [-1, -1]

    run(lesson())


def test_a_step_that_fails_because_somebody_left_is_told_to_those_who_are_there() -> None:
    async def lesson() -> None:
        shard, (zero, _) = await ready_shard("sync", 2)
        shard.rule = Picky()
        await push(shard, zero, 1, 0, grad(100, 0))
        await shard.leave("w1", "")
        with pytest.raises(RuleFailed, match="too steep"):
            await shard.pull(zero, 0, WAIT_S)

    run(lesson())
