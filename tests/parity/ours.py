"""What do our ps and workers compute on the same problem? Jobs of real processes, and their record.

Each job has two ps processes of its own; the workers, which pay for importing TensorFlow, take part in one job after the
other. Every ps must end by itself with 0. Next: oracle.py, which replays a story; test_parity.py, which compares.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.parity.reference.options import Arrays
from tests.parity.reference.processes import REPOSITORY, free_cluster, task_environment

SERVERS = 2
DEADLINE_S = 240.0
LEARNING_RATE = 0.01

SPECS = {
    "sgd": f"sgd:learning_rate={LEARNING_RATE}",
    "momentum": f"momentum:learning_rate={LEARNING_RATE},momentum=0.9",
    "nesterov": f"momentum:learning_rate={LEARNING_RATE},momentum=0.9,nesterov=true",
    "adam": f"adam:learning_rate={LEARNING_RATE}",
}


@dataclass(frozen=True)
class Job:
    """One training: who, how, on which problem."""

    mode: str
    rule: str
    workers: int
    seed: int = 0
    steps: int = 50

    @property
    def name(self) -> str:
        return f"{self.mode}-{self.rule}-{self.workers}-{self.seed}"


@dataclass
class Record:
    """What a job left: each worker's record (our_worker.py), and the story of each ps."""

    workers: list[Arrays]
    stories: list[list[dict[str, Any]]] = field(default_factory=list)

    def values(self, step: int) -> dict[str, npt.NDArray[np.float32]]:
        """The values that worker 0 read after so many of its steps."""
        return _named(self.workers[0], f"{step}/")

    @property
    def final(self) -> dict[str, npt.NDArray[np.float32]]:
        """The values when all workers were done."""
        return _named(self.workers[0], "final/")

    def gradient(self, worker: int, sequence: int) -> dict[str, npt.NDArray[np.float32]]:
        return _named(self.workers[worker], f"gradient/{sequence}/")


def _named(arrays: Arrays, prefix: str) -> Arrays:
    return {key.removeprefix(prefix): value for key, value in arrays.items() if key.startswith(prefix)}


def run_jobs(jobs: list[Job], directory: Path) -> dict[Job, Record]:
    """Run jobs of the same number of workers, with files in `directory`, and return their records."""
    (workers,) = {job.workers for job in jobs}
    environment = task_environment()
    processes: list[subprocess.Popen[bytes]] = []
    logs = []

    def start(name: str, *arguments: str) -> subprocess.Popen[bytes]:
        log = (directory / f"{name}.log").open("wb")
        logs.append(log)
        process = subprocess.Popen(
            [sys.executable, "-m", *arguments], cwd=REPOSITORY, env=environment, stdout=log, stderr=subprocess.STDOUT
        )
        processes.append(process)
        return process

    try:
        descriptions = []
        for job in jobs:
            cluster = free_cluster({"ps": SERVERS, "worker": workers})
            record = directory / job.name
            record.mkdir()
            descriptions.append(
                {"cluster": cluster, "seed": job.seed, "steps": job.steps, "workers": workers, "record": str(record)}
            )
            for index in range(SERVERS):
                arguments = ["--mode", job.mode, "--rule", SPECS[job.rule], "--story-dir", str(record)]
                start(
                    f"{job.name}-ps{index}", "ps", "--cluster", json.dumps(cluster), "--index", str(index), *arguments
                )
        plan = directory / "jobs.json"
        plan.write_text(json.dumps(descriptions), encoding="utf-8")
        for index in range(workers):
            start(f"worker{index}", "tests.parity.our_worker", str(index), str(plan))
        for process in reversed(processes):  # workers first: if one fails, the ps would wait for it
            if process.wait(DEADLINE_S) != 0:
                raise RuntimeError(f"{process.args} ended with {process.returncode}\n{_logs(directory)}")
    except subprocess.TimeoutExpired as late:
        raise RuntimeError(f"{late}\n{_logs(directory)}") from late
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
        for log in logs:
            log.close()
    return {job: _record(directory / job.name, workers) for job in jobs}


def _record(directory: Path, workers: int) -> Record:
    arrays: list[Arrays] = []
    for index in range(workers):
        with np.load(directory / f"worker{index}.npz") as file:
            arrays.append(dict(file))
    stories = [
        [json.loads(line) for line in (directory / f"story-ps{index}.jsonl").read_text(encoding="utf-8").splitlines()]
        for index in range(SERVERS)
    ]
    return Record(arrays, stories)


def _logs(directory: Path) -> str:
    tails = {path.name: path.read_text(errors="replace").splitlines()[-15:] for path in sorted(directory.glob("*.log"))}
    return "\n".join(f"--- {name}\n" + "\n".join(lines) for name, lines in tails.items())
