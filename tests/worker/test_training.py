"""Does a worker's loop train the model that the ps hold? Against ps in this process; each lesson checks it in numpy."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import client
import ps
import worker
from protos.errors import InvalidInput, Unavailable, WaitTimeout
from tests.harness.threads import Task, together, until
from worker.evaluation import follow
from worker.loop import Event
from worker.progress import Progress

RATE = 0.1


class Heard(Progress):
    """Keeps every event."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Event] = []

    def update(self, event: Event) -> None:
        self.events.append(event)


def line() -> keras.Model:
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")])


def batches(seed: int, count: int) -> list[tuple[Any, Any]]:
    rng = np.random.default_rng(seed)
    return [(rng.normal(size=(4, 3)).astype(np.float32), rng.normal(size=4).astype(np.float32)) for _ in range(count)]


def squared(labels: Any, outputs: Any) -> Any:
    return (outputs[:, 0] - labels) ** 2


def gradient(kernel: np.ndarray, batch: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    x, y = batch
    return 2 * x.T @ (x @ kernel[:, 0] - y)[:, None] / len(y)


def train(server: client.Client, model: Any, data: Any, loss: Any = squared, **options: Any) -> worker.Summary:
    return worker.train(
        server, model, data, loss, rule=f"sgd:learning_rate={RATE}", **{"progress": Progress()} | options
    )


@contextlib.contextmanager
def one_worker() -> Iterator[client.Client]:
    with ps.LocalCluster(servers=2) as local, client.connect(local.cluster, worker=0) as server:
        yield server


def test_one_worker_makes_the_steps_of_the_formula_and_reports_each() -> None:
    data, heard, model = batches(0, 5), Heard(), line()
    with one_worker() as server:
        summary = train(server, model, data, progress=heard)
        values = server.pull()
    kernel = np.ones((3, 1), np.float32)
    for batch in data:
        kernel -= RATE * gradient(kernel, batch)
    np.testing.assert_allclose(values["sequential/dense/kernel"], kernel, rtol=1e-5)
    assert model.get_weights()[0].tobytes() == values["sequential/dense/kernel"].tobytes()
    assert [event.step for event in heard.events] == [1, 2, 3, 4, 5]
    assert {event.outcome for event in heard.events} == {"applied"}
    assert (summary.steps, summary.examples, summary.applied, summary.stale) == (5, 20, 5, 0)


def test_in_sync_mode_a_worker_that_runs_out_leaves_and_no_batch_is_lost() -> None:
    data = {0: batches(0, 3), 1: batches(1, 7), 2: []}
    empty = tf.data.Dataset.from_tensor_slices((np.zeros((0, 4, 3), "f"), np.zeros((0, 4), "f")))

    def work(index: int) -> tuple[worker.Summary, client.Values | None]:
        observer = client.connect(local.cluster, observer=True) if index == 0 else None
        with client.connect(local.cluster, worker=index) as server:
            summary = train(server, line(), data[index] or empty)
        return summary, worker.final_values(observer) if observer is not None else None

    with ps.LocalCluster(servers=2, mode="sync", workers=3) as local:
        results = together([lambda index=index: work(index) for index in range(3)])

    assert [summary.steps for summary, _ in results] == [3, 7, 0]
    assert sum(summary.stale for summary, _ in results) == 0
    kernel = np.ones((3, 1), np.float32)
    for step in range(7):
        here = [data[index][step] for index in (0, 1) if step < len(data[index])]
        kernel -= RATE * np.mean([gradient(kernel, batch) for batch in here], axis=0)
    final = results[0][1]
    assert final is not None
    assert final.step == 7
    np.testing.assert_allclose(final["sequential/dense/kernel"], kernel, rtol=1e-5)


def test_with_weighted_mean_a_push_counts_by_its_examples_so_that_a_step_is_that_of_all_of_them_together() -> None:
    x, y = batches(0, 1)[0]
    shares = [[(x[:1], y[:1])], [(x[1:], y[1:])]]

    def work(index: int) -> None:
        with client.connect(local.cluster, worker=index) as server:
            rule = f"sgd:learning_rate={RATE},aggregation=weighted_mean"
            worker.train(server, line(), shares[index], squared, rule=rule, progress=Progress())

    with ps.LocalCluster(mode="sync", workers=2) as local:
        together([lambda: work(0), lambda: work(1)])
        with client.connect(local.cluster, observer=True) as observer:
            final = observer.pull()
    kernel = np.ones((3, 1), np.float32)
    np.testing.assert_allclose(*final.values(), kernel - RATE * gradient(kernel, (x, y)), rtol=1e-5)


def test_statistics_are_each_workers_own_and_in_the_end_worker_0s() -> None:
    def work(index: int) -> list[np.ndarray]:
        model = keras.Sequential([keras.Input((3,)), keras.layers.BatchNormalization(), keras.layers.Dense(1)])
        with client.connect(local.cluster, worker=index) as server:
            train(server, model, batches(index, 4))
        return [np.asarray(variable) for variable in model.non_trainable_weights]

    with ps.LocalCluster(mode="sync", workers=2) as local:
        mine, others = together([lambda: work(0), lambda: work(1)])
        with client.connect(local.cluster, observer=True) as observer:
            final = observer.pull(["sequential/batch_normalization/moving_mean"])
    assert (mine[0] != others[0]).any()
    assert final["sequential/batch_normalization/moving_mean"].tolist() == mine[0].tolist()


def test_an_embedding_trains_by_rows_as_it_would_by_the_whole() -> None:
    def model() -> keras.Model:
        return keras.Sequential(
            [keras.Input((2,)), keras.layers.Embedding(50, 3, embeddings_initializer="ones"), keras.layers.Flatten()]
        )

    ids = np.array([[7, 9], [7, 7], [0, 49]], np.int32)

    def loss(labels: Any, outputs: Any) -> Any:
        return tf.reduce_sum(outputs**2, axis=1)

    with one_worker() as server:
        train(server, model(), [(ids, np.zeros(3, np.float32))] * 2, loss)
        (table,) = server.pull().values()
    expected = np.ones((50, 3), np.float32)
    for _ in range(2):
        whole = np.zeros_like(expected)
        np.add.at(whole, ids.reshape(-1), 2 * expected[ids.reshape(-1)] / 3)
        expected -= RATE * whole
    np.testing.assert_allclose(table, expected, rtol=1e-6)


def test_a_model_without_an_input_shape_is_built_on_its_first_batch() -> None:
    model = keras.Sequential([keras.layers.Dense(2, activation="relu"), keras.layers.Dense(1)])
    with one_worker() as server:
        assert train(server, model, batches(0, 2)).steps == 2


def test_arguments_that_do_not_go_together_are_refused_by_name() -> None:
    with one_worker() as server:
        with pytest.raises(InvalidInput, match="steps 1 and epochs 2"):
            train(server, line(), batches(0, 1), steps=1, epochs=2)
        with pytest.raises(InvalidInput, match=r"batch_size.*1 or more"):
            train(server, line(), batches(0, 1), batch_size=0)


def test_an_evaluator_sees_the_last_values_and_ends_with_the_last_worker() -> None:
    seen: list[client.Values] = []
    with ps.LocalCluster(servers=2) as local, client.connect(local.cluster, observer=True) as observer:
        evaluator = Task(lambda: follow(observer, seen.append, period_s=0, wait_timeout_s=30))
        with client.connect(local.cluster, worker=0) as server:
            train(server, line(), batches(0, 3))
            until(lambda: (server.status(), seen)[1])
            server.assign({"sequential/dense/kernel": np.full((3, 1), 5, np.float32)})  # the version stays
        evaluator.result()
    assert [values.step for values in seen] == sorted(values.step for values in seen)
    assert seen[-1].step == 3
    assert seen[-1]["sequential/dense/kernel"].tolist() == [[5], [5], [5]]


def test_waiting_for_workers_that_do_nothing_ends_with_their_names() -> None:
    with ps.LocalCluster(workers=2) as local, client.connect(local.cluster, worker=1) as server:
        server.init({"w": np.zeros(1, np.float32)}, rule="sgd")
        observer = client.connect(local.cluster, observer=True)
        with pytest.raises(WaitTimeout, match=r"worker 0 \(expected\), worker 1 \(active\)"):
            worker.final_values(observer, wait_timeout_s=0.2)
        observer.leave()


def test_when_the_ps_are_gone_what_was_seen_last_must_do() -> None:
    with ps.LocalCluster() as local:
        with client.connect(local.cluster, worker=0) as server:
            server.init({"w": np.zeros(1, np.float32)}, rule="sgd")
            last = server.pull()
        observer = client.connect(local.cluster, observer=True, retry_budget_s=0.1)
    assert worker.final_values(observer, fallback=last) is last
    with pytest.raises(Unavailable):
        worker.final_values(observer)
