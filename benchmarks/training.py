"""What remains of the speed with a real gradient? TensorFlow computes it on a batch of 32; the ps are ours, or TensorFlow's.

One worker process measures four things: the gradients alone, push_pull alone, `worker.train` (both, one after the other),
and `worker.train` with its next pull under way while it computes, where this version of ours has that. Run as a program it is
that worker. Next: table.py.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from benchmarks.cases import LEARNING_RATE, Case, Shape, named
from benchmarks.ours import Ours, Worker
from benchmarks.peers import require
from benchmarks.steps import Plan, Row
from benchmarks.tasks import Message, Tasks, answers, ask_all, follow_parent, serve, steps_for
from benchmarks.tf_pss import ParameterServerStrategy

COMPUTE, PUSH_PULL, BOTH, PREFETCH = "compute alone", "push_pull alone", "one after the other", "prefetch"


def measure(transport: str, cases: Sequence[Case], plan: Plan, *, pss: bool) -> list[Row]:
    """Steps per second of each, for each case. Raises Missing without TensorFlow."""
    require("tensorflow")
    rows = []
    with contextlib.ExitStack() as clusters:
        opener = None
        if pss:
            plan.say("real gradients: PSS starts")
            opener = clusters.enter_context(ParameterServerStrategy(tape=True).cluster(Shape()))
        for case in cases:
            with contextlib.ExitStack() as stack:
                plan.say(f"real gradients, {case.name}, {transport}")
                subjects = [stack.enter_context(opener(case))] if opener is not None else []
                ours = Ours(transport).start(stack.enter_context(Tasks()), Shape(), case, "benchmarks.training")
                subjects += [
                    replace(ours, name=name, command={"operation": name}) for name in (COMPUTE, PUSH_PULL, BOTH)
                ]
                missing: dict[str, str] = {}
                if ours.tasks[0].ask({"command": "ways"})["prefetch"]:
                    subjects.append(replace(ours, name=PREFETCH, command={"operation": PREFETCH}))
                else:
                    missing[PREFETCH] = "worker.train has none in this version"
                rows.append(plan.row(f"{case.name}, {transport}", case, Shape(), subjects, missing))
                ask_all(ours.tasks, {"command": "leave"})
    return rows


def prefetch_argument() -> dict[str, Any]:
    """How `worker.train` is told to prefetch; empty where it cannot."""
    import worker

    known = inspect.signature(worker.train).parameters.get("prefetch")
    if known is None:
        return {}
    return {"prefetch": True if isinstance(known.default, bool) else 1}


class TrainingWorker(Worker):
    """In the worker's process."""

    def handle(self, message: Message) -> Message:
        if message["command"] == "ways":
            return {"prefetch": bool(prefetch_argument())}
        return super().handle(message)

    def init(self) -> Message:
        import tensorflow as tf

        import client
        from benchmarks import model
        from worker.step import TensorReplica

        class Model(tf.Module):
            """Variables by the names of the case."""

            def __init__(self, case: Case) -> None:
                super().__init__()
                self.named = {name: tf.Variable(value, name=name) for name, value in case.values().items()}

            def __call__(self, x: Any) -> Any:
                return model.outputs(self.named, x)

        self._model = Model(self._case)
        self._batch = model.batch(self._case)
        self._dataset = tf.data.Dataset.from_tensors(self._batch).repeat()
        self._alone = TensorReplica(self._model, model.loss, self._dataset.element_spec)
        self._rates: dict[str, float] = {}
        self.server = client.connect(self._cluster, worker=self._index)
        self._train(4, {})
        return self.transports()

    def measure(self, operation: str, seconds: float) -> Message:
        if operation == COMPUTE:
            return steps_for(seconds, lambda: self._alone.gradients(self._batch))
        if operation == PUSH_PULL:
            return super().measure("push_pull", seconds)
        answer = self._train(
            max(4, round(self._rates.get(operation, 10.0) * seconds)),
            prefetch_argument() if operation == PREFETCH else {},
        )
        self._rates[operation] = answer["steps"] / answer["seconds"]
        return answer

    def _train(self, steps: int, arguments: dict[str, Any]) -> Message:
        """So many steps as a user takes them, counted from the end of the first, which is traced."""
        import worker
        from benchmarks import model
        from worker.progress import Progress

        class Clock(Progress):
            """When the first step ended, and the last."""

            first_s = last_s = 0.0

            def update(self, event: worker.Event) -> None:
                self.last_s = time.perf_counter()
                self.first_s = self.first_s or self.last_s

        clock = Clock()
        rule = {"name": "sgd", "learning_rate": LEARNING_RATE}
        summary = worker.train(
            self.server, self._model, self._dataset, model.loss, rule=rule, steps=steps, progress=clock, **arguments
        )
        return {
            "steps": steps - 1,
            "seconds": clock.last_s - clock.first_s,
            "staleness": summary.staleness_sum / max(1, summary.pushes),
        }


def main(role: str, cluster: str, index: str, case: str) -> None:
    commands = follow_parent()
    output = answers()
    if role != "worker":
        raise ValueError(f"got role {role!r}, expected worker")
    from protos.codec import recycle_pages

    recycle_pages()  # as ps-worker does
    serve(commands, output, TrainingWorker(json.loads(cluster), int(index), named(case)).handle)


if __name__ == "__main__":
    main(*sys.argv[1:])
