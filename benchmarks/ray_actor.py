"""How fast is a Ray actor that holds the parameters? One actor a ps, one a worker; a step is a remote push_pull to each ps.

Arrays travel through Ray's object store, which is shared memory: a gradient is put there, and so are the values that come
back. The actors apply to a copy of their own, for what lies in the store cannot be written to. Run as a program it is the
driver, which starts Ray on this machine and ends it. Next: gloo.py.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.cases import LEARNING_RATE, Case, Shape, named
from benchmarks.peers import require
from benchmarks.rounds import Subject
from benchmarks.tasks import REPOSITORY, Message, Tasks, answers, follow_parent, serve, steps_for

STORE_BYTES = 512 << 20


class RayActor:
    """One Ray for all cases of a shape: it takes seconds to start."""

    name = "Ray"

    @contextlib.contextmanager
    def cluster(self, shape: Shape) -> Iterator[Callable[[Case], contextlib.AbstractContextManager[Subject]]]:
        require("ray")
        with Tasks() as tasks:
            quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DISABLE_IMPORT_WARNING": "1"}
            driver = tasks.start(
                "Ray driver", "benchmarks.ray_actor", str(shape.workers), str(shape.ps), environment=quiet
            )

            @contextlib.contextmanager
            def subject(case: Case) -> Iterator[Subject]:
                driver.ask({"command": "prepare", "case": case.name})
                yield Subject(self.name, [driver])

            yield subject
            driver.ask({"command": "end"})


class Parameters:
    """A ps: its variables."""

    def __init__(self, values: list[Any]) -> None:
        self._values = [value.copy() for value in values]

    def push_pull(self, *gradients: Any) -> list[Any]:
        for value, gradient in zip(self._values, gradients):
            np.subtract(value, LEARNING_RATE * gradient, out=value)
        return self._values


class Worker:
    """Steps, for a while; each gradient is the value itself."""

    def __init__(self, ps: list[Any], parts: list[list[Any]]) -> None:
        self._ps, self._parts = ps, parts

    def measure(self, seconds: float) -> Message:
        import ray

        def step() -> None:
            self._parts = ray.get([ps.push_pull.remote(*part) for ps, part in zip(self._ps, self._parts)])

        return steps_for(seconds, step)


class Driver:
    """Starts Ray, and the actors of one case after the other."""

    def __init__(self, workers: int, ps: int) -> None:
        import ray

        self._shape = Shape(workers, ps)
        self._actors: list[Any] = []
        ray.init(
            # Actors count as one each, whatever the machine has: more of them than cores is what is measured.
            num_cpus=workers + ps,
            object_store_memory=STORE_BYTES,
            include_dashboard=False,
            log_to_driver=False,
            configure_logging=False,
            runtime_env={"env_vars": {"PYTHONPATH": str(REPOSITORY)}},
        )

    def handle(self, message: Message) -> Message:
        import ray

        command = message["command"]
        if command == "prepare":
            self._prepare(named(message["case"]))
            return {}
        if command == "measure":
            workers = self._actors[: self._shape.workers]
            results = ray.get([worker.measure.remote(message["seconds"]) for worker in workers])
            return {"steps": sum(result["steps"] / result["seconds"] for result in results), "seconds": 1.0}
        ray.shutdown()
        return {}

    def _prepare(self, case: Case) -> None:
        import ray

        for actor in self._actors:
            ray.kill(actor)
        parts = [list(case.values().values())[index :: self._shape.ps] for index in range(self._shape.ps)]
        ps = [ray.remote(num_cpus=1)(Parameters).remote(part) for part in parts]
        workers = [ray.remote(num_cpus=1)(Worker).remote(ps, parts) for _ in range(self._shape.workers)]
        self._actors = [*workers, *ps]


def main(workers: str, ps: str) -> None:
    commands = follow_parent()
    output = answers()
    serve(commands, output, Driver(int(workers), int(ps)).handle)


if __name__ == "__main__":
    # As a module that the actors, which are processes of Ray's, can import by name.
    from benchmarks.ray_actor import main as run

    run(*sys.argv[1:])
