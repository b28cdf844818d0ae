"""Which variables does a model have, what are they called on every worker, and how are values read and set fast?

Keras numbers layers for each process anew (`dense_7`), and TensorFlow allows two variables of one name. Here automatic numbers
count within the model (`dense`, `dense_1`), names given by people stay, and a name that comes again gets a number: the same
model code gives the same names everywhere.

Random seeds and metrics belong to each worker and are no part of the model (as in Keras's `weights`).
Next: step.py, which computes gradients for these.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from protos.codec import Array
from protos.errors import InvalidInput, ShapeMismatch, UnknownVariable

_NUMBERED = re.compile(r"(.+?)(?:_\d+)?")


class Variables:
    """The variables of a Keras model, or of anything with `trainable_variables` and `variables`, such as a tf.Module.

    trainable: name -> tf.Variable, in the model's order. state: the same for what takes no gradient.
    """

    def __init__(self, model: Any) -> None:
        if hasattr(model, "trainable_weights"):  # Keras
            trainable, others = model.trainable_weights, model.non_trainable_weights
        elif hasattr(model, "trainable_variables"):
            trainable = model.trainable_variables
            known = {id(variable) for variable in trainable}
            others = [variable for variable in getattr(model, "variables", ()) if id(variable) not in known]
        else:
            raise InvalidInput(
                field="model", got=type(model).__name__, expected="a Keras model, a tf.Module, or the like of them"
            )
        if not trainable:
            raise InvalidInput(
                field="model",
                got=f"{type(model).__name__} without trainable variables",
                expected="a model that is built",
                hint="Begin it with keras.Input(shape), or call it on a batch once.",
            )
        everything = [*trainable, *others]
        tensors = [_tf_variable(variable) for variable in everything]
        named = dict(zip(_stable_names(everything, _automatic_names(model)), tensors))
        self.trainable = dict(list(named.items())[: len(trainable)])
        self.state = dict(list(named.items())[len(trainable) :])
        self._all = named

    def __repr__(self) -> str:
        return f"Variables({len(self.trainable)} trainable, {len(self.state)} not)"

    @property
    def parameters(self) -> int:
        """Elements of all trainable variables."""
        return sum(int(np.prod(variable.shape, dtype=np.int64)) for variable in self.trainable.values())

    def values(self, names: Collection[str] | None = None) -> dict[str, Array]:
        """The present values: arrays by name, of all variables or of these; read-only, they may share TensorFlow's memory."""
        return {name: to_numpy(self._all[name]) for name in (self._all if names is None else names)}

    def check(self, values: Mapping[str, Array]) -> None:
        """UnknownVariable or ShapeMismatch if these are the values of another model."""
        if set(values) != set(self._all):
            differ = sorted(set(values) ^ set(self._all))
            raise UnknownVariable(
                field="model", got=f"{', '.join(differ[:5])} on one side only", expected="the model that the job trains"
            )
        for name, value in values.items():
            if value.shape != tuple(self._all[name].shape):
                raise ShapeMismatch(field=name, got=value.shape, expected=tuple(self._all[name].shape))

    def assign(self, values: Mapping[str, Array]) -> None:
        """Set these. The arrays are TensorFlow's from now on, which may keep them instead of a copy."""
        for name, value in values.items():
            # The bare op: Variable.assign costs three times as much.
            tf.raw_ops.AssignVariableOp(resource=self._all[name].handle, value=value)


def to_numpy(tensor: Any) -> Array:
    """A tensor or variable as an array, without a copy where it lies in this machine's memory."""
    tensor = tensor.read_value() if hasattr(tensor, "read_value") else tensor
    return np.asarray(tensor if tensor.shape.rank else tensor.numpy())  # numpy cannot see a bfloat16 scalar


def spread_seeds(model: Any, worker: int) -> None:
    """Let dropout and the like differ between workers that were seeded alike, and be the same in every run."""
    for variable in getattr(model, "variables", ()):
        if getattr(variable, "path", "").endswith("seed_generator_state"):
            state = np.array(to_numpy(_tf_variable(variable)))
            state[0] += worker
            variable.assign(state)


def _tf_variable(variable: Any) -> tf.Variable:
    """The tf.Variable inside a Keras variable."""
    return variable if isinstance(variable, tf.Variable) else variable.value


def _automatic_names(model: Any) -> frozenset[str]:
    """What Keras calls layers of the classes in this model, without the number: Conv2D -> conv2d."""
    flatten = getattr(model, "_flatten_layers", None)
    layers = flatten() if flatten is not None else ()
    return frozenset(_snake_case(type(layer).__name__) for layer in layers)


def _snake_case(name: str) -> str:
    name = re.sub(r"\W+", "", name)
    name = re.sub("(.)([A-Z][a-z]+)", r"\1_\2", name)
    return re.sub("([a-z])([A-Z])", r"\1_\2", name).lower()


def _stable_names(variables: Iterable[Any], automatic: frozenset[str]) -> Iterator[str]:
    numbers: dict[tuple[str, str], dict[str, int]] = {}  # (parent, base) -> the components seen there, in order
    taken: set[str] = set()
    for variable in variables:
        path = getattr(variable, "path", None) or variable.name.split(":")[0]
        name = ""
        for component in path.split("/"):
            matched = _NUMBERED.fullmatch(component)
            if matched is not None and (base := matched[1]) in automatic:
                seen = numbers.setdefault((name, base), {})
                number = seen.setdefault(component, len(seen))
                component = f"{base}_{number}" if number else base
            name = f"{name}/{component}" if name else component
        unique, again = name, 0
        while unique in taken:
            again += 1
            unique = f"{name}_{again}"
        taken.add(unique)
        yield unique
