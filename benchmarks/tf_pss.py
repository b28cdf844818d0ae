"""How fast is TensorFlow's own ParameterServerStrategy at the same work? A live cluster: chief, workers, ps, all processes.

Plain `tf.Variable`s, which the strategy places on the ps in turn. A step is one scheduled function: a worker reads every
variable, its gradient is 1·w, and `assign_sub` subtracts rate · gradient. Steps are scheduled ahead, as the coordinator
is made for, and the last is waited for. With "tape" the gradient is that of model.py on a batch. Next: limits.py.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.cases import LEARNING_RATE, Case, Shape, named
from benchmarks.rounds import Subject
from benchmarks.tasks import Message, Tasks, answers, follow_parent, serve


class ParameterServerStrategy:
    """TensorFlow's cluster. tape: a real gradient in place of 1·w."""

    name = "PSS"

    def __init__(self, *, tape: bool = False) -> None:
        self._tape = tape

    @contextlib.contextmanager
    def cluster(self, shape: Shape) -> Iterator[Callable[[Case], contextlib.AbstractContextManager[Subject]]]:
        """TensorFlow takes ten seconds to start: one cluster serves every case of this shape."""
        from tests.parity.reference.processes import free_cluster

        cluster = free_cluster({"chief": 1, "worker": shape.workers, "ps": shape.ps})
        text = json.dumps(cluster)
        with Tasks() as tasks:
            for job, count in (("worker", shape.workers), ("ps", shape.ps)):
                for index in range(count):
                    tasks.start(f"TensorFlow {job} {index}", "benchmarks.tf_pss", text, job, str(index))
            chief = tasks.start("TensorFlow chief", "benchmarks.tf_pss", text, "chief", "0")

            @contextlib.contextmanager
            def subject(case: Case) -> Iterator[Subject]:
                chief.ask({"command": "prepare", "case": case.name, "tape": self._tape})
                yield Subject(self.name, [chief])

            yield subject


class Chief:
    """In the chief's process: the variables of one case, and the step that it schedules."""

    def __init__(self, cluster: dict[str, list[str]]) -> None:
        import tensorflow as tf

        self._strategy = tf.distribute.ParameterServerStrategy(
            tf.distribute.cluster_resolver.SimpleClusterResolver(
                tf.train.ClusterSpec(cluster), task_type="chief", task_id=0, rpc_layer="grpc"
            )
        )
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(self._strategy)
        self._workers = len(cluster["worker"])
        self._step: Any = None
        self._variables: dict[str, Any] = {}
        self._rate = 0.0  # steps per second, as last seen: how many to schedule for a given time

    def handle(self, message: Message) -> Message:
        command = message["command"]
        if command == "prepare":
            return self.prepare(named(message["case"]), message["tape"])
        if command == "measure":
            return self.measure(message["seconds"])
        raise ValueError(f"got command {command!r}, expected prepare or measure")

    def prepare(self, case: Case, tape: bool) -> Message:
        import tensorflow as tf

        self._variables = {}
        with self._strategy.scope():
            self._variables = {name: tf.Variable(value) for name, value in case.values().items()}
        if tape:
            from benchmarks.model import batch, gradients

            x, labels = batch(case)
            gradient_of = lambda values: gradients(values, x, labels)  # noqa: E731
        else:
            gradient_of = lambda values: {name: 1.0 * value for name, value in values.items()}  # noqa: E731
        variables = self._variables

        @tf.function
        def step() -> None:
            values = {name: variable.read_value() for name, variable in variables.items()}
            for name, gradient in gradient_of(values).items():
                variables[name].assign_sub(LEARNING_RATE * gradient)

        self._step = step
        self._take(2 * self._workers)  # traced, and known to every worker
        self._rate = 10 / self._take(10)
        return {}

    def measure(self, seconds: float) -> Message:
        steps = max(2 * self._workers, round(self._rate * seconds))
        taken_s = self._take(steps)
        self._rate = steps / taken_s
        return {"steps": steps, "seconds": taken_s}

    def _take(self, steps: int) -> float:
        began_s = time.perf_counter()
        for _ in range(steps):
            self._coordinator.schedule(self._step)
        self._coordinator.join()
        return time.perf_counter() - began_s


def main(cluster_text: str, job: str, index: str) -> None:
    commands = follow_parent()
    output = answers()
    import tensorflow as tf

    cluster = json.loads(cluster_text)
    if job == "chief":
        serve(commands, output, Chief(cluster).handle)
        return
    tf.distribute.Server(cluster, job_name=job, task_index=int(index), protocol="grpc").join()


if __name__ == "__main__":
    main(*sys.argv[1:])
