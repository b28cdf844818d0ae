"""Adamax: Adam with the largest gradient of late in the place of the mean square."""

from __future__ import annotations

import numpy as np

from ps.rules.base import Context, Floats, Updated, UpdateRule
from ps.rules.configured import register


@register("adamax")
class Adamax(UpdateRule):
    """Adamax (Kingma, Ba 2015, section 7), as in Keras.

    m ← m + (1-β₁)(g - m)
    u ← max(β₂ u, |g|)
    w ← w - η m / ((1-β₁ᵗ)(u + ε)),  t = step + 1
    """

    learning_rate: float = 0.001
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7
    slots = ("m", "u")
    quick = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_below_1("beta_1", "beta_2")
        self.require_at_least_0("epsilon")

    def update(self, ctx: Context, value: Floats, grad: Floats, *slots: Floats) -> Updated:
        m, u = slots
        real = grad.dtype.type
        correction = 1 - real(self.beta_1) ** real(ctx.step + 1)
        m = m + (grad - m) * (1 - self.beta_1)
        u = np.maximum(self.beta_2 * u, np.abs(grad))
        return value - ctx.learning_rate * m / (correction * (u + self.epsilon)), m, u
