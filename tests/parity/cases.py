"""How far are we from TensorFlow? Runs both sides as real processes and measures every step.

Measures, each the largest over variables and steps: the absolute difference of an element; the same beyond what a relative
tolerance of 1e-6 forgives; the difference of a variable relative to its norm, ‖ours - theirs‖ / ‖theirs‖; and whether all bits
are equal. The relative difference of single elements says nothing where a weight passes through zero, so it is not among them.
Next: test_parity.py, which sets bounds.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.parity.oracle import replay
from tests.parity.ours import DEADLINE_S, LEARNING_RATE, Job, Record
from tests.parity.reference.options import Arrays
from tests.parity.reference.problem import problem
from tests.parity.reference.processes import REPOSITORY, task_environment

STEPS = 50


@dataclass(frozen=True)
class Row:
    """One comparison."""

    mode: str
    workers: int
    rule: str
    reference: str
    steps: int
    max_abs: float
    max_beyond_relative: float
    max_relative: float
    bit_equal: bool

    def close(self, absolute: float, by_norm: float) -> bool:
        """Element by element as numpy.allclose(rtol=1e-6, atol=absolute), and by the norm of each variable."""
        return self.max_beyond_relative <= absolute and self.max_relative <= by_norm


def reference(program: str, rules: Sequence[str], out: Path, *arguments: str) -> dict[str, Arrays]:
    """Run a reference program for these rules and read what it recorded, by rule."""
    command = [sys.executable, "-m", f"tests.parity.reference.{program}", "--learning-rate", str(LEARNING_RATE)]
    command += [part for rule in rules for part in ("--rule", rule)]
    command += ["--steps", str(STEPS), "--out", str(out / f"{program}-{{rule}}.npz"), *arguments]
    run = subprocess.run(
        command, cwd=REPOSITORY, env=task_environment(), capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    if run.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {run.returncode}\n{run.stdout}\n{run.stderr}")
    recorded = {}
    for rule in rules:
        with np.load(out / f"{program}-{rule}.npz") as file:
            recorded[rule] = dict(file)
    return recorded


def compare(job: Job, ours: Record, theirs: Arrays, name: str) -> Row:
    """Every variable after every step, the start included."""
    return _measure(
        job,
        name,
        (
            (value, theirs[f"{step}/{variable}"])
            for step in range(job.steps + 1)
            for variable, value in ours.values(step).items()
        ),
    )


def compare_with_story(job: Job, ours: Record) -> Row:
    """The final weights against the oracle's; and what every worker read against the versions it says it read."""
    initial = problem(job.seed, job.steps, job.workers).values
    final, histories = replay(ours.stories, initial, ours.gradient, LEARNING_RATE)
    pairs = [(ours.final[name], final[name]) for name in final]
    for story, history in zip(ours.stories, histories):
        for event in (event for event in story if event["kind"] == "push"):
            record = ours.workers[event["worker"]]
            step = int(record[f"read_step/{event['sequence']}"])
            for held, value in history[event["at_version"]].items():
                pairs.append((_rows_read(record, step, held), value))
    return _measure(job, "oracle on the story", pairs)


def _measure(job: Job, name: str, pairs: Iterable[tuple[Any, Any]]) -> Row:
    """The row of all (ours, theirs)."""
    largest, beyond, relative, equal = 0.0, 0.0, 0.0, True
    for mine, other in pairs:
        difference = np.abs(mine.astype(np.float64) - other)
        largest = max(largest, float(difference.max()))
        beyond = max(beyond, float((difference - 1e-6 * np.abs(other)).max()))
        relative = max(relative, float(np.linalg.norm(difference) / np.linalg.norm(other)))
        equal = equal and mine.tobytes() == other.tobytes()
    return Row(job.mode, job.workers, job.rule, name, job.steps, largest, beyond, relative, equal)


def _rows_read(record: Arrays, step: int, held: str) -> Any:
    name, _, rows = held.partition("[")
    value = record[f"{step}/{name}"]
    if not rows:
        return value
    start, _, stop = rows.rstrip("]").partition(":")
    return value[int(start) : int(stop)]


def pushes_told(job: Job, ours: Record) -> Mapping[str, Any]:
    """For the story's own checks: for each ps, who pushed how often, and the largest staleness."""
    told: dict[str, Any] = {}
    for index, story in enumerate(ours.stories):
        pushes = [event for event in story if event["kind"] == "push"]
        told[f"ps {index}"] = {
            "pushes": {worker: sum(event["worker"] == worker for event in pushes) for worker in range(job.workers)},
            "staleness": max(event.get("staleness", 0) for event in pushes),
        }
    return told
