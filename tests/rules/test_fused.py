"""Is maths in one pass the maths of numpy? To the bit, for every rule; and what cannot be one pass is numpy's, unnoticed.

Rules are updated twice in the engine, fused and not, with numbers that are large, small, infinite, and zeros of both signs.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import pytest

from protos.errors import RuleFailed
from ps import apply as engine
from ps import fused as machine_code
from ps.apply import alone, updating, with_slots
from ps.rules import Adam, Context, UpdateRule, make_rule
from ps.threads import Threads
from ps.tracing import trace
from ps.variable import ShardState
from tests.core.builders import dense, partition, small_pages
from tests.rules.test_contract import RULES

rng = np.random.default_rng(5)
# Plain ones, and those with every operation that is traced.
MUST_FUSE = ["sgd", "momentum", "sgd:momentum=0.9,nesterov=true", "adam", "adamw", "adagrad", "rmsprop", "adadelta"]


@pytest.fixture(autouse=True)
def every_variable_is_large() -> Iterator[None]:
    with mock.patch.object(engine, "FUSED_BYTES", 0):
        yield


def without_llvm() -> Any:
    return mock.patch.object(machine_code, "_llvm", return_value=None)


def numbers(size: int, dtype: str, *, extreme: bool = False) -> Any:
    """Near 1 and zeros of both signs; and if they are to be extreme, what squares to infinity, or is hardly there."""
    values = rng.normal(size=size)
    values[:2] = 0.0, -0.0
    if extreme:
        values *= 10.0 ** rng.integers(-30, 15, size)
        values[:6] = 0.0, -0.0, 1e-42, -1e-42, 1e30, -1e30
    return rng.permutation(values).astype(dtype)


def pushed(rule: UpdateRule, value: Any, gradients: list[Any], each: engine.Each = map) -> list[Any]:
    """Value and slots after these pushes, as bytes."""
    first = now = ShardState(0, (with_slots(partition("w", value), rule),))
    for gradient in gradients:
        update = updating(now, rule, {0: dense(gradient)}, staleness=1, worker=0, read_state=first, each=each)
        now = alone(update)
    (held,) = now.partitions
    return [held.value.whole().tobytes(), *(slot.whole().tobytes() for slot in held.slots.values())]


def outcome(rule: UpdateRule, value: Any, gradients: list[Any]) -> list[Any] | str:
    """The same, or how it failed: infinity less infinity is no number."""
    try:
        return pushed(rule, value, gradients)
    except RuleFailed as failed:
        return str(failed)


@pytest.mark.parametrize("rule", [*RULES, make_rule("sgd:weight_decay=0.1,momentum=0.9")], ids=repr)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("extreme", [False, True], ids=["plain", "extreme"])
def test_the_bits_are_those_of_numpy(rule: UpdateRule, dtype: str, extreme: bool) -> None:
    value, *gradients = (numbers(501, dtype, extreme=extreme) for _ in range(4))
    with small_pages(400):
        one_pass = outcome(rule, value, gradients)
        with without_llvm():
            assert outcome(rule, value, gradients) == one_pass
    assert extreme or not isinstance(one_pass, str)


def test_a_gradient_that_is_infinite_or_not_a_number_is_taken_as_numpy_takes_it() -> None:
    gradient = np.array([np.inf, -np.inf, np.nan, 1.0], "f")
    one_pass = pushed(Adam(), np.ones(4, "f"), [gradient])
    with without_llvm():
        assert pushed(Adam(), np.ones(4, "f"), [gradient]) == one_pass


@pytest.mark.parametrize("text", MUST_FUSE)
def test_the_common_rules_are_one_pass(text: str) -> None:
    rule = make_rule(text)
    slots = len(rule.slot_names())
    maths = functools.partial(lambda rule, arrays: rule.update(Context(3, 0.1), *arrays), rule)
    program, constants = trace(maths, 2 + slots, 1 + slots, np.dtype("float32"))
    assert len(program.results) == 1 + slots and constants.dtype == np.float32
    later, _ = trace(lambda arrays: rule.update(Context(9, 0.2), *arrays), 2 + slots, 1 + slots, np.dtype("float32"))
    assert later == program, "a step later it is the same program, with other constants: nothing is translated anew"


@dataclass(frozen=True, repr=False)
class Wilful(UpdateRule):
    """Does what a stand-in cannot. Not registered: the registry is left alone."""

    way: str = ""

    def update(self, ctx: Context, value: Any, grad: Any, *slots: Any) -> Any:
        if self.way == "branch on numbers" and (grad > 0).any():
            return value
        if self.way == "branch on truth" and not bool((grad * 0 + 1).ravel()[0]):
            return value
        if self.way == "function of numpy":
            return np.where(grad > 0, value, value - grad)
        if self.way == "shape":
            return value - np.full(grad.shape, 0.5, grad.dtype)
        if self.way == "indices":
            change = grad.copy()
            change[:1] = 0
            return value - change
        if self.way == "log":
            return value - np.log1p(np.abs(grad))
        if self.way == "reduction":
            return value - np.add.reduce(grad[:0])
        return value - grad


@pytest.mark.parametrize(
    "way",
    ["branch on numbers", "branch on truth", "function of numpy", "shape", "indices", "log", "reduction", "plain"],
)
def test_maths_that_cannot_be_traced_is_done_by_numpy(way: str) -> None:
    value, gradients = numbers(100, "float32"), [numbers(100, "float32")]
    result = pushed(Wilful(way=way), value, gradients)
    with without_llvm():
        assert pushed(Wilful(way=way), value, gradients) == result


@dataclass(frozen=True, repr=False)
class Wrong(UpdateRule):
    way: str = ""

    def update(self, ctx: Context, value: Any, grad: Any, *slots: Any) -> Any:
        if self.way == "NaN":
            return value - (grad - grad) / (grad - grad)
        if self.way == "widens":
            return value - np.float64(0.1) * grad
        if self.way == "one too many":
            return value, grad
        if self.way == "writes":
            grad *= 2
            return value - grad
        raise ZeroDivisionError("not today")


@pytest.mark.parametrize("way", ["NaN", "widens", "one too many", "writes", "raises"])
def test_what_is_wrong_is_told_in_the_same_words(way: str) -> None:
    if way == "widens" and np.lib.NumpyVersion(np.__version__) < "2.0.0":
        way = "raises"  # there, a scalar widens nothing
    told = []
    for llvm in (True, False):
        with contextlib.nullcontext() if llvm else without_llvm():
            with pytest.raises(RuleFailed) as failed:
                pushed(Wrong(way=way), np.ones(10, "f"), [np.ones(10, "f")])
        told.append(str(failed.value))
    assert told[0] == told[1]


def test_without_llvm_there_is_no_machine_code() -> None:
    machine_code._llvm.cache_clear()
    try:
        with mock.patch.dict(sys.modules, {"llvmlite": None, "llvmlite.binding": None}):
            assert machine_code.one_pass(lambda arrays: arrays[0] * 2, 1, 1, np.dtype("f")) is None
    finally:
        machine_code._llvm.cache_clear()
    assert machine_code.one_pass(lambda arrays: arrays[0] * 2, 1, 1, np.dtype("f")) is not None


@pytest.mark.parametrize("llvm", [True, False])
@pytest.mark.parametrize("text", ["adam:transforms=[clip_by_norm(1)]", "momentum", "lamb", "lion"])
def test_the_number_of_threads_is_not_in_the_bits(text: str, llvm: bool) -> None:
    rule, value = make_rule(text), numbers(3001, "float32")
    gradients = [numbers(3001, "float32") for _ in range(2)]
    with small_pages(256), contextlib.nullcontext() if llvm else without_llvm():
        results = [pushed(rule, value, gradients, Threads(count).each) for count in (1, 2, 7)]
    assert results[0] == results[1] == results[2]
