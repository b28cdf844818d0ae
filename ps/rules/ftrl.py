"""FTRL: the weights that would have been best so far, kept near 0 by l1 and l2, for sparse linear models."""

from __future__ import annotations

import numpy as np

from ps.rules.base import Context, Floats, Updated, UpdateRule
from ps.rules.configured import register


@register("ftrl")
class Ftrl(UpdateRule):
    """Follow the regularised leader (McMahan et al. 2013), as in Keras, p = -learning_rate_power.

    n' = n + g²                                             n: accumulator, n₀ = initial_accumulator_value
    z ← z + g + 2 λ w - (n'ᵖ - nᵖ) w / η                    z: linear, λ = l2_shrinkage_regularization_strength
    w ← (clip(z, ±l1) - z) / (n'ᵖ / η + 2 l2 + β / η)
    n ← n'

    Weights follow from z alone: the first step forgets what they were before.
    """

    learning_rate: float = 0.001
    learning_rate_power: float = -0.5
    initial_accumulator_value: float = 0.1
    l1_regularization_strength: float = 0.0
    l2_regularization_strength: float = 0.0
    l2_shrinkage_regularization_strength: float = 0.0
    beta: float = 0.0
    slots = ("accumulator", "linear")
    quick = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("learning_rate_power", self.learning_rate_power <= 0, "0 or less")
        for name in (
            "initial_accumulator_value",
            "l1_regularization_strength",
            "l2_regularization_strength",
            "l2_shrinkage_regularization_strength",
            "beta",
        ):
            self.require(name, getattr(self, name) >= 0, "0 or more")

    def init_slot(self, name: str, value: Floats) -> Floats:
        return np.full_like(value, self.initial_accumulator_value if name == "accumulator" else 0)

    def update(self, ctx: Context, value: Floats, grad: Floats, *slots: Floats) -> Updated:
        accumulator, linear = slots
        real = value.dtype.type
        rate = real(ctx.learning_rate)
        if rate == 0:  # at the end of a schedule: the formula divides by it
            return value, accumulator, linear
        power, l1 = -self.learning_rate_power, self.l1_regularization_strength
        l2 = self.l2_regularization_strength + self.beta / (2 * rate)
        grown = accumulator + grad * grad
        steeper = (grown**power - accumulator**power) / rate
        linear = linear + (grad + 2 * self.l2_shrinkage_regularization_strength * value - steeper * value)
        quadratic = grown**power / rate + 2 * l2
        leader = (np.clip(linear, -l1, l1) - linear) / quadratic
        return np.where(quadratic > 0, leader, value), grown, linear
