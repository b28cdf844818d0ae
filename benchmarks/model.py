"""What is the real gradient, where one is measured? Dense layers with relu, softmax cross-entropy, a batch of 32.

The same function of the same variables for TensorFlow's cluster and for ours. It must not know either. Next: training.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks.cases import Case

BATCH = 32


def batch(case: Case) -> tuple[Any, Any]:
    """Inputs, float32 (32, inputs), and labels, int32 (32,): random, for speed does not look at them."""
    import tensorflow as tf

    kernels = [shape for shape in case.variables.values() if len(shape) == 2]
    rng = np.random.default_rng(1)
    x = rng.standard_normal((BATCH, kernels[0][0]), np.float32)
    labels = rng.integers(0, kernels[-1][1], BATCH, np.int32)
    return tf.constant(x), tf.constant(labels)


def outputs(values: Mapping[str, Any], x: Any) -> Any:
    """Logits of a model whose variables are kernel_0, bias_0, kernel_1, …"""
    import tensorflow as tf

    layers = len(values) // 2
    for layer in range(layers):
        x = tf.matmul(x, values[f"kernel_{layer}"]) + values[f"bias_{layer}"]
        if layer < layers - 1:
            x = tf.nn.relu(x)
    return x


def loss(labels: Any, logits: Any) -> Any:
    """One number per example."""
    import tensorflow as tf

    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)


def gradients(values: Mapping[str, Any], x: Any, labels: Any) -> dict[str, Any]:
    """By name, of the mean loss; `values` are tensors."""
    import tensorflow as tf

    with tf.GradientTape() as tape:
        tape.watch(list(values.values()))
        mean = tf.reduce_mean(loss(labels, outputs(values, x)))
    return dict(zip(values, tape.gradient(mean, list(values.values()))))
