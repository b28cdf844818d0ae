"""What becomes of a 16-bit variable under updates that it cannot hold? Its float32 master is updated, and it is that, rounded.

float16 has 11 significant bits and bfloat16 has 8: of an update of a thousandth of the value, nothing would arrive.
"""

from __future__ import annotations

import warnings
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ps.apply import AVERAGE, apply, with_slots
from ps.rules import Adam, Momentum, Sgd, UpdateRule, make_rule
from ps.variable import MASTER, Gradients, Paged, ShardState
from tests.core.builders import dense, partition, small_pages, sparse, state, value_of

DTYPES = [np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)]
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
RULES = [Sgd(0.1), Momentum(0.1), Adam(0.1), make_rule("sgd:transforms=[clip_by_value(1),accumulate(2)],use_ema=true")]
rng = np.random.default_rng(23)


def prepared(rule: UpdateRule, **values: Any) -> ShardState:
    return ShardState(0, tuple(with_slots(item, rule) for item in state(**values).partitions))


def update(now: ShardState, rule: UpdateRule, gradients: Gradients) -> ShardState:
    return apply(now, rule, gradients, staleness=0, worker=0)


def master_of(now: ShardState, index: int = 0) -> Any:
    return now.partitions[index].slots[MASTER].whole()


def assert_rounded(now: ShardState) -> None:
    """The value of every 16-bit variable is its master, rounded: to the last bit, signs of zeros and NaN included."""
    for item in now.partitions:
        for page, wide in zip(item.value.pages, item.slots[MASTER].pages):
            with np.errstate(all="ignore"):
                np.testing.assert_array_equal(page.view(np.uint16), wide.astype(page.dtype).view(np.uint16))


# -- small updates -----------------------------------------------------------------------------------------------------


@every_dtype
def test_a_thousand_updates_that_the_value_alone_would_lose_add_up(dtype: Any) -> None:
    one, tiny = np.ones(3, dtype), np.full(3, 1e-4, dtype)
    assert (one - tiny == one).all()  # each of them alone is lost
    rule = Sgd(1.0)
    now = prepared(rule, w=one)
    for _ in range(1000):
        now = update(now, rule, {0: dense(tiny)})
        assert_rounded(now)
    np.testing.assert_allclose(value_of(now).astype("f"), 1 - 1000 * float(tiny[0]), rtol=float(2.0**-8))
    np.testing.assert_allclose(master_of(now), 1 - 1000 * float(tiny[0]), rtol=1e-4)


@every_dtype
@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_the_master_goes_the_way_of_a_float32_variable(rule: UpdateRule, dtype: Any) -> None:
    # Bit for bit, whatever the rule and its options, for gradients of the same numbers.
    value, grads = rng.normal(size=(7, 3)).astype(dtype), rng.normal(size=(30, 7, 3)).astype(dtype)
    with small_pages(16):
        narrow, wide = prepared(rule, w=value), prepared(rule, w=value.astype("f"))
        for grad in grads:
            narrow = update(narrow, rule, {0: dense(grad)})
            wide = update(wide, rule, {0: dense(grad.astype("f"))})
            assert_rounded(narrow)
    np.testing.assert_array_equal(master_of(narrow), value_of(wide))
    assert value_of(narrow).dtype == dtype


@every_dtype
def test_slots_are_float32_for_16_bits_and_others_have_no_master(dtype: Any) -> None:
    rule = make_rule("adam:transforms=[accumulate(2)],use_ema=true")
    slots = with_slots(partition("w", np.ones(3, dtype)), rule).slots
    assert {"m", "v", MASTER, AVERAGE} <= set(slots)
    assert {slot.dtype for slot in slots.values()} == {np.dtype(np.float32)}
    for other in (np.float32, np.float64):
        assert MASTER not in with_slots(partition("w", np.ones(3, other)), rule).slots
    assert with_slots(partition("n", np.ones(3, dtype), trainable=False), rule).slots == {}


@every_dtype
def test_a_gradient_that_is_beyond_16_bits_without_its_loss_scale_arrives(dtype: Any) -> None:
    # 2^-30 is below the smallest float16; times 2^16 it is a gradient, and the rule sees 2^-30.
    scaled = np.full(2, 2.0**-14, dtype)
    rule = Sgd(1.0, loss_scale_factor=2.0**16)
    now = prepared(rule, w=np.zeros(2, dtype))
    for _ in range(4):
        now = update(now, rule, {0: dense(scaled)})
    assert master_of(now).tolist() == [-(2.0**-28)] * 2


# -- after an assign ---------------------------------------------------------------------------------------------------


@every_dtype
def test_after_an_assign_the_master_is_the_new_value(dtype: Any) -> None:
    rule = Sgd(1.0)
    now = update(prepared(rule, w=np.ones(4, dtype)), rule, {0: dense(np.full(4, 1e-4, dtype))})
    new = np.array([5, -2, 0, 1], dtype)
    now = now.with_values({0: Paged.of(new)})
    assert master_of(now).tolist() == [5, -2, 0, 1]  # also the last: no digits stay behind that nobody has assigned
    assert_rounded(now)
    now = update(now, rule, {0: dense(np.full(4, 2, dtype))})
    assert value_of(now).tolist() == [3, -4, -2, -1]


@every_dtype
def test_an_assign_leaves_other_slots_versions_and_variables_alone(dtype: Any) -> None:
    rule = Adam(0.1)
    ones = dense(np.ones(2, dtype))
    now = update(prepared(rule, a=np.ones(2, dtype), b=np.ones(2, np.float32)), rule, {0: ones})
    after = now.with_values({0: Paged.of(np.zeros(2, dtype))})
    assert after.version == now.version
    assert after.partitions[1] is now.partitions[1]
    assert [after.partitions[0].slots[name] is now.partitions[0].slots[name] for name in ("m", "v")] == [True, True]
    assert value_of(now).tolist() != [0, 0]  # the old state lives on
    assert master_of(now).tolist() != [0, 0]


@every_dtype
def test_a_value_that_was_lost_is_well_again_when_it_is_assigned(dtype: Any) -> None:
    rule = Sgd(1.0)
    now = update(prepared(rule, w=np.ones(3, dtype)), rule, {0: dense(np.array([np.nan, np.inf, 0], dtype))})
    assert np.isnan(value_of(now)[0]) and np.isneginf(value_of(now)[1]) and value_of(now)[2] == 1
    now = update(now.with_values({0: Paged.of(np.ones(3, dtype))}), rule, {0: dense(np.ones(3, dtype))})
    assert value_of(now).tolist() == master_of(now).tolist() == [0, 0, 0]


# -- sparse gradients, odd numbers, odd shapes ---------------------------------------------------------------------------


@every_dtype
def test_rows_that_are_not_named_keep_value_and_master(dtype: Any) -> None:
    rule, tiny = Sgd(1.0), np.full((2, 4), 1e-4, dtype)
    with small_pages(16):  # two rows a page for the value, and as many for the master
        before = now = prepared(rule, emb=np.ones((8, 4), dtype))
        for _ in range(1000):
            now = update(now, rule, {0: sparse([2, 5], tiny)})
    assert_rounded(now)
    np.testing.assert_allclose(master_of(now)[[2, 5]], 1 - 1000 * float(tiny[0, 0]), rtol=1e-4)
    np.testing.assert_array_equal(master_of(now)[[0, 1, 3, 4, 6, 7]], 1)
    for paged, then in zip(*([p.value, p.slots[MASTER]] for p in (now.partitions[0], before.partitions[0]))):
        assert [a is b for a, b in zip(paged.pages, then.pages)] == [True, False, False, True]


@every_dtype
def test_an_assign_between_sparse_updates_reaches_every_row(dtype: Any) -> None:
    rule, rows = Sgd(1.0), np.ones((1, 2), dtype)
    now = update(prepared(rule, emb=np.zeros((3, 2), dtype)), rule, {0: sparse([1], rows)})
    now = now.with_values({0: Paged.of(np.full((3, 2), 8, dtype))})
    now = update(now, rule, {0: sparse([2], rows)})
    assert value_of(now).tolist() == master_of(now).tolist() == [[8, 8], [8, 8], [7, 7]]


def test_a_master_may_leave_the_range_of_float16_and_come_back() -> None:
    rule = Sgd(1.0)
    now = update(prepared(rule, w=np.zeros(1, np.float16)), rule, {0: dense(np.full(1, -60000, np.float16))})
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # and it makes no noise
        now = update(now, rule, {0: dense(np.full(1, -60000, np.float16))})
    assert np.isposinf(value_of(now)[0]) and master_of(now)[0] == 120_000
    now = update(now, rule, {0: dense(np.full(1, 60000, np.float16))})
    assert value_of(now)[0] == np.float16(60000)


@every_dtype
def test_nan_and_infinity_are_the_models_business_as_in_float32(dtype: Any) -> None:
    odd = np.array([np.nan, np.inf, -np.inf, 1], dtype)
    for rule in (Sgd(1.0), Momentum(0.5), Adam(0.5)):
        narrow, wide = prepared(rule, w=np.ones(4, dtype)), prepared(rule, w=np.ones(4, np.float32))
        for _ in range(2):
            narrow, wide = update(narrow, rule, {0: dense(odd)}), update(wide, rule, {0: dense(odd.astype("f"))})
            assert_rounded(narrow)
            np.testing.assert_array_equal(master_of(narrow), value_of(wide))


@every_dtype
@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (3, 0), (1,)], ids=str)
@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_scalars_and_variables_without_elements_have_masters_too(rule: UpdateRule, shape: Any, dtype: Any) -> None:
    now = prepared(rule, w=np.ones(shape, dtype))
    for _ in range(4):
        now = update(now, rule, {0: dense(np.ones(shape, dtype))})
    now = now.with_values({0: Paged.of(np.ones(shape, dtype))})
    assert master_of(now).shape == value_of(now).shape == shape
    assert value_of(now).dtype == dtype
    assert_rounded(now)


@every_dtype
def test_averages_are_of_the_master_and_become_value_and_master_when_they_are_due(dtype: Any) -> None:
    rule = Sgd(1.0, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=3)
    tiny = np.full(2, 1e-4, dtype)
    now = prepared(rule, w=np.ones(2, dtype))
    for _ in range(3):
        now = update(now, rule, {0: dense(tiny)})
        assert_rounded(now)
    step = float(tiny[0])
    expected = 1 - (0.25 * 1 + 0.25 * 2 + 0.5 * 3) * step  # a₁ = w₁; a₂ = (w₁ + w₂) / 2; a₃ = (a₂ + w₃) / 2
    np.testing.assert_allclose(master_of(now), expected, rtol=1e-6)
    np.testing.assert_array_equal(master_of(now), now.partitions[0].slots[AVERAGE].whole())


@every_dtype
def test_what_a_rule_keeps_for_a_worker_begins_at_the_master_and_not_at_the_rounded_value(dtype: Any) -> None:
    class Remembers(UpdateRule):
        worker_slots = ("seen",)

        def init_slot(self, name: str, value: Any) -> Any:
            return value

        def update(self, ctx: Any, value: Any, grad: Any, seen: Any) -> Any:
            return value - grad, seen

    rule = Remembers()
    now = update(prepared(rule, w=np.ones(2, dtype)), rule, {0: dense(np.full(2, 1e-4, dtype))})
    late = apply(now, rule, {0: dense(np.zeros(2, dtype))}, staleness=0, worker=1)
    np.testing.assert_array_equal(late.partitions[0].slots["seen/worker 1"].whole(), master_of(now))
