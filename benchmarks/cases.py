"""Which models are measured, and on how many processes? Names, shapes, first values; nothing of how they are moved.

All variables are float32. Next: rounds.py (what a measurement is).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import prod

import numpy as np
import numpy.typing as npt

Values = dict[str, npt.NDArray[np.float32]]

# So small that a million steps of w ← w − rate·w stay far from the tiny numbers on which processors are slow.
LEARNING_RATE = 1e-6


@dataclass(frozen=True)
class Case:
    """A model: variables by name, in order."""

    name: str
    variables: dict[str, tuple[int, ...]]

    @property
    def bytes(self) -> int:
        return sum(4 * prod(shape) for shape in self.variables.values())

    def values(self) -> Values:
        """First values: small random numbers, as a model's are, the same in every process."""
        rng = np.random.default_rng(0)
        return {
            name: (0.05 * rng.standard_normal(shape, np.float32)).astype(np.float32)
            for name, shape in self.variables.items()
        }

    def __str__(self) -> str:
        count = len(self.variables)
        return f"{self.name}: {count} variable{'s' * (count > 1)}, {self.bytes / 1e6:.3g} MB"


@dataclass(frozen=True)
class Shape:
    """Of how many processes a cluster is."""

    workers: int = 1
    ps: int = 1

    def __str__(self) -> str:
        return f"{self.workers} worker{'s' * (self.workers > 1)}, {self.ps} ps"


def dense(name: str, widths: list[int]) -> Case:
    """Fully connected layers of these widths, with biases."""
    variables: dict[str, tuple[int, ...]] = {}
    for layer, (inputs, outputs) in enumerate(pairwise(widths)):
        variables[f"kernel_{layer}"] = (inputs, outputs)
        variables[f"bias_{layer}"] = (outputs,)
    return Case(name, variables)


def same_bytes(count: int, total_bytes: int) -> Case:
    """So many bytes in so many variables of one size. Its name makes it again, in another process."""
    elements = total_bytes // 4 // count
    return Case(f"{count}x{total_bytes}", {f"part_{index}": (elements,) for index in range(count)})


STEPS = {
    case.name: case
    for case in (
        Case("tiny", {"w": (16,)}),
        dense("mlp", [784, 256, 256, 10]),
        dense("deep", [64] * 51),
        dense("wide", [1024, 2048, 2048, 1024]),
    )
}
# Measured with a real gradient too.
TRAINED = ("mlp", "wide")
LARGE_BYTES = 32 << 20


def named(name: str) -> Case:
    """A case by the name that a child process is given: one of STEPS, or COUNTxBYTES for equal variables."""
    if name in STEPS:
        return STEPS[name]
    count, _, total = name.partition("x")
    return same_bytes(int(count), int(total))
