"""How does TensorFlow update variables? Steps of its own code, live, in one traced function. And how does our engine?

Used by the tests that compare the two: test_golden.py, test_keras_optimizers.py, test_keras_options.py.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ps.apply import apply, with_slots
from ps.rules import UpdateRule
from ps.variable import ShardState
from tests.core.builders import dense, partition

Array = Any


@dataclasses.dataclass(frozen=True)
class Problem:
    """A variable to be trained. gradients: (steps, *shape), float32; None: it never gets one."""

    name: str
    value: Array
    gradients: Array | None

    def travelled(self, path: Array) -> Array:
        """How far each element has come after each step, there and back counted: rounding adds up along the way."""
        return np.cumsum(np.abs(np.diff(path, axis=0, prepend=self.value[None])), axis=0)


def problem(shape: tuple[int, ...], steps: int, name: str = "w", *, seed: int = 0) -> Problem:
    """A first value, and gradients of very different sizes, some of them zero."""
    rng = np.random.default_rng([len(shape), seed])
    gradients = rng.normal(size=(steps, *shape)) * 10.0 ** rng.integers(-4, 3, size=(steps, *shape))
    gradients[::7] = 0
    return Problem(name, rng.normal(size=shape).astype("f"), gradients.astype("f"))


def our_paths(rule: UpdateRule, problems: Sequence[Problem]) -> list[Array]:
    """The values after each step of our engine that trains these variables. Results: (steps, *shape) for each."""
    state = ShardState(0, tuple(with_slots(partition(each.name, each.value), rule) for each in problems))
    paths: list[list[Array]] = [[] for _ in problems]
    (steps,) = {len(each.gradients) for each in problems if each.gradients is not None}
    for step in range(steps):
        pushed = {
            index: dense(each.gradients[step]) for index, each in enumerate(problems) if each.gradients is not None
        }
        state = apply(state, rule, pushed, staleness=0, worker=0)
        for path, trained in zip(paths, state.partitions):
            path.append(trained.value.whole())
    return [np.array(path) for path in paths]


def keras_runs(
    optimizer: Any, problems: Sequence[Problem], learning_rates: Sequence[float] = (), *, rewritten: bool = True
) -> Iterator[list[Any]]:
    """For each learning rate, the values after each step of a Keras optimizer that trains these variables.

    The function is traced once and begun anew for each rate. No rates: one run at the optimizer's own. rewritten: whether
    TensorFlow may rewrite the formulas (x/√y as x·rsqrt(y), y^½ as √y), which rounds otherwise than what Keras has written.
    """
    import keras
    import tensorflow as tf

    variables = [keras.Variable(each.value, name=each.name) for each in problems]
    optimizer.build(variables)
    everything = [*variables, *optimizer.variables]
    if hasattr(optimizer, "_u_product"):  # the one variable of Nadam that it does not list
        everything.append(optimizer._u_product)
    first = [variable.numpy() for variable in everything]
    given = [index for index, each in enumerate(problems) if each.gradients is not None]

    @tf.function
    def train(gradients: list[Any]) -> list[Any]:
        steps = gradients[0].shape[0]
        paths = [tf.TensorArray(tf.float32, size=steps, element_shape=each.value.shape) for each in problems]
        for step in tf.range(steps):
            now = dict(zip(given, [each[step] for each in gradients]))
            optimizer.apply([now.get(index) for index in range(len(variables))], variables)
            paths = [path.write(step, variable.value) for path, variable in zip(paths, variables)]
        return [path.stack() for path in paths]

    gradients = [tf.constant(problems[index].gradients) for index in given]
    for learning_rate in learning_rates or [None]:
        for variable, value in zip(everything, first):
            variable.assign(value)
        if learning_rate is not None:
            optimizer.learning_rate = learning_rate
        with graph_rewriting(rewritten):
            yield [path.numpy() for path in train(gradients)]


@contextlib.contextmanager
def graph_rewriting(on: bool) -> Iterator[None]:
    """Whether TensorFlow's graph optimiser works on functions that are called for the first time within."""
    import tensorflow as tf

    before = tf.config.optimizer.get_experimental_options().get("disable_meta_optimizer", False)
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": not on})
    try:
        yield
    finally:
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": before})


def kernel_path(learning_rate: float, value: Array, gradients: Array) -> Array:
    """The same for TensorFlow's fused Adam kernel, which its parameter servers run."""
    import tensorflow as tf

    variable, m, v = (tf.Variable(first) for first in (value, np.zeros_like(value), np.zeros_like(value)))
    beta_1, beta_2 = tf.constant(0.9), tf.constant(0.999)
    path = []
    for step, gradient in enumerate(gradients):
        t = tf.constant(step + 1.0)
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=m.handle,
            v=v.handle,
            beta1_power=tf.pow(beta_1, t),
            beta2_power=tf.pow(beta_2, t),
            lr=learning_rate,
            beta1=beta_1,
            beta2=beta_2,
            epsilon=1e-7,
            grad=gradient,
            use_locking=True,
        )
        path.append(variable.numpy())
    return np.array(path)
