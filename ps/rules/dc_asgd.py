"""Descent that corrects an old gradient to what it would be at the present values, to first order.

g(w) ≈ g(w_read) + H (w - w_read), and the diagonal of the Hessian H is taken to be λ g⊙g, which costs nothing to know.
"""

from __future__ import annotations

import numpy as np

from ps.rules.base import Context, Floats, Updated, UpdateRule
from ps.rules.configured import register


@register("dc_asgd")
class DcAsgd(UpdateRule):
    """Delay-compensated ASGD with a constant λ (Zheng et al. 2017, DC-ASGD-c); w_read: what the gradient was computed at.

    w ← w - η (g + λ g² (w - w_read))
    """

    learning_rate: float = 0.01
    compensation: float = 0.04
    needs_read_value = True
    quick = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_at_least_0("compensation")

    def update(self, ctx: Context, value: Floats, grad: Floats, *slots: Floats) -> Updated:
        assert ctx.read_value is not None, "needs_read_value"
        compensated: Floats = grad + self.compensation * grad * grad * (value - ctx.read_value)
        return value - ctx.learning_rate * compensated


@register("dc_asgd_adaptive")
class DcAsgdAdaptive(UpdateRule):
    """Delay-compensated ASGD with an adaptive λ (Zheng et al. 2017, DC-ASGD-a): of the size of g whatever the gradients' size.

    mean_square ← ρ mean_square + (1-ρ) g²
    w ← w - η (g + λ₀ / √(mean_square + ε) g² (w - w_read))
    """

    learning_rate: float = 0.01
    compensation: float = 2.0
    decay: float = 0.95
    epsilon: float = 1e-7
    slots = ("mean_square",)
    needs_read_value = True
    quick = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_at_least_0("compensation")
        self.require_below_1("decay")
        self.require("epsilon", self.epsilon > 0, "more than 0")

    def update(self, ctx: Context, value: Floats, grad: Floats, *slots: Floats) -> Updated:
        assert ctx.read_value is not None, "needs_read_value"
        square = grad * grad
        mean_square = self.decay * slots[0] + (1 - self.decay) * square
        adapted = self.compensation / np.sqrt(mean_square + self.epsilon)
        return value - ctx.learning_rate * (grad + adapted * square * (value - ctx.read_value)), mean_square
