"""Where do rules that we share with Keras need a thought of their own? At the ends of their arguments, and in their slots."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from protos.errors import RuleError
from ps.apply import apply, with_slots
from ps.rules import Context, Muon, ScheduleFreeAdamW, UpdateRule, make_rule
from ps.rules.nadam import _product, _products
from ps.variable import ShardState
from tests.core.builders import dense, partition, state

rng = np.random.default_rng(23)


def slot_shapes(rule: UpdateRule, name: str, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    prepared = with_slots(partition(name, np.zeros(shape, np.float32)), rule)
    return {slot: paged.shape for slot, paged in prepared.slots.items()}


# -- slots -------------------------------------------------------------------------------------------------------------


def test_adafactor_keeps_a_row_and_a_column_of_a_matrix() -> None:
    rule = make_rule("adafactor")
    assert slot_shapes(rule, "w", (300, 200)) == {"row": (300,), "column": (200,), "velocity": (0,)}
    assert slot_shapes(rule, "w", (3, 3, 8, 4)) == {"row": (3, 3, 8), "column": (3, 3, 4), "velocity": (0,)}
    assert slot_shapes(rule, "w", (9,)) == {"row": (0,), "column": (0,), "velocity": (9,)}


def test_muon_keeps_a_velocity_only_of_what_it_leaves_to_adam() -> None:
    rule = make_rule("muon:exclude_layers=[head]")
    assert slot_shapes(rule, "dense/kernel", (4, 5)) == {"momentum": (4, 5), "velocity": (0, 0)}
    for name, shape in {
        "dense/bias": (5,),
        "head/kernel": (4, 5),
        "Embedding/table": (4, 5),
        "conv": (3, 3, 2),
    }.items():
        assert slot_shapes(rule, name, shape) == {"momentum": shape, "velocity": shape}


def test_muon_takes_names_from_a_command_line() -> None:
    assert make_rule("muon:exclude_layers=[head,^lm_.*]") == Muon(exclude_layers=("head", "^lm_.*"))
    assert make_rule("muon:exclude_layers=head").exclude_layers == ("head",)
    assert make_rule(Muon(exclude_layers=("head", "lm")).spec()).exclude_layers == ("head", "lm")
    with pytest.raises(RuleError, match=r"argument exclude_layers: .* expected regular expressions"):
        make_rule("muon:exclude_layers=[*head]")


# -- where Keras has no number -----------------------------------------------------------------------------------------


def trained(rule: UpdateRule, value: Any, gradients: list[Any]) -> Any:
    now = ShardState(0, tuple(with_slots(item, rule) for item in state(w=value).partitions))
    for gradient in gradients:
        now = apply(now, rule, {0: dense(gradient)}, staleness=0, worker=0)
    return now.partitions[0].value.whole()


def test_a_variance_that_rounding_makes_negative_has_a_root_all_the_same() -> None:
    # The same gradient again and again: the mean square is the squared mean, but for rounding. Keras gives NaN.
    gradients = [np.array([1000.7, -3000.3, 77.1], np.float32)] * 200
    rule = make_rule("rmsprop:centered=true,epsilon=1e-12")
    assert np.isfinite(trained(rule, np.zeros(3, np.float32), gradients)).all()


def test_ftrl_keeps_what_it_knows_nothing_of() -> None:
    rule = make_rule("ftrl:initial_accumulator_value=0")
    assert trained(rule, np.ones(2, np.float32), [np.array([0, 1], np.float32)]).tolist()[0] == 1


# -- Nadam's product ---------------------------------------------------------------------------------------------------


def test_the_product_of_momenta_is_a_function_of_the_step_in_whatever_order_it_is_asked_for() -> None:
    for dtype in map(np.dtype, ("float32", "float64")):
        _products.cache_clear()
        forwards = [_product(t, 0.9, dtype) for t in range(50)]
        _products.cache_clear()
        backwards = [_product(t, 0.9, dtype) for t in reversed(range(50))]
        assert forwards == backwards[::-1]
        assert forwards[0].dtype == dtype


def test_the_product_of_momenta_is_followed_no_further_than_it_matters() -> None:
    assert 1 - _product(10**9, 0.9, np.dtype("float32")) == 1
    assert len(_products(0.9, np.dtype("float32"))) < 500


# -- schedule-free AdamW, as Keras has it and as it was published ------------------------------------------------------


def test_schedule_free_adamw_as_published_is_that_of_the_paper() -> None:
    # Algorithm 1 of Defazio et al. 2024 in float64: gradients at y, steps of z, x the average of all z.
    rule = ScheduleFreeAdamW(0.1, beta_1=0.8, beta_2=0.9, epsilon=1e-8, as_published=True)
    first, gradients = rng.normal(size=5), rng.normal(size=(30, 5))
    x = z = first
    v = np.zeros(5)
    for t, g in enumerate(gradients, 1):
        v = 0.9 * v + 0.1 * g * g
        z = z - 0.1 * g / (np.sqrt(v / (1 - 0.9**t)) + 1e-8)
        x = (1 - 1 / t) * x + z / t
    np.testing.assert_allclose(trained(rule, first, list(gradients)), 0.2 * z + 0.8 * x, rtol=1e-12)


def test_schedule_free_adamw_as_in_keras_is_a_plain_average_whatever_beta_1_is() -> None:
    first, gradients = rng.normal(size=5), list(rng.normal(size=(30, 5)))
    one, other = (trained(ScheduleFreeAdamW(0.1, beta_1=beta_1), first, gradients) for beta_1 in (0.5, 0.95))
    np.testing.assert_allclose(one, other, rtol=1e-10)


# -- arguments ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ("rmsprop:rho=1.5", "rho"),
        ("rmsprop:momentum=-1", "momentum"),
        ("adadelta:rho=-0.1", "rho"),
        ("adagrad:initial_accumulator_value=-1", "initial_accumulator_value"),
        ("adamax:beta_1=1", "beta_1"),
        ("nadam:beta_2=1", "beta_2"),
        ("adafactor:clip_threshold=0", "clip_threshold"),
        ("ftrl:learning_rate_power=0.5", "learning_rate_power"),
        ("ftrl:l1_regularization_strength=-1", "l1_regularization_strength"),
        ("lion:beta_1=0", "beta_1"),
        ("lamb:beta_1=-0.5", "beta_1"),
        ("muon:ns_steps=-1", "ns_steps"),
        ("schedule_free_adamw:beta_1=0", "beta_1"),
        ("schedule_free_adamw:warmup_steps=-1", "warmup_steps"),
        ("adamw:weight_decay=None", "weight_decay"),
    ],
)
def test_an_argument_that_makes_no_sense_is_refused_by_name(spec: str, field: str) -> None:
    with pytest.raises(RuleError, match=rf"argument {field}"):
        make_rule(spec)


def test_muon_takes_matrices_of_any_size() -> None:
    # A matrix of no rows or columns is a matrix.
    rule = make_rule("muon")
    for shape in [(0, 3), (3, 0), (1, 1)]:
        value = np.ones(shape, np.float32)
        slots = [rule.init_slot_of("w", name, value) for name in rule.slot_names()]
        news = rule.update(Context(0, 0.1, variable="w"), value, value, *slots)
        assert [new.shape for new in news] == [shape, shape, (0, 0)]
