"""Do our rules give the numbers that TensorFlow gives? 100 steps, several shapes, learning rates up to absurd ones.

Both get the same gradients, which do not depend on the values: what differs is the rule and nothing else.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ps.rules import Context, UpdateRule, make_rule
from tests.rules.reference import keras_paths, kernel_path

STEPS = 100
SHAPES = [(), (7,), (3, 5), (2, 3, 4)]
LEARNING_RATES = [1e-3, 0.1, 10.0]


def problem(shape: tuple[int, ...]) -> tuple[Any, Any]:
    """First value and gradients, of very different sizes, some of them zero."""
    rng = np.random.default_rng(len(shape))
    gradients = rng.normal(size=(STEPS, *shape)) * 10.0 ** rng.integers(-4, 3, size=(STEPS, *shape))
    gradients[::7] = 0
    return rng.normal(size=shape).astype("f"), gradients.astype("f")


def our_path(rule: UpdateRule, value: Any, gradients: Any) -> Any:
    slots = [rule.init_slot(name, value) for name in rule.slot_names()]
    path = []
    for step, gradient in enumerate(gradients):
        answer = rule.update(Context(step, rule.rate_at(step)), value, gradient, *slots)
        value, *slots = answer if isinstance(answer, tuple) else (answer,)
        path.append(np.asarray(value, np.float32))
    return np.array(path)


def travelled(value: Any, path: Any) -> Any:
    """How far each element has come after each step, there and back counted: rounding adds up along the way."""
    return np.cumsum(np.abs(np.diff(path, axis=0, prepend=value[None])), axis=0)


@pytest.mark.parametrize("learning_rate", LEARNING_RATES)
@pytest.mark.parametrize(
    ("spec", "keras_arguments"),
    [
        ("sgd:learning_rate={}", {}),
        ("momentum:learning_rate={}", {"momentum": 0.9}),
        ("momentum:learning_rate={},momentum=0.5,nesterov=true", {"momentum": 0.5, "nesterov": True}),
    ],
)
def test_descent_and_momentum_are_those_of_keras_bit_for_bit(
    spec: str, keras_arguments: dict[str, Any], learning_rate: float
) -> None:
    problems = [problem(shape) for shape in SHAPES]
    theirs = keras_paths(lambda make: make.SGD(learning_rate, **keras_arguments), problems)
    for (value, gradients), path in zip(problems, theirs):
        np.testing.assert_array_equal(our_path(make_rule(spec.format(learning_rate)), value, gradients), path)


@pytest.mark.parametrize("learning_rate", LEARNING_RATES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_adam_is_that_of_tensorflows_kernel_bit_for_bit(learning_rate: float, shape: tuple[int, ...]) -> None:
    # The kernel is what TensorFlow's own parameter servers run.
    value, gradients = problem(shape)
    ours = our_path(make_rule(f"adam:learning_rate={learning_rate}"), value, gradients)
    np.testing.assert_array_equal(ours, kernel_path(learning_rate, value, gradients))


@pytest.mark.parametrize("learning_rate", LEARNING_RATES)
def test_adam_is_that_of_keras_but_for_how_keras_rounds(learning_rate: float) -> None:
    # Keras takes 1 - β₂ᵗ in float32 and 1 - β₂ in float64: its steps are too short by up to a hundred-thousandth. TensorFlow's
    # kernel, and so ours, takes both in float32, where the error cancels.
    value, gradients = problem((3, 5))
    ours = our_path(make_rule(f"adam:learning_rate={learning_rate}"), value, gradients)
    (theirs,) = keras_paths(lambda make: make.Adam(learning_rate), [(value, gradients)])
    assert (np.abs(ours - theirs) <= 1e-6 * np.abs(theirs) + 1.2e-5 * travelled(value, theirs)).all()
