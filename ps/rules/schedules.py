"""How does the learning rate change with the step?

A schedule is a pure function of the step, so that every ps has the same rate at the same step. Names, arguments and values
are those of `keras.optimizers.schedules`, computed in float64. Next: base.py, where a rule's learning rate may be one.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from ps.rules.configured import Configured, register


@dataclasses.dataclass(frozen=True, repr=False)
class Schedule(Configured):
    """Base of all schedules: subclass, annotate the fields, write `__call__`, register."""

    kind: ClassVar[str] = "schedule"

    def __call__(self, step: int) -> float:
        """The learning rate at `step`, which counts the updates made before."""
        raise TypeError(f"{type(self).__name__} does not define __call__")


@register("exponential_decay")
class ExponentialDecay(Schedule):
    """η₀ rate^(step / decay_steps); the quotient is rounded down if `staircase`."""

    initial_learning_rate: float
    decay_steps: int
    decay_rate: float
    staircase: bool = False

    def __post_init__(self) -> None:
        self.require("decay_steps", self.decay_steps > 0, "1 or more")

    def __call__(self, step: int) -> float:
        periods = step // self.decay_steps if self.staircase else step / self.decay_steps
        return self.initial_learning_rate * self.decay_rate**periods
