"""Adafactor: Adam's step sizes from a row and a column of numbers instead of a matrix, for models that fill the memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from ps.rules.base import Context, Floats, Updated, UpdateRule
from ps.rules.configured import register


@register("adafactor")
class Adafactor(UpdateRule):
    """Adafactor (Shazeer, Stern 2018), as in Keras. rms(x) is √(mean of x²).

    β = 1 - tᵈ,  ρ = min(η, 1/√t),  t = step + 1,  d = beta_2_decay
    r ← β r + (1-β) mean over columns of (g² + ε₁)          row, shape[:-1]
    c ← β c + (1-β) mean over rows of (g² + ε₁)             column, shape[:-2] + shape[-1:]
    v = r c / mean(r)                                       of two axes or more; else v ← β v + (1-β)(g² + ε₁)
    u = g / √v
    w ← w - ρ max(ε₂, rms(w)) u / max(1, rms(u) / clip_threshold)

    Slots that a variable has no use for are empty. relative_step is there for Keras's sake, where it changes nothing
    either: the rate is never more than 1/√t.
    """

    learning_rate: float = 0.001
    beta_2_decay: float = -0.8
    epsilon_1: float = 1e-30
    epsilon_2: float = 1e-3
    clip_threshold: float = 1.0
    relative_step: bool = True
    slots = ("row", "column", "velocity")
    elementwise = False  # means are over rows, columns and the whole variable
    quick = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("beta_2_decay", self.beta_2_decay <= 0, "0 or less")
        self.require_at_least_0("epsilon_1", "epsilon_2")
        self.require("clip_threshold", self.clip_threshold > 0, "more than 0")

    def init_slot(self, name: str, value: Floats) -> Floats:
        shape, factored = value.shape, value.ndim >= 2
        wanted = {"row": shape[:-1], "column": shape[:-2] + shape[-1:], "velocity": shape}[name]
        return np.zeros(wanted if factored == (name != "velocity") else (0,), value.dtype)

    def update(self, ctx: Context, value: Floats, grad: Floats, *slots: Floats) -> Updated:
        if not value.size:  # nothing has no mean
            return value, *slots
        row, column, velocity = slots
        real = value.dtype.type
        t = real(ctx.step + 1)
        beta = 1 - t**self.beta_2_decay
        squares = grad * grad + self.epsilon_1
        if value.ndim >= 2:
            row = beta * row + (1 - beta) * squares.mean(axis=-1)
            column = beta * column + (1 - beta) * squares.mean(axis=-2)
            second = (row / row.mean(axis=-1, keepdims=True))[..., None] * column[..., None, :]
        else:
            second = velocity = beta * velocity + (1 - beta) * squares
        u = grad / np.sqrt(second)
        u = u / np.maximum(real(1), _rms(u) / real(self.clip_threshold))
        rate = np.minimum(real(ctx.learning_rate), 1 / np.sqrt(t)) * np.maximum(real(self.epsilon_2), _rms(value))
        return value - rate * u, row, column, velocity


def _rms(array: Floats) -> Any:
    return np.sqrt(np.mean(array * array))
