"""Descent that trusts each element of a gradient less, the further that element has moved since it was read."""

from __future__ import annotations

import numpy as np

from ps.rules.base import Context, Floats, Updated, UpdateRule
from ps.rules.configured import register


@register("gap_aware")
class GapAware(UpdateRule):
    """Gap-aware ASGD (Barkai, Hakimi, Schuster 2020), element by element: the gap is counted in typical steps.

    s ← μ velocity + g                             the step this gradient asks for, before any penalty
    mean_square ← Γ mean_square + (1-Γ) (η s)²     typical step C = √mean_square; it begins at the first step
    g ← g / (1 + |w - w_read| / (C + ε))
    velocity ← μ velocity + g;  w ← w - η velocity

    The paper's C is the largest rate times the average gradient. Here the rate is inside of the average: no schedule need be
    known beforehand, and momentum counts. And the mean begins at the first step, not at 0 with a correction by the number
    of steps, which would not be that of the rows of a sparse gradient.
    """

    learning_rate: float = 0.01
    momentum: float = 0.0
    decay: float = 0.999
    epsilon: float = 1e-8
    needs_read_value = True
    quick = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("momentum", 0 <= self.momentum <= 1, "0 to 1")
        self.require_below_1("decay")
        self.require("epsilon", self.epsilon > 0, "more than 0")

    def slot_names(self) -> tuple[str, ...]:
        return ("mean_square", "velocity") if self.momentum else ("mean_square",)

    def update(self, ctx: Context, value: Floats, grad: Floats, *slots: Floats) -> Updated:
        assert ctx.read_value is not None, "needs_read_value"
        kept = self.momentum * slots[1] if self.momentum else 0.0
        square = np.square(ctx.learning_rate * (kept + grad))
        mean_square = np.where(slots[0] > 0, self.decay * slots[0] + (1 - self.decay) * square, square)
        gap = np.abs(value - ctx.read_value) / (np.sqrt(mean_square) + self.epsilon)
        velocity = kept + grad / (1 + gap)
        new = value - ctx.learning_rate * velocity
        return (new, mean_square, velocity) if self.momentum else (new, mean_square)
