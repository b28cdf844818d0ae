"""What happens to a gradient before the rule sees it?

A gradient transform is a pure function of a gradient (and, if it asks, of the value and a norm) to a gradient. Transforms
compose: a rule's `transforms` are made in order, each on what the one before it made.

    elementwise        fed flat blocks, or the rows of a sparse gradient; else the whole variable, which then is never cut
    needs_variable     ctx.variable is the name of one variable, which then is kept whole
    norm_of            "variable" or "model": ctx.norm is the norm of the gradient of the variable, or of all variables
                       on all ps together
    slots              state per variable, as a rule's; a sparse gradient then becomes a dense one

It must not know shards or the wire. Next: options.py (Keras's clipnorm and its kin are these), ps/apply.py (who calls).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Union

import numpy as np

from protos.errors import RuleError
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
    needs_variable: ClassVar[bool] = False
    norm_of: ClassVar[str] = ""

    @classmethod
    def registered_as(cls, own: Mapping[str, Any]) -> None:
        if isinstance(cls.slots, str):
            raise RuleError(
                field=f"transform {cls.name}, slots",
                got=repr(cls.slots),
                expected=f"a tuple of names: ({cls.slots!r},)",
            )
        if cls.norm_of not in ("", "variable", "model"):
            raise RuleError(
                field=f"transform {cls.name}, norm_of", got=repr(cls.norm_of), expected="'variable', 'model', or ''"
            )

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
    """g ← min(max(g, -limit), limit), element by element (Mikolov 2012)."""

    limit: float

    def __post_init__(self) -> None:
        self.require("limit", self.limit > 0, "more than 0")

    def transform(self, ctx: Context, value: Floats, grad: Floats, *slots: Floats) -> Updated:
        return np.clip(grad, -self.limit, self.limit)


@register("clip_by_norm")
class ClipByNorm(Transform):
    """g ← g min(1, limit / ‖g‖), the norm over each variable (Pascanu, Mikolov, Bengio 2013)."""

    limit: float
    norm_of = "variable"

    def __post_init__(self) -> None:
        self.require("limit", self.limit > 0, "more than 0")

    def transform(self, ctx: Context, value: Floats, grad: Floats, *slots: Floats) -> Updated:
        return grad * (self.limit / ctx.norm) if ctx.norm > self.limit else grad


@register("clip_by_global_norm")
class ClipByGlobalNorm(ClipByNorm):
    """g ← g min(1, limit / ‖g‖), the norm over the whole model, on all ps together (Pascanu, Mikolov, Bengio 2013)."""

    norm_of = "model"


@register("weight_decay")
class WeightDecay(Transform):
    """g ← g + rate w: the gradient of a loss with rate/2 ‖w‖² added to it, L2 regularisation (Krogh, Hertz 1992).

    Unlike the option weight_decay of every rule, it goes through the rule's momentum and scaling. A sparse gradient decays
    the rows it names and no others.
    """

    rate: float

    def __post_init__(self) -> None:
        self.require_at_least_0("rate")

    def transform(self, ctx: Context, value: Floats, grad: Floats, *slots: Floats) -> Updated:
        return grad + self.rate * value


@register("scale_by_staleness")
class ScaleByStaleness(Transform):
    """g ← g / (1 + staleness)^power: an older gradient counts less (Xie, Koyejo, Gupta 2019, polynomial, a = power).

    For rules that follow the size of a gradient; Adam and its kin forget a constant factor. In sync mode all are fresh.
    """

    power: float = 1.0

    def __post_init__(self) -> None:
        self.require_at_least_0("power")

    def transform(self, ctx: Context, value: Floats, grad: Floats, *slots: Floats) -> Updated:
        return grad * (1.0 + ctx.staleness) ** -self.power if ctx.staleness else grad


@register("accumulate")
class Accumulate(Transform):
    """The mean of `pushes` gradients, applied once (Ott et al. 2018): g ← (g₁ + … + g_n) / n.

    The pushes before the last change no value. One without a gradient for a variable counts as 0 there, and a variable that
    got none in all n is left alone.
    """

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


@register("centralise")
class Centralise(Transform):
    """g ← g - mean of g over all axes but the last: gradient centralisation (Yong et al. 2020).

    The last axis of a variable is Keras's axis of outputs: what each of them sees comes to 0 in all. Vectors and scalars stay
    as they are. A sparse gradient becomes a dense one: a row that it does not name gets a part of the mean.
    """

    elementwise = False

    def transform(self, ctx: Context, value: Floats, grad: Floats, *slots: Floats) -> Updated:
        if grad.ndim < 2 or not grad.size:
            return grad
        mean = grad.mean(tuple(range(grad.ndim - 1)), dtype=np.float64, keepdims=True)
        return np.asarray(grad - mean.astype(grad.dtype))
