"""Lion: steps of one length, in the direction of the sign of an averaged gradient."""

from __future__ import annotations

import numpy as np

from ps.rules.base import Context, Floats, Updated, UpdateRule
from ps.rules.configured import register


@register("lion")
class Lion(UpdateRule):
    """Lion (Chen et al. 2023), as in Keras.

    w ← w - η sign(β₁ m + (1-β₁) g)
    m ← β₂ m + (1-β₂) g
    """

    learning_rate: float = 0.001
    beta_1: float = 0.9
    beta_2: float = 0.99
    slots = ("m",)
    quick = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("beta_1", 0 < self.beta_1 <= 1, "above 0, to 1")
        self.require("beta_2", 0 <= self.beta_2 <= 1, "0 to 1")

    def update(self, ctx: Context, value: Floats, grad: Floats, *slots: Floats) -> Updated:
        (m,) = slots
        real = grad.dtype.type
        beta_1, beta_2 = real(self.beta_1), real(self.beta_2)
        direction = np.sign(m * beta_1 + grad * (1 - beta_1))
        return value - ctx.learning_rate * direction, m * beta_2 + grad * (1 - beta_2)
