"""Nadam: Adam with Nesterov's look-ahead, and a momentum that warms up."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from ps.rules.base import Context, Floats, Updated, UpdateRule
from ps.rules.configured import register


@register("nadam")
class Nadam(UpdateRule):
    """Nadam (Dozat 2016), as in Keras.

    μ_t = β₁ (1 - 0.96ᵗ / 2),  Π_t = μ₁ … μ_t,  t = step + 1
    m ← m + (1-β₁)(g - m)
    v ← v + (1-β₂)(g² - v)
    w ← w - η (μ_{t+1} m / (1-Π_{t+1}) + (1-μ_t) g / (1-Π_t)) / (√(v / (1-β₂ᵗ)) + ε)
    """

    learning_rate: float = 0.001
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7
    slots = ("m", "v")
    quick = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_below_1("beta_1", "beta_2")
        self.require_at_least_0("epsilon")

    def update(self, ctx: Context, value: Floats, grad: Floats, *slots: Floats) -> Updated:
        m, v = slots
        real, t = grad.dtype.type, ctx.step + 1
        beta_1, beta_2 = real(self.beta_1), real(self.beta_2)
        now, ahead = beta_1 * _warmth(t, real), beta_1 * _warmth(t + 1, real)
        product = _product(t, self.beta_1, grad.dtype)
        m = m + (grad - m) * (1 - beta_1)
        v = v + (grad * grad - v) * (1 - beta_2)
        m_hat = ahead * m / (1 - product * ahead) + (1 - now) * grad / (1 - product)
        v_hat = v / (1 - beta_2 ** real(t))
        return value - m_hat * real(ctx.learning_rate) / (np.sqrt(v_hat) + self.epsilon), m, v


def _warmth(t: int, real: type[Any]) -> Any:
    """1 - 0.96ᵗ / 2: from a half towards 1."""
    return 1 - real(0.5) * real(0.96) ** real(t)


def _product(t: int, beta_1: float, dtype: np.dtype[Any]) -> Any:
    """Π_t, multiplied from μ₁ on and rounded each time, as Keras's running product is: so that the bits are the same."""
    known, real = _products(beta_1, dtype), dtype.type
    while len(known) <= t and 1 - known[-1] < 1:  # once it is nothing to 1, it is so for ever
        at = len(known)
        # Not append: of two threads that get here at once, each writes the same number to the same place.
        known[at : at + 1] = [known[at - 1] * real(beta_1) * _warmth(at, real)]
    return known[min(t, len(known) - 1)]


@functools.lru_cache(maxsize=16)
def _products(beta_1: float, dtype: np.dtype[Any]) -> list[Any]:
    """Π₀, Π₁, … as far as they have been asked for: functions of the step alone, so no slots."""
    return [dtype.type(1)]
