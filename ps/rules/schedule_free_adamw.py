"""Schedule-free AdamW: an average of the weights in the place of a schedule of the learning rate."""

from __future__ import annotations

import numpy as np

from ps.rules.base import Context, Floats, Updated, UpdateRule
from ps.rules.configured import register


@register("schedule_free_adamw")
class ScheduleFreeAdamW(UpdateRule):
    """Schedule-free AdamW (Defazio et al. 2024), as in Keras.

    v ← v + (1-β₂)(g² - v)                                  velocity
    z' = z - η min(1, t/warmup_steps) g / (√(v / (1-β₂ᵗ)) + ε),  t = step + 1
    x = (w - (1-β₁) z̃) / β₁
    x' = (1-1/t) x + z'/t
    w ← (1-β₁) z' + β₁ x',  z ← z'                          z: momentum, at first the value

    z̃ is z in the paper, and with as_published. Keras 3 on TensorFlow reads it after z has become z', so that w is
    (1-1/t) w + z'/t whatever β₁ is: by default, so is this rule.
    """

    learning_rate: float = 0.0025
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-8
    warmup_steps: int = 0
    as_published: bool = False
    slots = ("momentum", "velocity")
    quick = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("beta_1", 0 < self.beta_1 <= 1, "above 0, to 1")
        self.require_below_1("beta_2")
        self.require_at_least_0("epsilon", "warmup_steps")

    def init_slot(self, name: str, value: Floats) -> Floats:
        return value if name == "momentum" else np.zeros_like(value)

    def update(self, ctx: Context, value: Floats, grad: Floats, *slots: Floats) -> Updated:
        momentum, velocity = slots
        real = value.dtype.type
        t, beta_1, beta_2, rate = real(ctx.step + 1), real(self.beta_1), real(self.beta_2), real(ctx.learning_rate)
        if self.warmup_steps:
            rate = rate * np.minimum(t / real(self.warmup_steps), real(1))
        velocity = velocity + (grad * grad - velocity) * (1 - beta_2)
        stepped = momentum - rate * grad / (np.sqrt(velocity / (1 - beta_2**t)) + real(self.epsilon))
        average = (value - (1 - beta_1) * (momentum if self.as_published else stepped)) / beta_1
        weight = 1 / t
        average = (1 - weight) * average + weight * stepped
        return (1 - beta_1) * stepped + beta_1 * average, stepped, velocity
