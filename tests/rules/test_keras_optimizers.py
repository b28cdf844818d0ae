"""Is each of our rules the Keras optimizer of its name? 100 steps through the engine, several shapes, rates up to absurd ones.

Both get the same gradients, which do not depend on the values: what differs is the rule and nothing else. Most rules give the
very bits that Keras's formulas give as they are written. Where they cannot, the drift says by how much and the case says why.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from ps.rules import make_rule
from tests.rules.reference import keras_runs, our_paths, problem

STEPS = 100
# A scalar, a vector, a wide and a tall matrix, and more axes than two.
PROBLEMS = [
    problem(shape, STEPS, name, seed=seed)
    for seed, (name, shape) in enumerate(
        {
            "scale": (),
            "bias": (7,),
            "kernel": (3, 5),
            "embedding": (6, 4),
            "convolution": (2, 2, 3, 3),
        }.items()
    )
]
# β for which 1 - β is the same number in float32 and in float64: see test_golden.py on how Keras rounds 1 - β₂.
EXACT = {"beta_1": 0.875, "beta_2": 1 - 2.0**-10}
# Sums of many numbers, in another order: an error of a last bit in a norm or a mean is one in every step. Measured: 1.4e-7.
SUMS = 5e-7
# Keras takes 1 - β₂ᵗ in float32 and 1 - β₂ in float64: its steps are too short by up to a hundred-thousandth. Measured: 6.7e-6.
ADAM = 1.2e-5
# Newton-Schulz makes small singular values large, up to 3.4445⁵ ≈ 500 times, and rounding errors of products with them.
# Measured: 1.6e-6 for matrices; the rest is Adam.
MUON = 2e-5


@dataclasses.dataclass(frozen=True)
class Case:
    """drift: what rounding may add to the difference, as a share of the way travelled, besides 1e-6 of the value; 0: no bit."""

    name: str
    keras: str
    arguments: dict[str, Any] = dataclasses.field(default_factory=dict)
    drift: float = 0
    rewritten: bool = False
    learning_rates: tuple[float, ...] = (1e-3, 0.1, 10.0)

    def __str__(self) -> str:
        return ",".join([self.name, *(f"{key}={value}" for key, value in self.arguments.items())])


REGULARISED = {
    "l1_regularization_strength": 0.01,
    "l2_regularization_strength": 0.1,
    "l2_shrinkage_regularization_strength": 0.01,
    "beta": 0.1,
}
# Rates at which weights do not overflow: a step of LAMB is as long as the weights are large.
GENTLE = (1e-3, 0.1, 0.5)
CASES = [
    Case("sgd", "SGD", {"momentum": 0.5, "nesterov": True}),
    Case("rmsprop", "RMSprop"),
    Case("rmsprop", "RMSprop", {"rho": 0.95, "momentum": 0.5, "epsilon": 1e-3, "centered": True}),
    Case("adam", "Adam", EXACT | {"amsgrad": True}),
    Case("adam", "Adam", {"amsgrad": True}, ADAM),
    Case("adamw", "AdamW", EXACT),
    Case("adamw", "AdamW", {"weight_decay": 0.01, "epsilon": 1e-3, "amsgrad": True}, ADAM),
    Case("adadelta", "Adadelta"),
    Case("adagrad", "Adagrad"),
    Case("adagrad", "Adagrad", {"initial_accumulator_value": 0.0, "epsilon": 1e-3}),
    Case("adamax", "Adamax"),
    Case("nadam", "Nadam"),
    Case("adafactor", "Adafactor", drift=SUMS),
    Case("adafactor", "Adafactor", {"clip_threshold": 0.5, "beta_2_decay": -0.5, "epsilon_2": 0.1}, SUMS),
    # TensorFlow's own rewriting makes √ of the power of ½; without it, its power and numpy's differ in the last bit.
    Case("ftrl", "Ftrl", rewritten=True),
    Case("ftrl", "Ftrl", REGULARISED, rewritten=True),
    Case("ftrl", "Ftrl", {"learning_rate_power": -0.7}, SUMS),
    Case("lion", "Lion"),
    Case("lamb", "Lamb", drift=SUMS, learning_rates=GENTLE),
    Case("lamb", "Lamb", {"weight_decay": 0.01, "beta_1": 0.5}, SUMS, learning_rates=GENTLE),
    Case("muon", "Muon", drift=MUON),
    Case(
        "muon",
        "Muon",
        {
            "exclude_embeddings": False,
            "exclude_layers": ["^ker.el$"],
            "nesterov": False,
            "rms_rate": None,
            "ns_steps": 4,
        },
        MUON,
    ),
    Case("schedule_free_adamw", "ScheduleFreeAdamW"),
    Case("schedule_free_adamw", "ScheduleFreeAdamW", {"warmup_steps": 20, "beta_1": 0.8, "weight_decay": 0.01}),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_rule_is_the_keras_optimizer_of_its_name(case: Case) -> None:
    import keras

    optimizer = getattr(keras.optimizers, case.keras)(**case.arguments)
    runs = keras_runs(optimizer, PROBLEMS, case.learning_rates, rewritten=case.rewritten)
    for learning_rate, theirs in zip(case.learning_rates, runs):
        rule = make_rule({"name": case.name, "learning_rate": learning_rate, **case.arguments})
        for each, ours, path in zip(PROBLEMS, our_paths(rule, PROBLEMS), theirs):
            assert np.isfinite(path).all()
            if not case.drift:
                np.testing.assert_array_equal(ours, path, err_msg=f"{each.name} at {learning_rate}")
            allowed = 1e-6 * np.abs(path) + case.drift * each.travelled(path)
            worst = (np.abs(ours - path) - allowed).max()
            assert worst <= 0, f"{each.name} at {learning_rate}: {worst} more than rounding explains"
