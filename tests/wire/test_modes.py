"""When is a gradient applied, and when does a pull wait? The three modes as a client sees them, one lesson each.

Every gradient here names its worker and step in its bits (a power of two), so that a value says whose gradients are in it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import client
import ps
from protos.errors import AlreadyPushed
from tests.harness.state import counters_add_up
from tests.harness.threads import HANGS_S, Task, together, until

W = {"w": np.zeros((4, 3), np.float64), "b": np.zeros((), np.float64)}


def gradient(number: float) -> dict[str, np.ndarray]:
    return {name: np.full(value.shape, float(number)) for name, value in W.items()}


@contextlib.contextmanager
def job(
    mode: str, workers: int, servers: int = 2, rule: str = "sgd:learning_rate=1", **options: int
) -> Iterator[tuple[ps.LocalCluster, list[client.Client]]]:
    """A cluster, initialised with zeros, and a client for each worker; those still there at the end leave."""
    with (
        ps.LocalCluster(servers=servers, mode=mode, workers=workers, rule=rule, **options) as local,
        contextlib.ExitStack() as stack,
    ):
        clients = [stack.enter_context(client.connect(local.cluster, worker=w)) for w in range(workers)]
        clients[0].init(W)
        yield local, clients


def waiting(server: client.Client, worker: int) -> Callable[[], str]:
    """Whether this worker waits on ps 0, and for whom."""
    return lambda: server.status()["workers"][worker]["waiting_for"]


def test_async_applies_on_arrival_and_a_pull_never_waits() -> None:
    with job("async", workers=3) as (_, clients):
        for step, server in enumerate(clients):  # one after another: nobody waits for workers that do nothing
            server.pull()
            result = server.push(gradient(2**step))
            assert (result.outcome, result.staleness, result.step) == ("applied", 0, step + 1)
            np.testing.assert_array_equal(server.pull()["w"], -(2 ** (step + 1) - 1) * np.ones((4, 3)))
        late = clients[0].push(gradient(1), version=(0, 1))
        assert (late.outcome, late.staleness, late.version) == ("applied", 3, (4, 4))
        assert counters_add_up(clients[0].status())


def test_sync_buffers_then_applies_the_mean_once() -> None:
    with job("sync", workers=3) as (_, (zero, one, two)):
        for server in (zero, one, two):
            server.pull()
        assert zero.push(gradient(1)).outcome == "buffered"
        assert one.push(gradient(2)).outcome == "buffered"
        assert zero.status()["step"] == 0
        pull = Task(zero.pull)  # waits for the step that this worker pushed for
        assert until(waiting(two, 0)).startswith("worker 2")
        result = two.push(gradient(6))  # completes it
        assert (result.outcome, result.version) == ("applied", (1, 1))
        values = pull.result()
        assert values.version == (1, 1)
        np.testing.assert_array_equal(values["w"], np.full((4, 3), -3.0))
        assert counters_add_up(zero.status())


def test_sync_push_pull_returns_applied_and_the_new_values_to_everyone() -> None:
    with job("sync", workers=3) as (_, clients):
        for step in range(5):
            for values, result in together([lambda s=s: s.push_pull(gradient(1)) for s in clients]):
                assert (result.outcome, result.staleness, values.version) == ("applied", 0, (step + 1, step + 1))
                np.testing.assert_array_equal(values["b"], -(step + 1))


def test_sync_tells_a_gradient_of_an_older_version_stale_and_drops_it() -> None:
    with job("sync", workers=2) as (_, (zero, one)):
        together([lambda: zero.push_pull(gradient(1)), lambda: one.push_pull(gradient(1))])
        late = zero.push(gradient(1000), version=(0, 0))
        assert (late.outcome, late.staleness, late.version) == ("stale", 1, (1, 1))
        values, late = zero.push_pull(gradient(1000), version=(0, 1))  # a mixture is as old as its oldest part
        assert (late.outcome, values.version) == ("stale", (1, 1))
        np.testing.assert_array_equal(values["w"], np.full((4, 3), -1.0))
        counters = [each["counters"] for each in zero.status()["ps"]]
        assert [(counted["stale"], counted["applied"]) for counted in counters] == [(2, 2)] * 2


def test_sync_refuses_a_second_gradient_for_one_version() -> None:
    with job("sync", workers=2) as (_, (zero, one)):
        assert zero.push(gradient(1)).outcome == "buffered"
        with pytest.raises(AlreadyPushed, match="worker 0"):
            zero.push(gradient(1))
        one.push(gradient(1))
        np.testing.assert_array_equal(zero.pull()["b"], -1.0)


@pytest.mark.parametrize("servers", [1, 3])
def test_sync_step_is_the_mean_of_exactly_the_contributors(servers: int) -> None:
    """Claim 5, from the story: replay who pushed what, and get the same bits."""
    # claim 5
    workers, steps = 3, 20
    rng = np.random.default_rng(5)
    pushed = {
        (worker, version): {name: rng.standard_normal(value.shape) for name, value in W.items()}
        for worker in range(workers)
        for version in range(steps)
    }

    def train(server: client.Client) -> dict[str, np.ndarray]:
        values = server.pull()
        for _ in range(steps):
            values, result = server.push_pull(pushed[server.worker, values.step])
            assert result.outcome == "applied"
        return values

    with job("sync", workers, servers, rule="sgd:learning_rate=0.1") as (local, clients):
        results = together([lambda s=s: train(s) for s in clients])
    for story in local.stories():
        # What a push of this worker and sequence was computed at, as the ps was told.
        at = {(e.worker, e.sequence): e.at_version for e in story if e.kind == "push" and e.outcome != "stale"}
        weights = dict(W)
        for version, step in enumerate(event for event in story if event.kind == "step"):
            assert step.version == version + 1
            members = [(worker, at[worker, sequence]) for worker, _, sequence in step.contributors]
            assert members == [(worker, version) for worker in range(workers)]
            for name, value in weights.items():
                total = sum((pushed[member][name] for member in members[1:]), pushed[members[0]][name].copy())
                weights[name] = value - 0.1 * (total / len(members))
        for result in results:
            for name in W:
                np.testing.assert_array_equal(result[name], weights[name])


@pytest.mark.parametrize("slack", [0, 3])
def test_ssp_lets_a_worker_lead_by_the_slack_and_no_more(slack: int) -> None:
    with job("ssp", workers=2, slack=slack) as (_, (fast, slow)):
        for step in range(slack):
            fast.push(gradient(1))
            assert fast.pull().step == step + 1  # does not wait
        assert fast.push(gradient(1)).outcome == "applied"  # a push never waits
        pull = Task(fast.pull)
        assert until(waiting(slow, 0)).startswith("worker 1")
        assert slow.pull().step == slack + 1  # the slowest never waits
        slow.push(gradient(1))
        assert pull.result().step == slack + 2


@pytest.mark.parametrize("slack", [0, 3])
def test_ssp_bound_holds_at_every_pull(slack: int) -> None:
    workers, steps = 3, 40
    begun = [0] * workers  # pushes begun: never less than the clock that the ps knows
    leads: list[int] = []

    def train(server: client.Client) -> None:
        assert server.worker is not None
        for step in range(steps):
            begun[server.worker] += 1
            server.push(gradient(1))
            server.pull()
            leads.append(step + 1 - min(begun))
        server.leave()

    with job("ssp", workers, slack=slack) as (local, clients):
        # Nobody leaves before all have finished: then the slowest of all is the slowest that counts.
        together([lambda s=s: train(s) for s in clients])
    assert len(leads) == workers * steps
    assert max(leads) <= slack
    assert [sum(event.kind == "push" for event in story) for story in local.stories()] == [workers * steps] * 2


@pytest.mark.parametrize(
    ("mode", "options"), [("sync", {}), ("ssp", {"slack": 0}), ("ssp", {"slack": 3}), ("async", {})]
)
def test_uneven_data_the_barrier_shrinks_and_no_batch_is_lost(mode: str, options: dict[str, int]) -> None:
    batches = [3, 9, 14]

    def train(server: client.Client) -> None:
        assert server.worker is not None
        server.pull()
        for _ in range(batches[server.worker]):
            _, result = server.push_pull(gradient(1))
            assert result.outcome == "applied"
        server.leave()

    with job(mode, workers=3, **options) as (local, clients):
        together([lambda s=s: train(s) for s in clients])
        with client.connect(local.cluster, observer=True) as observer:
            status, values = observer.status(), observer.pull()
    assert [each["counters"]["applied"] for each in status["ps"]] == [sum(batches)] * 2
    assert status["step"] == (max(batches) if mode == "sync" else sum(batches))
    np.testing.assert_array_equal(values["w"], np.full((4, 3), -float(status["step"])))
    if mode == "sync":
        for story in local.stories():
            sizes = [len(event.contributors) for event in story if event.kind == "step"]
            assert sizes == [3] * 3 + [2] * 6 + [1] * 5


def test_a_worker_that_leaves_right_after_a_buffered_push_is_still_counted() -> None:
    with job("sync", workers=3) as (local, (zero, one, two)):
        assert zero.push(gradient(1)).outcome == "buffered"
        zero.leave()
        pull = Task(lambda: one.push_pull(gradient(2)))
        until(waiting(two, 1))
        assert two.push(gradient(6)).outcome == "applied"
        values, result = pull.result(HANGS_S)
        assert result.outcome == "applied"
        np.testing.assert_array_equal(values["w"], np.full((4, 3), -3.0))
    for story in local.stories():
        (step,) = [event for event in story if event.kind == "step"]
        assert [worker for worker, _, _ in step.contributors] == [0, 1, 2]


def test_the_leave_of_the_last_that_was_missing_completes_the_step() -> None:
    with job("sync", workers=3) as (_, (zero, one, two)):
        zero.push(gradient(1))
        pull = Task(lambda: one.push_pull(gradient(3)))
        assert until(waiting(two, 1)).startswith("worker 2")
        two.leave()
        values, result = pull.result()
        assert result.outcome == "applied"
        np.testing.assert_array_equal(values["b"], -2.0)  # the mean of the two that pushed


def test_everybody_may_leave_with_a_step_half_full() -> None:
    with job("sync", workers=2) as (local, (zero, one)):
        zero.push(gradient(4))
        zero.leave()
        one.leave()
        with client.connect(local.cluster, observer=True) as observer:
            assert observer.pull().step == 1
            assert counters_add_up(observer.status())
