"""How many pushes are read at the same time? As many as there is room for, in order of arrival, and at least one."""

from __future__ import annotations

import asyncio
from typing import Any

from ps.admission import Admission
from tests.core.builders import run
from tests.core.lessons import settled


async def entering(admission: Admission, nbytes: int, shard_bytes: int = 0) -> Any:
    task = asyncio.ensure_future(admission.enter(nbytes, shard_bytes))
    await settled()
    return task


def test_those_for_whom_there_is_no_room_wait_in_order() -> None:
    async def lesson() -> None:
        admission = Admission(least_bytes=100)
        first, second, third, small = [await entering(admission, nbytes) for nbytes in (60, 40, 50, 1)]
        assert [task.done() for task in (first, second, third, small)] == [True, True, False, False]
        admission.leave(40)
        await settled()
        assert not third.done()  # and the small one, for which there is room, does not overtake it
        assert not small.done()
        admission.leave(60)
        await settled()
        assert third.done()
        assert small.done()
        assert admission.admitted_bytes == 51

    run(lesson())


def test_a_push_that_is_larger_than_all_room_comes_in_alone() -> None:
    async def lesson() -> None:
        admission = Admission(least_bytes=100)
        large = await entering(admission, 1000)
        assert large.done()
        other = await entering(admission, 1)
        assert not other.done()
        admission.leave(1000)
        await settled()
        assert other.done()

    run(lesson())


def test_a_large_shard_has_room_for_two() -> None:
    async def lesson() -> None:
        admission = Admission(least_bytes=100)
        tasks = [await entering(admission, 1000, shard_bytes=1000) for _ in range(3)]
        assert [task.done() for task in tasks] == [True, True, False]
        for task in tasks:
            task.cancel()

    run(lesson())


def test_who_goes_away_while_waiting_makes_room_for_the_next() -> None:
    async def lesson() -> None:
        admission = Admission(least_bytes=100)
        await entering(admission, 60)
        large, small = await entering(admission, 90), await entering(admission, 40)
        large.cancel()
        await settled()
        assert small.done()
        assert admission.admitted_bytes == 100

    run(lesson())


def test_who_goes_away_at_the_moment_it_is_let_in_gives_its_room_back() -> None:
    async def lesson() -> None:
        admission = Admission(least_bytes=100)
        await entering(admission, 60)
        waiting, next_one = await entering(admission, 90), await entering(admission, 100)
        admission.leave(60)  # lets it in, but it has not run since
        waiting.cancel()
        await settled()
        assert next_one.done()
        assert admission.admitted_bytes == 100

    run(lesson())
