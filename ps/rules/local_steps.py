"""Rules for workers that train on their own for some steps and then push a difference: what they read - what they have.

The difference takes the place of a gradient: `sgd:learning_rate=1` on it, in sync mode, is the mean of the workers' values.
"""

from __future__ import annotations

from ps.rules.base import Context, Floats, Updated, UpdateRule
from ps.rules.configured import register
from ps.rules.sgd import Sgd


@register("diloco")
class Diloco(Sgd):
    """The outer optimizer of DiLoCo (Douillard et al. 2023): Nesterov's momentum on g = θ_read - θ_local.

    velocity ← μ velocity - η g;  w ← w + μ velocity - η g
    """

    learning_rate: float = 0.7
    momentum: float = 0.9
    nesterov: bool = True
    quick = True


@register("elastic_average")
class ElasticAverage(UpdateRule):
    """The centre of EASGD (Zhang, Choromanska, LeCun 2015), w, that workers pull by elastic forces: g = w_read - θ_local.

    w ← w - α g,  α the learning rate: w ← w + α (θ_local - w)

    Each worker goes on from its own values, pulled to the centre by the same force: θ_local ← θ_local + α g. In sync mode g is
    the mean over p workers, so the learning rate is the paper's β = p α.
    """

    learning_rate: float = 0.1
    quick = True

    def update(self, ctx: Context, value: Floats, grad: Floats, *slots: Floats) -> Updated:
        return value - ctx.learning_rate * grad
