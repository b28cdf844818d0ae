"""What does a gradient transform make of a gradient? Its closed form, through the engine: dense, sparse, in 16 bits, composed.

`Sees` is a rule whose new value is the gradient it got. What every transform must do is in test_transform_contract.py.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ps.apply import apply, updating, with_slots
from ps.rules import Adam, Sgd, UpdateRule, make_rule
from ps.rules.configured import make
from ps.rules.options import may_be_cut, pushes_a_step
from ps.variable import MASTER, Gradients, ShardState
from tests.core.builders import dense, small_pages, sparse, state, value_of
from tests.rules.together import together

rng = np.random.default_rng(5)


class Sees(UpdateRule):
    """Its new value is the gradient."""

    name = "sees"

    def update(self, ctx: Any, value: Any, grad: Any) -> Any:
        return grad


def seeing(*texts: str) -> Sees:
    return Sees(transforms=tuple(make("transform", text) for text in texts))


def prepared(rule: UpdateRule, **values: Any) -> ShardState:
    return ShardState(0, tuple(with_slots(item, rule) for item in state(**values).partitions))


def update(now: ShardState, rule: UpdateRule, gradients: Gradients, staleness: int = 0) -> ShardState:
    return apply(now, rule, gradients, staleness=staleness, worker=0)


def seen(rule: UpdateRule, value: Any, grad: Any, staleness: int = 0) -> Any:
    """The gradient that the rule gets for one variable, alone in the model."""
    return value_of(update(prepared(rule, w=value), rule, {0: dense(grad)}, staleness))


VALUE = rng.normal(size=(6, 4)).astype("f")
GRAD = rng.normal(size=(6, 4)).astype("f") * 3
NORM = np.linalg.norm(GRAD.astype("d"))


# -- closed forms ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("clip_by_value(1)", np.clip(GRAD, -1, 1)),
        ("clip_by_norm(2)", GRAD * (2 / NORM)),
        ("clip_by_norm(1000)", GRAD),
        ("clip_by_global_norm(2)", GRAD * (2 / NORM)),
        ("clip_by_global_norm(1000)", GRAD),
        ("weight_decay(0.5)", GRAD + 0.5 * VALUE),
        ("scale_by_staleness", GRAD / 4),
        ("scale_by_staleness(0.5)", GRAD / 2),
        ("scale_by_staleness(power=0)", GRAD),
        ("accumulate(1)", GRAD),
        ("centralise", GRAD - GRAD.astype("d").mean(axis=0)),
    ],
)
@pytest.mark.parametrize("page_bytes", [16, 1 << 20])
def test_each_is_its_formula(text: str, expected: Any, page_bytes: int) -> None:
    with small_pages(page_bytes):
        np.testing.assert_allclose(seen(seeing(text), VALUE, GRAD, staleness=3), expected, rtol=1e-6, atol=1e-6)


def test_they_are_made_in_order_each_on_what_the_one_before_made() -> None:
    clipped_last = np.clip(GRAD + 0.5 * VALUE, -1, 1)
    decayed_last = np.clip(GRAD, -1, 1) + 0.5 * VALUE
    assert not np.allclose(clipped_last, decayed_last)
    np.testing.assert_allclose(seen(seeing("weight_decay(0.5)", "clip_by_value(1)"), VALUE, GRAD), clipped_last, 1e-6)
    np.testing.assert_allclose(seen(seeing("clip_by_value(1)", "weight_decay(0.5)"), VALUE, GRAD), decayed_last, 1e-6)


def test_each_norm_is_of_what_the_one_before_made() -> None:
    twice = seen(seeing("clip_by_global_norm(4)", "clip_by_global_norm(2)", "clip_by_norm(1)"), VALUE, GRAD)
    assert np.linalg.norm(twice) == pytest.approx(1, rel=1e-6)
    halves = seen(seeing("clip_by_value(0.5)", "clip_by_norm(1000)"), VALUE, GRAD)
    np.testing.assert_array_equal(halves, np.clip(GRAD, -0.5, 0.5))


def test_a_norm_that_the_sender_has_said_is_of_the_gradient_without_its_loss_scale() -> None:
    # The worker knows the norm of what it pushes; undoing the loss scale changes it by a known factor, and by nothing else.
    rule = Sgd(1.0, loss_scale_factor=8.0, global_clipnorm=1.0)
    told = updating(prepared(rule, w=VALUE), rule, {0: dense(GRAD * 8)}, staleness=0, worker=0, norm=2 * NORM)
    (after,) = together([told])  # a number that is not the norm shows that nobody was asked
    np.testing.assert_allclose(value_of(after), VALUE - GRAD / (2 * NORM), rtol=1e-5)


def test_weight_decay_goes_through_momentum_as_a_penalty_in_the_loss_would() -> None:
    rule, ready = make_rule("momentum:learning_rate=0.1,transforms=[weight_decay(0.5)]"), VALUE.copy()
    now, velocity = prepared(rule, w=VALUE), np.zeros_like(VALUE)
    for _ in range(3):
        now = update(now, rule, {0: dense(GRAD)})
        velocity = 0.9 * velocity - 0.1 * (GRAD + 0.5 * ready)
        ready = ready + velocity
    np.testing.assert_allclose(value_of(now), ready, rtol=1e-5)


@pytest.mark.parametrize("shape", [(), (5,), (3, 4), (3, 3, 2, 4), (0, 3), (3, 0)])
def test_centralise_takes_the_mean_of_all_that_an_output_sees(shape: tuple[int, ...]) -> None:
    # Keras: a dense kernel is (inputs, outputs), that of a convolution (height, width, inputs, outputs).
    grad = rng.normal(size=shape).astype("f")
    result = seen(seeing("centralise"), np.zeros(shape, np.float32), grad)
    if len(shape) < 2 or not grad.size:
        np.testing.assert_array_equal(result, grad)
    else:
        np.testing.assert_allclose(result.reshape(-1, shape[-1]).sum(axis=0), 0, atol=1e-5)
        np.testing.assert_allclose(np.ptp(grad - result, axis=tuple(range(len(shape) - 1))), 0, atol=1e-6)


def test_centralise_sees_each_variable_whole() -> None:
    assert not may_be_cut(seeing("centralise"))
    assert not may_be_cut(seeing("clip_by_norm(1)"))
    assert not may_be_cut(seeing("accumulate(3)"))  # rows for one part would move the others of that part only
    assert may_be_cut(seeing("clip_by_global_norm(1)", "weight_decay(0.1)", "scale_by_staleness"))


# -- the norm of the whole model ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("page_bytes", [64, 1 << 20])
def test_clipping_by_global_norm_is_that_of_one_process_with_all_variables(count: int, page_bytes: int) -> None:
    # Seven variables of very different sizes, spread over some ps.
    grads = [rng.normal(size=(1 + 37 * number, 3)).astype("f") * 10.0 ** (number - 3) for number in range(7)]
    rule = Sgd(1.0, global_clipnorm=0.5)
    flat = np.concatenate([grad.reshape(-1) for grad in grads])
    alone = value_of(update(prepared(rule, w=np.zeros_like(flat)), rule, {0: dense(flat)}))
    assert np.linalg.norm(alone.astype("d")) == pytest.approx(0.5, rel=1e-6)
    with small_pages(page_bytes):
        exchanges = []
        for ps in range(count):
            part = grads[ps::count]
            now = prepared(rule, **{f"w{number}": np.zeros_like(grad) for number, grad in enumerate(part)})
            pushed = {number: dense(grad) for number, grad in enumerate(part)}
            exchanges.append(updating(now, rule, pushed, staleness=0, worker=None))
        results = together(exchanges)
    whole = [value_of(results[number % count], number // count).reshape(-1) for number in range(7)]
    np.testing.assert_allclose(np.concatenate(whole), alone, rtol=1e-6)


@pytest.mark.parametrize("size", [1_000_000, 20])
@pytest.mark.parametrize("scale", [1.0, 1e25, 1e-30])
def test_a_norm_is_exact_for_many_elements_and_of_any_size(size: int, scale: float) -> None:
    # A square of 1e25 is beyond float32: a norm of infinity would make the gradient zero, and the push would come to nothing.
    grad = (rng.normal(size=size) * scale).astype("f")
    norm = np.linalg.norm(grad.astype("d"))
    result = seen(seeing("clip_by_global_norm(1)"), np.zeros(size, np.float32), grad).astype("d")
    expected = grad / norm if norm > 1 else grad
    np.testing.assert_allclose(result, expected, rtol=1e-6)


def test_a_ps_without_a_gradient_has_a_part_of_zero_in_the_norm() -> None:
    rule = Sgd(1.0, global_clipnorm=1.0)
    states = [prepared(rule, w=np.zeros(2, np.float32)) for _ in range(2)]
    pushes: list[Gradients] = [{0: dense(np.array([3, 4], np.float32))}, {}]
    one, other = together([updating(now, rule, g, staleness=0, worker=0) for now, g in zip(states, pushes)])
    np.testing.assert_allclose(value_of(one), [-0.6, -0.8], rtol=1e-6)
    assert (value_of(other).tolist(), other.version) == ([0, 0], 1)


# -- sparse gradients --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    ["clip_by_value(1)", "clip_by_norm(2)", "clip_by_global_norm(2)", "weight_decay(0.5)", "scale_by_staleness"],
)
def test_a_sparse_gradient_stays_one_and_its_rows_are_those_of_a_dense_one(text: str) -> None:
    rows = GRAD[:2]
    whole = np.zeros_like(VALUE)
    whole[[1, 4]] = rows
    rule = seeing(text)
    with small_pages(16):
        before = prepared(rule, w=VALUE)
        after = update(before, rule, {0: sparse([1, 4], rows)}, staleness=3)
        by_dense = update(before, rule, {0: dense(whole)}, staleness=3)
    np.testing.assert_allclose(value_of(after)[[1, 4]], value_of(by_dense)[[1, 4]], rtol=1e-6)
    np.testing.assert_array_equal(
        value_of(after)[[0, 2, 3, 5]], VALUE[[0, 2, 3, 5]]
    )  # which a dense one would not leave


@pytest.mark.parametrize("text", ["centralise", "accumulate(1)"])
def test_a_transform_for_which_the_other_rows_matter_gets_them_as_zeros(text: str) -> None:
    whole = np.zeros_like(VALUE)
    whole[[1, 4]] = GRAD[:2]
    rule = seeing(text)
    after = update(prepared(rule, w=VALUE), rule, {0: sparse([1, 4], GRAD[:2])})
    np.testing.assert_array_equal(value_of(after), seen(rule, VALUE, whole))


# -- 16 bits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=str)
def test_narrow_gradients_are_transformed_in_float32_and_not_rounded_in_between(dtype: Any) -> None:
    value, grad = VALUE.astype(dtype), GRAD.astype(dtype)
    texts = ("clip_by_norm(2)", "weight_decay(0.3)", "centralise", "clip_by_value(0.7)", "accumulate(1)")
    rule = seeing(*texts)
    now = update(prepared(rule, w=value), rule, {0: dense(grad)})
    expected = seen(rule, value.astype("f"), grad.astype("f"))
    np.testing.assert_array_equal(now.partitions[0].slots[MASTER].whole(), expected)
    np.testing.assert_array_equal(value_of(now), expected.astype(dtype))
    assert {slot.dtype for slot in now.partitions[0].slots.values()} == {np.dtype(np.float32)}


# -- accumulation ------------------------------------------------------------------------------------------------------


def test_accumulated_pushes_are_one_step_with_their_mean() -> None:
    rule, plain = Adam(0.1, transforms=(make("transform", "accumulate(4)"),)), Adam(0.1)
    assert pushes_a_step(rule) == 4
    now, then = prepared(rule, w=VALUE), prepared(plain, w=VALUE)
    for _ in range(3):
        grads = [rng.normal(size=(6, 4)).astype("f") for _ in range(4)]
        for grad in grads:
            np.testing.assert_array_equal(value_of(now), value_of(then))
            now = update(now, rule, {0: dense(grad)})
        then = update(then, plain, {0: dense(np.sum(grads, axis=0, dtype="f") / np.float32(4))})
        np.testing.assert_allclose(value_of(now), value_of(then), rtol=1e-6)
        now = now.with_values({0: then.partitions[0].value})  # so that rounding does not add up
    assert (now.version, then.version) == (12, 3)


def test_a_push_without_a_gradient_for_a_variable_counts_as_zero_there() -> None:
    # As in one process whose loss does not reach the variable in some of the batches.
    rule = Sgd(1.0, transforms=(make("transform", "accumulate(3)"),))
    zero = np.zeros(2, np.float32)
    now = first = prepared(rule, a=zero, b=zero, c=zero)
    three, six = dense(np.array([3, 3], np.float32)), dense(np.array([6, 6], np.float32))
    pushes: list[Gradients] = [{0: three}, {1: three}, {1: six}]
    for pushed in pushes:
        assert [value_of(now, index).tolist() for index in range(3)] == [[0, 0]] * 3
        now = update(now, rule, pushed)
    assert [value_of(now, index).tolist() for index in range(3)] == [[-1, -1], [-3, -3], [0, 0]]
    assert now.partitions[2] is first.partitions[2]  # nobody pushed for it: it is left alone
    for pushed in ({}, {}, {0: three}):
        now = update(now, rule, pushed)
    assert [value_of(now, index).tolist() for index in range(3)] == [
        [-2, -2],
        [-3, -3],
        [0, 0],
    ]  # and from the start again


def test_what_waits_goes_through_also_in_a_last_push_without_any_gradient() -> None:
    rule = Sgd(1.0, gradient_accumulation_steps=2, global_clipnorm=1.0)
    now = update(prepared(rule, w=np.zeros(2, np.float16)), rule, {0: dense(np.array([6, 8], np.float16))})
    now = update(now, rule, {})
    np.testing.assert_allclose(value_of(now).astype("f"), [-0.6, -0.8], rtol=1e-3)


def test_sparse_gradients_add_up_to_a_dense_one() -> None:
    rule = Sgd(1.0, transforms=(make("transform", "accumulate(2)"),))
    now = prepared(rule, w=np.zeros((3, 1), np.float32))
    now = update(now, rule, {0: sparse([0, 2], np.array([[2.0], [4.0]], "f"))})
    now = update(now, rule, {0: sparse([2], np.array([[6.0]], "f"))})
    assert value_of(now).tolist() == [[-1], [0], [-5]]
