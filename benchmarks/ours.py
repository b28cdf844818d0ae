"""How fast are our ps and workers? Real `ps-server` processes, and workers that do nothing but what is measured.

The gradient is the value itself, as in tf_pss.py: `push_pull` in async mode, rule sgd. Run as a program it is one of these
processes. Next: tf_pss.py, the same work done by TensorFlow.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

from benchmarks.cases import LEARNING_RATE, Case, Shape, named
from benchmarks.rounds import Subject
from benchmarks.tasks import Message, Tasks, answers, ask_all, follow_parent, serve, steps_for

SWITCH = "PARAMSERVER_SHARED_MEMORY"
TRANSPORTS = {"tcp": "false", "shared memory": "true"}


class Ours:
    """One of the ways that our bytes can go: transport `tcp`, or `shared memory`."""

    def __init__(self, transport: str = "tcp") -> None:
        self.name = "ours" if transport == "tcp" else f"ours, {transport}"
        self.transport = transport
        self.environment = {SWITCH: TRANSPORTS[transport]}

    @contextlib.contextmanager
    def cluster(self, shape: Shape) -> Iterator[Callable[[Case], contextlib.AbstractContextManager[Subject]]]:
        """Nothing is shared: a ps holds one model, so that each case starts ps of its own, which takes a second."""
        yield lambda case: self.subject(shape, case)

    @contextlib.contextmanager
    def subject(self, shape: Shape, case: Case, command: dict[str, Any] | None = None) -> Iterator[Subject]:
        """A cluster with this case on it. command: {"operation": "pull"} or "push", instead of push_pull."""
        with Tasks() as tasks:
            subject = self.start(tasks, shape, case)
            yield replace(subject, command=command or {})
            ask_all(subject.tasks, {"command": "leave"})

    def start(self, tasks: Tasks, shape: Shape, case: Case, module: str = "benchmarks.ours") -> Subject:
        """ps, and workers of `module`, with the model on the ps. A remark tells of bytes that go another way."""
        cluster = cluster_of(shape)
        text = json.dumps(cluster)
        for index in range(shape.ps):
            arguments = ["--cluster", text, "--index", str(index), "--mode", "async", "--log-level", "warning"]
            tasks.start(f"ps {index}", "benchmarks.ours", "ps", *arguments, environment=self.environment)
        workers = [
            tasks.start(f"worker {i}", module, "worker", text, str(i), case.name, environment=self.environment)
            for i in range(shape.workers)
        ]
        used = {way for answer in ask_all(workers, {"command": "init"}) for way in answer["transports"]}
        wrong = ", ".join(sorted(used - {self.transport}))
        remark = f"what {case.name} moves goes over {wrong}, say the ps" if wrong else ""
        return Subject(self.name, workers, remark=remark)


def cluster_of(shape: Shape) -> dict[str, list[str]]:
    """A cluster on free ports of loopback."""
    from client.run_ports import choose_addresses

    addresses = choose_addresses(shape.ps + shape.workers)
    return {"ps": addresses[: shape.ps], "worker": addresses[shape.ps :]}


def transports() -> list[str]:
    """The ways there are in this version of ours: tcp, and shared memory if a client has that setting."""
    from client.settings import Settings

    switch = SWITCH.removeprefix("PARAMSERVER_").lower()
    switchable = any(each.name == switch for each in fields(Settings))
    return ["tcp", "shared memory"] if switchable else ["tcp"]


class Worker:
    """In a worker process: the model on the ps, and what is measured."""

    def __init__(self, cluster: dict[str, Any], index: int, case: Case) -> None:
        self._cluster, self._index, self._case = cluster, index, case
        self.server: Any = None

    def handle(self, message: Message) -> Message:
        command = message["command"]
        if command == "init":
            return self.init()
        if command == "measure":
            return self.measure(message.get("operation", "push_pull"), message["seconds"])
        if command == "leave":
            self.server.leave()
            return {}
        raise ValueError(f"got command {command!r}, expected init, measure or leave")

    def init(self) -> Message:
        import client

        self.server = client.connect(self._cluster, worker=self._index)
        self.server.init(self._case.values(), rule={"name": "sgd", "learning_rate": LEARNING_RATE}, mode="async")
        return self.transports()

    def transports(self) -> Message:
        """How the bytes of this worker really go, as the ps say."""
        self.server.pull()  # a connection begins without
        ways = [ps["workers"][self._index].get("transport") for ps in self.server.status()["ps"]]
        return {"transports": [way if way in TRANSPORTS else "tcp" for way in ways]}

    def measure(self, operation: str, seconds: float) -> Message:
        """Steps per second of one operation; of `pull` alone, each pull of values that have changed since the last."""
        values = self.server.pull()
        if operation == "push_pull":

            def step() -> None:
                nonlocal values
                values, _ = self.server.push_pull(values)

            return steps_for(seconds, step)
        if operation == "push":
            return steps_for(seconds, lambda: self.server.push(values))
        if operation != "pull":
            raise ValueError(f"got operation {operation!r}, expected push_pull, push or pull")
        pulled_s = 0.0

        def change_and_pull() -> None:
            nonlocal values, pulled_s
            self.server.push(values)
            began_s = time.perf_counter()
            values = self.server.pull()
            pulled_s += time.perf_counter() - began_s

        answer = steps_for(2 * seconds, change_and_pull)
        return answer | {"seconds": pulled_s}


def main(role: str, *arguments: str) -> None:
    commands = follow_parent()
    if role == "ps":
        from ps.__main__ import main as ps_server

        sys.argv[1:] = arguments
        ps_server("ps-server")
        return
    from protos.codec import recycle_pages

    output = answers()
    recycle_pages()  # as ps-worker does
    cluster, index, case = arguments
    serve(commands, output, Worker(json.loads(cluster), int(index), named(case)).handle)


if __name__ == "__main__":
    main(*sys.argv[1:])
