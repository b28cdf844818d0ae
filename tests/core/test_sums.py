"""How do several shards agree on a number that each knows a part of? The adder on ps 0, without a network."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from protos.errors import RuleFailed
from ps.sums import DONE, KEPT, Adder, Key
from tests.core.builders import WAIT_S, run

FIRST = Key(version=0, attempt=0, number=0)


def parts(*numbers: float) -> Any:
    return np.array(numbers)


def test_everyone_gets_the_sum_when_the_last_part_is_there() -> None:
    async def lesson() -> None:
        adder = Adder(3)
        waiting = [asyncio.ensure_future(adder.add(ps, FIRST, parts(ps, 1), WAIT_S)) for ps in (2, 0)]
        await asyncio.sleep(0)
        assert not any(one.done() for one in waiting)
        assert (await adder.add(1, FIRST, parts(1, 1), WAIT_S)).tolist() == [3, 3]
        assert [(await one).tolist() for one in waiting] == [[3, 3], [3, 3]]

    run(lesson())


def test_the_order_of_arrival_changes_no_bit() -> None:
    # claim 5: float addition is not associative; the parts are added in the order of the ps.
    async def lesson() -> None:
        sums = []
        for order in ((0, 1, 2), (2, 1, 0), (1, 2, 0)):
            adder, numbers = Adder(3), (1e16, 1.0, -1e16)
            each = [asyncio.ensure_future(adder.add(ps, FIRST, parts(numbers[ps]), WAIT_S)) for ps in order]
            sums.append({float((await one)[0]) for one in each})
        assert sums[0] == sums[1] == sums[2]
        assert len(sums[0]) == 1

    run(lesson())


def test_a_part_that_does_not_come_is_missed_by_name() -> None:
    # claim 4
    async def lesson() -> None:
        adder = Adder(3)
        with pytest.raises(RuleFailed, match=r"nothing from ps 1, ps 2"):
            await adder.add(0, FIRST, parts(1), wait_s=0.01)

    run(lesson())


@pytest.mark.parametrize("fails_first", [True, False])
def test_a_shard_that_fails_ends_the_wait_of_the_others(fails_first: bool) -> None:
    async def lesson() -> None:
        adder = Adder(2)
        if fails_first:
            adder.fail(1, FIRST, "ZeroDivisionError")
        waiting = asyncio.ensure_future(adder.add(0, FIRST, parts(1), WAIT_S))
        await asyncio.sleep(0)
        if not fails_first:
            adder.fail(1, FIRST, "ZeroDivisionError")
        with pytest.raises(RuleFailed, match="ps 1 failed: ZeroDivisionError"):
            await waiting
        again = FIRST._replace(attempt=1)
        waiting = asyncio.ensure_future(adder.add(0, again, parts(1), WAIT_S))
        await asyncio.sleep(0)
        assert (await adder.add(1, again, parts(2), WAIT_S)).tolist() == [3]
        assert (await waiting).tolist() == [3]

    run(lesson())


async def both(adder: Adder, key: Key, one: Any, other: Any) -> Any:
    return (await asyncio.gather(adder.add(0, key, one, WAIT_S), adder.add(1, key, other, WAIT_S)))[0].tolist()


def test_a_shard_that_asks_again_hears_what_it_heard() -> None:
    async def lesson() -> None:
        adder = Adder(2)
        assert await both(adder, FIRST, parts(1), parts(2)) == [3]
        assert (await adder.add(1, FIRST, parts(7), WAIT_S)).tolist() == [3]

    run(lesson())


def test_a_shard_that_never_heard_that_a_step_was_made_makes_it_as_the_others_did() -> None:
    async def lesson() -> None:
        adder = Adder(2)
        for attempt in (0, 1):  # nobody made it at the first attempt
            key = FIRST._replace(attempt=attempt)
            assert await both(adder, key, parts(1), parts(2 + attempt)) == [3 + attempt]
        assert await both(adder, FIRST._replace(attempt=1, number=1), DONE, DONE) == []
        again = FIRST._replace(attempt=2)
        assert (await adder.add(1, again, parts(7), WAIT_S)).tolist() == [4]
        assert (await adder.add(1, again._replace(number=1), DONE, WAIT_S)).tolist() == []

    run(lesson())


def test_parts_of_different_length_make_no_sum() -> None:
    async def lesson() -> None:
        adder = Adder(2)
        waiting = asyncio.ensure_future(adder.add(0, FIRST, parts(1), WAIT_S))
        await asyncio.sleep(0)
        for one in (adder.add(1, FIRST, parts(1, 2), WAIT_S), waiting):
            with pytest.raises(RuleFailed, match="another count"):
                await one

    run(lesson())


def test_only_so_many_sums_are_kept() -> None:
    async def lesson() -> None:
        adder = Adder(1)
        for version in range(3 * KEPT):
            await adder.add(0, Key(version, 0, 0), parts(version), WAIT_S)
        assert len(adder._finished) == KEPT
        assert not adder._pending

    run(lesson())
