"""What does a worker do all day? Pull the values, compute gradients on a batch, push them; until the batches end.

The loop must not know a framework: a Replica is all it sees of one, which also lets it be tested without TensorFlow.
Next: training.py (what surrounds the loop), local_steps.py (another loop), step.py and variables.py (the Replica made of
TensorFlow).
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from client import Client, PushResult, Values
from protos.codec import Array
from worker.loss_scale import LossScale


class Replica(Protocol):
    """This worker's copy of the model. Names are the same on every worker."""

    @property
    def non_trainable(self) -> Collection[str]:
        """Names of the state that takes no gradient: each worker keeps its own while it trains."""

    def values(self, names: Collection[str] | None = None) -> dict[str, Array]:
        """The present values, of all variables or of these."""

    def assign(self, values: Mapping[str, Array]) -> None:
        """Take these values."""

    def gradients(self, batch: Any, scale: float = 1.0) -> tuple[float, dict[str, Any]]:
        """The loss on a batch and the gradients of `scale` times it by name: arrays or IndexedSlices.

        Variables without one are left out.
        """

    def examples(self, batch: Any) -> int:
        """How many examples are in a batch."""


@dataclass(frozen=True)
class Event:
    """One batch done. step: batches this worker has done; total: how many it will do, None if not known.

    staleness and outcome: as the ps answered the push; the outcome is empty, and the staleness that of the last push, after
    a batch that waits for a push. stale: how many pushes of this worker were dropped so far.
    """

    step: int
    total: int | None
    loss: float
    staleness: int
    outcome: str
    stale: int


@dataclass
class Summary:
    """What one worker did. steps: batches; values: what it pulled last. Seconds are counted from the first batch on."""

    values: Values
    steps: int = 0
    examples: int = 0
    seconds: float = 0.0
    pushes: int = 0
    applied: int = 0
    stale: int = 0
    staleness_sum: int = 0
    staleness_max: int = 0
    loss: float | None = None
    began_s: float = field(default_factory=time.monotonic, repr=False, compare=False)
    _last: PushResult | None = field(default=None, repr=False)

    def __str__(self) -> str:
        if not self.steps:
            return "no batch to train on"
        mean = self.staleness_sum / max(1, self.pushes)
        pushes = "" if self.pushes == self.steps else f" and {self.pushes} pushes"
        return (
            f"{self.steps} steps{pushes} in {self.seconds:.1f} s, {self.examples / max(self.seconds, 1e-9):.0f} examples/s; "
            f"applied {self.applied}, stale {self.stale}; staleness mean {mean:.2f}, max {self.staleness_max}"
        )

    def trained(self, loss: float, examples: int) -> None:
        """One batch done."""
        self.steps += 1
        self.examples += examples
        self.loss = loss
        self.seconds = time.monotonic() - self.began_s

    def pushed(self, values: Values, result: PushResult) -> None:
        """One push answered, with the values that were pulled after it."""
        self.values, self._last = values, result
        self.pushes += 1
        self.applied += result.outcome == "applied"
        self.stale += result.outcome == "stale"
        self.staleness_sum += result.staleness
        self.staleness_max = max(self.staleness_max, result.staleness)
        self.seconds = time.monotonic() - self.began_s

    def event(self, total: int | None, *, pushed: bool = True) -> Event:
        """What to report of the last batch. pushed: whether the last push had it."""
        assert self.loss is not None, "no batch yet"
        staleness, outcome = (self._last.staleness, self._last.outcome) if self._last is not None else (0, "")
        return Event(self.steps, total, self.loss, staleness, outcome if pushed else "", self.stale)


def run(
    server: Client,
    replica: Replica,
    batches: Iterable[tuple[Any, int | None]],
    rule: str | Mapping[str, Any] | None,
    report: Callable[[Event], None],
    started: Callable[[], None] = lambda: None,
    *,
    loss_scale: LossScale | None = None,
) -> Summary:
    """Train on every batch, given as (batch, number of batches in all or None). Does not leave: the caller does.

    The first worker's values become the model's; all begin from them, state without gradients included. From then on
    only trainable variables are taken from the ps. At the end worker 0's other state is put on the ps (policy `chief`).
    started: called once the model is on the ps. loss_scale: see loss_scale.py; none by default.

    Raises what Client.init, pull, push_pull and assign raise, and NonFiniteGradient where a dynamic loss scale finds no end.
    """
    loss_scale = loss_scale or LossScale.parse(None)
    summary = begin(server, replica, rule, started)
    for batch, total in batches:
        loss, gradients, scale = loss_scale.gradients(functools.partial(replica.gradients, batch))
        examples = replica.examples(batch)
        summary.trained(loss, examples)
        summary.pushed(*server.push_pull(gradients, scale=scale, weight=weight(examples)))
        replica.assign(trainable(replica, summary.values))
        report(summary.event(total))
    end(server, replica, summary)
    return summary


def begin(
    server: Client, replica: Replica, rule: str | Mapping[str, Any] | None, started: Callable[[], None]
) -> Summary:
    """The model on the ps, and in the replica the values that all workers begin from."""
    server.init(replica.values(), rule, non_trainable=frozenset(replica.non_trainable))
    started()
    summary = Summary(server.pull())
    replica.assign(summary.values)
    return summary


def trainable(replica: Replica, values: Mapping[str, Array]) -> dict[str, Array]:
    """Those of the values that take gradients."""
    return {name: value for name, value in values.items() if name not in replica.non_trainable}


def weight(examples: int) -> int:
    """What a push counts for where the aggregation weighs. An empty batch has a mean of nothing, yet a push has a weight."""
    return max(1, examples)


def end(server: Client, replica: Replica, summary: Summary) -> None:
    """Worker 0's other state put on the ps."""
    if server.worker == 0 and replica.non_trainable and summary.steps:
        server.assign(replica.values(replica.non_trainable))
