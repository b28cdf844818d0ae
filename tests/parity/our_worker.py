"""What does one of our workers compute on the problem, and what does it keep for the record?

A process: it takes part in every job of a list, one after the other, with the public client alone, and keeps for each of
its pushes the values it read, the gradient, and what it was told. Next: ours.py, which starts it.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np

import client
from tests.parity.reference.problem import problem

# How often a worker looks whether the others have come or gone.
LOOK_S = 0.05


def main(index: int, jobs: list[dict[str, Any]]) -> None:
    """Take part in each job. A job: cluster, seed, steps, workers, and the file this worker's record goes to."""
    from tests.parity.reference.model import gradients

    for job in jobs:
        work = problem(job["seed"], job["steps"], job["workers"])
        record: dict[str, Any] = {}
        with client.connect(job["cluster"], worker=index) as server:
            server.init(dict(work.values), partitioner=client.FixedShardsPartitioner(2))
            _wait_until(server, {"active"}, others=range(job["workers"]))
            values = server.pull()
            losses = []
            for step, (x, labels) in enumerate(work.batches[index]):
                read = {f"{step}/{name}": value for name, value in values.items()}
                loss, grads = gradients(values, x, labels)
                losses.append(float(loss))
                pushed = {name: grad.numpy() for name, grad in grads.items()}
                version = values.version
                values, result = server.push_pull(pushed)
                record |= read
                record |= {f"gradient/{result.sequence}/{name}": grad for name, grad in pushed.items()}
                record[f"read_version/{result.sequence}"] = np.array(version)
                record[f"read_step/{result.sequence}"] = np.array(step)
            record |= {f"{job['steps']}/{name}": value for name, value in values.items()}
            record["loss"] = np.array(losses, np.float32)
            if index == 0:
                _wait_until(server, {"left"}, others=range(1, job["workers"]))
                record |= {f"final/{name}": value for name, value in server.pull().items()}
        np.savez(Path(job["record"]) / f"worker{index}.npz", **record)


def _wait_until(server: client.Client, states: set[str], others: range) -> None:
    pause = threading.Event()
    while not all(server.status()["workers"][other]["state"] in states for other in others):
        pause.wait(LOOK_S)


if __name__ == "__main__":
    main(int(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text(encoding="utf-8")))
