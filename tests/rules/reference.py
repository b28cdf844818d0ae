"""How does TensorFlow update a variable? 100 steps of its own code, live, in one traced function. Used by test_golden.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Array = Any


def keras_paths(make_optimizer: Callable[[Any], Any], problems: Sequence[tuple[Array, Array]]) -> list[Array]:
    """The values after each step of a Keras optimizer that trains several variables.

    problems: for each variable its value, float32, and its gradients (steps, *shape). Results: as the gradients.
    """
    import keras
    import tensorflow as tf

    variables = [keras.Variable(value) for value, _ in problems]
    optimizer = make_optimizer(keras.optimizers)
    optimizer.build(variables)

    @tf.function
    def train(gradients: list[Any]) -> list[Any]:
        steps = gradients[0].shape[0]
        paths = [tf.TensorArray(tf.float32, size=steps, element_shape=value.shape) for value, _ in problems]
        for step in tf.range(steps):
            optimizer.apply([each[step] for each in gradients], variables)
            paths = [path.write(step, variable.value) for path, variable in zip(paths, variables)]
        return [path.stack() for path in paths]

    return [path.numpy() for path in train([tf.constant(gradients) for _, gradients in problems])]


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
