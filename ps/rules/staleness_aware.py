"""Descent that trusts a gradient less, the more updates were made since the values it was computed at."""

from __future__ import annotations

import dataclasses

from ps.rules.base import Context, Floats, Updated
from ps.rules.configured import register
from ps.rules.sgd import Sgd


@register("staleness_aware")
class StalenessAware(Sgd):
    """Staleness-aware Async-SGD (Zhang, Gupta, Lian, Liu 2016): `sgd` whose rate is divided by the staleness of each push.

    w ← w - (η / τ) g,  τ = max(1, staleness)                          momentum = 0
    velocity ← μ velocity - (η / τ) g;  w ← w + velocity               momentum
    """

    quick = True

    def update(self, ctx: Context, value: Floats, grad: Floats, *slots: Floats) -> Updated:
        rate = ctx.learning_rate / max(1, ctx.staleness)
        return super().update(dataclasses.replace(ctx, learning_rate=rate), value, grad, *slots)
