"""How many steps a second does everyone make? Each case, on each number of workers and ps, all contestants in one run.

A contestant that is not installed or cannot start is noted with its reason, and the others go on; ours must start.
Next: transfers.py and training.py, the two other parts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.cases import Case, Shape
from benchmarks.gloo import Gloo
from benchmarks.limits import MEMCPY, TCP, Limit
from benchmarks.ours import Ours, transports
from benchmarks.ray_actor import RayActor
from benchmarks.rounds import Contestant, Missing, Series, Subject, run
from benchmarks.tasks import TaskFailed
from benchmarks.tf_pss import ParameterServerStrategy
from benchmarks.torch_rpc import TorchRpc

KINDS = ("pss", "ours", "torch", "ray", "gloo", "limits")


@dataclass(frozen=True)
class Row:
    """What was measured of one case: series by name, in steps per second; why others are missing; other numbers."""

    case: str
    bytes: int
    shape: Shape
    series: dict[str, Series]
    missing: dict[str, str] = field(default_factory=dict)
    notes: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """How long and how often; `done` is called after each turn, `say` before what takes a while."""

    rounds: int
    seconds: float
    done: Callable[[], None]
    say: Callable[[str], None]

    def run(self, subjects: Sequence[Subject]) -> dict[str, Series]:
        return run(subjects, self.rounds, self.seconds, self.done)


def contestants(kinds: Sequence[str]) -> list[Contestant]:
    """In the order of the table."""
    known: dict[str, list[Contestant]] = {
        "pss": [ParameterServerStrategy()],
        "ours": [Ours(transport) for transport in transports()],
        "torch": [TorchRpc()],
        "ray": [RayActor()],
        "gloo": [Gloo()],
        "limits": [Limit(TCP), Limit(MEMCPY)],
    }
    return [contestant for kind in KINDS if kind in kinds for contestant in known[kind]]


def measure(shape: Shape, cases: Sequence[Case], kinds: Sequence[str], plan: Plan) -> list[Row]:
    """All cases on clusters of one shape. Raises TaskFailed if ours does not start, or a task fails while it works."""
    rows = []
    with contextlib.ExitStack() as clusters:
        openers: dict[str, Callable[[Case], Any]] = {}
        missing: dict[str, str] = {}
        for contestant in contestants(kinds):
            plan.say(f"{shape}: {contestant.name} starts")
            with _noted(contestant.name, missing):
                openers[contestant.name] = clusters.enter_context(contestant.cluster(shape))
        for case in cases:
            with contextlib.ExitStack() as stack:
                subjects, not_here = [], dict(missing)
                for name, opener in openers.items():
                    plan.say(f"{shape}, {case.name}: {name} starts")
                    with _noted(name, not_here):
                        subjects.append(stack.enter_context(opener(case)))
                plan.say(f"{shape}, {case.name}")
                rows.append(Row(case.name, case.bytes, shape, plan.run(subjects), not_here))
    return rows


@contextlib.contextmanager
def _noted(name: str, missing: dict[str, str]) -> Any:
    """Why a contestant is not there becomes a note; a failure too, unless it is one of ours."""
    try:
        yield
    except Missing as error:
        missing[name] = str(error)
    except TaskFailed as error:
        if name.startswith("ours"):
            raise
        missing[name] = str(error)
