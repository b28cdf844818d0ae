"""What must every rule do? One registry joins a rule to all of these tests: who registers a rule has it tested.

The contract is in ps/rules/base.py. Here `update` is called as it is; test_contract_engine.py has the same rules in the
engine. Numbers that rules must give are in test_golden.py and test_keras_optimizers.py.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from ps.rules import Context, UpdateRule, make_rule, registered

# Every registered rule with its defaults, and with each of its switches on. Other tests register rules that break the
# contract on purpose: those of ps.rules are meant, whichever test was imported first.
RULES = [cls() for cls in registered().values() if cls.__module__.startswith("ps.rules.")]
RULES += [
    dataclasses.replace(rule, **{field.name: not field.default})
    for rule in RULES
    for field in dataclasses.fields(rule)
    if isinstance(field.default, bool) and field.name not in rule.options
]
SHAPES = [(1,), (7,), (3, 5), (2, 3, 4), (0,), (0, 3)]
every_rule = pytest.mark.parametrize("rule", RULES, ids=repr)
rng = np.random.default_rng(11)


def arrays(rule: UpdateRule, shape: tuple[int, ...], dtype: str = "float32") -> list[Any]:
    """value, gradient and slots; slots as they are after some steps, where that may be anything but negative."""
    value, grad = (rng.normal(size=shape).astype(dtype) for _ in range(2))
    return [value, grad, *(np.abs(slot + rng.normal(size=slot.shape)).astype(dtype) for slot in first(rule, value))]


def first(rule: UpdateRule, value: Any) -> list[Any]:
    """The slots of a new variable, those of a worker included."""
    return [rule.init_slot_of("", name, value) for name in (*rule.slot_names(), *rule.worker_slots)]


def updated(rule: UpdateRule, value: Any, grad: Any, *slots: Any, step: int = 3) -> list[Any]:
    """The new value and the new slots."""
    read_value = value if rule.needs_read_value else None
    ctx = Context(step, rule.rate_at(step), staleness=1, worker=0, read_value=read_value)
    answer = rule.update(ctx, value, grad, *slots)
    return list(answer) if isinstance(answer, tuple) else [answer]


@every_rule
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_shapes_and_dtypes_are_kept(rule: UpdateRule, shape: tuple[int, ...], dtype: str) -> None:
    value, grad, *slots = arrays(rule, shape, dtype)
    news = updated(rule, value, grad, *slots)
    assert [(new.shape, new.dtype) for new in news] == [(old.shape, old.dtype) for old in (value, *slots)]


@every_rule
def test_arguments_are_read_and_never_written_to(rule: UpdateRule) -> None:
    given = arrays(rule, (3, 5))
    copies = [array.copy() for array in given]
    for array in given:
        array.setflags(write=False)
    for new in updated(rule, *given):
        assert not any(np.shares_memory(new, array) and not np.array_equal(new, array) for array in given)
    for array, copy in zip(given, copies):
        np.testing.assert_array_equal(array, copy)


@every_rule
def test_the_same_input_gives_the_same_bits(rule: UpdateRule) -> None:
    given = arrays(rule, (100,))
    for one, other in zip(updated(rule, *given), updated(dataclasses.replace(rule), *given)):
        assert one.tobytes() == other.tobytes()


@every_rule
@pytest.mark.parametrize("parts", [2, 3, 7])
def test_an_elementwise_rule_gives_the_same_bits_in_parts(rule: UpdateRule, parts: int) -> None:
    # claim 7: this promise is what lets variables be cut in pages, partitions and rows.
    if not rule.elementwise:
        return  # it has promised nothing
    given = arrays(rule, (101,))
    whole = updated(rule, *given)
    pieces = zip(*(np.array_split(array, parts) for array in given))
    by_parts = zip(*(updated(rule, *piece) for piece in pieces))
    for one, other in zip(whole, by_parts):
        assert one.tobytes() == np.concatenate(other).tobytes()


def distance(rule: UpdateRule, shape: tuple[int, ...], *, falls: bool) -> float:
    """How far from the bottom of a bowl the value ends, when 600 steps are made from 0 at the rule's rate or a falling one."""
    target = np.resize(np.array([1, -2, 3, -0.5], np.float32), shape)
    scale = np.resize(np.array([1, 0.5, 2], np.float32), shape)
    value = np.zeros(shape, np.float32)
    slots = first(rule, value)
    with np.errstate(all="ignore"):  # a rate too high for a rule
        for step in range(600):
            now = dataclasses.replace(rule, learning_rate=rule.rate_at(step) * (1 - step / 600 if falls else 1))
            value, *slots = updated(now, value, scale * (value - target), *slots, step=step)
        return float(np.abs(value - target).max())


@every_rule
@pytest.mark.parametrize("shape", [(3,), (2, 3)], ids=str)
def test_it_finds_the_bottom_of_a_bowl(rule: UpdateRule, shape: tuple[int, ...]) -> None:
    # At some rate, kept or falling: steps of one length go round the bottom at a rate that is kept, and a rule that holds
    # its weights to a past rate is lost at one that falls.
    ways = [(rate, falls) for rate in (0.05, 1.0, 3.0, 10.0) for falls in (True, False)]
    assert any(
        distance(dataclasses.replace(rule, learning_rate=rate), shape, falls=falls) < 1e-2 for rate, falls in ways
    )


@every_rule
def test_without_a_gradient_and_with_fresh_slots_no_weight_grows(rule: UpdateRule) -> None:
    # It may decay, as AdamW's do.
    value = rng.normal(size=4).astype("f")
    new = updated(rule, value, np.zeros(4, np.float32), *first(rule, value), step=0)[0]
    np.testing.assert_array_less(np.abs(new), np.abs(value) * (1 + 1e-6))
    assert (new * value >= 0).all()


@every_rule
def test_slots_begin_in_the_dtype_of_the_value_and_in_its_shape_where_it_is_fed_in_parts(rule: UpdateRule) -> None:
    for dtype in ("float32", "float64"):
        value = np.ones((2, 3), dtype)
        for slot in first(rule, value):
            assert slot.dtype == value.dtype
            assert slot.shape == value.shape or not rule.elementwise


@every_rule
def test_the_learning_rate_is_the_one_of_the_context(rule: UpdateRule) -> None:
    # claim 6: the engine evaluates a schedule once a step; a rule that reads its own field would not follow it.
    given = arrays(rule, (5,))

    def at(rate: float, field: float) -> list[bytes]:
        ctx = Context(3, rate, worker=0, read_value=given[0] if rule.needs_read_value else None)
        answer = dataclasses.replace(rule, learning_rate=field).update(ctx, *given)
        return [new.tobytes() for new in (answer if isinstance(answer, tuple) else [answer])]

    assert at(0.25, field=0.25) == at(0.25, field=7.0)
    assert at(0.25, field=0.25) != at(0.125, field=0.25)


@every_rule
def test_a_learning_rate_of_zero_makes_no_nan(rule: UpdateRule) -> None:
    # Many schedules end at 0.
    value, grad, *slots = arrays(rule, (5,))
    for new in updated(dataclasses.replace(rule, learning_rate=0.0), value, grad, *slots):
        assert np.isfinite(new).all()


@every_rule
def test_a_rule_and_its_spec_say_the_same(rule: UpdateRule) -> None:
    assert make_rule(rule.spec()) == rule
    assert make_rule(rule.config()) == rule
    assert eval(repr(rule), {cls.__name__: cls for cls in registered().values()}) == rule
    assert rule.spec().partition(":")[0] == rule.name
    assert hash(make_rule(rule.spec())) == hash(rule)


@every_rule
def test_its_docstring_says_where_it_comes_from(rule: UpdateRule) -> None:
    # The formula, and who published it when.
    text = type(rule).__doc__ or ""
    assert any(year in text for year in map(str, range(1940, 2040)))
    assert "w ←" in text


@every_rule
def test_a_rule_cannot_be_changed(rule: UpdateRule) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        rule.learning_rate = 1.0  # type: ignore[misc]
