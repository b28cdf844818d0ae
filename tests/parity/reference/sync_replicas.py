"""What does TensorFlow's own synchronous training with ps compute on the same problem?

A live tf1 job: ps and three workers, each a process, a graph and a session, joined by `SyncReplicasOptimizer`. Every
worker feeds its own batches; the chief, worker 0, records. It must not know our packages. Compare with single.py.

The optimizer alone does not keep the workers in step: its tokens carry no name, so a fast worker can take the token of
a slow one and contribute twice to a step. A barrier after every step (two shared queues) closes that gap, and lets the
chief read values that are surely those after the step.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click
import numpy as np

from tests.parity.reference.options import Arrays, check_out, cluster_task, save, training
from tests.parity.reference.problem import SIZES, Problem, problem
from tests.parity.reference.processes import Cluster, end_with_parent, run_cluster


@click.command()
@training
@click.option("--workers", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--servers", type=click.IntRange(min=1), default=2, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
@cluster_task
def main(
    rules: tuple[str, ...],
    learning_rate: float,
    steps: int,
    out: str,
    workers: int,
    servers: int,
    seed: int,
    deadline_s: float,
    task: str | None,
    cluster: str | None,
) -> None:
    """Train synchronously on a live tf1 SyncReplicasOptimizer job and record every step.

    Writes "STEP/NAME" (values after STEP, 0 is the start) and "loss" (float32, one a step, the mean of the workers'
    before that step).

    Example: python -m tests.parity.reference.sync_replicas --rule momentum --workers 3 --steps 50 --out sync.npz
    """
    check_out(rules, out)
    if task is None or cluster is None:
        run_cluster("tests.parity.reference.sync_replicas", {"ps": servers, "worker": workers}, "worker", deadline_s)
        return
    lifetime = end_with_parent()
    import tensorflow as tf

    tf.compat.v1.disable_v2_behavior()
    addresses: Cluster = json.loads(cluster)
    job, index = task.split(":")
    config = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=1)
    server = tf.distribute.Server(addresses, job_name=job, task_index=int(index), protocol="grpc", config=config)
    if job == "ps":
        lifetime.join()
    work = problem(seed, steps, workers)
    for rule in rules:
        # A container of its own on the ps: variables and queues of one name stay apart from the rule before.
        with tf.Graph().as_default() as graph, graph.container(rule):
            recorded = _Replica(addresses, int(index), rule, learning_rate, work).train(server.target, steps)
        if index == "0":
            save(out, rule, recorded)


class _Replica:
    """The graph of one worker: model, synchronous train op, barrier."""

    def __init__(self, cluster: Cluster, index: int, rule: str, learning_rate: float, work: Problem) -> None:
        import tensorflow as tf

        from tests.parity.reference.model import gradients

        self._index, self._workers, self._work = index, len(cluster["worker"]), work
        self._x = tf.compat.v1.placeholder(tf.float32, (None, SIZES[0]))
        self._labels = tf.compat.v1.placeholder(tf.int64, (None,))
        with tf.compat.v1.device(
            tf.compat.v1.train.replica_device_setter(cluster=cluster, worker_device=f"/job:worker/task:{index}")
        ):
            global_step = tf.compat.v1.train.get_or_create_global_step()
            self._variables = {
                name: tf.compat.v1.get_variable(name, initializer=value) for name, value in work.values.items()
            }
            self._loss, grads = gradients(self._variables, self._x, self._labels)
            optimizer = tf.compat.v1.train.SyncReplicasOptimizer(
                _inner(rule, learning_rate), replicas_to_aggregate=self._workers, total_num_replicas=self._workers
            )
            self._train = optimizer.apply_gradients(
                [(grads[name], variable) for name, variable in self._variables.items()], global_step=global_step
            )
        with tf.compat.v1.device("/job:ps/task:0"):
            arrived = tf.queue.FIFOQueue(self._workers, tf.float32, shapes=(), shared_name="arrived")
            released = tf.queue.FIFOQueue(self._workers, tf.bool, shapes=(), shared_name="released")
        self._last_loss = tf.compat.v1.placeholder(tf.float32, ())
        self._arrive, self._all_arrived = arrived.enqueue(self._last_loss), arrived.dequeue_many(self._workers)
        self._release, self._released = released.enqueue_many(([True] * self._workers,)), released.dequeue()
        self._hook = optimizer.make_session_run_hook(index == 0, num_tokens=0)
        # Without filters a session waits for every other worker, though it talks to the ps only.
        self._config = tf.compat.v1.ConfigProto(device_filters=["/job:ps", f"/job:worker/task:{index}"])

    def train(self, target: str, steps: int) -> Arrays:
        """Take `steps` synchronous steps; the chief returns what `main` writes, the others an empty record."""
        recorded: Arrays = {}
        losses = []
        with self._session(target) as session:
            if self._index == 0:
                recorded |= self._values(session, 0)
            for step in range(1, steps + 1):
                x, labels = self._work.batches[self._index][step - 1]
                _, loss = session.run([self._train, self._loss], {self._x: x, self._labels: labels})
                session.run(self._arrive, {self._last_loss: loss})
                if self._index == 0:
                    losses.append(np.mean(session.run(self._all_arrived)))
                    recorded |= self._values(session, step)
                    session.run(self._release)
                session.run(self._released)
        return {**recorded, "loss": np.array(losses, np.float32)}

    def _values(self, session: Any, step: int) -> Arrays:
        return {f"{step}/{name}": value for name, value in session.run(self._variables).items()}

    @contextmanager
    def _session(self, target: str) -> Iterator[Any]:
        import tensorflow as tf

        if self._index > 0:
            self._await_chief(target)
        with tf.compat.v1.train.MonitoredTrainingSession(
            master=target,
            is_chief=self._index == 0,
            hooks=[self._hook],
            config=self._config,
            save_summaries_steps=None,
            save_summaries_secs=None,
            log_step_count_steps=None,
            stop_grace_period_secs=1,  # the chief's queue runner waits for gradients that never come
        ) as session:
            yield session

    def _await_chief(self, target: str) -> None:
        """Return when the chief has initialized the variables: a MonitoredTrainingSession looks only every 30 s."""
        import tensorflow as tf

        missing = tf.compat.v1.report_uninitialized_variables(tf.compat.v1.global_variables())
        with tf.compat.v1.Session(target, config=self._config) as session:
            while session.run(missing).size:
                time.sleep(0.05)


def _inner(rule: str, learning_rate: float) -> Any:
    """The tf1 optimizer of that rule; every hyperparameter but the learning rate as in update.py."""
    import tensorflow as tf

    from tests.parity.reference.update import BETA_1, BETA_2, EPSILON, MOMENTUM

    if rule == "sgd":
        return tf.compat.v1.train.GradientDescentOptimizer(learning_rate)
    if rule == "adam":
        return tf.compat.v1.train.AdamOptimizer(learning_rate, beta1=BETA_1, beta2=BETA_2, epsilon=EPSILON)
    return tf.compat.v1.train.MomentumOptimizer(learning_rate, MOMENTUM, use_nesterov=rule == "nesterov")


if __name__ == "__main__":
    main()
