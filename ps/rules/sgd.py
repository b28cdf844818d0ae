"""Plain stochastic gradient descent."""

from __future__ import annotations

from ps.rules.base import Context, Floats, Updated, UpdateRule, register


@register("sgd")
class Sgd(UpdateRule):
    """w ← w - η g (Robbins, Monro 1951)."""

    learning_rate: float = 0.01
    quick = True

    def update(self, ctx: Context, value: Floats, grad: Floats, *slots: Floats) -> Updated:
        return value - ctx.learning_rate * grad
