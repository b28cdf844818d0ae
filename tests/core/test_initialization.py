"""Which of several workers that all call init gets to send the values? One; the others wait, and one that dies is replaced."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from protos.errors import InitConflict, ServerStopping, WaitTimeout
from ps.initialization import Declaration, Initialization
from tests.core.builders import WAIT_S, run

W = ("w", "float32", (3, 4), True)
B = ("b", "float32", (4,), True)
MODEL = Declaration((B, W), "WholeVariables()")


def always() -> bool:
    return True


def nothing_wrong() -> None:
    """No reason to stop waiting."""


async def ask(
    initialization: Initialization,
    session: str,
    model: Declaration = MODEL,
    *,
    wait_s: float = WAIT_S,
    in_turn: Callable[[], bool] = always,
    check: Callable[[], None] = nothing_wrong,
) -> int:
    return await initialization.ask(
        session, model, check, wait_s, in_turn=in_turn, missing=lambda granted_to: f"the worker of {granted_to}"
    )


async def begun(initialization: Initialization, session: str, **more: Callable[[], bool]) -> asyncio.Task[int]:
    """An ask that has come to the point where it waits, if it has to."""
    task = asyncio.ensure_future(ask(initialization, session, **more))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    return task


def test_the_first_is_granted_and_the_others_find_the_model_there() -> None:
    async def lesson() -> None:
        initialization = Initialization()
        assert await ask(initialization, "a") == 1
        waiting = [await begun(initialization, "b"), await begun(initialization, "c")]
        assert not any(task.done() for task in waiting)
        initialization.accept(1, "a")
        assert await asyncio.gather(*waiting) == [0, 0]
        assert await ask(initialization, "a") == 0  # once is enough, for the first one too

    run(lesson())


def test_when_the_granted_one_dies_one_of_the_others_gets_a_higher_grant() -> None:
    async def lesson() -> None:
        initialization = Initialization()
        assert await ask(initialization, "a") == 1
        waiting = {await begun(initialization, "b"), await begun(initialization, "c")}
        initialization.abandoned("a")
        granted, still = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        assert [task.result() for task in granted] == [2]
        assert initialization.outdated(1)  # what "a" may still have on the way comes too late
        initialization.accept(2, initialization.granted_to)
        assert [await task for task in still] == [0]

    run(lesson())


def test_the_model_of_one_who_died_binds_nobody() -> None:
    async def lesson() -> None:
        initialization = Initialization()
        await ask(initialization, "a")
        initialization.abandoned("a")
        assert await ask(initialization, "b", Declaration((W,), "")) == 2

    run(lesson())


def test_one_whose_own_attempt_failed_may_try_another_model() -> None:
    async def lesson() -> None:
        initialization = Initialization()
        assert await ask(initialization, "a") == 1
        assert await ask(initialization, "a", Declaration((W,), "")) == 2
        with pytest.raises(InitConflict):  # and that is what counts now
            await ask(initialization, "b")

    run(lesson())


def test_the_death_of_a_bystander_changes_nothing() -> None:
    async def lesson() -> None:
        initialization = Initialization()
        await ask(initialization, "a")
        waiting = await begun(initialization, "b")
        initialization.abandoned("c")
        await asyncio.sleep(0)
        assert not waiting.done()
        initialization.accept(1, "a")
        assert await waiting == 0

    run(lesson())


def test_where_there_is_a_chief_the_others_let_it_go_first() -> None:
    async def lesson() -> None:
        initialization, gone = Initialization(), False
        early = await begun(initialization, "worker 1", in_turn=lambda: gone)
        assert await ask(initialization, "chief") == 1
        initialization.abandoned("chief")
        gone = True
        initialization.wake()
        assert await early == 2

    run(lesson())


def test_values_sent_twice_are_known_and_older_ones_are_not_wanted() -> None:
    # The sender may not have heard that they arrived: its second try must not look like a second initialiser.
    initialization = Initialization()
    initialization.accept(2, "a")
    assert initialization.has(2, "a")
    assert not initialization.has(2, "b")
    assert [initialization.outdated(grant) for grant in (1, 2, 3)] == [True, True, False]


@pytest.mark.parametrize(
    ("later", "field", "got", "expected"),
    [
        ((B, ("w", "float32", (3, 5), True)), "variable 'w'", "float32 (3, 5)", "float32 (3, 4), as initialised"),
        ((B, ("w", "float16", (3, 4), True)), "variable 'w'", "float16 (3, 4)", "float32 (3, 4), as initialised"),
        (
            (B, ("w", "float32", (3, 4), False)),
            "variable 'w'",
            "float32 (3, 4), not trainable",
            "float32 (3, 4), as initialised",
        ),
        ((W,), "variable 'b'", "no such variable", "float32 (4,), as initialised"),
        (
            (B, W, ("x", "int64", (), False)),
            "variable 'x'",
            "int64 (), not trainable",
            "no such variable, as initialised",
        ),
    ],
)
@pytest.mark.parametrize("accepted", [False, True])
def test_another_model_is_refused_by_name(
    later: tuple[object, ...], field: str, got: str, expected: str, accepted: bool
) -> None:
    # claim 11
    async def lesson() -> None:
        initialization = Initialization()
        grant = await ask(initialization, "a")
        if accepted:
            initialization.accept(grant, "a")
        with pytest.raises(InitConflict) as caught:
            await ask(initialization, "b", Declaration(later, "WholeVariables()"))  # type: ignore[arg-type]
        assert (caught.value.field, caught.value.got, caught.value.expected) == (field, got, expected)
        assert initialization.declaration == MODEL

    run(lesson())


def test_another_partitioner_is_another_model() -> None:
    async def lesson() -> None:
        initialization = Initialization()
        await ask(initialization, "a")
        with pytest.raises(InitConflict) as caught:
            await ask(initialization, "b", Declaration(MODEL.variables, "FixedShardsPartitioner(num_shards=2)"))
        assert caught.value.field == "partitioner"
        assert "FixedShards" in caught.value.got

    run(lesson())


def test_waiting_ends_at_the_deadline() -> None:
    # claim 4
    async def lesson() -> None:
        initialization = Initialization()
        await ask(initialization, "a")
        with pytest.raises(WaitTimeout) as caught:
            await ask(initialization, "b", wait_s=0)
        assert caught.value.field == "init"
        assert caught.value.got == "no model after 0 s"
        assert caught.value.expected == "the worker of a to initialise it"

    run(lesson())


def test_waiting_ends_when_there_is_no_point_in_it() -> None:
    # claim 4
    async def lesson() -> None:
        initialization, stopping = Initialization(), False

        def check() -> None:
            if stopping:
                raise ServerStopping(field="ps", got="SIGTERM")

        await ask(initialization, "a")
        waiting = asyncio.ensure_future(ask(initialization, "b", check=check))
        await asyncio.sleep(0)
        stopping = True
        initialization.wake()
        with pytest.raises(ServerStopping):
            await waiting

    run(lesson())
