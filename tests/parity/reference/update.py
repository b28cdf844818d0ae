"""How does TensorFlow itself apply a gradient to a variable?

By its fused kernels, never by formulas written here: the reference must be TensorFlow's. It must not know where the
variables live: `single.py` calls it on local ones, `pss.py` on partitions that ps hold. Next: single.py, the smallest
program.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tests.parity.reference.options import RULES

SLOTS: Mapping[str, tuple[str, ...]] = {
    "sgd": (),
    "momentum": ("velocity",),
    "nesterov": ("velocity",),
    "adam": ("m", "v"),
}

MOMENTUM = 0.9
BETA_1 = 0.9
BETA_2 = 0.999
EPSILON = 1e-7  # the default of Keras; that of tf1 is 1e-8


def apply(rule: str, learning_rate: float, variable: Any, slots: Mapping[str, Any], grad: Any, step: Any) -> None:
    """Apply `grad` to `variable` and its `slots` (by the names in SLOTS) in place.

    All are float32 of one shape. `step` counts from 1; adam alone uses it. Its beta powers are float32, as in Keras.
    """
    rate = tf.constant(learning_rate, tf.float32)
    if rule == "sgd":
        variable.assign_sub(rate * grad)
    elif rule in ("momentum", "nesterov"):
        tf.raw_ops.ResourceApplyKerasMomentum(
            var=variable.handle,
            accum=slots["velocity"].handle,
            lr=rate,
            grad=grad,
            momentum=tf.constant(MOMENTUM, tf.float32),
            use_locking=True,
            use_nesterov=rule == "nesterov",
        )
    elif rule == "adam":
        beta_1, beta_2 = tf.constant(BETA_1, tf.float32), tf.constant(BETA_2, tf.float32)
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=slots["m"].handle,
            v=slots["v"].handle,
            beta1_power=tf.pow(beta_1, tf.cast(step, tf.float32)),
            beta2_power=tf.pow(beta_2, tf.cast(step, tf.float32)),
            lr=rate,
            beta1=beta_1,
            beta2=beta_2,
            epsilon=tf.constant(EPSILON, tf.float32),
            grad=grad,
            use_locking=True,
        )
    else:
        raise ValueError(f"rule: got {rule!r}, expected one of {', '.join(RULES)}")
