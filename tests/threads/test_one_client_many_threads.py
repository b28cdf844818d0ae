"""May one client be used from many threads at once? Everything at the same time, and the sums come out exactly."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import client
import ps
from protos.errors import AlreadyPushed, NotJoined, ParameterServerError
from ps.rules import UpdateRule, register
from tests.harness.state import counters_add_up
from tests.harness.threads import HANGS_S, Task, together, until

THREADS, ROUNDS = 8, 12


@pytest.mark.parametrize("mode", ["async", "ssp"])
def test_all_methods_from_eight_threads(mode: str) -> None:
    # claim 2, claim 3
    with (
        ps.LocalCluster(3, mode, workers=1, rule="sgd:learning_rate=1") as local,
        client.connect(local.cluster, worker=0) as server,
    ):
        start = {"w": np.zeros((12, 5)), "emb": np.zeros((9, 2)), "n": np.zeros(THREADS, np.int64)}
        server.init(start, partitioner=client.FixedShardsPartitioner(3))
        for _thread in range(THREADS):
            server.assign({"n": np.arange(THREADS)})

        def work(thread: int) -> int:
            pushes = 0
            for round_ in range(ROUNDS):
                kind = (thread + round_) % 4
                if kind == 0:
                    assert server.push({"w": np.ones((12, 5))}).outcome == "applied"
                elif kind == 1:
                    values, result = server.push_pull({"w": np.ones((12, 5))})
                    assert result.outcome == "applied"
                    assert values.keys() == start.keys()
                elif kind == 2:
                    rows = client.IndexedSlices(np.ones((2, 2)), np.array([thread, 8]))
                    server.push({"w": np.ones((12, 5)), "emb": rows})
                else:
                    server.push({})
                    server.init(start, partitioner=client.FixedShardsPartitioner(3))
                    assert server.pull(["n"])["n"][thread] == thread
                    assert server.pull(rows={"w": [11, 0]})["w"].shape == (2, 5)
                    assert server.status()["mode"] == mode
                    with pytest.raises(ParameterServerError):
                        server.push({"w": np.ones(3)})
                pushes += 1
            return pushes

        pushes = sum(together([lambda t=t: work(t) for t in range(THREADS)]))
        values, status = server.pull(), server.status()
    assert pushes == THREADS * ROUNDS
    assert values.version == (pushes,) * 3
    assert [each["counters"]["applied"] for each in status["ps"]] == [pushes] * 3
    assert counters_add_up(status)
    np.testing.assert_array_equal(values["w"], -pushes * 3 / 4)
    assert values["emb"][8, 0] == -pushes / 4
    assert values["emb"].sum() == -2 * 2 * pushes / 4
    for story in local.stories():  # each push once, whatever the order
        sequences = [event.sequence for event in story if event.kind == "push"]
        assert sorted(sequences) == sorted(set(sequences))
        assert len(sequences) == pushes


def test_one_thread_waits_at_the_barrier_while_another_pushes_in_sync() -> None:
    """A worker pushes once for a version, whichever thread does it: the second is told, the first goes on waiting."""
    with (
        ps.LocalCluster(2, "sync", workers=2, rule="sgd:learning_rate=1") as local,
        client.connect(local.cluster, worker=0) as zero,
        client.connect(local.cluster, worker=1) as one,
    ):
        zero.init({"w": np.zeros(2)})
        one.pull()
        wait = Task(lambda: zero.push_pull({"w": np.ones(2)}))
        until(lambda: one.status()["workers"][0]["waiting_for"])
        with pytest.raises(AlreadyPushed):
            zero.push({"w": np.full(2, 100.0)})
        assert zero.status()["step"] == 0  # other calls go through
        assert wait.running
        assert one.push({"w": np.full(2, 3.0)}).outcome == "applied"
        values, result = wait.result()
        assert result.outcome == "applied"
        np.testing.assert_array_equal(values["w"], -2)


def test_one_thread_waits_for_the_slowest_while_another_pushes_in_ssp() -> None:
    with (
        ps.LocalCluster(2, "ssp", workers=2, slack=0, rule="sgd:learning_rate=1") as local,
        client.connect(local.cluster, worker=0) as fast,
        client.connect(local.cluster, worker=1) as slow,
    ):
        fast.init({"w": np.zeros(2)})
        fast.push({"w": np.ones(2)})
        pull = Task(fast.pull)
        until(lambda: slow.status()["workers"][0]["waiting_for"])
        assert fast.push({"w": np.ones(2)}).outcome == "applied"  # its clock is 2 now, and the pull waits for that
        slow.push({})
        assert pull.running
        slow.push({})
        assert pull.result(HANGS_S).step == 4


@register("compensating")
class Compensating(UpdateRule):
    """Delay-compensated descent in its simplest form: it asks for the value that was read."""

    needs_read_value = True

    def update(self, ctx: Any, value: Any, grad: Any) -> Any:
        return value - grad * (1 + 0 * (value - ctx.read_value))


def test_two_threads_each_push_for_the_version_they_have_pulled() -> None:
    with (
        ps.LocalCluster(2, "async", workers=1, rule="compensating") as local,
        client.connect(local.cluster, worker=0) as server,
    ):
        server.init({"w": np.zeros(2), "v": np.zeros(2)})

        def work(both_have_pulled: threading.Barrier) -> None:
            for _ in range(ROUNDS):
                version = server.pull().version
                both_have_pulled.wait(HANGS_S)
                server.push({"w": np.ones(2), "v": np.ones(2)}, version=version)

        both = threading.Barrier(2)
        together([lambda: work(both)] * 2)
        values = server.pull()
    for value in values.values():
        np.testing.assert_array_equal(value, -2 * ROUNDS)


def until_cut_off(call: Callable[[], Any]) -> int:
    """Call again and again until it fails with an error of ours, which must say that the client is gone; how often it went."""
    for count in itertools.count():
        try:
            call()
        except ParameterServerError as error:
            kinds = {type(part) for part in getattr(error, "refused", {0: error}).values()}
            assert all(issubclass(kind, (NotJoined, ConnectionError)) for kind in kinds), kinds
            return count
    raise AssertionError


@pytest.mark.parametrize("again", range(5))
def test_leave_from_one_thread_while_others_work(again: int) -> None:
    """Whoever is cut off hears a typed error, and nobody hangs."""
    # claim 4
    gradient = {"w": np.ones(1000)}
    with ps.LocalCluster(2, "async", workers=1, rule="sgd") as local:
        server = client.connect(local.cluster, worker=0)
        server.init({"w": np.zeros(1000)})
        calls: list[Callable[[], Any]] = [
            server.pull,
            lambda: server.push(gradient),
            lambda: server.push_pull(gradient),
            server.status,
        ]
        tasks = [Task(partial(until_cut_off, call)) for call in calls]
        until(lambda: server.status()["step"] >= 3)
        server.leave()
        for task in tasks:
            task.result()
