"""Does a Keras optimizer become the rule that does what it does? By name and arguments, and by a few steps of both."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from keras.optimizers import schedules

import client
import ps
import worker
from client.initialize import rule_spec
from protos.errors import RuleError
from ps.rules import make_rule
from tests.rules.reference import our_paths, problem
from worker.keras_rules import RULES, rule_from_keras

STEPS = 6
PROBLEMS = [problem(shape, STEPS, name, seed=3) for name, shape in {"bias": (4,), "kernel": (3, 4)}.items()]
OPTIMIZERS = [
    keras.optimizers.SGD(0.05, momentum=0.5, nesterov=True),
    keras.optimizers.SGD(0.05, clipvalue=0.3, weight_decay=0.1),
    keras.optimizers.RMSprop(0.02, rho=0.8, momentum=0.3, epsilon=1e-3, centered=True),
    keras.optimizers.Adam(0.02, beta_1=0.8, beta_2=0.99, epsilon=1e-3, amsgrad=True, clipnorm=2.0),
    keras.optimizers.AdamW(0.02, weight_decay=0.1, beta_1=0.8, gradient_accumulation_steps=2),
    keras.optimizers.Adadelta(2.0, rho=0.8, epsilon=1e-3, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2),
    keras.optimizers.Adagrad(0.1, initial_accumulator_value=0.5, epsilon=1e-3),
    keras.optimizers.Adamax(0.1, beta_1=0.8, beta_2=0.9, epsilon=1e-3, global_clipnorm=1.0),
    keras.optimizers.Adafactor(
        0.1, beta_2_decay=-0.5, epsilon_1=1e-6, epsilon_2=1e-2, clip_threshold=0.5, relative_step=False
    ),
    keras.optimizers.Nadam(0.1, beta_1=0.8, beta_2=0.9, epsilon=1e-3, loss_scale_factor=4.0),
    keras.optimizers.Ftrl(
        0.1,
        learning_rate_power=-0.6,
        initial_accumulator_value=0.2,
        l1_regularization_strength=0.1,
        l2_regularization_strength=0.2,
        l2_shrinkage_regularization_strength=0.3,
        beta=0.4,
    ),
    keras.optimizers.Lion(0.1, beta_1=0.8, beta_2=0.9),
    keras.optimizers.Lamb(0.1, beta_1=0.8, beta_2=0.9, epsilon=1e-3, weight_decay=0.1),
    keras.optimizers.Muon(
        0.1,
        adam_beta_1=0.8,
        adam_beta_2=0.9,
        adam_weight_decay=None,
        epsilon=1e-3,
        weight_decay=0.1,
        exclude_embeddings=False,
        muon_a=3.0,
        muon_b=-4.0,
        muon_c=2.0,
        adam_lr_ratio=2,
        momentum=0.8,
        ns_steps=3,
        nesterov=False,
        rms_rate=None,
    ),
    keras.optimizers.Muon(0.1, exclude_layers=["^kern", "head"], weight_decay=None),
    keras.optimizers.ScheduleFreeAdamW(0.1, beta_1=0.8, beta_2=0.9, epsilon=1e-3, warmup_steps=4),
    # Schedules, one within each of some optimizers.
    keras.optimizers.SGD(schedules.ExponentialDecay(0.1, 3, 0.5, staircase=True)),
    keras.optimizers.SGD(schedules.PiecewiseConstantDecay([2, 4], [0.1, 0.05, 0.01]), momentum=0.5),
    keras.optimizers.Adam(schedules.PolynomialDecay(0.1, 4, end_learning_rate=0.01, power=2.0, cycle=True)),
    keras.optimizers.Adam(schedules.InverseTimeDecay(0.1, 2, 0.5), gradient_accumulation_steps=2),
    keras.optimizers.SGD(schedules.CosineDecay(0.01, 4, alpha=0.1, warmup_target=0.1, warmup_steps=2)),
    keras.optimizers.Adafactor(schedules.CosineDecayRestarts(0.1, 2, t_mul=1.5, m_mul=0.9, alpha=0.1)),
]


def keras_path(optimizer: Any) -> list[Any]:
    variables = [keras.Variable(each.value, name=each.name) for each in PROBLEMS]
    paths: list[list[Any]] = [[] for _ in PROBLEMS]
    for step in range(STEPS):
        optimizer.apply([each.gradients[step] for each in PROBLEMS], variables)
        for path, variable in zip(paths, variables):
            path.append(variable.numpy())
    return [np.array(path) for path in paths]


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda optimizer: optimizer.name)
def test_the_rule_of_an_optimizer_does_what_it_does(optimizer: Any) -> None:
    # As it goes to a ps: as text. Tolerances: how rules differ from Keras to the bit is in tests/rules.
    rule = make_rule(rule_spec(rule_from_keras(optimizer)))
    for ours, theirs in zip(our_paths(rule, PROBLEMS), keras_path(optimizer)):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def test_every_optimizer_of_keras_has_a_rule_with_its_defaults() -> None:
    known = {
        name
        for name, cls in vars(keras.optimizers).items()
        if isinstance(cls, type)
        and issubclass(cls, keras.optimizers.Optimizer)
        and cls is not keras.optimizers.Optimizer
    }
    wrappers = {"LossScaleOptimizer", "MultiOptimizer"}
    assert known - wrappers == set(RULES) == {type(optimizer).__name__ for optimizer in OPTIMIZERS}
    for cls, name in RULES.items():
        assert make_rule(rule_from_keras(getattr(keras.optimizers, cls)())) == make_rule(name)


def test_only_what_is_said_is_carried_over_and_it_reads_well() -> None:
    assert worker.rule_from_keras(keras.optimizers.SGD(1e-3)) == {"name": "sgd", "learning_rate": 0.001}
    spec = rule_spec(rule_from_keras(keras.optimizers.AdamW(schedules.CosineDecay(1e-3, 100), clipnorm=0)))
    assert spec.startswith("adamw:learning_rate=cosine_decay(initial_learning_rate=0.001,decay_steps=100,")
    assert "clip" not in spec


def test_a_learning_rate_that_was_set_later_counts() -> None:
    optimizer = keras.optimizers.SGD(0.1)
    optimizer.learning_rate = 0.025
    assert rule_from_keras(optimizer)["learning_rate"] == 0.025


def test_loss_scaling_is_the_workers_business() -> None:
    inner = keras.optimizers.Adam(0.01)
    assert rule_from_keras(keras.optimizers.LossScaleOptimizer(inner)) == rule_from_keras(keras.optimizers.Adam(0.01))


def test_a_client_takes_it_as_its_rule() -> None:
    optimizer = keras.optimizers.SGD(schedules.PiecewiseConstantDecay([0], [1.0, 0.5]))
    with ps.LocalCluster() as local, client.connect(local.cluster, worker=0) as server:
        server.init({"w": np.zeros(2, np.float32)}, rule=rule_from_keras(optimizer))
        for expected in (-1.0, -1.5):
            values, _ = server.push_pull({"w": np.ones(2, np.float32)})
            assert values["w"].tolist() == [expected, expected]


# -- what cannot be carried over ---------------------------------------------------------------------------------------


class Mine(keras.optimizers.SGD):
    """It may do anything."""


class MySchedule(schedules.LearningRateSchedule):
    def __call__(self, step: Any) -> Any:
        return 0.1


def half() -> float:
    return 0.5


def without_decay_of_biases(optimizer: Any) -> Any:
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    return optimizer


def without_decay_of(optimizer: Any) -> Any:
    optimizer.exclude_from_weight_decay(var_list=[keras.Variable(np.zeros(2))])
    return optimizer


@pytest.mark.parametrize(
    ("make", "field", "got", "hint"),
    [
        (lambda: Mine(0.1), "optimizer", "Mine", "a rule in a file"),
        (lambda: "adam", "optimizer", "'adam'", "keras.optimizers.get"),
        (lambda: keras.optimizers.SGD(MySchedule()), "learning_rate", "MySchedule", "a schedule in a file"),
        (lambda: keras.optimizers.SGD(half), "learning_rate", "the function half", "make it a schedule"),
        (lambda: without_decay_of_biases(keras.optimizers.AdamW()), "weight_decay", "bias", "ctx.variable"),
        (
            lambda: without_decay_of(keras.optimizers.SGD(weight_decay=0.1)),
            "weight_decay",
            "1 variables",
            "ctx.variable",
        ),
    ],
)
def test_what_cannot_be_carried_over_is_refused_and_told_what_to_do(make: Any, field: str, got: str, hint: str) -> None:
    with pytest.raises(RuleError) as caught:
        rule_from_keras(make())
    assert caught.value.field == field
    assert got in caught.value.got
    assert hint in caught.value.hint


def test_an_exclusion_from_a_decay_that_is_off_excludes_nothing() -> None:
    assert rule_from_keras(without_decay_of_biases(keras.optimizers.SGD())) == {"name": "sgd", "learning_rate": 0.01}
