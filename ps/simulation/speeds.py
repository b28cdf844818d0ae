"""How long does an iteration of a worker take, in virtual seconds?

A worker's speed is a list: first a distribution, then what happens to some workers. Each item has its say about the
duration that those before it have given.

    constant(1)                            every iteration takes a second
    lognormal(median=1,sigma=0.5)          mostly near the median, sometimes much longer
    straggler(worker=0,factor=4)           this worker takes four times as long, always
    pause(worker=2,at_s=10,for_s=5)        this worker stands still from 10 s to 15 s

Next: ps/simulation/run.py, whose workers sleep for so long.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from protos.errors import InvalidInput


@dataclasses.dataclass(frozen=True)
class Speed:
    """One item of the list. Its fields are numbers. distribution: says a duration by itself, so it is the first item."""

    name: ClassVar[str] = ""
    distribution: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not math.isfinite(value) or value < 0:
                raise InvalidInput(field=f"speed {self.name}, {field.name}", got=value, expected="0 or more, finite")

    def __str__(self) -> str:
        return f"{self.name}({','.join(f'{key}={value:g}' for key, value in vars(self).items())})"

    def duration_s(self, before_s: float, worker: int, now_s: float, rng: np.random.Generator) -> float:
        """How long the iteration that `worker` begins now takes. before_s: what the items before this one have said."""
        raise TypeError(f"{type(self).__name__} does not define duration_s")


@dataclasses.dataclass(frozen=True)
class Constant(Speed):
    """Always the same."""

    name = "constant"
    distribution = True
    seconds: float = 1.0

    def duration_s(self, before_s: float, worker: int, now_s: float, rng: np.random.Generator) -> float:
        return self.seconds


@dataclasses.dataclass(frozen=True)
class LogNormal(Speed):
    """exp of a normal distribution: median · e^(sigma · z)."""

    name = "lognormal"
    distribution = True
    median: float = 1.0
    sigma: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.median:
            raise InvalidInput(field="speed lognormal, median", got=0, expected="more than 0")

    def duration_s(self, before_s: float, worker: int, now_s: float, rng: np.random.Generator) -> float:
        return self.median * math.exp(self.sigma * rng.standard_normal())


@dataclasses.dataclass(frozen=True)
class Straggler(Speed):
    """One worker takes `factor` times as long as it would."""

    name = "straggler"
    worker: int = 0
    factor: float = 4.0

    def duration_s(self, before_s: float, worker: int, now_s: float, rng: np.random.Generator) -> float:
        return before_s * self.factor if worker == self.worker else before_s


@dataclasses.dataclass(frozen=True)
class Pause(Speed):
    """One worker stands still for a while."""

    name = "pause"
    worker: int = 0
    at_s: float = 0.0
    for_s: float = 10.0

    def duration_s(self, before_s: float, worker: int, now_s: float, rng: np.random.Generator) -> float:
        end_s = self.at_s + self.for_s
        if worker != self.worker or now_s >= end_s or now_s + before_s <= self.at_s:
            return before_s
        return before_s + min(self.for_s, end_s - now_s)  # what of the pause still lies ahead


SPEEDS: dict[str, type[Speed]] = {kind.name: kind for kind in (Constant, LogNormal, Straggler, Pause)}


def parse_speed(text: str) -> Speed:
    """The item that NAME(key=number,…) describes, keys in order or named; InvalidInput if it is none."""
    name, opened, rest = text.strip().partition("(")
    if name not in SPEEDS or (opened and not rest.endswith(")")):
        known = ", ".join(str(kind()) for kind in SPEEDS.values())
        raise InvalidInput(field="speed", got=repr(text), expected=f"one such as {known}")
    fields = [field.name for field in dataclasses.fields(SPEEDS[name])]
    said: dict[str, float | int] = {}
    for position, item in enumerate(part.strip() for part in rest[:-1].split(",") if part.strip()):
        key, equals, number = item.rpartition("=")
        key = key.strip() if equals else (fields[position] if position < len(fields) else item)
        if key not in fields or key in said:
            raise InvalidInput(field=f"speed {name}", got=repr(item), expected=f"each once of {', '.join(fields)}")
        try:
            said[key] = int(number) if key == "worker" else float(number)
        except ValueError:
            raise InvalidInput(field=f"speed {name}, {key}", got=repr(number), expected="a number") from None
    return SPEEDS[name](**said)


def duration_s(speeds: Sequence[Speed], worker: int, now_s: float, rng: np.random.Generator) -> float:
    """How long the iteration takes that `worker` begins now: every item has its say."""
    seconds = 0.0
    for speed in speeds:
        seconds = speed.duration_s(seconds, worker, now_s, rng)
    return seconds
