"""What happens to a gradient before the rule sees it?

A gradient transform is a pure function of a gradient (and, if it asks, of the value and a norm) to a gradient. Transforms
compose: a rule's `transforms` are made in order, each on what the one before it made.

    elementwise        fed flat blocks, or the rows of a sparse gradient; else the whole variable, which then is never cut
    norm_of            "variable" or "model": ctx.norm is the norm of the gradient of the variable, or of all variables
                       on all ps together
    slots              state per variable, as a rule's

It must not know shards or the wire. Next: options.py (Keras's clipnorm and its kin are these), ps/apply.py (who calls).
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, ClassVar, Union

import numpy as np

from ps.rules.configured import Configured, register

if TYPE_CHECKING:
    from ps.rules.base import Context, Floats, Updated

    Transformed = Union[Floats, tuple[Union[Floats, None], ...]]


@dataclasses.dataclass(frozen=True, repr=False)
class Transform(Configured):
    """Base of all gradient transforms: subclass, annotate the fields, write `transform`, register."""

    kind: ClassVar[str] = "transform"
    slots: ClassVar[tuple[str, ...]] = ()
    elementwise: ClassVar[bool] = True
    norm_of: ClassVar[str] = ""

    def transform(self, ctx: Context, value: Floats, grad: Floats, *slots: Floats) -> Transformed:
        """The new gradient, or the new gradient and the new slots. Pure, as a rule's `update` is.

        None as the gradient holds it back: neither later transforms nor the rule see anything of this push.
        """
        raise TypeError(f"{type(self).__name__} does not define transform")

    def pushes_a_step(self) -> int:
        """How many pushes make one step of the rule: more than 1 holds gradients back (`accumulate`)."""
        return 1


@register("clip_by_value")
class ClipByValue(Transform):
    """g ← min(max(g, -limit), limit), element by element."""

    limit: float

    def transform(self, ctx: Context, value: Floats, grad: Floats, *slots: Floats) -> Updated:
        return np.clip(grad, -self.limit, self.limit)


@register("clip_by_norm")
class ClipByNorm(Transform):
    """g ← g min(1, limit / ‖g‖), the norm over each variable."""

    limit: float
    norm_of = "variable"

    def transform(self, ctx: Context, value: Floats, grad: Floats, *slots: Floats) -> Updated:
        return grad * (self.limit / ctx.norm) if ctx.norm > self.limit else grad


@register("clip_by_global_norm")
class ClipByGlobalNorm(Transform):
    """g ← g min(1, limit / ‖g‖), the norm over the whole model, on all ps together (Pascanu et al. 2013)."""

    limit: float
    norm_of = "model"

    def transform(self, ctx: Context, value: Floats, grad: Floats, *slots: Floats) -> Updated:
        return grad * (self.limit / ctx.norm) if ctx.norm > self.limit else grad


@register("accumulate")
class Accumulate(Transform):
    """The mean of `pushes` gradients, applied once: g ← (g₁ + … + g_n) / n. The pushes before the last change no value."""

    pushes: int
    slots = ("sum",)

    def __post_init__(self) -> None:
        self.require("pushes", self.pushes >= 1, "1 or more")

    def transform(self, ctx: Context, value: Floats, grad: Floats, *slots: Floats) -> Transformed:
        (total,) = slots
        if (ctx.push + 1) % self.pushes:
            return None, total + grad
        return (grad + total) / self.pushes, np.zeros_like(total)

    def pushes_a_step(self) -> int:
        return self.pushes
