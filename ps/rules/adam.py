"""Adam: momentum, and a step size for each weight by how large its gradients have been."""

from __future__ import annotations

import numpy as np

from ps.rules.base import Context, Floats, Updated, UpdateRule
from ps.rules.configured import register


@register("adam")
class Adam(UpdateRule):
    """Adam (Kingma, Ba 2015), in the form of the end of its section 2, which Keras and TensorFlow use.

    m ← m + (1-β₁)(g - m)
    v ← v + (1-β₂)(g² - v)
    w ← w - α m / (√v + ε),  α = η √(1-β₂ᵗ) / (1-β₁ᵗ),  t = step + 1
    amsgrad (Reddi et al. 2018): v_max ← max(v_max, v), which takes the place of v in the last line
    """

    learning_rate: float = 0.001
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7
    amsgrad: bool = False
    slots = ("m", "v")
    quick = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_below_1("beta_1", "beta_2")
        self.require_at_least_0("epsilon")

    def slot_names(self) -> tuple[str, ...]:
        return (*self.slots, "v_max") if self.amsgrad else self.slots

    def update(self, ctx: Context, value: Floats, grad: Floats, *slots: Floats) -> Updated:
        m, v, *v_max = slots
        # Constants in the variable's precision, as TensorFlow's kernel has them: the results are the same bits.
        real = grad.dtype.type
        one, beta_1, beta_2, t = real(1), real(self.beta_1), real(self.beta_2), real(ctx.step + 1)
        alpha = real(ctx.learning_rate) * np.sqrt(one - beta_2**t) / (one - beta_1**t)
        m = m + (one - beta_1) * (grad - m)
        v = v + (one - beta_2) * (grad * grad - v)
        seconds = [v, *(np.maximum(peak, v) for peak in v_max)]
        return value - alpha * m / (np.sqrt(seconds[-1]) + real(self.epsilon)), m, *seconds


@register("adamw")
class AdamW(Adam):
    """`adam` that decays the weights before each step, apart from the gradient (Loshchilov, Hutter 2019).

    w ← w - w λ η, then as `adam`
    """

    weight_decay: float = 0.004
    quick = True

    def update(self, ctx: Context, value: Floats, grad: Floats, *slots: Floats) -> Updated:
        real = value.dtype.type
        decayed = value - value * real(self.weight_decay) * real(ctx.learning_rate)
        return super().update(ctx, decayed, grad, *slots)
