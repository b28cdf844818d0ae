"""How fast is `torch.distributed.rpc` at the same work? Each ps holds its tensors; a worker's step is one remote push_pull.

With several ps the variables lie on them in turn, and a step is one call to each, all under way at once. The remote function
subtracts rate · gradient in place and returns the tensors: what a parameter server by hand is in PyTorch's own tutorials.
Run as a program it is one of these processes. Next: ray_actor.py.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.cases import LEARNING_RATE, Case, Shape, named
from benchmarks.ours import cluster_of
from benchmarks.peers import require
from benchmarks.rounds import Subject
from benchmarks.tasks import Message, Tasks, answers, end_with_parent_at_once, follow_parent, serve, steps_for

# On a ps: its tensors. A remote function finds them here.
_tensors: list[Any] = []


class TorchRpc:
    """Workers are the first ranks, then the ps."""

    name = "torch rpc"

    @contextlib.contextmanager
    def cluster(self, shape: Shape) -> Iterator[Callable[[Case], contextlib.AbstractContextManager[Subject]]]:
        require("torch")

        @contextlib.contextmanager
        def subject(case: Case) -> Iterator[Subject]:
            with Tasks() as tasks:
                (address,) = cluster_of(Shape(0, 1))["ps"]
                names = [f"worker{i}" for i in range(shape.workers)] + [f"ps{i}" for i in range(shape.ps)]
                text = json.dumps({"address": address, "names": names, "ps": shape.ps, "case": case.name})
                ranks = [tasks.start(name, "benchmarks.torch_rpc", text, name) for name in names]
                for rank in ranks:
                    rank.answer()
                for rank in ranks:
                    rank.pause()  # its transports look for messages without a pause, half a core each
                yield Subject(self.name, ranks[: shape.workers], restless=ranks)

        yield subject


def push_pull(gradients: list[Any]) -> list[Any]:
    """On a ps: apply, and return the values."""
    for tensor, gradient in zip(_tensors, gradients):
        tensor.sub_(gradient, alpha=LEARNING_RATE)
    return _tensors


def main(description: str, name: str) -> None:
    commands = follow_parent()
    end_with_parent_at_once()
    output = answers()
    import torch
    from torch.distributed import rpc

    job = json.loads(description)
    ps_count = job["ps"]
    parts: list[list[Any]] = [[] for _ in range(ps_count)]
    for index, value in enumerate(named(job["case"]).values().values()):
        parts[index % ps_count].append(torch.from_numpy(value))
    if name.startswith("ps"):
        _tensors.extend(parts[int(name.removeprefix("ps"))])
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"tcp://{job['address']}")
    rpc.init_rpc(name, rank=job["names"].index(name), world_size=len(job["names"]), rpc_backend_options=options)
    output.write("{}\n")
    used = [(f"ps{index}", part) for index, part in enumerate(parts) if part]

    def step() -> None:
        nonlocal used
        # By its full name: here this module is __main__, which is another module on the other side.
        from benchmarks.torch_rpc import push_pull as remote

        calls = [(ps, rpc.rpc_async(ps, remote, args=(values,))) for ps, values in used]
        used = [(ps, call.wait()) for ps, call in calls]

    def handle(message: Message) -> Message:
        return steps_for(message["seconds"], step)

    serve(commands, output, handle)


if __name__ == "__main__":
    # As the module that remote calls name, so that what they find is what was filled.
    from benchmarks.torch_rpc import main as run

    run(*sys.argv[1:])
