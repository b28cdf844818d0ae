"""Gradient descent with momentum, plain and Nesterov's."""

from __future__ import annotations

from ps.rules.base import Context, Floats, Updated, UpdateRule, register


@register("momentum")
class Momentum(UpdateRule):
    """Heavy ball (Polyak 1964), and its look-ahead form (Nesterov 1983; Sutskever et al. 2013), as Keras writes them.

    velocity ← μ velocity - η g
    w ← w + velocity                     plain
    w ← w + μ velocity - η g             nesterov
    """

    learning_rate: float = 0.01
    momentum: float = 0.9
    nesterov: bool = False
    slots = ("velocity",)
    quick = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("momentum", 0 <= self.momentum <= 1, "0 to 1")

    def update(self, ctx: Context, value: Floats, grad: Floats, *slots: Floats) -> Updated:
        (velocity,) = slots
        change = ctx.learning_rate * grad
        velocity = self.momentum * velocity - change
        if self.nesterov:
            return value + (self.momentum * velocity - change), velocity
        return value + velocity, velocity
