"""How are gradients kept that are too small for 16 bits? The loss is multiplied, and the ps divides what is pushed.

float16 ends at 2⁻²⁴: smaller gradients become 0. With the loss multiplied by a power of two all gradients are, exactly; the
push says by how much, and the ps divides in float32 (Micikevicius et al. 2018). The dynamic scale finds its size by itself:

    a gradient with Inf or NaN      the same batch again at half the scale: nothing is skipped, and no zeros are pushed
    `growth_steps` good batches     twice the scale

State without gradients, such as moving statistics, sees a batch that is computed again once more.
It must not know a framework or the ps. Next: loop.py, which asks for gradients here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from client import IndexedSlices
from protos.codec import Array
from protos.errors import InvalidInput, NonFiniteGradient

# The loss and the gradients by name of one batch, its loss multiplied by this.
Compute = Callable[[float], tuple[float, dict[str, Any]]]
# More would not help: it lifts the smallest float16 to 1.
LARGEST = 2.0**24


@dataclass
class LossScale:
    """scale: what the loss is multiplied by. growth_steps: good batches before it doubles; None: it stays as it is.

    The first scale and the steps are those of Keras's LossScaleOptimizer.
    """

    scale: float = 2.0**15
    growth_steps: int | None = 2000
    _good: int = field(default=0, repr=False)

    @staticmethod
    def parse(said: str | float | None) -> LossScale:
        """What "dynamic", a number or None (no scale) means; else InvalidInput."""
        if said == "dynamic":
            return LossScale()
        try:
            number = 1.0 if said is None else float(said)
        except (TypeError, ValueError):
            number = math.nan
        if not 0 < number < math.inf:
            raise InvalidInput(
                field="loss scale", got=repr(said)[:80], expected="'dynamic', or a number above 0 such as 1024"
            )
        return LossScale(number, None)

    def gradients(self, compute: Compute) -> tuple[float, dict[str, Any], float]:
        """The loss, the gradients, finite if the scale is dynamic, and what they are multiplied by.

        compute: called again and again with half the scale. NonFiniteGradient if a gradient is not finite at a scale of 1.
        """
        while True:
            loss, gradients = compute(self.scale)
            if self.growth_steps is None:
                return loss, gradients, self.scale
            odd = _not_finite(gradients)
            if odd is None:
                used = self.scale
                self._grow(self.growth_steps)
                return loss, gradients, used
            if self.scale / 2 < 1:
                raise NonFiniteGradient(
                    field=f"gradient of {odd}",
                    got=f"NaN or Inf at a loss scale of {self.scale:g}; the loss is {loss:g}",
                    expected="finite numbers at some scale from 1 up",
                    hint="It is not the scale: see the data, the loss and the learning rate.",
                )
            self.scale, self._good = self.scale / 2, 0

    def _grow(self, growth_steps: int) -> None:
        self._good += 1
        if self._good >= growth_steps:
            self.scale, self._good = min(self.scale * 2, LARGEST), 0


def _not_finite(gradients: Mapping[str, Array | IndexedSlices]) -> str | None:
    """The first variable whose gradient has Inf or NaN."""
    for name, gradient in gradients.items():
        if not np.isfinite(gradient.values if isinstance(gradient, IndexedSlices) else gradient).all():
            return name
    return None
