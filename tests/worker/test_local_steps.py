"""Do workers that push every H batches do what the papers say? Against ps in this process; each lesson checks it in numpy."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import client
import ps
import worker
from protos.errors import InvalidInput
from tests.harness.threads import together
from tests.worker.test_training import Heard, batches, gradient, line, squared
from worker.progress import Progress

KERNEL = "sequential/dense/kernel"
INNER = 0.1


def local(server: client.Client, data: Any, rule: str, local_steps: int, **options: Any) -> worker.Summary:
    options = {"inner_optimizer": keras.optimizers.SGD(INNER), "progress": Progress(), "model": line()} | options
    return worker.train(server, options.pop("model"), data, squared, rule=rule, local_steps=local_steps, **options)


def descended(kernel: np.ndarray, data: list[Any], rate: float = INNER) -> np.ndarray:
    """What plain descent on these batches makes of a kernel."""
    for batch in data:
        kernel = kernel - np.float32(rate) * gradient(kernel, batch)
    return kernel


@pytest.mark.parametrize(("mode", "size"), [("sync", 0.1), ("async", 1.0)])
def test_a_push_every_batch_with_descent_of_rate_1_on_both_sides_is_plain_training(mode: str, size: float) -> None:
    # Small steps give the same bits: θ - (θ - (θ - g)) is θ - g where θ - g lies between θ/2 and 2θ (Sterbenz). Others are
    # equal to rounding.
    data = [(size * x, size * y) for x, y in batches(0, 2)]

    def trained(**options: Any) -> np.ndarray:
        with ps.LocalCluster(servers=2, mode=mode) as cluster, client.connect(cluster.cluster, worker=0) as server:
            worker.train(server, line(), data, squared, rule="sgd:learning_rate=1", progress=Progress(), **options)
            return server.pull()[KERNEL]

    plain, locally = trained(), trained(local_steps=1, inner_optimizer=keras.optimizers.SGD(1.0))
    if size < 1:
        assert plain.tobytes() == locally.tobytes()
    np.testing.assert_allclose(locally, plain, rtol=1e-5)


def test_one_worker_pushes_every_h_batches_and_what_is_left_and_reports_every_batch() -> None:
    data, heard, model = batches(0, 7), Heard(), line()
    with ps.LocalCluster(servers=2) as cluster, client.connect(cluster.cluster, worker=0) as server:
        summary = local(server, data, "sgd:learning_rate=1", 3, progress=heard, model=model)
        values = server.pull()
    assert values.step == summary.pushes == summary.applied == 3
    assert (summary.steps, summary.examples) == (7, 28)
    assert "7 steps and 3 pushes" in str(summary)
    np.testing.assert_allclose(values[KERNEL], descended(np.ones((3, 1), np.float32), data), rtol=1e-5)
    assert model.get_weights()[0].tobytes() == values[KERNEL].tobytes()
    outcomes = ["", "", "applied", "", "", "applied", ""]
    told = [(event.step, event.outcome) for event in heard.events]
    assert told == [*enumerate(outcomes, start=1), (7, "applied")]


@pytest.mark.parametrize("aggregation", ["mean", "weighted_mean"])
def test_in_sync_mode_with_an_outer_rate_of_1_the_workers_are_averaged_with_uneven_data_too(aggregation: str) -> None:
    # weighted_mean is FedAvg (McMahan et al. 2017): each worker counts by the examples it has seen since its last push.
    data = {0: batches(0, 3), 1: batches(1, 8)}

    def work(index: int) -> worker.Summary:
        with client.connect(cluster.cluster, worker=index) as server:
            return local(server, data[index], f"sgd:learning_rate=1,aggregation={aggregation}", 2)

    with ps.LocalCluster(servers=2, mode="sync", workers=2) as cluster:
        summaries = together([lambda: work(0), lambda: work(1)])
        with client.connect(cluster.cluster, observer=True) as observer:
            final = observer.pull()

    assert [(each.steps, each.pushes, each.stale) for each in summaries] == [(3, 2, 0), (8, 4, 0)]
    kernel = np.ones((3, 1), np.float32)
    for push in range(4):
        shares = [data[index][2 * push : 2 * push + 2] for index in (0, 1)]
        weights = [len(share) if aggregation == "weighted_mean" else 1 for share in shares if share]
        kernel = np.average([descended(kernel, share) for share in shares if share], axis=0, weights=weights)
    np.testing.assert_allclose(final[KERNEL], kernel, rtol=1e-5, atol=1e-6)


def test_elastic_averaging_of_two_workers_is_the_papers_for_several_rounds() -> None:
    # Zhang et al. 2015, eq. 5 and 6 with a communication period of 2: x ← x - α (x - c) for each, c ← c + α Σ (x - c).
    beta, workers, rounds = 0.5, 2, 5
    data = {index: batches(index, 2 * rounds) for index in range(workers)}
    models = {index: line() for index in range(workers)}
    seen: dict[int, np.ndarray] = {}

    def work(index: int) -> None:
        class Kept(Progress):
            def update(self, event: worker.Event) -> None:
                seen[index] = np.array(models[index].get_weights()[0])  # the worker's own, after its last push

        with client.connect(cluster.cluster, worker=index) as server:
            local(server, data[index], f"elastic_average:learning_rate={beta}", 2, model=models[index], progress=Kept())

    with ps.LocalCluster(servers=2, mode="sync", workers=workers) as cluster:
        together([lambda: work(0), lambda: work(1)])
        with client.connect(cluster.cluster, observer=True) as observer:
            final = observer.pull()

    alpha = beta / workers
    centre = np.ones((3, 1))
    own = [centre.copy() for _ in range(workers)]
    for step in range(rounds):
        own = [descended(x, data[index][2 * step : 2 * step + 2]) for index, x in enumerate(own)]
        differences = [x - centre for x in own]
        own = [x - alpha * difference for x, difference in zip(own, differences)]
        centre = centre + alpha * sum(differences)
    assert final.step == rounds
    np.testing.assert_allclose(final[KERNEL], centre, rtol=1e-5)
    for index in range(workers):
        np.testing.assert_allclose(seen[index], own[index], rtol=1e-5)
        np.testing.assert_allclose(models[index].get_weights()[0], centre, rtol=1e-5)  # in the end, what was pulled


def test_asynchronous_elastic_averaging_takes_the_difference_to_the_centre_of_the_moment() -> None:
    # Algorithm 1 of the paper. The other worker moves the centre while this one trains.
    alpha, data = 0.25, batches(0, 4)
    moves = np.full((3, 1), 0.5, np.float32)
    with (
        ps.LocalCluster(servers=2, workers=2, rule=f"elastic_average:learning_rate={alpha}") as cluster,
        client.connect(cluster.cluster, worker=0) as server,
        client.connect(cluster.cluster, worker=1) as other,
    ):

        class Disturbed(Progress):
            def update(self, event: worker.Event) -> None:
                if event.step % 2:
                    other.pull()
                    other.push({KERNEL: -moves / alpha})

        rule = f"elastic_average:learning_rate={alpha}"
        summary = local(server, data, rule, 2, progress=Disturbed())
        final = server.pull()[KERNEL]
    centre = own = np.ones((3, 1))
    for start in (0, 2):
        own = descended(own, data[start : start + 2])
        centre = centre + moves
        difference = own - centre
        own, centre = own - alpha * difference, centre + alpha * difference
    np.testing.assert_allclose(final, centre, rtol=1e-5)
    assert summary.staleness_max == 0  # computed at the centre that was read right before the push


@pytest.mark.parametrize("mode", ["async", "ssp"])
@pytest.mark.parametrize("rule", ["diloco", "elastic_average"])
def test_in_the_other_modes_every_batch_of_uneven_data_counts_and_the_job_ends(mode: str, rule: str) -> None:
    data = {0: batches(0, 3), 1: batches(1, 8)}

    def work(index: int) -> worker.Summary:
        with client.connect(cluster.cluster, worker=index) as server:
            return local(server, data[index], rule, 2)

    with ps.LocalCluster(servers=2, mode=mode, slack=0 if mode == "ssp" else None, workers=2) as cluster:
        summaries = together([lambda: work(0), lambda: work(1)])
        with client.connect(cluster.cluster, observer=True) as observer:
            assert observer.pull().step == 2 + 4
    assert [(each.steps, each.applied) for each in summaries] == [(3, 2), (8, 4)]


def test_diloco_of_two_workers_is_the_papers_outer_optimizer_around_an_inner_adamw() -> None:
    data = {index: batches(index, 6) for index in range(2)}

    def adamw() -> keras.optimizers.Optimizer:
        return keras.optimizers.AdamW(0.05)

    def work(index: int) -> None:
        with client.connect(cluster.cluster, worker=index) as server:
            local(server, data[index], "diloco", 3, inner_optimizer=adamw())

    with ps.LocalCluster(servers=2, mode="sync", workers=2) as cluster:
        together([lambda: work(0), lambda: work(1)])
        with client.connect(cluster.cluster, observer=True) as observer:
            final = observer.pull()

    theta, buffer = np.ones((3, 1), np.float32), np.zeros((3, 1))
    variables, inner = [keras.Variable(theta) for _ in range(2)], [adamw() for _ in range(2)]
    for start in (0, 3):
        for index, (variable, optimizer) in enumerate(zip(variables, inner)):
            variable.assign(theta)
            for batch in data[index][start : start + 3]:
                optimizer.apply([tf.constant(gradient(np.asarray(variable), batch))], [variable])
        delta = theta - np.mean([np.asarray(variable) for variable in variables], axis=0)
        buffer = 0.9 * buffer + delta
        theta = (theta - 0.7 * (delta + 0.9 * buffer)).astype(np.float32)
    np.testing.assert_allclose(final[KERNEL], theta, rtol=1e-4)


def test_a_module_with_16_bit_variables_and_an_unused_one_trains_locally_too() -> None:
    class Line(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = tf.Variable(tf.ones((3, 1), tf.float16), name="w")
            self.unused = tf.Variable(tf.ones(2), name="unused")

        def __call__(self, x: Any) -> Any:
            return tf.cast(x, tf.float16) @ self.w

    def loss(labels: Any, outputs: Any) -> Any:
        return squared(tf.cast(labels, tf.float16), outputs)

    data = batches(0, 4)
    with ps.LocalCluster() as cluster, client.connect(cluster.cluster, worker=0) as server:
        worker.train(
            server,
            Line(),
            data,
            loss,
            rule="sgd:learning_rate=1",
            local_steps=2,
            inner_optimizer=keras.optimizers.SGD(INNER),
            progress=Progress(),
        )
        values = server.pull()
    assert values["w"].dtype == np.float16
    np.testing.assert_allclose(values["w"], descended(np.ones((3, 1), np.float32), data), atol=0.02)
    assert values["unused"].tolist() == [1, 1]


def test_what_does_not_go_together_is_refused_by_name() -> None:
    with ps.LocalCluster() as cluster, client.connect(cluster.cluster, worker=0) as server:
        with pytest.raises(InvalidInput, match=r"local_steps.*1 or more"):
            local(server, batches(0, 1), "sgd", 0)
        with pytest.raises(InvalidInput, match=r"local_steps.*inner_optimizer"):
            worker.train(server, line(), batches(0, 1), squared, inner_optimizer=keras.optimizers.SGD())
        with pytest.raises(InvalidInput, match=r"inner_optimizer.*str.*a Keras optimizer"):
            local(server, batches(0, 1), "sgd", 2, inner_optimizer="adam")
        with pytest.raises(InvalidInput, match=r"elastic_average, learning_rate.*a number"):
            local(server, batches(0, 1), "elastic_average:learning_rate=exponential_decay(0.1,10,0.5)", 2)
