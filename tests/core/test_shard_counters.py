"""Every push is told what became of it, and the counters of a shard add up, whatever happens in which order. (claim 3)"""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protos.errors import AlreadyPushed
from ps.membership import Session
from ps.shard import PushResult, Shard
from tests.core.builders import WAIT_S, ready_shard, run
from tests.core.lessons import push, settled

OUTCOMES = ("applied", "stale", "duplicate", "buffered")
moves = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from(["push", "push", "again", "late", "pull", "leave"])), max_size=30
)


@pytest.mark.parametrize("mode", ["async", "sync", "ssp"])
@settings(max_examples=60, deadline=None)
@given(moves=moves)
def test_counters_add_up_over_any_order_of_events(mode: str, moves: list[tuple[int, str]]) -> None:
    # claim 3: sent = applied + stale + duplicate (+ buffered now), after every event; and the story tells the same.
    async def lesson() -> None:
        shard, sessions = await ready_shard(mode, 3, slack=0 if mode == "ssp" else None)
        sequences, told, refused = [0, 0, 0], dict.fromkeys(OUTCOMES, 0), 0
        for worker, move in moves:
            session = sessions[worker]
            if session.id not in shard.membership.sessions:
                continue
            version = shard.ready_state().version
            if move in ("push", "late") or (move == "again" and sequences[worker] == 0):
                sequences[worker] += 1
                pushed = await attempt(shard, session, sequences[worker], max(0, version - (move == "late")))
            elif move == "again":
                pushed = await attempt(shard, session, sequences[worker], version)
            elif move == "pull":
                with_luck = asyncio.ensure_future(shard.pull(session, 0, WAIT_S))
                await settled()
                with_luck.cancel()
                continue
            else:
                await shard.leave(session.id, "")
                pushed = ""
            if pushed == "refused":
                refused += 1
            elif pushed:
                told[pushed] += 1
            counted = shard.counters
            assert counted.sent == counted.applied + counted.stale + counted.duplicate + counted.buffered
            assert counted.sent == sum(told.values())
            assert (counted.refused, counted.duplicate, counted.stale) == (refused, told["duplicate"], told["stale"])
            assert counted.buffered == len(shard.pending)
        in_story = [event.outcome for event in shard.story.events if event.kind == "push"]
        assert len(in_story) == told["applied"] + told["stale"] + told["buffered"]

    async def attempt(shard: Shard, session: Session[PushResult], sequence: int, version: int) -> str:
        try:
            return (await push(shard, session, sequence, version)).outcome
        except AlreadyPushed:
            return "refused"

    run(lesson())


def test_every_push_is_told_how_stale_it_was() -> None:
    # claim 3
    async def lesson() -> None:
        shard, (zero, one) = await ready_shard("async", 2)
        assert [(await push(shard, zero, n, 0)).staleness for n in (1, 2, 3)] == [0, 1, 2]
        late = await push(shard, one, 1, 1)
        assert (late.outcome, late.staleness, late.version) == ("applied", 2, 4)
        assert [event.staleness for event in shard.story.events if event.kind == "push"] == [0, 1, 2, 2]

    run(lesson())
