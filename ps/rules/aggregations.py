"""How do the gradients of several workers become one, in sync mode?

The mean by default. Others weigh the workers (linear ones: by batch size, or by trust, as Krum) or look at each element
apart (median, trimmed mean). Pure maths on what was pushed. Next: ps/aggregation.py, which feeds them.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ps.rules.configured import Configured, register

Floats = npt.NDArray[Any]


@dataclasses.dataclass(frozen=True, repr=False)
class Aggregation(Configured):
    """Base of all aggregations: subclass, write `shares` if it is linear, `combine` if it is not, register."""

    kind: ClassVar[str] = "aggregation"
    # True: a weighted mean of the workers' gradients, whose weights are `shares`. False: `combine`, element by element.
    linear: ClassVar[bool] = True
    # True asks for the squared distances between the workers' gradients, over the whole model on all ps together.
    needs_distances: ClassVar[bool] = False

    def shares(self, weights: Floats, distances: Floats) -> Floats:
        """The weight of each contribution, shape (n,), not all 0; they need not add up to 1.

        weights: (n,), as pushed: the batch sizes. distances: (n, n), squared, if `needs_distances`, else empty.
        """
        raise TypeError(f"{type(self).__name__} does not define shares")

    def combine(self, gradients: Floats) -> Floats:
        """One gradient, shape (m,), from the contributions, shape (n, m), n > 1."""
        raise TypeError(f"{type(self).__name__} does not define combine")

    def workers_needed(self) -> int:
        """How many contributions it takes for what it promises."""
        return 1


@register("mean")
class Mean(Aggregation):
    """g ← (g₁ + … + g_n) / n."""

    def shares(self, weights: Floats, distances: Floats) -> Floats:
        return np.ones_like(weights)


@register("weighted_mean")
class WeightedMean(Aggregation):
    """g ← (b₁ g₁ + … + b_n g_n) / (b₁ + … + b_n), b the weight of each push: with batch sizes, the gradient of the union."""

    def shares(self, weights: Floats, distances: Floats) -> Floats:
        return weights
