"""What are the loss and the gradient of the problem at given values?

One function for both sides of a parity check, so that a difference between them is never the gradient's. It must not
know who holds the values or how they are updated. Next: update.py, TensorFlow's update rules.

The bits: called eagerly, `gradients` gives the same bits in every process, whatever its settings. Inside a
`tf.function` or a graph it does so only where TF_ENABLE_ONEDNN_OPTS=0 is in the environment of the process, as it is for
those of processes.py: otherwise the graph optimizer swaps in oneDNN's fused kernels, which round differently.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tests.parity.reference.problem import SIZES


def gradients(values: Mapping[str, Any], x: Any, labels: Any) -> tuple[Any, dict[str, Any]]:
    """The mean cross-entropy of one batch and its gradient.

    `values` holds whole variables as arrays or tensors (the caller concatenates partitions), shapes and dtypes as in
    `Problem.values`; x is float32 (batch, 13), labels int64 (batch,). Returns a float32 scalar and a float32 tensor for
    each name.
    """
    tensors = {name: tf.convert_to_tensor(value) for name, value in values.items()}
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        loss = mean_loss(tensors, x, labels)
    return loss, tape.gradient(loss, tensors)


def mean_loss(values: Mapping[str, Any], x: Any, labels: Any) -> Any:
    """The mean cross-entropy of one batch, a float32 scalar; arguments as for `gradients`."""
    hidden = tf.convert_to_tensor(x)
    layers = len(SIZES) - 1
    for layer in range(layers):
        hidden = tf.matmul(hidden, values[f"dense{layer}/kernel"]) + values[f"dense{layer}/bias"]
        if layer < layers - 1:
            hidden = tf.tanh(hidden)
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=hidden))
