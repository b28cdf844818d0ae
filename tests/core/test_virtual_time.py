"""Does virtual time go as real time does, only at once? Order, jumps, deadlines, work for threads, and what may not be."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from protos.errors import InternalError
from ps.simulation.virtual_time import VirtualLoop


def live(lesson: Any) -> Any:
    loop = VirtualLoop()  # type: ignore[abstract]
    return loop.run(lesson(loop))


def test_an_hour_is_over_at_once() -> None:
    async def lesson(loop: VirtualLoop) -> None:
        assert asyncio.get_running_loop() is loop
        assert loop.time() == 0
        await asyncio.sleep(3600)
        assert loop.time() == 3600

    live(lesson)


def test_a_notebook_whose_cells_run_on_a_loop_has_it_back() -> None:
    async def lesson(loop: VirtualLoop) -> float:
        await asyncio.sleep(3600)
        return loop.time()

    async def cell() -> None:
        assert live(lesson) == 3600
        await asyncio.sleep(0)  # needs the running loop

    asyncio.run(cell())


def test_what_is_due_at_one_moment_happens_one_after_the_other_in_the_order_it_was_asked_for() -> None:
    said: list[str] = []

    async def speak(name: str) -> None:
        await asyncio.sleep(1)
        for part in range(2):
            said.append(f"{name}{part}")
            await asyncio.sleep(0)

    async def lesson(loop: VirtualLoop) -> None:
        await asyncio.gather(*map(speak, "abcd"))

    live(lesson)
    assert said == ["a0", "a1", "b0", "b1", "c0", "c1", "d0", "d1"]


def test_a_deadline_that_is_met_costs_no_time_and_one_that_is_not_ends_the_wait() -> None:
    async def lesson(loop: VirtualLoop) -> None:
        for _ in range(1000):
            await asyncio.wait_for(asyncio.sleep(0), 3600)
        assert loop.time() == 0
        assert len(loop._timers) < 500, "deadlines that were met are cleared away"
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(loop.create_future(), 5)
        assert loop.time() == 5

    live(lesson)


def test_work_for_a_thread_is_done_at_once() -> None:
    async def lesson(loop: VirtualLoop) -> None:
        assert await loop.run_in_executor(None, divmod, 7, 2) == (3, 1)
        with pytest.raises(ZeroDivisionError):
            await loop.run_in_executor(None, divmod, 7, 0)

    live(lesson)


def test_where_nothing_can_happen_any_more_that_is_said() -> None:
    async def lesson(loop: VirtualLoop) -> None:
        await loop.create_future()

    with pytest.raises(InternalError, match="coroutines that all wait"):
        live(lesson)


def test_what_a_coroutine_raises_is_raised_and_what_it_leaves_behind_is_cancelled() -> None:
    left: list[asyncio.Task[None]] = []

    async def lesson(loop: VirtualLoop) -> None:
        left.append(loop.create_task(asyncio.sleep(10)))
        await asyncio.sleep(1)
        raise KeyError("lesson")

    with pytest.raises(KeyError, match="lesson"):
        live(lesson)
    assert left[0].cancelled()
