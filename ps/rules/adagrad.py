"""Adagrad: a step size for each weight, smaller the more gradient it has had."""

from __future__ import annotations

import numpy as np

from ps.rules.base import Context, Floats, Updated, UpdateRule
from ps.rules.configured import register


@register("adagrad")
class Adagrad(UpdateRule):
    """Adagrad (Duchi, Hazan, Singer 2011), as in Keras.

    a ← a + g²                                              accumulator, a₀ = initial_accumulator_value
    w ← w - η g / √(a + ε)
    """

    learning_rate: float = 0.001
    initial_accumulator_value: float = 0.1
    epsilon: float = 1e-7
    slots = ("accumulator",)
    quick = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_at_least_0("initial_accumulator_value", "epsilon")

    def init_slot(self, name: str, value: Floats) -> Floats:
        return np.full_like(value, self.initial_accumulator_value)

    def update(self, ctx: Context, value: Floats, grad: Floats, *slots: Floats) -> Updated:
        accumulator = slots[0] + grad * grad
        return value - ctx.learning_rate * grad / np.sqrt(accumulator + self.epsilon), accumulator
