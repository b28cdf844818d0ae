"""How does one state of a shard become the next? Blocks equal the whole, nothing is changed in place, failures leave no trace.

The rules of these tests are not registered: the registry is left alone. Next: tests/rules (the maths of our rules).
"""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from protos.errors import RuleFailed
from ps.apply import apply, with_slots
from ps.rules import Adam, Context, Momentum, Sgd, UpdateRule
from ps.variable import Gradients, ShardState
from tests.core.builders import dense, partition, small_pages, sparse, state

RULES = [Sgd(0.1), Momentum(0.1), Momentum(0.1, nesterov=True), Adam(0.1)]
rng = np.random.default_rng(7)


def prepared(rule: UpdateRule, **values: Any) -> ShardState:
    return ShardState(0, tuple(with_slots(item, rule) for item in state(**values).partitions))


def update(now: ShardState, rule: UpdateRule, gradients: Gradients, **more: Any) -> ShardState:
    return apply(now, rule, gradients, **{"staleness": 0, "worker": 0} | more)


def everything(now: ShardState) -> list[Any]:
    """Every number a state holds, as a copy."""
    return [
        page.copy() for item in now.partitions for paged in (item.value, *item.slots.values()) for page in paged.pages
    ]


@pytest.mark.parametrize("rule", RULES, ids=repr)
@pytest.mark.parametrize("shape", [(100,), (9, 7), (2, 40), ()])
def test_a_variable_updated_page_by_page_equals_the_variable_updated_whole(
    rule: UpdateRule, shape: tuple[int, ...]
) -> None:
    # claim 7: how many pages there are is nobody's concern.
    value, gradients = rng.normal(size=shape).astype("f"), [rng.normal(size=shape).astype("f") for _ in range(5)]
    whole: tuple[Any, ...] = (value, *(np.zeros_like(value) for _ in rule.slot_names()))
    with small_pages():
        now = prepared(rule, w=value)
        for step, gradient in enumerate(gradients):
            now = update(now, rule, {0: dense(gradient)})
            answer = rule.update(Context(step, rule.learning_rate), whole[0], gradient, *whole[1:])
            whole = answer if isinstance(answer, tuple) else (answer,)
    np.testing.assert_array_equal(now.partitions[0].value.whole(), whole[0])
    for name, slot in zip(rule.slot_names(), whole[1:]):
        np.testing.assert_array_equal(now.partitions[0].slots[name].whole(), slot)


def test_the_old_state_lives_on_unchanged_and_what_got_no_gradient_is_shared() -> None:
    # claim 1: a pull that holds the old state goes on reading it.
    rule = Adam()
    before = prepared(rule, a=np.ones(3, np.float32), b=np.ones(3, np.float32))
    copies = everything(before)
    after = update(before, rule, {1: dense(np.ones(3, np.float32))})
    for now, then in zip(everything(before), copies):
        np.testing.assert_array_equal(now, then)
    assert after.partitions[0] is before.partitions[0]
    assert (before.version, after.version) == (0, 1)


def test_a_push_without_gradients_is_an_update_all_the_same() -> None:
    before = prepared(Sgd(), a=np.ones(3, np.float32))
    after = update(before, Sgd(), {})
    assert after.version == 1
    assert after.partitions == before.partitions


# -- rules that misbehave ----------------------------------------------------------------------------------------------


class Raises(UpdateRule):
    """Fails for the second variable, when the first is done already."""

    def update(self, ctx: Any, value: Any, grad: Any) -> Any:
        if grad[0] == 2:
            raise ZeroDivisionError("no idea")
        return value - grad


def test_a_rule_that_fails_leaves_the_state_as_it_was() -> None:
    # claim 11
    before = prepared(Raises(), a=np.zeros(3, np.float32), b=np.zeros(3, np.float32))
    copies = everything(before)
    with pytest.raises(RuleFailed) as caught:
        update(before, Raises(), {0: dense(np.ones(3, np.float32)), 1: dense(np.full(3, 2, np.float32))})
    assert "variable b" in caught.value.field
    assert re.fullmatch(r"ZeroDivisionError: no idea \(test_apply.py, line \d+\)", caught.value.got)
    assert before.version == 0
    for now, then in zip(everything(before), copies):
        np.testing.assert_array_equal(now, then)


@dataclass(frozen=True)
class Mutates(UpdateRule):
    which: int = 0
    slots = ("m",)

    def update(self, ctx: Any, value: Any, grad: Any, m: Any) -> Any:
        (value, grad, m)[self.which][...] = 0
        return value, m


@pytest.mark.parametrize("which", [0, 1, 2], ids=["value", "grad", "slot"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_a_rule_that_writes_to_its_arguments_gets_an_error(which: int, dtype: str, kind: str) -> None:
    # In every precision and for every kind of gradient: a rule that was tried with one must not fail with another.
    rule = Mutates(which=which)
    before = prepared(rule, w=np.ones((3, 2), dtype))
    ones = np.ones((3, 2), dtype)
    gradient = dense(ones) if kind == "dense" else sparse([0, 2], ones[:2])
    with pytest.raises(RuleFailed, match="read-only"):
        update(before, rule, {0: gradient})


class Scratch(UpdateRule):
    """Returns its own buffer each time, as code that saves memory does."""

    def update(self, ctx: Any, value: Any, grad: Any) -> Any:
        return np.subtract(value, grad, out=BUFFER[: value.size])


BUFFER = np.zeros(16, np.float32)


def test_a_rule_cannot_write_to_what_it_has_returned() -> None:
    # Both pages would be the same memory, and the first would be lost without a word.
    with small_pages():
        before = prepared(Scratch(), w=np.arange(32, dtype=np.float32))
        with pytest.raises(RuleFailed, match="read-only"):
            update(before, Scratch(), {0: dense(np.zeros(32, np.float32))})


def answering(answer: Any) -> UpdateRule:
    class Answers(UpdateRule):
        name = "answers"
        slots = ("m",)

        def update(self, ctx: Any, value: Any, grad: Any, m: Any) -> Any:
            return answer

    return Answers()


THREE = np.zeros(3, np.float32)


@pytest.mark.parametrize(
    ("answer", "field", "got", "expected"),
    [
        (THREE, "rule answers", "1 array", "2: value, m"),
        ((THREE, THREE, THREE), "rule answers", "3 arrays", "2: value, m"),
        (None, "rule answers", "None", "2: value, m"),
        ((THREE[:2], THREE), "rule answers, value of w", "float32 (2,)", "float32 (3,)"),
        ((THREE, 0.5), "rule answers, m of w", "float64 ()", "float32 (3,)"),
        ((THREE, [None] * 3), "rule answers, m of w", "object (3,)", "float32 (3,)"),
        ((THREE + 1j, THREE), "rule answers, value of w", "complex64 (3,)", "float32 (3,)"),
    ],
)
def test_a_wrong_answer_is_told_by_name(answer: Any, field: str, got: str, expected: str) -> None:
    rule = answering(answer)
    with pytest.raises(RuleFailed) as caught:
        update(prepared(rule, w=THREE), rule, {0: dense(THREE)})
    assert (caught.value.field, caught.value.got, caught.value.expected) == (field, got, expected)


class BadSlot(UpdateRule):
    slots = ("m",)

    def init_slot(self, name: str, value: Any) -> Any:
        return np.zeros(5) if value.size != 4 else 1 / 0


@pytest.mark.parametrize(("size", "got"), [(3, "float64 (5,)"), (4, "ZeroDivisionError: division by zero")])
def test_a_slot_that_cannot_be_is_told_at_once(size: int, got: str) -> None:
    with pytest.raises(RuleFailed) as caught:
        with_slots(partition("w", np.zeros(size, np.float32)), BadSlot())
    assert caught.value.got.partition(" (test_apply.py")[0] == got


def test_an_overflow_is_the_models_business_and_makes_no_noise() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        huge = np.full(2, 3e38, np.float32)
        now = update(prepared(Sgd(10.0), w=-huge), Sgd(10.0), {0: dense(huge)})
    assert np.isneginf(now.partitions[0].value.whole()).all()


# -- precision ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=str)
@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_narrow_floats_are_updated_in_float32_and_rounded_once(rule: UpdateRule, dtype: Any) -> None:
    value, gradient = rng.normal(size=50).astype(dtype), rng.normal(size=50).astype(dtype)
    now = update(prepared(rule, w=value), rule, {0: dense(gradient)})
    wide, wide_gradient = value.astype("f"), gradient.astype("f")
    zeros = [np.zeros_like(wide) for _ in rule.slot_names()]
    answer = rule.update(Context(0, rule.learning_rate), wide, wide_gradient, *zeros)
    expected = answer[0] if isinstance(answer, tuple) else answer
    result = now.partitions[0].value.whole()
    assert result.dtype == dtype
    np.testing.assert_array_equal(result, expected.astype(dtype))
    for slot in now.partitions[0].slots.values():
        assert slot.dtype == np.float32  # a velocity that is rounded at each step would stand still


def test_float64_stays_float64() -> None:
    now = update(prepared(Adam(), w=np.ones(3)), Adam(), {0: dense(np.full(3, 1e-3))})
    assert now.partitions[0].value.dtype == np.float64
    assert now.partitions[0].slots["m"].dtype == np.float64


# -- sparse gradients, and rules that need more than their part ----------------------------------------------------------


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_a_sparse_gradient_updates_its_rows_and_leaves_the_others_alone(rule: UpdateRule) -> None:
    table, rows = rng.normal(size=(12, 4)).astype("f"), rng.normal(size=(2, 4)).astype("f")
    with small_pages():  # three pages of four rows
        before = update(prepared(rule, emb=table), rule, {0: dense(np.ones_like(table))})
        after = update(before, rule, {0: sparse([5, 6], rows)})
        whole = np.zeros_like(table)
        whole[[5, 6]] = rows
        all_rows = update(before, rule, {0: dense(whole)})
    old, new, other = before.partitions[0], after.partitions[0], all_rows.partitions[0]
    for name in ("value", *rule.slot_names()):
        now, then, full = (p.value if name == "value" else p.slots[name] for p in (new, old, other))
        np.testing.assert_array_equal(now.whole()[[5, 6]], full.whole()[[5, 6]])  # as a dense gradient would
        assert [a is b for a, b in zip(now.pages, then.pages)] == [True, False, True]
        others = [0, 1, 2, 3, 4, 7, 8, 9, 10, 11]
        np.testing.assert_array_equal(now.whole()[others], then.whole()[others])


class UnitNorm(UpdateRule):
    """Steps of length one: needs the whole gradient at once."""

    elementwise = False

    def update(self, ctx: Any, value: Any, grad: Any) -> Any:
        assert value.shape == grad.shape == (6, 4)
        return value - grad / np.linalg.norm(grad)


def test_a_rule_that_is_not_elementwise_gets_the_variable_whole() -> None:
    gradient = rng.normal(size=(6, 4)).astype("f")
    gradient[3:] = 0
    with small_pages():
        now = prepared(UnitNorm(), w=np.zeros((6, 4), np.float32))
        by_dense = update(now, UnitNorm(), {0: dense(gradient)})
        by_rows = update(now, UnitNorm(), {0: sparse([0, 1, 2], gradient[:3])})
    for after in (by_dense, by_rows):
        assert len(after.partitions[0].value.pages) == 2
        assert np.linalg.norm(after.partitions[0].value.whole()) == pytest.approx(1)


class Compensating(UpdateRule):
    """Delay compensation (Zheng et al. 2017): corrects a gradient by how far the value has moved since it was read."""

    needs_read_value = True

    def update(self, ctx: Any, value: Any, grad: Any) -> Any:
        return value - ctx.learning_rate * (grad + grad * grad * (value - ctx.read_value))


@pytest.mark.parametrize("elementwise", [True, False])
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_a_rule_may_ask_for_the_value_that_was_read(elementwise: bool, kind: str) -> None:
    class Rule(Compensating):
        pass

    Rule.elementwise = elementwise
    rule, ones = Rule(1.0), np.ones((12, 4), np.float32)
    with small_pages():
        read = prepared(rule, w=np.zeros((12, 4), np.float32))
        now = update(read, rule, {0: dense(-2 * ones)}, read_state=read)  # w = 2 everywhere
        gradient = dense(ones) if kind == "dense" else sparse([3, 9], ones[:2])
        after = update(now, rule, {0: gradient}, read_state=read)
    # 2 - (1 + 1·1·(2 - 0)) = -1 where there was a gradient.
    expected = np.full((12, 4), -1.0)
    if kind == "sparse":
        expected = np.full((12, 4), 2.0)
        expected[[3, 9]] = -1
    np.testing.assert_array_equal(after.partitions[0].value.whole(), expected)


def test_a_rule_is_told_step_staleness_worker_and_learning_rate() -> None:
    # claim 6: what a rule is told of the step is the version before the update, the same for every variable of the shard.
    told: list[Context] = []

    class Listens(UpdateRule):
        def update(self, ctx: Any, value: Any, grad: Any) -> Any:
            told.append(ctx)
            return value

    rule = Listens(0.25)
    now = prepared(rule, a=np.zeros(1, np.float32), b=np.zeros(1, np.float32))
    one = dense(np.ones(1, np.float32))
    now = update(now, rule, {0: one, 1: one}, staleness=3, worker=2)
    update(now, rule, {0: one}, staleness=0, worker=None)
    first = [Context(0, 0.25, 3, 2, variable=name) for name in "ab"]
    assert told == [*first, Context(1, 0.25, 0, None, push=1, variable="a")]


def test_state_that_takes_no_gradient_gets_no_slots() -> None:
    assert with_slots(partition("n", np.zeros(3, np.int64), trainable=False), Adam()).slots == {}
