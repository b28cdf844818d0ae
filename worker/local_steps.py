"""What if a worker pushes not every batch but every H batches? It trains on its own, and pushes how far it has come.

    difference = θ_read - θ_local       takes the place of a gradient; the rule on the ps does the rest

What the worker goes on from depends on that rule. With `elastic_average` (Zhang, Choromanska, LeCun 2015) it keeps its own
values and lets the difference draw it to the centre, θ_local ← θ_local + α difference; with all others (`diloco`, Douillard et
al. 2023; `sgd:learning_rate=1`, the mean of the workers) it begins again from what it pulls. Batches that are left at the end
are pushed too. The inner optimizer is each worker's own, and keeps its state over pushes, as in both papers.

It must not know a framework: a Learner is all it sees of one. Next: loop.py (a push for every batch), step.py (TensorLearner).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from client import Client
from protos.codec import Array
from protos.errors import InvalidInput
from worker.loop import Event, Replica, Summary, begin, end, trainable, weight


class Learner(Replica, Protocol):
    """A replica that can also train by itself."""

    def train(self, batch: Any) -> float:
        """One step of the inner optimizer on a batch; the loss before it."""


def run(
    server: Client,
    learner: Learner,
    batches: Iterable[tuple[Any, int | None]],
    rule: str | Mapping[str, Any] | None,
    report: Callable[[Event], None],
    started: Callable[[], None] = lambda: None,
    *,
    local_steps: int,
) -> Summary:
    """Train on every batch, as loop.run, with a push every `local_steps` batches and one for the rest.

    Every batch is reported; after the rest was pushed the last one is reported again, now with its outcome. The learner holds
    what was pulled last in the end. Raises what loop.run raises, and InvalidInput for an `elastic_average` without a rate.
    """
    summary = begin(server, learner, rule, started)
    alpha = elastic_rate(server)
    total: int | None = None
    pushed = 0  # examples
    for batch, total in batches:
        summary.trained(learner.train(batch), learner.examples(batch))
        due = summary.steps % local_steps == 0
        if due:
            _push(server, learner, summary, alpha, summary.examples - pushed)
            pushed = summary.examples
        report(summary.event(total, pushed=due))
    if summary.steps % local_steps:
        _push(server, learner, summary, alpha, summary.examples - pushed)
        report(summary.event(total))
    learner.assign(trainable(learner, summary.values))
    end(server, learner, summary)
    return summary


def elastic_rate(server: Client) -> float | None:
    """The α by which a worker moves to the centre of `elastic_average`; None for any other rule.

    That is the rule's learning rate, by which the centre moves for each push. In sync mode one step moves the centre by the
    mean of p differences: there the rate is the paper's β = p α.
    """
    name, _, arguments = str(server.status()["rule"]).partition(":")
    if name != "elastic_average":
        return None
    rate = re.match(r"learning_rate=([^,(]+)(,|$)", arguments)
    if rate is None:
        raise InvalidInput(
            field="rule elastic_average, learning_rate",
            got=arguments,
            expected="a number: the workers move by it too, and a schedule is known to the ps alone",
        )
    return float(rate[1]) / (server.num_workers if server.mode == "sync" else 1)


def _push(server: Client, learner: Learner, summary: Summary, alpha: float | None, examples: int) -> None:
    """Push how far the learner has come, and set what it goes on from."""
    read: Mapping[str, Array] = summary.values
    if alpha is not None and server.mode != "sync":
        read = server.pull()  # others have moved the centre since; in sync mode it stays until this push
    names = trainable(learner, read)
    local = learner.values(names)
    difference = {name: read[name] - local[name] for name in names}
    values, result = server.push_pull(difference, weight=weight(examples))
    summary.pushed(values, result)
    if alpha is None:
        learner.assign(trainable(learner, values))
    else:
        learner.assign({name: local[name] + each.dtype.type(alpha) * each for name, each in difference.items()})
