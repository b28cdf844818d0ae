"""What if somebody goes away in the middle? A caller, a process, a forked child, an initialiser: the others go on.

And nobody is woken for nothing. Steps that fail by themselves are in test_shard_steps.py.
"""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from protos.codec import PROTOCOL_VERSION
from protos.errors import InitConflict, NotJoined, RuleFailed, WaitTimeout
from ps import server, step
from ps.configuration import Configuration
from ps.membership import JoinFacts, Membership
from ps.rules import UpdateRule
from ps.server import Server, Settings
from ps.shard import Shard
from tests.core.builders import WAIT_S, Clock, declaration, dense, facts, partition, ready_shard, run, value_of
from tests.core.lessons import ONES, gated_shard, grad, happened, push, settled

W0 = {"w": np.zeros(2, np.float32)}
SGD = Configuration(rule="sgd:learning_rate=1")


# -- a step is made to its end -------------------------------------------------------------------------------------------


def test_a_step_that_a_leave_makes_due_is_made_though_its_caller_goes_away() -> None:
    # claim 4
    async def lesson() -> None:
        shard, (zero, one, _), begun, go = await gated_shard("sync", 3)
        for session in (zero, one):
            await push(shard, session, 1, 0, {0: dense(ONES)})
        leaving = asyncio.ensure_future(shard.leave("w2", "out of data"))
        await happened(begun)
        leaving.cancel()
        await settled()
        assert leaving.cancelled()
        go.set()
        assert (value_of(await shard.pull(zero, 0, WAIT_S)) == -1).all()

    run(lesson())


def test_an_error_that_is_not_the_rules_undoes_the_step_and_all_who_contributed_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # claim 11
    def no_room(*_: Any) -> Any:
        raise MemoryError("no room for the mean")

    async def lesson() -> None:
        shard, (zero, one) = await ready_shard("sync", 2)
        await push(shard, zero, 1, 0)
        with monkeypatch.context() as patch:
            patch.setattr(step, "aggregating", no_room)
            with pytest.raises(RuleFailed, match="MemoryError: no room for the mean"):
                await push(shard, one, 1, 0)
        with pytest.raises(RuleFailed, match="no room"):
            await shard.pull(zero, 0, WAIT_S)
        assert shard.counters.buffered == shard.counters.sent == 0
        # The same pushes again are no duplicates, and make the step.
        assert [(await push(shard, session, 1, 0)).outcome for session in (zero, one)] == ["buffered", "applied"]
        assert value_of(shard).tolist() == [-1, -1]

    run(lesson())


# -- a worker is restarted -----------------------------------------------------------------------------------------------


def test_a_restarted_worker_is_not_waited_for_by_itself() -> None:
    """Its predecessor had pushed to ps 0 only. ps 1 waits for a gradient that can no longer come, and must notice."""

    # claim 4
    async def lesson() -> None:
        shards = [await ready_shard("sync", 2) for _ in range(2)]
        (first, (_, dead)), (other, (zero, _)) = shards
        await push(first, dead, 1, 0, grad(3, 3))
        for shard, (survivor, died) in shards:
            shard.disconnected(died.id)
            await push(shard, survivor, 1, 0)
        assert [shard.ready_state().version for shard, _ in shards] == [1, 0]
        waiting = asyncio.ensure_future(other.pull(zero, 1, WAIT_S))
        again = [shard.join(facts("instead of w1", 1, 2)) for shard, _ in shards]
        newest = await first.pull(again[0], 0, WAIT_S)
        assert (await other.pull(again[1], newest.version, WAIT_S)).version == 1
        assert (await waiting).version == 1
        assert value_of(other).tolist() == [-1, -1]  # the step of those who could still contribute
        # From here on it counts as any other.
        for shard, (survivor, _) in shards:
            await push(shard, survivor, 2, 1)
        assert [shard.ready_state().version for shard, _ in shards] == [1, 1]
        for (shard, _), session in zip(shards, again):
            assert (await push(shard, session, 1, 1)).outcome == "applied"

    run(lesson())


# -- a forked child ends -------------------------------------------------------------------------------------------------


class Reads(UpdateRule):
    """Moves the value by how far it has moved since it was read."""

    needs_read_value = True

    def update(self, ctx: Any, value: Any, grad: Any) -> Any:
        return value + grad * (1 + value - ctx.read_value)


def test_a_forked_child_that_ended_without_a_word_is_forgotten_after_the_lease() -> None:
    async def lesson() -> None:
        clock = Clock()
        shard, _ = await ready_shard(clock=clock)
        shard.rule = Reads()
        child, broken = (shard.join(facts(name, 0, 1, parent_session="w0")) for name in ("child", "broken"))
        await shard.pull(child, 0, WAIT_S)
        shard.disconnected("child")
        shard.disconnected("broken")
        clock.now_s = 9
        assert await shard.expire(lease_s=10) == []
        assert len(shard._read_states) == 1  # it may come back: what it read is kept for it
        assert shard.join(facts("broken", 0, 1, parent_session="w0")) is broken
        clock.now_s = 11
        assert await shard.expire(lease_s=10) == []  # the worker itself is here
        assert shard.membership.sessions.keys() == {"w0", "broken"}
        assert len(shard._read_states) == 0
        with pytest.raises(NotJoined):
            shard.join(facts("child", 0, 1, parent_session="w0"))

    run(lesson())


def test_threads_of_one_client_may_each_push_for_the_version_they_pulled() -> None:
    async def lesson() -> None:
        shard, (zero, one) = await ready_shard("async", 2)
        shard.rule = Reads()
        await shard.pull(zero, 0, WAIT_S)  # one thread
        await shard.pull(one, 0, WAIT_S)
        await push(shard, one, 1, 0)  # 0 + 1·(1 + 0 - 0)
        await shard.pull(zero, 0, WAIT_S)  # another thread of the same client
        await push(shard, zero, 1, 0)  # 1 + 1·(1 + 1 - 0): the first read version 0
        await push(shard, zero, 2, 1)  # 3 + 1·(1 + 3 - 1): the other read version 1
        assert value_of(shard).tolist() == [6, 6]

    run(lesson())


# -- an initialiser goes away --------------------------------------------------------------------------------------------


async def initialising(workers: int = 2, holder: str = "w0") -> tuple[Shard, Clock, Any, asyncio.Future[Any]]:
    """A shard on which `holder` may initialise and the last worker waits; its clock, what begin_init said, and the wait."""
    clock = Clock()
    shard = Shard(Membership(workers), Configuration(), clock=clock)
    for worker in range(workers):
        shard.join(facts(f"w{worker}", worker, workers))
    granted = await shard.begin_init(holder, SGD, declaration(W0), False, WAIT_S)
    last = f"w{workers - 1}"
    waiting = asyncio.ensure_future(shard.begin_init(last, SGD, declaration(W0), False, WAIT_S))
    await settled()
    return shard, clock, granted, waiting


def test_a_connection_that_breaks_does_not_take_the_right_to_initialise_away() -> None:
    async def lesson() -> None:
        shard, _, (grant, configuration, _), waiting = await initialising()
        shard.disconnected("w0")
        await settled()
        assert not waiting.done()
        shard.join(facts("w0", 0, 2))
        await shard.initialize("w0", grant, configuration, [partition("w", np.ones(2, "f"))])
        assert (await waiting)[0] == 0  # the model is there
        assert value_of(shard).tolist() == [1, 1]

    run(lesson())


@pytest.mark.parametrize("end", ["it leaves", "its lease ends", "another process takes its index"])
def test_the_right_to_initialise_is_free_when_its_session_is_over(end: str) -> None:
    # claim 4
    async def lesson() -> None:
        shard, clock, (grant, configuration, _), waiting = await initialising()
        if end == "it leaves":
            await shard.leave("w0", "")
        else:
            shard.disconnected("w0")
        if end == "its lease ends":
            clock.now_s = 11
            assert await shard.expire(lease_s=10) == [0]
        elif end == "another process takes its index":
            shard.join(facts("instead of w0", 0, 2))
        assert (await waiting)[0] == grant + 1
        with pytest.raises((InitConflict, NotJoined)):
            await shard.initialize("w0", grant, configuration, [partition("w", W0["w"])])

    run(lesson())


def test_who_waits_too_long_for_an_initialiser_is_told_which_worker_it_is() -> None:
    # claim 4
    async def lesson() -> None:
        shard, _, _, waiting = await initialising(3, holder="w1")
        with pytest.raises(WaitTimeout) as caught:
            await shard.begin_init("w2", SGD, declaration(W0), False, 0)
        assert caught.value.expected == "worker 1 (host, pid of w1) to initialise it"
        shard.disconnected("w1")
        with pytest.raises(WaitTimeout, match="pid of w1, connection lost"):
            await shard.begin_init("w2", SGD, declaration(W0), False, 0)
        waiting.cancel()

    run(lesson())


# -- who is woken, and who is waited for ---------------------------------------------------------------------------------


def test_a_buffered_push_wakes_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    async def lesson() -> None:
        shard, sessions = await ready_shard("sync", 4)
        asked: list[str] = []
        must_wait = shard._must_wait

        def counted(session: Any, at_least: int) -> Any:
            asked.append(session.id)
            return must_wait(session, at_least)

        monkeypatch.setattr(shard, "_must_wait", counted)
        pulls = []
        for session in sessions[:3]:
            await push(shard, session, 1, 0)
            pulls.append(asyncio.ensure_future(shard.pull(session, 0, WAIT_S)))
            await settled()
        assert asked == ["w0", "w1", "w2"]  # each when it came, and never again
        await push(shard, sessions[3], 1, 0)
        assert [(await pull).version for pull in pulls] == [1, 1, 1]

    run(lesson())


def test_a_ps_whose_work_is_done_stays_while_an_observer_is_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "LINGER_S", -1.0)  # an observer that only stays connected has had its time

    async def lesson() -> None:
        ps = Server(Settings(index=0, ps_addresses=("127.0.0.1:0",), num_workers=1))
        ps.shard.join(facts("w0", 0, 1, protocol_version=PROTOCOL_VERSION))
        eye = ps.shard.join(JoinFacts("eye", None, protocol_version=PROTOCOL_VERSION))
        assert not ps._is_over()
        await ps.shard.leave("w0", "")
        with ps.shard.reading(eye):
            assert not ps._is_over()
        assert ps._is_over()

    run(lesson())
