"""Adadelta: steps as long as steps have been, for each weight by how large its gradients have been."""

from __future__ import annotations

import numpy as np

from ps.rules.base import Context, Floats, Updated, UpdateRule
from ps.rules.configured import register


@register("adadelta")
class Adadelta(UpdateRule):
    """Adadelta (Zeiler 2012), as in Keras.

    a ← ρ a + (1-ρ) g²                                      accumulated_grad
    Δ = -g √(d + ε) / √(a + ε)
    d ← ρ d + (1-ρ) Δ²                                      accumulated_delta_var
    w ← w + η Δ                                             the paper has η = 1
    """

    learning_rate: float = 0.001
    rho: float = 0.95
    epsilon: float = 1e-7
    slots = ("accumulated_grad", "accumulated_delta_var")
    quick = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("rho", 0 <= self.rho <= 1, "0 to 1")
        self.require_at_least_0("epsilon")

    def update(self, ctx: Context, value: Floats, grad: Floats, *slots: Floats) -> Updated:
        squares, deltas = slots
        squares = self.rho * squares + (1 - self.rho) * (grad * grad)
        delta = -(np.sqrt(deltas + self.epsilon) * grad / np.sqrt(squares + self.epsilon))
        deltas = self.rho * deltas + (1 - self.rho) * (delta * delta)
        return value + ctx.learning_rate * delta, squares, deltas
