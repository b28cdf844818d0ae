"""Can a pull see half an update, or be held up by one? Rules that stop in the middle show that it cannot.

The gate of a rule is an event that the test opens; nothing sleeps.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import client
import ps
from ps import step
from ps.rules import Sgd, register
from tests.harness.threads import HANGS_S, Task, together, until

GATE, ENTERED = threading.Event(), threading.Event()
# In which element of a variable a rule has arrived when it stops: with several pages, pages before it are done.
STOP_AT = 7.0


@register("gated_sgd")
class GatedSgd(Sgd):
    """Plain descent that waits at the gate wherever the gradient holds STOP_AT."""

    learning_rate: float = 1.0

    def update(self, ctx: Any, value: Any, grad: Any, *slots: Any) -> Any:
        if STOP_AT in grad:
            ENTERED.set()
            assert GATE.wait(HANGS_S)
        return super().update(ctx, value, grad, *slots)


@pytest.fixture(autouse=True)
def _closed_gate() -> Iterator[None]:
    GATE.clear()
    ENTERED.clear()
    yield
    GATE.set()


@contextlib.contextmanager
def gate_opens_in_the_end() -> Iterator[None]:
    """Also when the test fails: who leaves waits for the update that is under way."""
    try:
        yield
    finally:
        GATE.set()


# Three pages of float32; the gate is in the last. Small: what fits in a cache line.
LARGE, SMALL = (1 << 19) + 100, 4


@pytest.mark.parametrize("size", [LARGE, SMALL], ids=["large", "small"])
@pytest.mark.parametrize("mode", ["async", "sync"])
def test_pulls_return_the_old_values_while_an_update_is_being_made(mode: str, size: int) -> None:
    # claim 1
    with (
        ps.LocalCluster(2, mode, workers=2, rule="gated_sgd") as local,
        client.connect(local.cluster, worker=0) as writer,
        client.connect(local.cluster, observer=True) as reader,
        client.connect(local.cluster, worker=1) as other,
        gate_opens_in_the_end(),
    ):
        start = {"w": np.zeros(size, np.float32), "v": np.zeros(size, np.float32)}
        writer.init(start, partitioner=client.WholeVariables())  # one on each ps
        gradient = np.ones(size, np.float32)
        gradient[-1] = STOP_AT
        if mode == "sync":
            other.pull()
            other.push({"w": gradient, "v": gradient})
        push = Task(lambda: writer.push({"w": gradient, "v": gradient}))
        assert ENTERED.wait(HANGS_S)
        for server in (reader, other) if mode == "async" else (reader,):
            for _ in range(3):
                values = server.pull()  # returns, with the gate closed
                assert values.version == (0, 0)
                assert not values["w"].any()
                assert not values["v"].any()
                assert not server.pull(rows={"w": [0, size - 1]})["w"].any()
        assert push.running
        GATE.set()
        assert push.result().version == (1, 1)
        np.testing.assert_array_equal(reader.pull()["w"], -gradient)


def test_pulls_return_while_the_mean_of_a_step_is_being_made(monkeypatch: pytest.MonkeyPatch) -> None:
    # claim 1
    aggregating = step.aggregating

    def gated(*arguments: Any) -> Any:
        ENTERED.set()
        assert GATE.wait(HANGS_S)
        return aggregating(*arguments)

    monkeypatch.setattr(step, "aggregating", gated)
    with (
        ps.LocalCluster(1, "sync", workers=1, rule="sgd:learning_rate=1") as local,
        client.connect(local.cluster, worker=0) as writer,
        client.connect(local.cluster, observer=True) as reader,
        gate_opens_in_the_end(),
    ):
        writer.init({"w": np.zeros(LARGE, np.float32)})
        push = Task(lambda: writer.push({"w": np.ones(LARGE, np.float32)}))
        assert ENTERED.wait(HANGS_S)
        assert reader.pull().step == 0
        GATE.set()
        assert push.result().step == 1


def test_an_assign_waits_for_its_turn_and_is_not_lost() -> None:
    # claim 1
    with (
        ps.LocalCluster(1, "async", workers=2, rule="gated_sgd") as local,
        client.connect(local.cluster, worker=0) as writer,
        client.connect(local.cluster, worker=1) as other,
        gate_opens_in_the_end(),
    ):
        writer.init({"w": np.zeros(LARGE, np.float32), "n": np.int64(0)})
        gradient = np.full(LARGE, STOP_AT, np.float32)
        push = Task(lambda: writer.push({"w": gradient}))
        assert ENTERED.wait(HANGS_S)
        assign = Task(lambda: other.assign({"n": np.int64(5), "w": np.ones(LARGE, np.float32)}))
        assert other.pull()["n"] == 0
        GATE.set()
        push.result()
        assign.result()
        values = other.pull()
        assert values["n"] == 5
        np.testing.assert_array_equal(values["w"], 1)  # after the update, whose result it replaces


@pytest.mark.parametrize("mode", ["async", "ssp"])
def test_a_reader_that_hammers_sees_whole_updates_only(mode: str) -> None:
    """All elements of a variable move by the same amount: two values in one pull would be half an update."""
    # claim 1
    pushes, size = 40, (1 << 18) * 2 + 3
    done = threading.Event()
    with (
        ps.LocalCluster(1, mode, workers=1, rule="momentum") as local,
        client.connect(local.cluster, worker=0) as writer,
        client.connect(local.cluster, observer=True) as reader,
    ):
        writer.init({"w": np.zeros(size, np.float32), "v": np.zeros(100, np.float32)})

        def read() -> int:
            pulls, last = 0, 0
            while not done.is_set() or pulls == 0:
                values = reader.pull()
                assert np.all(values["w"] == values["w"][0])
                assert np.all(values["v"] == values["w"][0])  # one version for all of a shard
                assert values.step >= last
                pulls, last = pulls + 1, values.step
            return pulls

        def write() -> int:
            try:
                for _ in range(pushes):
                    writer.push({"w": np.ones(size, np.float32), "v": np.ones(100, np.float32)})
            finally:
                done.set()
            return writer.pull().step

        pulls, steps = together([read, write])
        assert steps == pushes
        assert pulls >= 1


def test_a_waiting_apply_does_not_keep_others_from_pushing_elsewhere() -> None:
    """One shard is busy; the other takes pushes, and the busy one takes them in their order afterwards."""
    with (
        ps.LocalCluster(2, "async", workers=2, rule="gated_sgd") as local,
        client.connect(local.cluster, worker=0) as one,
        client.connect(local.cluster, worker=1) as two,
        gate_opens_in_the_end(),
    ):
        one.init({"a": np.zeros(2, np.float32), "b": np.zeros(2, np.float32)})  # a on ps 0, b on ps 1
        slow = Task(lambda: one.push({"a": np.full(2, STOP_AT, np.float32)}))
        assert ENTERED.wait(HANGS_S)
        fast = Task(lambda: two.push({"b": np.ones(2, np.float32)}))
        until(lambda: two.status()["version"] == [0, 2])
        assert fast.running
        GATE.set()
        assert (slow.result().staleness, fast.result().version) == (0, (2, 2))
