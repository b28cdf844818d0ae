"""No endless wait: who waits on a shard goes on, or is told what was missing; and who was let read sees what it waited for."""

from __future__ import annotations

import asyncio

import pytest

from protos.errors import NotJoined, ServerStopping, WaitTimeout
from tests.core.builders import WAIT_S, dense, facts, ready_shard, run, value_of
from tests.core.lessons import ONES, gated_shard, happened, push, settled


@pytest.mark.parametrize(
    ("mode", "slack", "reason"),
    [("sync", None, "step 0 to be complete"), ("ssp", 0, "clock 1 of the slowest (slack 0)")],
)
def test_a_wait_that_is_too_long_names_the_worker_that_was_missing(mode: str, slack: int | None, reason: str) -> None:
    # claim 4
    async def lesson() -> None:
        shard, (zero, one) = await ready_shard(mode, 2, slack=slack)
        await push(shard, zero, 1, 0)
        with pytest.raises(WaitTimeout) as caught:
            await shard.pull(zero, 0, wait_s=0)
        assert caught.value.field == "worker 0"
        assert caught.value.got == "0 s without worker 1 (host, pid of w1)"
        assert caught.value.expected == reason
        assert shard.waiting() == {}
        await push(shard, one, 1, 0)
        assert (await shard.pull(zero, 0, wait_s=0)).version > 0  # and nothing is broken by it

    run(lesson())


def test_who_waits_is_told_when_the_ps_stops_and_when_its_session_is_over() -> None:
    # claim 4
    async def lesson() -> None:
        shard, (zero, one, _) = await ready_shard("sync", 3)
        await push(shard, zero, 1, 0)
        await push(shard, one, 1, 0)
        waits = [asyncio.ensure_future(shard.pull(session, 0, WAIT_S)) for session in (zero, one)]
        await settled()
        assert shard.waiting() == {0: "worker 2 (host, pid of w2)", 1: "worker 2 (host, pid of w2)"}
        shard.disconnected("w0")
        shard.join(facts("instead of w0", 0, 3))
        shard.disconnected("instead of w0")
        with pytest.raises(NotJoined):
            await waits[0]
        shard.stop("stopped by SIGTERM")
        with pytest.raises(ServerStopping) as caught:
            await waits[1]
        assert caught.value.got == "stopped by SIGTERM"

    run(lesson())


def test_a_pull_waits_for_a_version_that_another_ps_has_reached() -> None:
    async def lesson() -> None:
        shard, (zero,) = await ready_shard("sync")
        waiting = asyncio.ensure_future(shard.pull(zero, 1, WAIT_S))
        await settled()
        assert not waiting.done()
        await push(shard, zero, 1, 0)
        assert (await waiting).version == 1

    run(lesson())


def test_in_ssp_who_was_let_read_sees_the_updates_it_waited_for() -> None:
    # Worker 1 may read when worker 0 has finished its iteration: not while the update of that iteration is being made.
    async def lesson() -> None:
        shard, (zero, one), begun, go = await gated_shard("ssp", 2)
        go.set()
        await push(shard, one, 1, 0, {0: dense(ONES)})
        begun, go = shard.rule.gate()  # type: ignore[union-attr]
        under_way = asyncio.ensure_future(push(shard, zero, 1, 0, {0: dense(ONES)}))
        await happened(begun)
        reading = asyncio.ensure_future(shard.pull(one, 0, WAIT_S))
        await settled()
        assert not reading.done()
        go.set()
        await under_way
        assert (value_of(await reading) == -2).all()

    run(lesson())


def test_in_ssp_who_waits_for_a_dead_worker_goes_on_when_another_process_takes_its_place() -> None:
    # claim 4: the newcomer starts level with the slowest of the others, which is the one that waits.
    async def lesson() -> None:
        shard, (zero, _) = await ready_shard("ssp", 2, slack=0)
        await push(shard, zero, 1, 0)
        waiting = asyncio.ensure_future(shard.pull(zero, 0, WAIT_S))
        await settled()
        shard.disconnected("w1")
        assert not waiting.done()
        shard.join(facts("instead of w1", 1, 2))
        await settled()
        assert waiting.done()

    run(lesson())
