"""LAMB: Adam whose step for each variable is as long as the variable is large, for very large batches."""

from __future__ import annotations

import numpy as np

from ps.rules.base import Context, Floats, Updated, UpdateRule
from ps.rules.configured import register


@register("lamb")
class Lamb(UpdateRule):
    """LAMB (You et al. 2020), as in Keras: the weights decay, if asked, by the option `weight_decay`.

    m ← m + (1-β₁)(g - m)
    v ← v + (1-β₂)(g² - v)
    u = m / (1-β₁ᵗ) / (√(v / (1-β₂ᵗ)) + ε),  t = step + 1
    w ← w - η u ‖w‖ / ‖u‖                                   w ← w - η u where one of the norms is 0
    """

    learning_rate: float = 0.001
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7
    slots = ("m", "v")
    elementwise = False  # norms are over the whole variable
    quick = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_below_1("beta_1", "beta_2")
        self.require_at_least_0("epsilon")

    def update(self, ctx: Context, value: Floats, grad: Floats, *slots: Floats) -> Updated:
        m, v = slots
        real = grad.dtype.type
        t = real(ctx.step + 1)
        m = m + (grad - m) * (1 - self.beta_1)
        v = v + (grad * grad - v) * (1 - self.beta_2)
        m_hat = m / (1 - real(self.beta_1) ** t)
        u = m_hat / (np.sqrt(v / (1 - real(self.beta_2) ** t)) + self.epsilon)
        w_norm, u_norm = np.sqrt(np.sum(value * value)), np.sqrt(np.sum(u * u))
        ratio = w_norm / u_norm if w_norm > 0 and u_norm > 0 else real(1)
        return value - ratio * real(ctx.learning_rate) * u, m, v
