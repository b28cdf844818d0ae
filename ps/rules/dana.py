"""Momentum for many asynchronous workers: each has its own, and reads the values where all of them together will lead."""

from __future__ import annotations

from ps.rules.base import Context, Floats, Updated, UpdateRule
from ps.rules.configured import register


@register("dana")
class Dana(UpdateRule):
    """DANA-Slim (Hakimi, Barkai, Gabel, Schuster 2019), i the worker that pushes. With one worker: Nesterov's momentum.

    velocityᵢ ← μ velocityᵢ + g
    w ← w - η (μ velocityᵢ + g)

    DANA hands out θ - η μ (velocity₁ + … + velocity_n), where the momentum of all workers will have led by the time a gradient
    comes back. As in Bengio et al. (2013), w is that very point: the sum is never computed.
    """

    learning_rate: float = 0.01
    momentum: float = 0.9
    worker_slots = ("velocity",)
    quick = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("momentum", 0 <= self.momentum <= 1, "0 to 1")

    def update(self, ctx: Context, value: Floats, grad: Floats, *slots: Floats) -> Updated:
        velocity = self.momentum * slots[0] + grad
        return value - ctx.learning_rate * (self.momentum * velocity + grad), velocity
