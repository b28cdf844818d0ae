"""Muon: steps that turn a matrix as a whole, all of its directions alike; Adam for all that is no matrix."""

from __future__ import annotations

import dataclasses
import re

import numpy as np

from ps.rules.adam import Adam
from ps.rules.base import Context, Floats, Updated, UpdateRule
from ps.rules.configured import register


@register("muon")
class Muon(UpdateRule):
    """Muon (Jordan et al. 2024), as in Keras, with the length of steps of Moonlight (Liu et al. 2025).

    m ← m + (g + (μ-1) m)
    x = g + μ m, or m without nesterov, divided by its norm
    x ← a x + (b x xᵀ + c (x xᵀ)²) x                        ns_steps times: its singular values all become about 1
    w ← w - w λ η - η x √max(rows, columns) rms_rate        without rms_rate: η x

    Variables that have not two axes, those with "embedding" in their name (exclude_embeddings), and those in whose name
    an expression of exclude_layers is found are updated by `adam` at the rate η adam_lr_ratio, λ = adam_weight_decay.
    """

    learning_rate: float = 0.001
    adam_beta_1: float = 0.9
    adam_beta_2: float = 0.999
    adam_weight_decay: float | None = 0.004
    epsilon: float = 1e-7
    weight_decay: float | None = 0.004
    exclude_layers: tuple[str, ...] = ()
    exclude_embeddings: bool = True
    muon_a: float = 3.4445
    muon_b: float = -4.775
    muon_c: float = 2.0315
    adam_lr_ratio: float = 1.0
    momentum: float = 0.95
    ns_steps: int = 5
    nesterov: bool = True
    rms_rate: float | None = 0.2
    slots = ("momentum", "velocity")
    elementwise = False  # a matrix is multiplied with itself
    needs_variable = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_below_1("adam_beta_1", "adam_beta_2")
        self.require("adam_weight_decay", (self.adam_weight_decay or 0) >= 0, "0 or more, or None")
        self.require_at_least_0("epsilon")
        self.require("momentum", 0 <= self.momentum <= 1, "0 to 1")
        self.require_at_least_0("ns_steps")
        self.require("exclude_layers", all(map(_compiles, self.exclude_layers)), "regular expressions")

    def init_slot_of(self, variable: str, name: str, value: Floats) -> Floats:
        """No velocity for a matrix: half of Adam's memory."""
        return np.zeros_like(value if name == "momentum" or self.uses_adam(variable, value) else value[:0, :0])

    def uses_adam(self, variable: str, value: Floats) -> bool:
        """Whether the variable of this name is left to Adam."""
        embedding = self.exclude_embeddings and "embedding" in variable.lower()
        return value.ndim != 2 or embedding or any(re.search(each, variable) for each in self.exclude_layers)

    def update(self, ctx: Context, value: Floats, grad: Floats, *slots: Floats) -> Updated:
        momentum, velocity = slots
        real = value.dtype.type
        rate = real(ctx.learning_rate)
        uses_adam = self.uses_adam(ctx.variable, value)
        decay = self.adam_weight_decay if uses_adam else self.weight_decay
        if decay is not None:
            value = value - value * real(decay) * rate
        if uses_adam:
            adam = Adam(beta_1=self.adam_beta_1, beta_2=self.adam_beta_2, epsilon=self.epsilon)
            ctx = dataclasses.replace(ctx, learning_rate=rate * real(self.adam_lr_ratio))
            return adam.update(ctx, value, grad, momentum, velocity)
        momentum = momentum + (grad + momentum * (self.momentum - 1))
        change = rate * self._turned(grad + self.momentum * momentum if self.nesterov else momentum)
        if self.rms_rate is not None:
            change = change * np.sqrt(real(max(value.shape))) * self.rms_rate
        return value - change, momentum, velocity

    def _turned(self, matrix: Floats) -> Floats:
        """A matrix of the same singular vectors whose singular values are all about 1, by Newton-Schulz iterations."""
        tall = matrix.shape[0] > matrix.shape[1]
        x = matrix.T if tall else matrix  # the smaller of the two products
        x = x / (np.sqrt(np.sum(x * x)) + 1e-7)
        for _ in range(self.ns_steps):
            square = x @ x.T
            x = self.muon_a * x + (self.muon_b * square + self.muon_c * square @ square) @ x
        return np.asarray(x.T if tall else x)


def _compiles(expression: str) -> bool:
    try:
        re.compile(expression)
    except re.error:
        return False
    return True
