"""With backup workers, who counts? The first N - K of each step, the same ones on every shard; the rest are told stale."""

from __future__ import annotations

import contextlib
from collections import Counter

import numpy as np
import pytest

import client
import ps
from tests.harness.state import counters_add_up
from tests.harness.threads import Task, together, until


@pytest.mark.parametrize("servers", [1, 3])
def test_the_first_come_count_and_the_rest_are_stale(servers: int) -> None:
    with contextlib.ExitStack() as stack:
        local = stack.enter_context(
            ps.LocalCluster(servers=servers, mode="sync", workers=3, backup_workers=1, rule="sgd:learning_rate=1")
        )
        clients = [stack.enter_context(client.connect(local.cluster, worker=worker)) for worker in range(3)]
        clients[0].init({name: np.zeros(2) for name in "abc"})
        for server in clients:
            server.pull()
        one = {name: np.ones(2) for name in "abc"}
        assert clients[2].push(one).outcome == "buffered"
        assert clients[0].push({name: 3 * np.ones(2) for name in "abc"}).outcome == "applied"
        late = clients[1].push({name: 1000 * np.ones(2) for name in "abc"})
        assert (late.outcome, late.staleness) == ("stale", 1)
        for server in clients:
            values = server.pull()
            assert values.version == (1,) * servers
            for name in "abc":
                np.testing.assert_array_equal(values[name], [-2, -2])


@pytest.mark.parametrize("servers", [1, 3])
@pytest.mark.parametrize("pulling", ["push_pull", "push, then pull"])
def test_all_shards_take_the_same_workers_and_nobody_hangs(servers: int, pulling: str) -> None:
    """Many steps, workers in a race: the stories of all shards tell the same contributors, and count what they should."""
    # claim 5
    workers, backup, steps = 4, 1, 60
    names = "abcdef"

    def train(server: client.Client) -> Counter[str]:
        told: Counter[str] = Counter()
        values = server.pull()
        while values.step < steps:
            gradients = {name: np.full(3, float(2**server.worker)) for name in names}
            if pulling == "push_pull":
                values, result = server.push_pull(gradients)
            else:
                result = server.push(gradients)
                values = server.pull()
            assert len(set(values.version)) == 1
            assert all(np.all(values[name] == values["a"][0]) for name in names)  # of one version, on all shards
            told["stale" if result.outcome == "stale" else "counted"] += 1
        server.leave()
        return told

    with contextlib.ExitStack() as stack:
        local = stack.enter_context(
            ps.LocalCluster(
                servers=servers, mode="sync", workers=workers, backup_workers=backup, rule="sgd:learning_rate=1"
            )
        )
        clients = [stack.enter_context(client.connect(local.cluster, worker=worker)) for worker in range(workers)]
        clients[0].init({name: np.zeros(3) for name in names})
        told = together([lambda s=s: train(s) for s in clients])
        with client.connect(local.cluster, observer=True) as observer:
            status, values = observer.status(), observer.pull()

    contributors = [
        [tuple(worker for worker, _, _ in event.contributors) for event in story if event.kind == "step"]
        for story in local.stories()
    ]
    assert all(each == contributors[0] for each in contributors)
    assert all(len(step) == workers - backup for step in contributors[0][:steps])  # then some have left
    weights = 0.0
    for step in contributors[0]:
        weights -= sum(2**worker for worker in step) / len(step)
    np.testing.assert_allclose(values["a"], weights, rtol=1e-12)
    assert counters_add_up(status)  # claim 3
    assert sum(each["stale"] for each in told) == status["ps"][0]["counters"]["stale"]
    counted = sum(len(step) for step in contributors[0])
    assert [each["counters"]["applied"] for each in status["ps"]] == [counted] * servers
    assert sum(each["counted"] for each in told) == counted


def test_fewer_workers_than_count_go_on_when_the_others_have_left() -> None:
    with ps.LocalCluster(servers=2, mode="sync", workers=3, backup_workers=1, rule="sgd:learning_rate=1") as local:
        zero, one, two = (client.connect(local.cluster, worker=worker) for worker in range(3))
        zero.init({"a": np.zeros(2), "b": np.zeros(2)})
        gradient = {"a": np.ones(2), "b": np.ones(2)}
        one.leave()
        push = Task(lambda: zero.push_pull(gradient))
        assert until(lambda: two.status()["workers"][0]["waiting_for"]).startswith("worker 2")
        two.leave()
        values, result = push.result()
        assert (result.outcome, values.version) == ("applied", (1, 1))
        zero.leave()
