"""What has every rule besides its maths? Keras's options, carried out by the engine around `update`.

In the order of Keras's optimizers: unscale, accumulate, (our transforms,) clip, decay the weights, update, average.
`stages` turns the options into gradient transforms; what concerns values (decay, averages) are functions here.
A field that a rule has taken over (UpdateRule.options) is the rule's own business. Next: ps/apply.py, which calls these.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np

from ps.rules.base import Context, Floats, Updated, UpdateRule
from ps.rules.transforms import Accumulate, ClipByGlobalNorm, ClipByNorm, ClipByValue, Transform


@dataclasses.dataclass(frozen=True, repr=False)
class Unscale(Transform):
    """g ← g / factor: undoes a loss that was multiplied by `factor`."""

    factor: float = 1.0

    def transform(self, ctx: Context, value: Floats, grad: Floats, *slots: Floats) -> Updated:
        return np.asarray(grad / grad.dtype.type(self.factor))


@functools.lru_cache(maxsize=64)
def stages(rule: UpdateRule) -> tuple[Transform, ...]:
    """The gradient transforms of this rule, in the order they are made."""
    made: list[Transform] = []
    if rule.loss_scale_factor and "loss_scale_factor" in rule.options:
        made.append(Unscale(rule.loss_scale_factor))
    if rule.gradient_accumulation_steps and "gradient_accumulation_steps" in rule.options:
        made.append(Accumulate(rule.gradient_accumulation_steps))
    made.extend(rule.transforms)
    if rule.clipnorm is not None and "clipnorm" in rule.options:
        made.append(ClipByNorm(rule.clipnorm))
    if rule.global_clipnorm is not None and "global_clipnorm" in rule.options:
        made.append(ClipByGlobalNorm(rule.global_clipnorm))
    if rule.clipvalue is not None and "clipvalue" in rule.options:
        made.append(ClipByValue(rule.clipvalue))
    return tuple(made)


def pushes_a_step(rule: UpdateRule) -> int:
    """How many pushes make one step of the rule: 1 without accumulation."""
    return math.prod(stage.pushes_a_step() for stage in stages(rule))


def may_be_cut(rule: UpdateRule) -> bool:
    """Whether a variable may be held in parts, and small ones together as one, without any difference in the result.

    Not where a gradient for some rows would become one for the others of its part, and not for those of another part: a
    stage with slots, such as accumulation, does that; and a worker's slots begin with its first gradient there, which
    matters where they begin with what the value is then.
    """
    together = rule.elementwise and not rule.needs_variable
    begins_with_value = bool(rule.worker_slots) and type(rule).init_slot is not UpdateRule.init_slot
    return (
        together
        and not begins_with_value
        and all(
            stage.elementwise and not stage.needs_variable and not stage.slots and stage.norm_of != "variable"
            for stage in stages(rule)
        )
    )


def uses_norm(rule: UpdateRule) -> bool:
    """Whether a stage needs the norm of the whole model's gradient."""
    return any(stage.norm_of == "model" for stage in stages(rule))


def needs_sums(rule: UpdateRule) -> bool:
    """Whether a step of sync mode needs to know something of the whole model, which several ps must ask each other for."""
    return uses_norm(rule) or rule.aggregation.needs_distances


def norm_is_of_what_is_pushed(rule: UpdateRule) -> bool:
    """Whether that norm is the pushed gradient's own, but for a factor: so that its sender can know it."""
    before = [stage for stage in stages(rule) if not isinstance(stage, Unscale)]
    return [stage.norm_of for stage in before].index("model") == 0 if uses_norm(rule) else True


def decayed(rule: UpdateRule, learning_rate: float, value: Floats) -> Floats:
    """The value before the update: w ← w - w λ η (Loshchilov, Hutter 2019) with the option `weight_decay`, as Keras has it."""
    if rule.weight_decay is None or "weight_decay" not in rule.options:
        return value
    real = value.dtype.type
    return value - value * real(rule.weight_decay) * real(learning_rate)  # type: ignore[no-any-return]


def averages(rule: UpdateRule) -> bool:
    """Whether the engine keeps a moving average of the values."""
    return rule.use_ema and "use_ema" in rule.options


def averaged(rule: UpdateRule, step: int, value: Floats, average: Floats) -> Floats:
    """The new average: a ← μ a + (1-μ) w, μ = 0 at the first step."""
    momentum = value.dtype.type(rule.ema_momentum if step else 0.0)
    return np.asarray(momentum * average + (1 - momentum) * value)


def overwrites(rule: UpdateRule, step: int) -> bool:
    """Whether the averages become the values after this step."""
    every = rule.ema_overwrite_frequency
    return averages(rule) and bool(every) and (step + 1) % (every or 1) == 0
