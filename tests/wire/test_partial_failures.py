"""One process says so for all: what if some ps take a push, and one does not?

The push fails as a whole, with those that refused, and its sequence. Sent again with it, nothing is applied twice.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pytest

import client
import ps
from protos.errors import InvalidVersion, NonFiniteGradient, PushFailed, RuleFailed, WaitTimeout
from ps.rules import Sgd, register
from tests.harness.state import counters_add_up, everything, refused
from tests.harness.threads import Task, until


@register("fragile_sgd")
class FragileSgd(Sgd):
    """Plain descent that raises as long as `broken` is set and a gradient holds 13."""

    learning_rate: float = 1.0
    broken: ClassVar[bool] = True

    def update(self, ctx: Any, value: Any, grad: Any, *slots: Any) -> Any:
        if FragileSgd.broken and 13 in grad:
            raise ArithmeticError("thirteen")
        return super().update(ctx, value, grad, *slots)


# 3 ps, one variable on each: a on 0, b on 1, c on 2 (equal sizes are placed by name).
START = {name: np.zeros(2) for name in "abc"}


def gradients(a: float, b: float, c: float) -> dict[str, Any]:
    return {"a": np.full(2, float(a)), "b": np.full(2, float(b)), "c": np.full(2, float(c))}


@contextlib.contextmanager
def three_ps(mode: str, workers: int = 1, rule: str = "sgd:learning_rate=1") -> Iterator[tuple[Any, ...]]:
    FragileSgd.broken = True
    with ps.LocalCluster(3, mode, workers, rule=rule) as local, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(client.connect(local.cluster, worker=worker)) for worker in range(workers)]
        clients[0].init(START)
        for server in clients:
            server.pull()
        yield local, *clients


def applied(server: client.Client) -> list[int]:
    return [each["counters"]["applied"] for each in server.status()["ps"]]


def test_one_ps_guards_and_the_others_have_applied() -> None:
    # claim 12
    with three_ps("async") as (local, server):
        local._servers[1].shard.guard_nonfinite = True  # after the join, so that the client does not know
        with pytest.raises(PushFailed) as caught:
            server.push(gradients(1, np.nan, 1))
        failed = caught.value
        assert {index: type(error) for index, error in failed.refused.items()} == {1: NonFiniteGradient}
        assert f"sequence={failed.sequence}" in str(failed)
        assert local.cluster["ps"][1] in str(failed)
        assert server.status()["version"] == [1, 0, 1]

        result = server.push(gradients(1, 1, 1), sequence=failed.sequence)
        assert (result.outcome, result.version, result.duplicate) == ("applied", (1, 1, 1), False)
        for value in server.pull().values():
            np.testing.assert_array_equal(value, -1)
        assert applied(server) == [1, 1, 1]
        assert [each["counters"]["duplicate"] for each in server.status()["ps"]] == [1, 0, 1]
        assert counters_add_up(server.status())


@pytest.mark.parametrize("call", ["push", "push_pull"])
def test_the_rule_fails_on_one_ps_in_async(call: str) -> None:
    # claim 11, claim 12
    with three_ps("async", rule="fragile_sgd") as (_, server):
        before = server.status()["ps"][2]
        with pytest.raises(PushFailed, match="thirteen") as caught:
            getattr(server, call)(gradients(1, 1, 13))
        failed = caught.value
        assert {index: type(error) for index, error in failed.refused.items()} == {2: RuleFailed}
        after = server.status()["ps"][2]
        assert after["version"] == 0
        assert after["workers"] == before["workers"]  # its clock, too
        assert after["counters"]["applied"] == 0
        for _ in range(2):
            with pytest.raises(PushFailed):
                server.push(gradients(1, 1, 13), sequence=failed.sequence)
        FragileSgd.broken = False
        assert server.push(gradients(1, 1, 13), sequence=failed.sequence).version == (1, 1, 1)
        assert {name: value[0] for name, value in server.pull().items()} == {"a": -1, "b": -1, "c": -13}
        assert applied(server) == [1, 1, 1]


def test_the_rule_fails_on_every_ps_which_is_said_once() -> None:
    # claim 11, claim 12
    with (
        three_ps("async", rule="fragile_sgd") as (local, server),
        client.connect(local.cluster, observer=True) as observer,
        refused(observer, RuleFailed, "thirteen"),
    ):
        server.push(gradients(13, 13, 13))


def test_the_rule_fails_on_every_ps_in_sync_and_the_step_can_be_tried_again() -> None:
    """Whoever was told `buffered` hears at the next pull that it came to nothing; the same sequences are taken again."""
    # claim 11, claim 12
    with (
        three_ps("sync", 2, rule="fragile_sgd") as (local, zero, one),
        client.connect(local.cluster, observer=True) as observer,
    ):
        before = everything(observer)
        first = zero.push(gradients(13, 13, 13))
        assert first.outcome == "buffered"
        with pytest.raises(RuleFailed, match="thirteen"):
            one.push(gradients(13, 13, 13))
        after = everything(observer)
        assert (after["values"], after["version"]) == (before["values"], before["version"])
        assert after["counters"] == before["counters"]
        with pytest.raises(RuleFailed, match="thirteen"):
            zero.pull()
        assert zero.pull().step == one.pull().step == 0  # told once
        FragileSgd.broken = False
        assert zero.push(gradients(13, 13, 13), sequence=first.sequence).outcome == "buffered"
        assert one.push(gradients(1, 1, 1)).outcome == "applied"
        for server in (zero, one):
            assert {name: value[0] for name, value in server.pull().items()} == {"a": -7, "b": -7, "c": -7}
        assert applied(observer) == [2, 2, 2]
        assert counters_add_up(observer.status())


def test_the_rule_fails_on_one_ps_in_sync_and_everybody_tries_again() -> None:
    # claim 12
    with (
        three_ps("sync", 2, rule="fragile_sgd") as (local, zero, one),
        client.connect(local.cluster, observer=True) as observer,
    ):
        first = zero.push(gradients(1, 1, 13))
        with pytest.raises(PushFailed) as caught:
            one.push(gradients(3, 3, 13))
        assert list(caught.value.refused) == [2]
        assert observer.status()["version"] == [1, 1, 0]
        with pytest.raises(RuleFailed, match="thirteen"):
            zero.pull()
        FragileSgd.broken = False
        # Version 0 is what these gradients are of: shards that have taken them know them by their sequence.
        assert zero.push(gradients(1, 1, 13), sequence=first.sequence, version=(0, 0, 0)).outcome == "buffered"
        again = one.push(gradients(3, 3, 13), sequence=caught.value.sequence, version=(0, 0, 0))
        assert (again.outcome, again.version) == ("applied", (1, 1, 1))
        for server in (zero, one):
            assert {name: value[0] for name, value in server.pull().items()} == {"a": -2, "b": -2, "c": -13}
        assert applied(observer) == [2, 2, 2]
        assert counters_add_up(observer.status())


def test_a_version_that_only_one_ps_has_not_reached() -> None:
    # claim 12
    with three_ps("async") as (_, server):
        with pytest.raises(PushFailed) as caught:
            server.push(gradients(1, 1, 1), version=(0, 0, 5))
        assert {index: type(error) for index, error in caught.value.refused.items()} == {2: InvalidVersion}
        assert server.push(gradients(1, 1, 1), sequence=caught.value.sequence, version=(0, 0, 0)).version == (1, 1, 1)
        assert applied(server) == [1, 1, 1]


def test_a_wait_that_ends_on_all_says_so_and_the_push_is_not_lost() -> None:
    # claim 12
    with three_ps("sync", 2) as (_, zero, one):
        with pytest.raises(WaitTimeout):
            zero.push_pull(gradients(1, 1, 1), wait_timeout_s=0.2)
        pull = Task(zero.pull)
        until(lambda: one.status()["workers"][0]["waiting_for"])
        one.push(gradients(3, 3, 3))
        np.testing.assert_array_equal(pull.result()["a"], -2)
