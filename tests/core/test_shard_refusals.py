"""A refused input changes nothing: state, version, story and answers of a shard are as they were. (claim 11)

And initialising, where most conflicts come from: several workers say what the job is, at the same time.
"""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from protos.errors import (
    ConfigurationConflict,
    InitConflict,
    InvalidInput,
    InvalidVersion,
    NotInitialized,
    NotJoined,
    ParameterServerError,
    ReadOnly,
    RuleError,
    RuleFailed,
    ServerStopping,
)
from ps.configuration import Configuration
from ps.consistency import Seat
from ps.membership import REMEMBERED_PUSHES, JoinFacts, Membership
from ps.rules import UpdateRule
from ps.shard import Shard
from tests.core.builders import WAIT_S, declaration, facts, partition, ready_shard, run, state, value_of
from tests.core.lessons import grad, push, settled

W0 = {"w": np.zeros(2, np.float32)}
MODEL = declaration(W0)
SGD = Configuration(rule="sgd:learning_rate=1")


def empty_shard(workers: int = 2, said: Configuration | None = None) -> Shard:
    """Workers have joined; nobody has initialised anything."""
    shard = Shard(Membership(workers), said or Configuration())
    for worker in range(workers):
        shard.join(facts(f"w{worker}", worker, workers))
    return shard


async def begin(shard: Shard, session: str, wanted: Configuration = SGD, **more: Any) -> Any:
    """(grant, configuration, elementwise)"""
    return await shard.begin_init(session, wanted, MODEL, more.get("after_chief", False), WAIT_S)


async def refused(shard: Shard, error: type[ParameterServerError], doing: Any) -> ParameterServerError:
    """What was raised, when nothing has changed."""
    before = shard.state, list(shard.story.events), shard.configuration, {**shard.pending}
    with pytest.raises(error) as caught:
        await doing
    assert type(caught.value) is error
    assert (shard.state, list(shard.story.events), shard.configuration, {**shard.pending}) == before
    return caught.value


@pytest.mark.parametrize("mode", ["async", "sync", "ssp"])
def test_a_push_of_a_version_that_is_not_yet_is_refused_and_counted(mode: str) -> None:
    # claim 11
    async def lesson() -> None:
        shard, (zero, _) = await ready_shard(mode, 2)
        error = await refused(shard, InvalidVersion, push(shard, zero, 1, 1))
        assert (error.got, error.expected) == ("1", "at most 0, the present one")
        assert (shard.counters.sent, shard.counters.refused) == (0, 1)
        assert (await push(shard, zero, 1, 0)).outcome in ("applied", "buffered")  # the sequence is not used up

    run(lesson())


def test_an_observer_may_read_and_nothing_else() -> None:
    # claim 11
    async def lesson() -> None:
        shard, _ = await ready_shard()
        eye = shard.join(JoinFacts("eye", None))
        assert value_of(await shard.pull(eye, 0, WAIT_S)).tolist() == [0, 0]
        await refused(shard, ReadOnly, push(shard, eye, 1, 0))
        await refused(shard, ReadOnly, shard.assign(eye, {0: state(w=np.ones(2, "f")).partitions[0].value}))
        await refused(shard, ReadOnly, begin(shard, "eye"))

    run(lesson())


def test_who_has_left_can_do_nothing_any_more() -> None:
    # claim 11
    async def lesson() -> None:
        shard, (zero, _) = await ready_shard("async", 2)
        await shard.leave("w0", "")
        await refused(shard, NotJoined, push(shard, zero, 1, 0))
        await refused(shard, NotJoined, shard.assign(zero, {}))
        await refused(shard, NotJoined, shard.leave("w0", ""))

    run(lesson())


def test_before_an_init_there_is_nothing_to_pull_push_or_assign() -> None:
    # claim 11
    async def lesson() -> None:
        shard = empty_shard()
        zero = shard.membership.session("w0")
        for doing in (push(shard, zero, 1, 0), shard.pull(zero, 0, WAIT_S), shard.assign(zero, {})):
            error = await refused(shard, NotInitialized, doing)
            assert "init" in error.hint

    run(lesson())


def test_a_ps_that_stops_takes_nothing_more_and_says_why() -> None:
    async def lesson() -> None:
        shard, (zero, _) = await ready_shard("async", 2)
        shard.stop("stopped by SIGTERM")
        for doing in (push(shard, zero, 1, 0), shard.pull(zero, 0, WAIT_S), shard.assign(zero, {}), begin(shard, "w0")):
            assert (await refused(shard, ServerStopping, doing)).got == "stopped by SIGTERM"
        with pytest.raises(ServerStopping):
            shard.join(facts("late", 1, 2))

    run(lesson())


def test_a_push_so_old_that_its_answer_is_forgotten_is_refused_and_not_applied() -> None:
    # claim 2
    async def lesson() -> None:
        shard, (zero,) = await ready_shard()
        for sequence in range(1, REMEMBERED_PUSHES + 2):
            await push(shard, zero, sequence, 0, {})
        error = await refused(shard, InvalidInput, push(shard, zero, 1, 0))
        assert (error.field, error.got) == ("sequence", "1")
        assert (await push(shard, zero, 2, 0)).outcome == "duplicate"

    run(lesson())


def test_assign_sets_values_and_leaves_slots_and_versions() -> None:
    async def lesson() -> None:
        shard, (zero,) = await ready_shard(rule="momentum:learning_rate=1")
        await push(shard, zero, 1, 0)
        assert await shard.assign(zero, {0: state(w=np.full(2, 7, "f")).partitions[0].value}) == 1
        assert value_of(shard).tolist() == [7, 7]
        assert shard.ready_state().partitions[0].slots["velocity"].whole().tolist() == [-1, -1]
        assert shard.story.events[-1].names == ("w",)

    run(lesson())


def test_a_model_of_state_alone_needs_no_rule_and_counts_steps_all_the_same() -> None:
    async def lesson() -> None:
        shard = empty_shard(1)
        only_state = declaration({"seen": np.arange(3)})
        grant, configuration, _ = await shard.begin_init("w0", Configuration(), only_state, False, WAIT_S)
        await shard.initialize("w0", grant, configuration, [partition("seen", np.arange(3), trainable=False)])
        result = await shard.push(shard.membership.session("w0"), 1, 0, {}, Seat.UNDECIDED)
        assert (result.outcome, result.version) == ("applied", 1)

    run(lesson())


# -- initialising ------------------------------------------------------------------------------------------------------


def test_what_the_others_say_is_checked_also_when_they_say_it_at_the_same_time() -> None:
    # claim 11: worker 1 waits while worker 0 initialises. It must not believe that its own mode is in force.
    async def lesson() -> None:
        shard = empty_shard()
        grant, configuration, _ = await begin(shard, "w0", Configuration("sync", rule="sgd"))
        other = asyncio.ensure_future(begin(shard, "w1", Configuration("async", rule="adam")))
        await settled()
        await shard.initialize("w0", grant, configuration, [partition("w", W0["w"])])
        with pytest.raises(ConfigurationConflict) as caught:
            await other
        assert (caught.value.field, caught.value.got) == ("mode", "'async'")

    run(lesson())


@pytest.mark.parametrize(
    ("first", "later", "field"),
    [
        (Configuration("ssp", rule="sgd"), Configuration(slack=5), "slack"),
        (Configuration("sync", rule="sgd"), Configuration(backup_workers=1), "backup_workers"),
        (Configuration(rule="sgd"), Configuration("sync"), "mode"),
        (Configuration(rule="sgd"), Configuration(rule="adam"), "rule"),
        (Configuration(rule="sgd"), Configuration(slack=5), "slack"),
    ],
)
def test_a_default_is_in_force_once_the_model_is_there(first: Configuration, later: Configuration, field: str) -> None:
    # claim 11: to say something else later is a conflict, and not silence.
    async def lesson() -> None:
        shard = empty_shard()
        grant, configuration, _ = await begin(shard, "w0", first)
        await shard.initialize("w0", grant, configuration, [partition("w", W0["w"])])
        error = await refused(shard, ConfigurationConflict, begin(shard, "w1", later))
        assert error.field == field
        assert (await begin(shard, "w1", Configuration()))[0] == 0

    run(lesson())


def test_what_the_command_line_said_binds_the_init() -> None:
    async def lesson() -> None:
        shard = empty_shard(said=Configuration("sync", rule="sgd:learning_rate=1"))
        await refused(shard, ConfigurationConflict, begin(shard, "w0", Configuration("async")))
        assert (await begin(shard, "w0", Configuration()))[1] == Configuration("sync", None, 0, "sgd:learning_rate=1.0")

    run(lesson())


def test_a_model_with_trainable_variables_needs_a_rule_before_anything_is_sent() -> None:
    # claim 11
    async def lesson() -> None:
        shard = empty_shard()
        error = await refused(shard, RuleError, begin(shard, "w0", Configuration("sync")))
        assert "rule=" in error.hint
        assert shard.initialization.grant == 0

    run(lesson())


def test_values_that_are_sent_again_by_the_same_initialiser_are_taken_for_what_they_are() -> None:
    # claim 2: the first answer was lost with the connection.
    async def lesson() -> None:
        shard, (zero, _) = await ready_shard("async", 2)
        await push(shard, zero, 1, 0)
        again = await shard.initialize("w0", 1, SGD, [partition("w", W0["w"])])
        assert again == 1
        assert value_of(shard).tolist() == [-1, -1]
        await refused(shard, InitConflict, shard.initialize("w1", 1, SGD, [partition("w", W0["w"])]))

    run(lesson())


def test_a_later_grant_replaces_what_a_dead_initialiser_left_and_an_older_one_comes_too_late() -> None:
    async def lesson() -> None:
        shard = empty_shard()
        await begin(shard, "w0")
        shard.disconnected("w0")  # its connection may come back, so the grant is still its own …
        await shard.expire(lease_s=-1)  # … until its lease is over
        grant, configuration, _ = await begin(shard, "w1")
        assert grant == 2
        await refused(shard, InitConflict, shard.initialize("w1", 1, configuration, [partition("w", W0["w"])]))
        await shard.initialize("w1", 2, configuration, [partition("w", np.ones(2, "f"))])
        assert value_of(shard).tolist() == [1, 1]

    run(lesson())


def test_nothing_replaces_a_model_that_has_been_trained() -> None:
    # claim 11
    async def lesson() -> None:
        shard, (zero,) = await ready_shard()
        await push(shard, zero, 1, 0)
        await refused(shard, InitConflict, shard.initialize("w0", 9, SGD, [partition("w", W0["w"])]))

    run(lesson())


def test_the_chief_initialises_unless_it_is_gone() -> None:
    async def lesson() -> None:
        shard = empty_shard()
        early = asyncio.ensure_future(begin(shard, "w1", after_chief=True))
        await settled()
        assert not early.done()
        await shard.leave("w0", "failed")
        assert (await early)[0] == 1

    run(lesson())


# -- rules that need the value that was read -----------------------------------------------------------------------------


class Reads(UpdateRule):
    """Moves the value by how far it has moved since it was read."""

    needs_read_value = True

    def update(self, ctx: Any, value: Any, grad: Any) -> Any:
        return value + grad * (1 + value - ctx.read_value)


async def reading_shard() -> Any:
    shard, sessions = await ready_shard("async", 2)
    shard.rule = Reads()
    return shard, sessions


def test_a_rule_gets_the_value_that_this_worker_read() -> None:
    async def lesson() -> None:
        shard, (zero, one) = await reading_shard()
        await shard.pull(zero, 0, WAIT_S)
        await shard.pull(one, 0, WAIT_S)
        await push(shard, one, 1, 0)  # 0 + 1·(1 + 0 - 0)
        await push(shard, zero, 1, 0)  # 1 + 1·(1 + 1 - 0)
        assert value_of(shard).tolist() == [3, 3]

    run(lesson())


def test_also_when_somebody_assigned_in_between() -> None:
    async def lesson() -> None:
        shard, (zero, one) = await reading_shard()
        await shard.pull(zero, 0, WAIT_S)
        await shard.assign(one, {0: state(w=np.full(2, 10, "f")).partitions[0].value})
        await push(shard, zero, 1, 0)  # 10 + 1·(1 + 10 - 0)
        assert value_of(shard).tolist() == [21, 21]

    run(lesson())


def test_a_gradient_of_a_version_that_was_not_pulled_last_is_refused() -> None:
    # claim 11
    async def lesson() -> None:
        shard, (zero, one) = await reading_shard()
        await shard.pull(zero, 0, WAIT_S)
        await push(shard, zero, 1, 0)
        error = await refused(shard, RuleError, push(shard, one, 1, 0))
        assert "did not pull last" in error.got
        await refused(shard, InvalidVersion, push(shard, one, 1, 2))

    run(lesson())


def test_states_that_nobody_will_need_again_are_not_kept() -> None:
    async def lesson() -> None:
        shard, (zero, _) = await reading_shard()
        eye = shard.join(JoinFacts("eye", None))
        await shard.pull(zero, 0, WAIT_S)
        await shard.pull(eye, 0, WAIT_S)
        shard.disconnected("eye")
        shard.disconnected("w0")
        shard.join(facts("instead of w0", 0, 2))
        assert len(shard._read_states) == 0

    run(lesson())


def test_a_rule_that_cannot_begin_is_told_and_leaves_nothing() -> None:
    # claim 11
    async def lesson() -> None:
        shard = empty_shard(1)
        grant, configuration, _ = await begin(shard, "w0")
        too_wide = [partition("w", W0["w"])]

        class BadSlot(UpdateRule):
            slots = ("m",)

            def init_slot(self, name: str, value: Any) -> Any:
                return np.zeros(5)

        from ps import shard as module

        make, module.make_rule = module.make_rule, lambda spec: BadSlot()  # type: ignore[assignment]
        try:
            with pytest.raises(RuleFailed):
                await shard.initialize("w0", grant, configuration, too_wide)
        finally:
            module.make_rule = make
        assert shard.state is None
        await shard.initialize("w0", grant, configuration, too_wide)
        assert (await push(shard, shard.membership.session("w0"), 1, 0, grad())).outcome == "applied"

    run(lesson())
