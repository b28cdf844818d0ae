"""Are the three rules that everybody uses those of TensorFlow, to the bit? 100 steps, several shapes, absurd rates too.

Both get the same gradients, which do not depend on the values: what differs is the rule and nothing else. All other
optimizers of Keras are in test_keras_optimizers.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ps.rules import make_rule
from tests.rules.reference import keras_runs, kernel_path, our_paths, problem

STEPS = 100
SHAPES = [(), (7,), (3, 5), (2, 3, 4)]
PROBLEMS = [problem(shape, STEPS, f"w{len(shape)}") for shape in SHAPES]
LEARNING_RATES = [1e-3, 0.1, 10.0]


@pytest.mark.parametrize(
    ("spec", "keras_arguments"),
    [
        ("sgd:learning_rate={}", {}),
        ("momentum:learning_rate={}", {"momentum": 0.9}),
        ("momentum:learning_rate={},momentum=0.5,nesterov=true", {"momentum": 0.5, "nesterov": True}),
    ],
)
def test_descent_and_momentum_are_those_of_keras_bit_for_bit(spec: str, keras_arguments: dict[str, Any]) -> None:
    import keras

    runs = keras_runs(keras.optimizers.SGD(**keras_arguments), PROBLEMS, LEARNING_RATES)
    for learning_rate, theirs in zip(LEARNING_RATES, runs):
        for ours, path in zip(our_paths(make_rule(spec.format(learning_rate)), PROBLEMS), theirs):
            np.testing.assert_array_equal(ours, path)


@pytest.mark.parametrize("learning_rate", LEARNING_RATES)
def test_adam_is_that_of_tensorflows_kernel_bit_for_bit(learning_rate: float) -> None:
    # The kernel is what TensorFlow's own parameter servers run.
    for each, ours in zip(PROBLEMS, our_paths(make_rule(f"adam:learning_rate={learning_rate}"), PROBLEMS)):
        np.testing.assert_array_equal(ours, kernel_path(learning_rate, each.value, each.gradients))


def test_adam_is_that_of_keras_but_for_how_keras_rounds() -> None:
    # Keras takes 1 - β₂ᵗ in float32 and 1 - β₂ in float64: its steps are too short by up to a hundred-thousandth. TensorFlow's
    # kernel, and so ours, takes both in float32, where the error cancels.
    import keras

    for learning_rate, theirs in zip(LEARNING_RATES, keras_runs(keras.optimizers.Adam(), PROBLEMS, LEARNING_RATES)):
        ours = our_paths(make_rule(f"adam:learning_rate={learning_rate}"), PROBLEMS)
        for each, path, keras_path in zip(PROBLEMS, ours, theirs):
            allowed = 1e-6 * np.abs(keras_path) + 1.2e-5 * each.travelled(keras_path)
            assert (np.abs(path - keras_path) <= allowed).all()
