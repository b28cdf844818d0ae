"""What came of a run? Numbers that tables, plots and tests read, and that add up.

Next: ps/simulation/report.py (for people), ps/simulation/plot.py (as a picture).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from protos.codec import Array
from ps.simulation.plan import Plan
from ps.story import Event


@dataclass(frozen=True)
class Look:
    """The model, looked at on held-out examples. time_s: virtual; step: updates applied to the whole model."""

    time_s: float
    step: int
    loss: float
    accuracy: float


@dataclass(frozen=True)
class Told:
    """An event of a shard's story, and the virtual time of it."""

    time_s: float
    ps: int
    event: Event


@dataclass(frozen=True)
class WorkerTimes:
    """How one worker spent its time, from the start until it left. Virtual seconds.

    busy_s: computing; idle_s: waiting for others.
    """

    worker: int
    iterations: int
    busy_s: float
    idle_s: float

    @property
    def idle_share(self) -> float:
        """The part of its time that it waited, 0 to 1."""
        return self.idle_s / (self.busy_s + self.idle_s) if self.idle_s else 0.0


@dataclass(frozen=True)
class Result:
    """One run. looks: in order, the first before any update and the last when all had left.

    staleness: how many applied pushes had which, on ps 0. counters: what became of the pushes, for each ps.
    """

    plan: Plan
    looks: Sequence[Look]
    workers: Sequence[WorkerTimes]
    staleness: Mapping[int, int]
    counters: Sequence[Mapping[str, int]]
    story: Sequence[Told]
    values: Mapping[str, Array]
    duration_s: float

    @property
    def final(self) -> Look:
        """The model when all had left."""
        return self.looks[-1]

    @property
    def idle_share(self) -> float:
        """The part of all workers' time that was spent waiting."""
        total = sum(each.busy_s + each.idle_s for each in self.workers)
        return sum(each.idle_s for each in self.workers) / total if total else 0.0

    @property
    def mean_staleness(self) -> float:
        """The mean over applied pushes."""
        count = sum(self.staleness.values())
        return sum(staleness * times for staleness, times in self.staleness.items()) / count if count else 0.0

    def fingerprint(self) -> str:
        """A digest of everything that happened: the same for the same plan, another for any bit that differs."""
        digest = hashlib.sha256()
        for name, value in sorted(self.values.items()):
            digest.update(name.encode() + value.tobytes())
        for told in self.story:
            digest.update(f"{told.time_s!r} {told.ps} {told.event.to_json()}".encode())
        digest.update(repr((self.looks, self.workers)).encode())
        return digest.hexdigest()[:16]

    def to_json(self) -> dict[str, Any]:
        """Everything but values and story, as plain values. A number that is not finite is null."""
        return {
            "plan": self.plan.to_json(),
            "fingerprint": self.fingerprint(),
            "duration_s": self.duration_s,
            "idle_share": self.idle_share,
            "mean_staleness": self.mean_staleness,
            "looks": [
                {key: value if math.isfinite(value) else None for key, value in asdict(look).items()}
                for look in self.looks
            ],
            "staleness": {str(staleness): count for staleness, count in sorted(self.staleness.items())},
            "workers": [{**asdict(each), "idle_share": each.idle_share} for each in self.workers],
            "counters": [dict(counters) for counters in self.counters],
        }

    def story_lines(self, ps: int) -> list[str]:
        """The story of one shard: the lines that ps-server --story-dir writes, each with its virtual time."""
        return [
            json.dumps({"time_s": told.time_s, **json.loads(told.event.to_json())})
            for told in self.story
            if told.ps == ps
        ]
