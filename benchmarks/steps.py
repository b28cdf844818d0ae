"""How many steps a second does everyone make? Each case, on each number of workers and ps, all contestants in one run.

A contestant that is not installed or cannot start is noted with its reason, and the others go on; ours must start.
Next: transfers.py and training.py, the two other parts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
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
    """What was measured of one case: series by name, in steps per second; why others are missing.

    remarks: what a reader should know, by name. staleness: of the pushes, by name, where it was told.
    """

    case: str
    bytes: int
    shape: Shape
    series: dict[str, Series]
    missing: dict[str, str] = field(default_factory=dict)
    remarks: dict[str, str] = field(default_factory=dict)
    staleness: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """How long and how often; `done` is called after each turn, `say` before what takes a while."""

    rounds: int
    seconds: float
    done: Callable[[], None]
    say: Callable[[str], None]

    def row(self, label: str, case: Case, shape: Shape, subjects: Sequence[Subject], missing: dict[str, str]) -> Row:
        """Let the subjects take their turns. label: what the row is called, mostly the case's name."""
        series = run(subjects, self.rounds, self.seconds, self.done)
        remarks = {subject.name: subject.remark for subject in subjects if subject.remark}
        staleness = {each.name: each.answered[0]["staleness"] for each in subjects if "staleness" in each.answered[0]}
        return Row(label, case.bytes, shape, series, missing, remarks, staleness)


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
            with noted(contestant.name, missing):
                openers[contestant.name] = clusters.enter_context(contestant.cluster(shape))
        for case in cases:
            with contextlib.ExitStack() as stack:
                subjects, not_here = [], dict(missing)
                for name, opener in openers.items():
                    plan.say(f"{shape}, {case.name}: {name} starts")
                    with noted(name, not_here):
                        subjects.append(stack.enter_context(opener(case)))
                plan.say(f"{shape}, {case.name}")
                rows.append(plan.row(case.name, case, shape, subjects, not_here))
    return rows


@contextlib.contextmanager
def noted(name: str, missing: dict[str, str]) -> Iterator[None]:
    """Why a contestant is not there becomes a note; a failure too, unless it is one of ours."""
    try:
        yield
    except Missing as error:
        missing[name] = str(error)
    except TaskFailed as error:
        if name.startswith("ours"):
            raise
        missing[name] = str(error)
