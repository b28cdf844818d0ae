"""Stochastic gradient descent, plain, with momentum, and with Nesterov's look-ahead."""

from __future__ import annotations

from ps.rules.base import Context, Floats, Updated, UpdateRule
from ps.rules.configured import register


@register("sgd")
class Sgd(UpdateRule):
    """Descent (Robbins, Monro 1951), heavy ball (Polyak 1964), look-ahead (Nesterov 1983; Sutskever et al. 2013), as in Keras.

    w ← w - η g                                                 momentum = 0
    velocity ← μ velocity - η g;  w ← w + velocity              momentum
    velocity ← μ velocity - η g;  w ← w + μ velocity - η g      nesterov
    """

    learning_rate: float = 0.01
    momentum: float = 0.0
    nesterov: bool = False
    quick = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("momentum", 0 <= self.momentum <= 1, "0 to 1")

    def slot_names(self) -> tuple[str, ...]:
        return ("velocity",) if self.momentum else ()

    def update(self, ctx: Context, value: Floats, grad: Floats, *slots: Floats) -> Updated:
        change = ctx.learning_rate * grad
        if not self.momentum:
            return value - change
        velocity = self.momentum * slots[0] - change
        if self.nesterov:
            return value + (self.momentum * velocity - change), velocity
        return value + velocity, velocity


@register("momentum")
class Momentum(Sgd):
    """`sgd` whose momentum is 0.9 unless told: velocity ← μ velocity - η g; w ← w + velocity (Polyak 1964)."""

    learning_rate: float = 0.01
    momentum: float = 0.9
    quick = True
