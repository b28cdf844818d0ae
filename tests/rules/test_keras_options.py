"""Do the options that come with every rule do what they do in Keras? Several variables, one of which never gets a gradient.

So a global norm is one of several gradients, and a moving average goes on where nothing is pushed. The engine carries the
options out, around any rule (ps/rules/options.py).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from ps.rules import make_rule
from tests.rules.reference import Problem, keras_runs, our_paths, problem

STEPS = 40
UNUSED = problem((3,), STEPS, "unused", seed=9)
PROBLEMS = [
    problem((), STEPS, "scale", seed=1),
    problem((5,), STEPS, "bias", seed=2),
    dataclasses.replace(UNUSED, gradients=None),
    problem((3, 4), STEPS, "kernel", seed=3),
]
RULES: dict[str, tuple[str, dict[str, Any]]] = {
    "sgd": ("SGD", {}),
    "momentum": ("SGD", {"momentum": 0.9}),
    # β for which Keras rounds 1 - β as TensorFlow's kernel does: see test_golden.py.
    "adam": ("Adam", {"beta_1": 0.875, "beta_2": 1 - 2.0**-10}),
}
AVERAGE = {"use_ema": True, "ema_momentum": 0.9}
EXACT: list[dict[str, Any]] = [
    {"weight_decay": 0.05},
    {"clipvalue": 0.3},
    {"loss_scale_factor": 3.0},
    {"gradient_accumulation_steps": 4},
    # What is averaged shows where it becomes the value: every few steps, or after the last.
    AVERAGE | {"ema_overwrite_frequency": 3},
    AVERAGE | {"ema_overwrite_frequency": STEPS},
    AVERAGE | {"ema_overwrite_frequency": 3, "gradient_accumulation_steps": 3, "weight_decay": 0.05, "clipvalue": 0.3},
]
# A norm is a sum, which numpy makes in another order and in float64 over the model: the factor differs in its last bits.
ROUNDED: list[dict[str, Any]] = [
    {"clipnorm": 0.5},
    {"global_clipnorm": 0.5},
    AVERAGE
    | {
        "weight_decay": 0.05,
        "global_clipnorm": 0.5,
        "ema_overwrite_frequency": 5,
        "loss_scale_factor": 3.0,
        "gradient_accumulation_steps": 2,
    },
]
DRIFT = 5e-7
pytestmark = pytest.mark.filterwarnings("ignore:Gradients do not exist for variables")  # they do not


def said(options: dict[str, Any]) -> str:
    return ",".join(f"{key}={value}" for key, value in options.items())


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("options", EXACT, ids=said)
def test_an_option_is_that_of_keras_bit_for_bit(name: str, options: dict[str, Any]) -> None:
    for each, ours, theirs in compared(name, options):
        np.testing.assert_array_equal(ours, theirs, err_msg=each.name)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("options", ROUNDED, ids=said)
def test_an_option_with_a_norm_is_that_of_keras_but_for_rounding(name: str, options: dict[str, Any]) -> None:
    for each, ours, theirs in compared(name, options):
        assert (np.abs(ours - theirs) <= 1e-6 * np.abs(theirs) + DRIFT * each.travelled(theirs)).all(), each.name


def compared(name: str, options: dict[str, Any], learning_rate: float = 0.05) -> list[tuple[Problem, Any, Any]]:
    """Each variable with the way it goes under our rule and under Keras's optimizer."""
    import keras

    cls, arguments = RULES[name]
    optimizer = getattr(keras.optimizers, cls)(learning_rate, **arguments, **options)
    (theirs,) = keras_runs(optimizer, PROBLEMS, rewritten=False)
    ours = our_paths(make_rule({"name": name, "learning_rate": learning_rate, **arguments, **options}), PROBLEMS)
    return list(zip(PROBLEMS, ours, theirs))
