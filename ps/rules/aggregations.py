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
    """g ← (g₁ + … + g_n) / n: a step of synchronous SGD (Chen, Pan, Monga, Bengio, Jozefowicz 2016)."""

    def shares(self, weights: Floats, distances: Floats) -> Floats:
        return np.ones_like(weights)


@register("weighted_mean")
class WeightedMean(Aggregation):
    """g ← (b₁ g₁ + … + b_n g_n) / (b₁ + … + b_n), b the weight of each push (McMahan et al. 2017).

    With batch sizes as weights, the gradient of the union of all batches.
    """

    def shares(self, weights: Floats, distances: Floats) -> Floats:
        return weights


@register("median")
class Median(Aggregation):
    """g ← median(g₁, …, g_n), element by element (Yin, Chen, Ramchandran, Bartlett 2018).

    Each element lies between two that honest workers pushed, as long as more than half are honest; of two workers it is the
    mean. NaN counts as larger than all numbers. Where most workers push nothing, or not that row, it is 0.
    """

    linear = False

    def combine(self, gradients: Floats) -> Floats:
        ordered, half = np.sort(gradients, axis=0), len(gradients) // 2
        return ordered[half] if len(gradients) % 2 else np.asarray((ordered[half - 1] + ordered[half]) / 2)


@register("trimmed_mean")
class TrimmedMean(Aggregation):
    """g ← mean of g₁, …, g_n without the `trim` smallest and the `trim` largest, by element (Yin et al. 2018).

    Up to `trim` workers may push what they like, NaN too. If workers have left and fewer than 2 trim + 1 are there, as many
    are cut off as leaves one or two, the median: fewer than half of those may push what they like.
    """

    trim: int = 1
    linear = False

    def __post_init__(self) -> None:
        self.require_at_least_0("trim")

    def combine(self, gradients: Floats) -> Floats:
        count = len(gradients)
        trim = min(self.trim, (count - 1) // 2)
        return np.asarray(np.sort(gradients, axis=0)[trim : count - trim].mean(axis=0))

    def workers_needed(self) -> int:
        return 2 * self.trim + 1


@register("krum")
class Krum(Aggregation):
    """g ← g_i with the smallest Σ ‖g_i - g_j‖², j over its n - byzantine - 2 closest others (Blanchard et al. 2017).

    The norm is over the whole model. keep: the mean of that many with the smallest sums, Multi-Krum. Up to `byzantine` workers
    may push what they like. If workers have left, sums are over one other at least, and at most n - byzantine - 2 are kept,
    but one: then an outlier is still not chosen while two others are closer to each other, but several that agree may be.
    """

    byzantine: int = 1
    keep: int = 1
    needs_distances = True

    def __post_init__(self) -> None:
        self.require_at_least_0("byzantine")
        self.require("keep", self.keep >= 1, "1 or more")

    def shares(self, weights: Floats, distances: Floats) -> Floats:
        closest = max(1, len(weights) - self.byzantine - 2)
        others = distances.copy()
        np.fill_diagonal(others, np.inf)
        scores = np.sort(others, axis=1)[:, :closest].sum(axis=1)  # NaN comes last, here and below
        shares = np.zeros_like(weights)
        shares[np.argsort(scores, kind="stable")[: min(self.keep, closest)]] = 1
        return shares

    def workers_needed(self) -> int:
        return max(2 * self.byzantine + 3, self.keep + self.byzantine + 2)
