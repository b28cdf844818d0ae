"""One shard, live, on an event loop of its own and without a socket. Here: what is read and applied while others write.

A lesson is a coroutine; `run` runs it. The values are so small that w can be followed by hand: with `sgd:learning_rate=1` a
gradient is what is taken away. Next: test_shard_steps.py, test_shard_waits.py, test_shard_counters.py, test_shard_refusals.py.
"""

from __future__ import annotations

import asyncio

import pytest

from ps.membership import JoinFacts
from ps.shard import PushResult
from tests.core.builders import Clock, dense, facts, ready_shard, run, value_of
from tests.core.lessons import ONES, gated_shard, happened, push


def test_a_pull_in_the_middle_of_an_update_reads_the_whole_state_before_it_and_waits_for_nothing() -> None:
    # claim 1
    async def lesson() -> None:
        shard, (writer, reader), begun, go = await gated_shard("async", 2)
        under_way = asyncio.ensure_future(push(shard, writer, 1, 0, {0: dense(ONES)}))
        await happened(begun)
        state = await shard.pull(reader, 0, wait_s=0)
        assert not under_way.done()
        assert state.version == 0
        assert not value_of(state).any()
        go.set()
        await under_way
        assert not value_of(state).any()  # what was pulled stays as it was
        assert (value_of(shard) == -1).all()

    run(lesson())


def test_the_mean_of_a_step_is_not_made_on_the_event_loop_either() -> None:
    # claim 1: in sync mode an observer reads while the gradients of all workers are being summed.
    async def lesson() -> None:
        shard, (zero, one), begun, go = await gated_shard("sync", 2)
        eye = shard.join(JoinFacts("eye", None))
        await push(shard, zero, 1, 0, {0: dense(ONES)})
        under_way = asyncio.ensure_future(push(shard, one, 1, 0, {0: dense(3 * ONES)}))
        await happened(begun)
        assert (await shard.pull(eye, 0, wait_s=0)).version == 0
        go.set()
        assert (await under_way).outcome == "applied"
        assert (value_of(shard) == -2).all()

    run(lesson())


# -- exactly once --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mode", "first"), [("async", "applied"), ("ssp", "applied"), ("sync", "buffered")])
def test_a_push_that_is_sent_again_is_not_applied_again_and_answers_what_it_answered(mode: str, first: str) -> None:
    # claim 2
    async def lesson() -> None:
        shard, (zero, _) = await ready_shard(mode, 2)
        once = await push(shard, zero, 1, 0)
        assert (once.outcome, once.first) == (first, "")
        state = shard.state
        again = await push(shard, zero, 1, 0)
        assert again == PushResult("duplicate", once.staleness, once.version, first=first)
        assert shard.state is state
        assert shard.counters.duplicate == 1

    run(lesson())


def test_two_copies_of_a_push_that_are_under_way_at_once_are_applied_once() -> None:
    # claim 2
    async def lesson() -> None:
        shard, (zero,), begun, go = await gated_shard("async", 1)
        copies = [asyncio.ensure_future(push(shard, zero, 1, 0, {0: dense(ONES)})) for _ in range(3)]
        await happened(begun)
        go.set()
        assert sorted(result.outcome for result in await asyncio.gather(*copies)) == [
            "applied",
            "duplicate",
            "duplicate",
        ]
        assert (value_of(shard) == -1).all()

    run(lesson())


@pytest.mark.parametrize("how", ["reconnected", "lost", "child reconnected"])
def test_a_push_is_applied_once_however_long_its_sender_was_away(how: str) -> None:
    # claim 2: the answer was on its way when the connection broke, and the client sends the push again.
    async def lesson() -> None:
        clock = Clock()
        shard, (zero,) = await ready_shard(clock=clock)
        joins = facts("w0", 0, 1)
        if how == "child reconnected":
            joins = facts("child", 0, 1, parent_session="w0")
            zero = shard.join(joins)
        await push(shard, zero, 1, 0)
        shard.disconnected(joins.session)
        if how == "lost":
            clock.now_s = 100
            assert await shard.expire(lease_s=10) == [0]
        back = shard.join(joins)
        assert (await push(shard, back, 1, 0)).outcome == "duplicate"
        assert value_of(shard).tolist() == [-1, -1]

    run(lesson())


def test_another_process_under_the_same_index_counts_its_pushes_anew() -> None:
    # claim 2: the identity of a push is (worker, generation, sequence).
    async def lesson() -> None:
        shard, (zero,) = await ready_shard()
        await push(shard, zero, 1, 0)
        await shard.leave("w0", "")
        successor = shard.join(facts("second", 0, 1))
        assert (await push(shard, successor, 1, 1)).outcome == "applied"
        pushes = [event for event in shard.story.events if event.kind == "push"]
        assert [(event.generation, event.sequence) for event in pushes] == [(1, 1), (2, 1)]

    run(lesson())


def test_a_caller_that_goes_away_in_the_middle_of_a_push_loses_nothing() -> None:
    # claim 2: its connection broke while the update was made; the update is whole, counted, and known when it comes again.
    async def lesson() -> None:
        shard, (zero,), begun, go = await gated_shard("async", 1)
        caller = asyncio.ensure_future(push(shard, zero, 1, 0, {0: dense(ONES)}))
        await happened(begun)
        caller.cancel()
        await asyncio.wait([caller])
        assert caller.cancelled()
        go.set()
        again = await push(shard, zero, 1, 0, {0: dense(ONES)})
        assert (again.outcome, again.first) == ("duplicate", "applied")
        assert (value_of(shard) == -1).all()
        assert [event.outcome for event in shard.story.events if event.kind == "push"] == ["applied"]

    run(lesson())
