"""Does the next pull overlap the computation of the next gradients, and is each gradient said to be of the values it saw?

What overlaps is shown by gates: one side waits for the other, in both directions, and would wait for ever if it were not so.
The model is a line w · x without TensorFlow, and each lesson has its formula in numpy.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

import client
import ps
import worker
from protos.errors import InvalidInput, NotJoined, PeerUnavailable
from tests.harness.threads import HANGS_S, Task, together
from tests.worker.test_training import Heard, batches, gradient, line, squared
from worker import prefetch
from worker.loss_scale import LossScale
from worker.progress import Progress

RATE = 0.25
START = np.array([1.0, -2.0, 3.0])


class Line:
    """A replica in numpy: w, whose gradient on a batch b is b · w, by element. before: called with each batch's number."""

    non_trainable: Collection[str] = ()

    def __init__(self, before: Callable[[int], object] = lambda number: None) -> None:
        self.w = START.copy()
        self.seen: list[list[float]] = []
        self._before = before

    def values(self, names: Collection[str] | None = None) -> dict[str, Any]:
        return {"w": self.w}

    def assign(self, values: Mapping[str, Any]) -> None:
        self.w = values["w"]

    def gradients(self, batch: Any, scale: float = 1.0) -> tuple[float, dict[str, Any]]:
        self._before(len(self.seen))
        self.seen.append(self.w.tolist())
        return float(self.w.sum()), {"w": scale * batch * self.w}

    def examples(self, batch: Any) -> int:
        return 4


class Gated:
    """A client whose push_pull number n does `before[n]` first. pushed: what each push said its version is."""

    def __init__(self, server: client.Client, before: Mapping[int, Callable[[], object]] | None = None) -> None:
        self._server, self._before_push = server, before or {}
        self.pushed: list[tuple[int, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._server, name)

    def push_pull(self, gradients: Any, **options: Any) -> Any:
        number = len(self.pushed)
        self.pushed.append(options["version"])
        self._before_push.get(number, lambda: None)()
        return self._server.push_pull(gradients, **options)


@contextlib.contextmanager
def one_worker(mode: str = "async", **options: Any) -> Iterator[client.Client]:
    with ps.LocalCluster(servers=2, mode=mode, **options) as local, client.connect(local.cluster, worker=0) as server:
        yield server


def run(
    server: Any, replica: Line, data: Sequence[float], heard: Heard | None = None, **options: Any
) -> worker.Summary:
    """Train on these batches, each a number."""
    report = (heard or Heard()).update
    rule = options.pop("rule", f"sgd:learning_rate={RATE}")
    numbered = [(batch, len(data)) for batch in data]
    return prefetch.run(prefetch.Ahead(server), server, replica, numbered, rule, report, **options)


def one_push_older(data: Sequence[float]) -> list[np.ndarray]:
    """θ₀, θ₁, …, where the gradient of each batch but the first is that at the values before the last."""
    states = [START]
    for number, batch in enumerate(data):
        states.append(states[-1] - RATE * batch * states[max(0, number - 1)])
    return states


def passed(event: threading.Event) -> None:
    assert event.wait(HANGS_S), "the other side never came"


# -- what overlaps ---------------------------------------------------------------------------------------------------------


def test_the_next_gradients_are_computed_while_a_push_is_under_way_and_no_further() -> None:
    under_way, computing = [threading.Event() for _ in range(4)], [threading.Event() for _ in range(4)]
    answered: list[int] = []

    def compute(number: int) -> None:
        if number:
            passed(under_way[number - 1])  # the push before it has begun ...
        assert len(answered) >= number - 1  # ... the one before that is answered: only one is waited for
        computing[number].set()

    def push(number: int) -> None:
        under_way[number].set()
        if number < 3:
            passed(computing[number + 1])  # ... and does not end before this batch is being computed
        answered.append(number)

    with one_worker() as server:
        gated = Gated(server, {number: lambda number=number: push(number) for number in range(4)})  # type: ignore[misc]
        summary = run(gated, Line(compute), [1, 1, 1, 1])
    assert answered == [0, 1, 2, 3]
    assert (summary.steps, summary.applied) == (4, 4)


# -- which values, which versions ------------------------------------------------------------------------------------------


def test_each_gradient_is_one_push_older_is_pushed_as_such_and_the_staleness_is_reported() -> None:
    data, heard, replica = [0.5, 1.0, 0.25, 2.0, 0.125], Heard(), Line()
    with one_worker() as server:
        gated = Gated(server)
        summary = run(gated, replica, data, heard)
        final = server.pull()
    states = one_push_older(data)
    assert replica.seen == [states[max(0, number - 1)].tolist() for number in range(5)]
    assert gated.pushed == [(0, 0), (0, 0), (1, 1), (2, 2), (3, 3)]
    assert final["w"].tolist() == states[-1].tolist()  # these numbers have no rounding
    assert replica.w.tolist() == summary.values["w"].tolist() == final["w"].tolist()
    assert [(event.step, event.total, event.staleness, event.outcome) for event in heard.events] == [
        (1, 5, 0, "applied"),
        (2, 5, 1, "applied"),
        (3, 5, 1, "applied"),
        (4, 5, 1, "applied"),
        (5, 5, 1, "applied"),
    ]
    assert [event.loss for event in heard.events] == [sum(seen) for seen in replica.seen]
    assert "staleness mean 0.80, max 1" in str(summary)
    assert summary.examples == 20


def test_the_pushes_of_others_add_to_the_staleness_exactly() -> None:
    # Worker 1 pushes twice, while the second batch is computed: its push and the next find two more updates than alone.
    def others_push(number: int) -> None:
        if number == 1:
            for _ in range(2):
                other.push({"w": np.zeros(3)})
            held.set()

    heard = Heard()
    with ps.LocalCluster(servers=2, workers=2) as local, client.connect(local.cluster, worker=0) as server:
        server.init({"w": START}, f"sgd:learning_rate={RATE}")
        with client.connect(local.cluster, worker=1) as other:
            other.pull()
            held = threading.Event()  # the first push waits for them, so that the order is this one
            run(Gated(server, {0: lambda: passed(held)}), Line(others_push), [1, 1, 1], heard)
    assert [event.staleness for event in heard.events] == [2, 3, 1]


def test_a_rule_that_needs_the_values_read_gets_those_the_gradient_was_computed_at() -> None:
    data, compensation = [0.5, 0.5, 0.25, 0.25], 0.5
    with one_worker() as server:
        run(server, Line(), data, rule=f"dc_asgd:learning_rate={RATE},compensation={compensation}")
        final = server.pull()
    states = [START]
    for number, batch in enumerate(data):
        read = states[max(0, number - 1)]
        g = batch * read
        states.append(states[-1] - RATE * (g + compensation * g * g * (states[-1] - read)))
    np.testing.assert_allclose(final["w"], states[-1], rtol=1e-12)


def test_the_loss_scale_travels_with_its_gradients() -> None:
    data = [0.5, 1.0, 0.25]
    with one_worker() as server:
        run(server, Line(), data, loss_scale=LossScale.parse("dynamic"))
        final = server.pull()
    assert final["w"].tolist() == one_push_older(data)[-1].tolist()


@pytest.mark.parametrize(("count", "steps"), [(0, 0), (1, 1)])
def test_no_batch_or_one_is_as_without(count: int, steps: int) -> None:
    with one_worker() as server:
        summary = run(server, Line(), [0.5] * count)
        assert server.pull().step == summary.steps == steps


def test_a_model_of_tensorflow_trains_as_the_formula_says() -> None:
    data, model = batches(0, 6), line()
    with one_worker() as server:
        summary = worker.train(
            server, model, data, squared, rule="sgd:learning_rate=0.1", prefetch=True, progress=Progress()
        )
        (final,) = server.pull().values()
    states = [np.ones((3, 1), np.float32)]
    for number, batch in enumerate(data):
        states.append(states[-1] - np.float32(0.1) * gradient(states[max(0, number - 1)], batch))
    np.testing.assert_allclose(final, states[-1], rtol=1e-5)
    assert model.get_weights()[0].tobytes() == final.tobytes()
    assert (summary.steps, summary.staleness_max, summary.staleness_sum) == (6, 1, 5)


# -- where it makes sense --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "options", "reason"),
    [
        ("sync", {}, r"prefetch.*a job in sync mode, expected async, or ssp with a slack of 1 or more.*is stale"),
        ("ssp", {"slack": 0}, r"prefetch.*ssp with a slack of 0, expected async.*waits for every worker"),
    ],
)
def test_a_mode_that_waits_for_each_step_is_refused_with_the_reason(
    mode: str, options: dict[str, Any], reason: str
) -> None:
    replica = Line()
    with one_worker(mode, **options) as server:
        with pytest.raises(InvalidInput, match=reason):
            run(server, replica, [1, 1])
        assert server.status()["step"] == 0
    assert replica.seen == []


def test_in_ssp_each_pull_keeps_to_the_slack_while_batches_are_computed() -> None:
    def work(index: int) -> worker.Summary:
        with client.connect(local.cluster, worker=index) as server:
            return run(server, Line(), [0.25] * 12)

    with ps.LocalCluster(servers=2, mode="ssp", slack=1, workers=2) as local:
        both = together([lambda: work(0), lambda: work(1)])
        with client.connect(local.cluster, observer=True) as observer:
            assert observer.pull().step == 24
    # When the values for push c were read, this worker's clock was c - 1 and the other's c - 2 or more; when it arrives, the
    # other may have pushed c + 2 times: 4 of its pushes between, and 1 of this worker's own.
    assert all(summary.applied == 12 and 1 <= summary.staleness_max <= 5 for summary in both)


def test_with_local_steps_it_is_refused() -> None:
    with one_worker() as server, pytest.raises(InvalidInput, match=r"prefetch.*local_steps 2.*one of them"):
        worker.train(server, line(), batches(0, 1), squared, rule="sgd", local_steps=2, prefetch=True)


# -- how it ends -----------------------------------------------------------------------------------------------------------


def test_an_error_of_a_push_ends_the_loop_before_the_next_batch_and_nothing_more_is_sent() -> None:
    computing, refused = threading.Event(), threading.Event()

    def refuse() -> None:
        passed(computing)
        refused.set()
        raise PeerUnavailable(field="push", got="a broken connection", expected="a ps")

    def compute(number: int) -> None:
        if number == 2:
            computing.set()
            passed(refused)

    replica = Line(compute)
    with one_worker() as server:
        gated = Gated(server, {1: refuse})
        with pytest.raises(PeerUnavailable, match="a broken connection"):
            run(gated, replica, [1] * 9)
        assert len(gated.pushed) == 2  # the gradients of batch 2 were ready, and stay here
        assert server.pull().step == 1
    assert len(replica.seen) == 3


def test_an_error_while_the_data_is_read_ends_the_loop_at_once_too() -> None:
    failed = threading.Event()

    def fail() -> None:
        failed.set()
        raise PeerUnavailable(field="push", got="a broken connection", expected="a ps")

    replica = Line()
    with one_worker() as server:
        gated = Gated(server, {0: fail})
        ahead = prefetch.Ahead(gated)  # type: ignore[arg-type]

        def data() -> Iterator[tuple[float, None]]:
            yield 1.0, None
            passed(failed)
            with contextlib.suppress(PeerUnavailable):
                while True:
                    ahead.check()
            yield 1.0, None

        with pytest.raises(PeerUnavailable):
            prefetch.run(ahead, gated, replica, data(), "sgd", Heard().update)  # type: ignore[arg-type]
    assert len(replica.seen) == 1


@pytest.mark.parametrize("kind", [KeyboardInterrupt, ZeroDivisionError])
def test_what_was_computed_is_pushed_before_an_interruption_goes_on(kind: type[BaseException]) -> None:
    interrupted = threading.Event()

    def interrupt(number: int) -> None:
        if number == 2:
            interrupted.set()  # only now the push of batch 1 goes its way
            raise kind

    with one_worker() as server:
        with pytest.raises(kind):
            run(Gated(server, {1: lambda: passed(interrupted)}), Line(interrupt), [0.5] * 5)
        final = server.pull()
    assert final.step == 2
    assert final["w"].tolist() == one_push_older([0.5] * 2)[-1].tolist()


def test_a_worker_that_is_told_to_stop_pushes_what_is_under_way_then_leaves_and_takes_no_more() -> None:
    held, gave = threading.Event(), threading.Event()

    def push() -> None:
        gave.set()
        passed(held)

    with ps.LocalCluster(servers=2) as local, client.connect(local.cluster, observer=True) as observer:
        server = client.connect(local.cluster, worker=0)
        server.init({"w": START}, f"sgd:learning_rate={RATE}")
        at = server.pull().version
        ahead = prefetch.Ahead(Gated(server, {0: push}))  # type: ignore[arg-type]
        both = [ahead.push_pull({"w": np.ones(3)}, version=at) for _ in range(2)]
        passed(gave)

        def go_on() -> None:
            while True:  # until it is told
                both.append(ahead.push_pull({"w": np.ones(3)}, version=at))

        leaving = Task(lambda: ahead.leave("stopped"))
        going_on = Task(go_on)
        assert leaving.running
        held.set()
        leaving.result()
        going_on.error(NotJoined)
        server.leave("failed")  # as the loop's caller does then: the reason has been said
        assert observer.pull().step == len(both)
        assert [one.result()[1].outcome for one in both] == ["applied"] * len(both)
