"""RMSprop: a step size for each weight by how large its gradients are of late."""

from __future__ import annotations

import numpy as np

from ps.rules.base import Context, Floats, Updated, UpdateRule
from ps.rules.configured import register


@register("rmsprop")
class RMSprop(UpdateRule):
    """RMSprop (Tieleman, Hinton 2012; centered: Graves 2013), as in Keras.

    v ← ρ v + (1-ρ) g²                                      velocity
    a ← ρ a + (1-ρ) g                                       average_gradient, if centered; else a = 0
    w ← w - η g / √(v - a² + ε)                             momentum = 0
    m ← μ m + η g / √(v - a² + ε);  w ← w - m               momentum
    """

    learning_rate: float = 0.001
    rho: float = 0.9
    momentum: float = 0.0
    epsilon: float = 1e-7
    centered: bool = False
    quick = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("rho", 0 <= self.rho <= 1, "0 to 1")
        self.require("momentum", 0 <= self.momentum <= 1, "0 to 1")
        self.require_at_least_0("epsilon")

    def slot_names(self) -> tuple[str, ...]:
        optional = {"average_gradient": self.centered, "momentum": self.momentum > 0}
        return ("velocity", *(name for name, kept in optional.items() if kept))

    def update(self, ctx: Context, value: Floats, grad: Floats, *slots: Floats) -> Updated:
        state = dict(zip(self.slot_names(), slots))
        state["velocity"] = self.rho * state["velocity"] + (1 - self.rho) * (grad * grad)
        variance = state["velocity"]
        if self.centered:
            state["average_gradient"] = self.rho * state["average_gradient"] + (1 - self.rho) * grad
            variance = variance - state["average_gradient"] * state["average_gradient"]
        variance = variance + self.epsilon
        if self.centered:  # a variance near 0 that was rounded below it has no root
            variance = np.where(variance > 0, variance, variance.dtype.type(self.epsilon))
        change = ctx.learning_rate * grad / np.sqrt(variance)
        if self.momentum:
            change = state["momentum"] = self.momentum * state["momentum"] + change
        return value - change, *state.values()
