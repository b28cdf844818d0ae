"""On which examples do simulated workers train, and on which are they judged?

`digits` are 1,797 real scans of handwritten digits, 8 x 8 pixels, that come with scikit-learn; every fifth is held out.
`synthetic` needs nothing installed: ten clouds of points, as many and as wide. Next: ps/simulation/models.py.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from protos.codec import Array
from protos.errors import InvalidInput
from ps.variable import frozen

DATA = ("digits", "synthetic")
EXAMPLES, FEATURES, CLASSES = 1797, 64, 10


@dataclass(frozen=True)
class Examples:
    """inputs: float32 (n, features); labels: int64 (n,)."""

    inputs: Array
    labels: Array

    def batch(self, rng: np.random.Generator, size: int) -> tuple[Array, Array]:
        """`size` of them at random, with replacement."""
        chosen = rng.integers(0, len(self.labels), size)
        return self.inputs[chosen], self.labels[chosen]


def load(name: str, rng: np.random.Generator) -> tuple[Examples, Examples]:
    """(to train on, held out). InvalidInput for an unknown name, and for digits where scikit-learn is not installed."""
    if name not in DATA:
        raise InvalidInput(field="data", got=repr(name), expected=" or ".join(DATA))
    inputs, labels = _digits() if name == "digits" else _synthetic(rng)
    held = np.arange(len(labels)) % 5 == 0
    return Examples(inputs[~held], labels[~held]), Examples(inputs[held], labels[held])


@functools.cache  # a study of many runs reads them once
def _digits() -> tuple[Array, Array]:
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise InvalidInput(
            field="data",
            got=f"digits ({error})",
            expected="scikit-learn, which carries them",
            hint="pip install 'paramserver[lab]', or take --data synthetic.",
        ) from None
    images, digits = load_digits(return_X_y=True)  # float64 from 0 to 16
    return frozen((images / 16).astype(np.float32)), frozen(digits.astype(np.int64))


def _synthetic(rng: np.random.Generator) -> tuple[Array, Array]:
    """Around ten random centres, near enough to each other for some points to be on the wrong side."""
    labels = rng.integers(0, CLASSES, EXAMPLES)
    centres = rng.standard_normal((CLASSES, FEATURES)) * 0.25
    return (centres[labels] + 0.5 * rng.standard_normal((EXAMPLES, FEATURES))).astype(np.float32), labels
