"""What do simulated workers train? Small models in numpy, whose gradients are real.

All are float32. Inputs are (batch, features), labels int64 (batch,); a loss is the mean cross-entropy over the batch.
Next: ps/simulation/data.py (on what), ps/simulation/run.py (by whom).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from protos.codec import Array

Values = Mapping[str, Array]


@dataclass(frozen=True)
class Model:
    """A classifier. features: numbers of one input; classes: what it tells apart."""

    features: int
    classes: int

    def first_values(self, rng: np.random.Generator) -> dict[str, Array]:
        """Variables by name, as training begins with them."""
        raise TypeError(f"{type(self).__name__} does not define first_values")

    def scores(self, values: Values, inputs: Array) -> Array:
        """Logits (batch, classes)."""
        raise TypeError(f"{type(self).__name__} does not define scores")

    def gradient(self, values: Values, inputs: Array, labels: Array) -> dict[str, Array]:
        """The gradient of the loss for every variable."""
        raise TypeError(f"{type(self).__name__} does not define gradient")

    def evaluate(self, values: Values, inputs: Array, labels: Array) -> tuple[float, float]:
        """(loss, accuracy). A model that has diverged has a loss that is not finite."""
        with np.errstate(all="ignore"):
            scores = self.scores(values, inputs)
            chances = _softmax(scores)[np.arange(len(labels)), labels]
            loss = -np.log(np.maximum(chances, np.finfo(np.float32).tiny)).mean(dtype=np.float64)
        return float(loss), float(np.mean(scores.argmax(axis=1) == labels))


@dataclass(frozen=True)
class Softmax(Model):
    """Softmax regression: scores = x · kernel + bias. Convex, so every mode and rule can be seen to arrive."""

    def first_values(self, rng: np.random.Generator) -> dict[str, Array]:
        return {
            "bias": np.zeros(self.classes, np.float32),
            "kernel": np.zeros((self.features, self.classes), np.float32),
        }

    def scores(self, values: Values, inputs: Array) -> Array:
        return inputs @ values["kernel"] + values["bias"]

    def gradient(self, values: Values, inputs: Array, labels: Array) -> dict[str, Array]:
        with np.errstate(all="ignore"):
            errors = _errors(self.scores(values, inputs), labels)
            return {"bias": errors.sum(axis=0), "kernel": inputs.T @ errors}


@dataclass(frozen=True)
class Mlp(Model):
    """One hidden layer: scores = relu(x · kernel_0 + bias_0) · kernel_1 + bias_1."""

    hidden: int = 32

    def first_values(self, rng: np.random.Generator) -> dict[str, Array]:
        return {  # He et al. 2015
            "bias_0": np.zeros(self.hidden, np.float32),
            "bias_1": np.zeros(self.classes, np.float32),
            "kernel_0": _normal(rng, (self.features, self.hidden), (2 / self.features) ** 0.5),
            "kernel_1": _normal(rng, (self.hidden, self.classes), (2 / self.hidden) ** 0.5),
        }

    def _active(self, values: Values, inputs: Array) -> Array:
        active: Array = np.maximum(inputs @ values["kernel_0"] + values["bias_0"], 0)
        return active

    def scores(self, values: Values, inputs: Array) -> Array:
        return self._active(values, inputs) @ values["kernel_1"] + values["bias_1"]

    def gradient(self, values: Values, inputs: Array, labels: Array) -> dict[str, Array]:
        with np.errstate(all="ignore"):
            active = self._active(values, inputs)
            errors = _errors(active @ values["kernel_1"] + values["bias_1"], labels)
            below = (errors @ values["kernel_1"].T) * (active > 0)
            return {
                "bias_0": below.sum(axis=0),
                "bias_1": errors.sum(axis=0),
                "kernel_0": inputs.T @ below,
                "kernel_1": active.T @ errors,
            }


MODELS: dict[str, type[Model]] = {"softmax": Softmax, "mlp": Mlp}


def _softmax(scores: Array) -> Array:
    exponentials = np.exp(scores - scores.max(axis=1, keepdims=True))
    chances: Array = exponentials / exponentials.sum(axis=1, keepdims=True)
    return chances


def _errors(scores: Array, labels: Array) -> Array:
    """The gradient of the mean loss with respect to the scores."""
    errors = _softmax(scores)
    errors[np.arange(len(labels)), labels] -= 1
    errors /= np.float32(len(labels))
    return errors


def _normal(rng: np.random.Generator, shape: tuple[int, ...], deviation: float) -> Array:
    return (rng.standard_normal(shape) * deviation).astype(np.float32)
