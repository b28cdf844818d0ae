"""How does the learning rate change with the step?

A schedule is a pure function of the step, so that every ps has the same rate at the same step. Names, arguments and values
are those of `keras.optimizers.schedules`, computed in float64, exact at the steps where something begins or ends. Arguments
that would make a rate negative, or no number, are refused when the schedule is made, where Keras goes on.

It must not know time, workers or gradients. Next: base.py, where a rule's learning rate may be a schedule.
"""

from __future__ import annotations

import bisect
import dataclasses
import math
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
        self.require_at_least_0("initial_learning_rate", "decay_rate")
        self.require("decay_steps", self.decay_steps > 0, "1 or more")

    def __call__(self, step: int) -> float:
        periods = step / self.decay_steps
        return self.initial_learning_rate * _power(self.decay_rate, math.floor(periods) if self.staircase else periods)


@register("piecewise_constant_decay")
class PiecewiseConstantDecay(Schedule):
    """values[0] up to and with step boundaries[0], then values[1] up to and with boundaries[1], …; at last values[-1]."""

    boundaries: tuple[int | float, ...]
    values: tuple[int | float, ...]

    def __post_init__(self) -> None:
        rising = all(one < next_one for one, next_one in zip(self.boundaries, self.boundaries[1:]))
        self.require("boundaries", rising, "steps in rising order")
        count = len(self.boundaries) + 1
        self.require("values", len(self.values) == count, f"{count} rates, one more than boundaries")
        self.require("values", all(value >= 0 for value in self.values), "rates of 0 or more")

    def __call__(self, step: int) -> float:
        return float(self.values[bisect.bisect_left(self.boundaries, step)])


@register("polynomial_decay")
class PolynomialDecay(Schedule):
    """(η₀ - η₁) (1 - step / decay_steps)^power + η₁, with η₁ = `end_learning_rate`, which stays from `decay_steps` on.

    With `cycle` the rate jumps up again each time: decay_steps becomes its first multiple that is not below the step.
    """

    initial_learning_rate: float
    decay_steps: int
    end_learning_rate: float = 0.0001
    power: float = 1.0
    cycle: bool = False

    def __post_init__(self) -> None:
        self.require_at_least_0("initial_learning_rate", "end_learning_rate", "power")
        self.require("decay_steps", self.decay_steps > 0, "1 or more")

    def __call__(self, step: int) -> float:
        if self.cycle:
            end = self.decay_steps * max(1, -(-step // self.decay_steps))
        else:
            end, step = self.decay_steps, min(step, self.decay_steps)
        way = self.initial_learning_rate - self.end_learning_rate
        return float(way * (1 - step / end) ** self.power + self.end_learning_rate)


@register("inverse_time_decay")
class InverseTimeDecay(Schedule):
    """η₀ / (1 + rate step / decay_steps); the quotient is rounded down if `staircase`."""

    initial_learning_rate: float
    decay_steps: int | float
    decay_rate: float
    staircase: bool = False

    def __post_init__(self) -> None:
        self.require_at_least_0("initial_learning_rate", "decay_rate")
        self.require("decay_steps", self.decay_steps > 0, "more than 0")

    def __call__(self, step: int) -> float:
        periods = step / self.decay_steps
        return self.initial_learning_rate / (1 + self.decay_rate * (math.floor(periods) if self.staircase else periods))


@register("cosine_decay")
class CosineDecay(Schedule):
    """From η₀ to alpha η₀ along half a cosine, in `decay_steps` (Loshchilov, Hutter 2017): η₀ ((1-α) (1 + cos πf) / 2 + α).

    With `warmup_target` the rate first rises to it, linearly in `warmup_steps` (Goyal et al. 2017), and decays from there.
    """

    initial_learning_rate: float
    decay_steps: int
    alpha: float = 0.0
    warmup_target: float | None = None
    warmup_steps: int = 0

    def __post_init__(self) -> None:
        self.require_at_least_0("initial_learning_rate", "warmup_steps")
        self.require("alpha", 0 <= self.alpha <= 1, "0 to 1, a fraction")
        self.require("decay_steps", self.decay_steps > 0, "1 or more")
        self.require("warmup_target", self.warmup_target is None or self.warmup_target >= 0, "0 or more, or None")
        warms = self.warmup_target is not None or not self.warmup_steps
        self.require("warmup_target", warms, f"a rate to reach in warmup_steps={self.warmup_steps}")

    def __call__(self, step: int) -> float:
        first = self.initial_learning_rate
        if self.warmup_target is not None:
            if step < self.warmup_steps:
                return float(first + (self.warmup_target - first) * (step / self.warmup_steps))
            first, step = self.warmup_target, step - self.warmup_steps
        return float(first * _cosine(min(step / self.decay_steps, 1.0), self.alpha))


@register("cosine_decay_restarts")
class CosineDecayRestarts(Schedule):
    """SGDR (Loshchilov, Hutter 2017): a cosine decay that begins anew as often as it has ended.

    Each time it takes `t_mul` times as many steps, and begins at `m_mul` times the height. alpha: the rate at the end of the
    first, as a fraction of η₀.
    """

    initial_learning_rate: float
    first_decay_steps: int
    t_mul: float = 2.0
    m_mul: float = 1.0
    alpha: float = 0.0

    def __post_init__(self) -> None:
        self.require_at_least_0("initial_learning_rate", "m_mul")
        self.require("alpha", 0 <= self.alpha <= 1, "0 to 1, a fraction")
        self.require("first_decay_steps", self.first_decay_steps > 0, "1 or more")
        self.require("t_mul", self.t_mul >= 1, "1 or more: below, all the decays together come to an end")

    def __call__(self, step: int) -> float:
        restarts, fraction = self._place(step / self.first_decay_steps)
        return float(self.initial_learning_rate * _cosine(fraction, self.alpha, _power(self.m_mul, restarts)))

    def _place(self, periods: float) -> tuple[int, float]:
        """How often it has begun anew, and what part of the present decay is over. periods: in lengths of the first."""
        if self.t_mul == 1:
            restarts = math.floor(periods)
            return restarts, periods - restarts
        # A hair is added, as the quotient is off by a bit where a decay begins: there, a whole decay would be missing.
        restarts = math.floor(math.log1p(periods * (self.t_mul - 1)) / math.log(self.t_mul) + 1e-12)
        length = self.t_mul**restarts
        begun = (length - 1) / (self.t_mul - 1)  # 1 + t + … + t^(restarts - 1)
        return restarts, (periods - begun) / length


def _power(base: float, exponent: float) -> float:
    """base^exponent; infinite where that is beyond all numbers, as in Keras, and not an error."""
    try:
        return float(base**exponent)
    except OverflowError:
        return math.inf


def _cosine(fraction: float, alpha: float, height: float = 1.0) -> float:
    """From `height` at fraction 0 down to 0 at fraction 1, brought to end at alpha."""
    return (1 - alpha) * height * 0.5 * (1 + math.cos(math.pi * fraction)) + alpha
