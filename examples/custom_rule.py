"""An update rule of your own, in 15 lines: `ps-run --rules examples/custom_rule.py --rule signum -- ps-worker MODEL.py`."""

import numpy as np

from ps.rules import UpdateRule, register


@register("signum")
class Signum(UpdateRule):
    """velocity ← μ velocity + (1-μ) g;  w ← w - η sign(velocity) (Bernstein et al. 2018)."""

    learning_rate: float = 1e-3
    momentum: float = 0.9
    slots = ("velocity",)
    quick = True

    def update(self, ctx, value, grad, velocity):
        velocity = self.momentum * velocity + (1 - self.momentum) * grad
        return value - ctx.learning_rate * np.sign(velocity), velocity
