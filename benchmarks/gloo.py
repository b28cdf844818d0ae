"""How fast do two ranks agree on the same bytes without a parameter server? One gloo all-reduce of the flat model a step.

Flat, in one call, as frameworks do it: variable by variable would be slower. What it gives is less and more: no state, no
asynchrony, but both ranks have the sum. Run as a program it is one rank. Next: peers.py.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.cases import Case, Shape
from benchmarks.ours import cluster_of
from benchmarks.peers import require
from benchmarks.rounds import Missing, Subject
from benchmarks.tasks import Message, Tasks, answers, follow_parent, serve

RANKS = 2


class Gloo:
    """Two ranks, always; a row of one worker and one ps has two processes that exchange as well."""

    name = "gloo"

    @contextlib.contextmanager
    def cluster(self, shape: Shape) -> Iterator[Callable[[Case], contextlib.AbstractContextManager[Subject]]]:
        require("torch")
        if shape != Shape():
            raise Missing("has no ps: measured once")
        yield self._subject

    @contextlib.contextmanager
    def _subject(self, case: Case) -> Iterator[Subject]:
        with Tasks() as tasks:
            (address,) = cluster_of(Shape(0, 1))["ps"]
            arguments = (address, str(case.bytes // 4))
            ranks = [tasks.start(f"rank {i}", "benchmarks.gloo", str(i), *arguments) for i in range(RANKS)]
            for rank in ranks:
                rank.answer()
            yield Subject(self.name, ranks)


def main(rank: str, address: str, elements: str) -> None:
    commands = follow_parent()
    output = answers()
    import torch
    from torch import distributed

    distributed.init_process_group("gloo", init_method=f"tcp://{address}", rank=int(rank), world_size=RANKS)
    tensor = torch.zeros(int(elements))
    rate = 10.0  # steps per second, as last seen

    def take(steps: int) -> float:
        began_s = time.perf_counter()
        for _ in range(steps):
            distributed.all_reduce(tensor)
        return time.perf_counter() - began_s

    def handle(message: Message) -> Message:
        nonlocal rate
        # Both ranks must take the same number of steps: rank 0 says how many.
        count: Any = torch.tensor([max(1, round(rate * message["seconds"]))])
        distributed.broadcast(count, 0)
        steps = int(count)
        taken_s = take(steps)
        rate = steps / taken_s
        # A step is both ranks' together, and rates of tasks are added up.
        return {"steps": steps / RANKS, "seconds": taken_s}

    take(2)
    output.write("{}\n")
    serve(commands, output, handle)


if __name__ == "__main__":
    main(*sys.argv[1:])
