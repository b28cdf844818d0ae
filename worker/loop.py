"""What does a worker do all day? Pull the values, compute gradients on a batch, push them; until the batches end.

The loop must not know a framework: a Replica is all it sees of one, which also lets it be tested without TensorFlow.
Next: training.py (what surrounds the loop), step.py and variables.py (the Replica made of TensorFlow).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from client import Client, Values
from protos.codec import Array


class Replica(Protocol):
    """This worker's copy of the model. Names are the same on every worker."""

    @property
    def non_trainable(self) -> Collection[str]:
        """Names of the state that takes no gradient: each worker keeps its own while it trains."""

    def values(self, names: Collection[str] | None = None) -> dict[str, Array]:
        """The present values, of all variables or of these."""

    def assign(self, values: Mapping[str, Array]) -> None:
        """Take these values."""

    def gradients(self, batch: Any) -> tuple[float, dict[str, Any]]:
        """The loss on a batch and its gradients by name: arrays or IndexedSlices. Variables without one are left out."""

    def examples(self, batch: Any) -> int:
        """How many examples are in a batch."""


@dataclass(frozen=True)
class Event:
    """One batch done. step: batches this worker has done; total: how many it will do, None if not known.

    staleness and outcome: as the ps answered the push. stale: how many pushes of this worker were dropped so far.
    """

    step: int
    total: int | None
    loss: float
    staleness: int
    outcome: str
    stale: int


@dataclass
class Summary:
    """What one worker did. values: what it pulled last. Seconds are counted from the first batch on."""

    values: Values
    steps: int = 0
    examples: int = 0
    seconds: float = 0.0
    applied: int = 0
    stale: int = 0
    staleness_sum: int = 0
    staleness_max: int = 0
    loss: float | None = None

    def __str__(self) -> str:
        if not self.steps:
            return "no batch to train on"
        mean = self.staleness_sum / self.steps
        return (
            f"{self.steps} steps in {self.seconds:.1f} s, {self.examples / max(self.seconds, 1e-9):.0f} examples/s; "
            f"applied {self.applied}, stale {self.stale}; staleness mean {mean:.2f}, max {self.staleness_max}"
        )


def run(
    server: Client,
    replica: Replica,
    batches: Iterable[tuple[Any, int | None]],
    rule: str | Mapping[str, Any] | None,
    report: Callable[[Event], None],
    started: Callable[[], None] = lambda: None,
) -> Summary:
    """Train on every batch, given as (batch, number of batches in all or None). Does not leave: the caller does.

    The first worker's values become the model's; all begin from them, state without gradients included. From then on
    only trainable variables are taken from the ps. At the end worker 0's other state is put on the ps (policy `chief`).
    started: called once the model is on the ps. Raises what Client.init, pull, push_pull and assign raise.
    """
    state = frozenset(replica.non_trainable)
    server.init(replica.values(), rule, non_trainable=state)
    started()
    summary = Summary(server.pull())
    replica.assign(summary.values)
    began_s = time.monotonic()
    for batch, total in batches:
        loss, gradients = replica.gradients(batch)
        summary.values, result = server.push_pull(gradients)
        replica.assign({name: value for name, value in summary.values.items() if name not in state})
        summary.steps += 1
        summary.examples += replica.examples(batch)
        summary.seconds = time.monotonic() - began_s
        summary.applied += result.outcome == "applied"
        summary.stale += result.outcome == "stale"
        summary.staleness_sum += result.staleness
        summary.staleness_max = max(summary.staleness_max, result.staleness)
        summary.loss = loss
        report(Event(summary.steps, total, loss, result.staleness, result.outcome, summary.stale))
    if server.worker == 0 and state and summary.steps:
        server.assign(replica.values(state))
    return summary
