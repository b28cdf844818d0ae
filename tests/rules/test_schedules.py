"""What is the learning rate at a step? Keras's, at the first step, where things begin and end, and far beyond.

Keras is asked live. Given a float64 rate it computes in float64, though its other arguments pass through float32: with
arguments that float32 holds exactly, nothing but the formula is compared.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from protos.errors import RuleError, RuleFailed
from ps.apply import apply
from ps.rules import Schedule, Sgd, make_rule, register, registered
from ps.rules.configured import _REGISTRY, make
from tests.core.builders import dense, state, value_of

# Name, class in Keras, arguments that float32 holds exactly, steps where something begins or ends.
CASES: list[tuple[str, str, dict[str, Any], list[int]]] = [
    ("exponential_decay", "ExponentialDecay", {"decay_steps": 100, "decay_rate": 0.75}, [100]),
    ("exponential_decay", "ExponentialDecay", {"decay_steps": 7, "decay_rate": 0.5, "staircase": True}, [7, 70, 49]),
    ("exponential_decay", "ExponentialDecay", {"decay_steps": 100, "decay_rate": 2.0, "staircase": True}, [100]),
    ("exponential_decay", "ExponentialDecay", {"decay_steps": 3, "decay_rate": 0.0}, [3]),
    (
        "piecewise_constant_decay",
        "PiecewiseConstantDecay",
        {"boundaries": [10, 20, 500], "values": [1.0, 0.5, 0.75, 0.125]},
        [10, 20, 500],
    ),
    ("piecewise_constant_decay", "PiecewiseConstantDecay", {"boundaries": [5], "values": [0.5, 0.25]}, [5]),
    ("polynomial_decay", "PolynomialDecay", {"decay_steps": 100, "end_learning_rate": 0.0078125}, [100]),
    ("polynomial_decay", "PolynomialDecay", {"decay_steps": 30, "end_learning_rate": 0.25, "power": 0.5}, [30]),
    ("polynomial_decay", "PolynomialDecay", {"decay_steps": 30, "end_learning_rate": 0.25, "power": 0.0}, [30]),
    (
        "polynomial_decay",
        "PolynomialDecay",
        {"decay_steps": 30, "end_learning_rate": 0.0, "power": 2.0, "cycle": True},
        [30, 60, 90, 3000],
    ),
    ("inverse_time_decay", "InverseTimeDecay", {"decay_steps": 100, "decay_rate": 0.5}, [100]),
    ("inverse_time_decay", "InverseTimeDecay", {"decay_steps": 1.5, "decay_rate": 0.5, "staircase": True}, [3, 6]),
    ("inverse_time_decay", "InverseTimeDecay", {"decay_steps": 7, "decay_rate": 3.0, "staircase": True}, [7, 49]),
    ("cosine_decay", "CosineDecay", {"decay_steps": 100}, [50, 100]),
    ("cosine_decay", "CosineDecay", {"decay_steps": 100, "alpha": 0.125}, [100]),
    (
        "cosine_decay",
        "CosineDecay",
        {"decay_steps": 100, "alpha": 0.25, "warmup_target": 0.5, "warmup_steps": 40},
        [40, 140],
    ),
    ("cosine_decay", "CosineDecay", {"decay_steps": 100, "warmup_target": 0.5}, [100]),
    ("cosine_decay_restarts", "CosineDecayRestarts", {"first_decay_steps": 100}, [100, 300, 700, 1500]),
    (
        "cosine_decay_restarts",
        "CosineDecayRestarts",
        {"first_decay_steps": 10, "t_mul": 1.0, "m_mul": 0.75, "alpha": 0.125},
        [10, 20, 500],
    ),
    (
        "cosine_decay_restarts",
        "CosineDecayRestarts",
        {"first_decay_steps": 8, "t_mul": 1.5, "m_mul": 0.5, "alpha": 0.25},
        [8, 20, 38],
    ),
]
every_case = pytest.mark.parametrize(
    ("name", "keras_name", "arguments", "edges"), CASES, ids=[f"{name} {arguments}" for name, _, arguments, _ in CASES]
)
EXAMPLES = [
    "exponential_decay(0.1,decay_steps=100,decay_rate=0.96)",
    "exponential_decay(0.1,decay_steps=100,decay_rate=0.96,staircase=true)",
    "piecewise_constant_decay([100,200.5],[0.1,0.01,1])",
    "polynomial_decay(0.1,decay_steps=100,cycle=true)",
    "inverse_time_decay(0.1,decay_steps=1.5,decay_rate=0.5)",
    "cosine_decay(0.1,decay_steps=100)",
    "cosine_decay(0,decay_steps=100,warmup_target=0.1,warmup_steps=10)",
    "cosine_decay_restarts(0.1,first_decay_steps=100)",
]
every_example = pytest.mark.parametrize("text", EXAMPLES)


def built(name: str, first: float, arguments: dict[str, Any]) -> tuple[Schedule, dict[str, Any]]:
    """Our schedule, and all the arguments of Keras's."""
    arguments = arguments if "values" in arguments else {"initial_learning_rate": first, **arguments}
    schedule: Schedule = make("schedule", {"name": name, **arguments})
    return schedule, arguments


@functools.cache
def in_keras(keras_name: str) -> Any:
    import keras

    return getattr(keras.optimizers.schedules, keras_name)


def steps_around(edges: list[int]) -> list[int]:
    near = {edge + off for edge in (0, *edges) for off in (-1, 0, 1)}
    return sorted(step for step in near | {13, 64, 377, 12_345, 1_000_003, 16_777_217} if step >= 0)


# -- those of Keras ----------------------------------------------------------------------------------------------------


@every_case
def test_the_rate_is_that_of_keras_to_the_last_digits(
    name: str, keras_name: str, arguments: dict[str, Any], edges: list[int]
) -> None:
    ours, keras_arguments = built(name, 0.625, arguments)
    if "values" not in arguments:
        keras_arguments["initial_learning_rate"] = np.float64(0.625)
    theirs = in_keras(keras_name)(**keras_arguments)
    for step in steps_around(edges):
        assert ours(step) == pytest.approx(float(theirs(step)), rel=1e-12, abs=1e-14), step


@every_case
def test_the_rate_is_that_of_keras_in_float32_as_far_as_that_goes(
    name: str, keras_name: str, arguments: dict[str, Any], edges: list[int]
) -> None:
    # As a program uses it: all in float32. Near the end of a cosine 1 + cos x has few digits left there, so that its error
    # is one of the first rate, not of the present one; a step beyond 2^24 is a neighbour of itself.
    ours, keras_arguments = built(name, 0.1, arguments)
    theirs = in_keras(keras_name)(**keras_arguments)
    for step in steps_around(edges):
        if step <= 377:
            assert ours(step) == pytest.approx(float(theirs(step)), rel=1e-6, abs=1e-7 * 0.1), step


def test_the_defaults_are_those_of_keras() -> None:
    import inspect

    for name, keras_name in {(name, keras_name) for name, keras_name, _, _ in CASES}:
        parameters = inspect.signature(in_keras(keras_name)).parameters
        theirs = {key: parameter.default for key, parameter in parameters.items() if key != "name"}
        ours = inspect.signature(registered("schedule")[name]).parameters
        assert {key: parameter.default for key, parameter in ours.items()} == theirs


@pytest.mark.parametrize("t_mul", [1.0, 1.1, 1.5, 2.0, 3.0, 10.0])
def test_a_restart_begins_at_its_step_and_not_one_later(t_mul: float) -> None:
    # A quotient of logarithms, as in Keras, misses some of them: log(8) / log(2) may be 2.9999999.
    schedule = registered("schedule")["cosine_decay_restarts"](1.0, 1000, t_mul, m_mul=0.5)
    begin, length = 0.0, 1000.0
    for restart in range(8):
        first = math.ceil(begin - 1e-6)
        assert schedule(first) == pytest.approx(0.5**restart, rel=1e-4)
        if restart:
            assert schedule(first - 1) < 1e-4 * 0.5 ** (restart - 1)
        begin, length = begin + length, length * t_mul


# -- pure functions of the step ----------------------------------------------------------------------------------------


@every_example
def test_a_schedule_is_a_pure_function_of_the_step(text: str) -> None:
    # claim 6: each ps has its own object, asked in its own order, perhaps again, perhaps after a restart.
    steps = [0, 1, 99, 100, 101, 12_345]
    one, other = make("schedule", text), make("schedule", text)
    forwards = [one(step) for step in steps]
    backwards = [other(step) for step in reversed(steps)]
    assert forwards == backwards[::-1] == [one(step) for step in steps]
    assert all(type(rate) is float and math.isfinite(rate) and rate >= 0 for rate in forwards)


@every_example
def test_a_rule_with_a_schedule_has_its_rate_at_each_step(text: str) -> None:
    # claim 6, through the engine: the step is the version of the state, whatever has happened before.
    rule = make_rule(f"sgd:learning_rate={text}")
    now = state(w=np.zeros(1))
    for step in range(4):
        rate = value_of(now)[0]
        now = apply(now, rule, {0: dense(np.ones(1))}, staleness=0, worker=0)
        assert rate - value_of(now)[0] == pytest.approx(make("schedule", text)(step))


# -- text and mappings -------------------------------------------------------------------------------------------------


@every_example
def test_a_schedule_goes_by_text_and_by_mapping(text: str) -> None:
    rule = make_rule(f"sgd:learning_rate={text}")
    assert isinstance(rule.learning_rate, Schedule)
    assert make_rule(rule.spec()) == make_rule(rule.config()) == rule
    assert eval(repr(rule), {"Sgd": Sgd} | {cls.__name__: cls for cls in registered("schedule").values()}) == rule
    assert hash(make_rule(rule.spec())) == hash(rule)


def test_every_schedule_has_an_example_here_and_says_what_it_computes() -> None:
    assert {text.partition("(")[0] for text in EXAMPLES} >= {name for name, _, _, _ in CASES}
    for name, _, _, _ in CASES:
        assert "η₀" in (text := registered("schedule")[name].__doc__ or "") or "values" in text


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("exponential_decay(-0.1,10,0.5)", "initial_learning_rate"),
        ("exponential_decay(0.1,0,0.5)", "decay_steps"),
        ("exponential_decay(0.1,10,-0.5)", "decay_rate"),
        ("piecewise_constant_decay([10,10],[3,2,1])", "boundaries"),
        ("piecewise_constant_decay([20,10],[3,2,1])", "boundaries"),
        ("piecewise_constant_decay([10],[3,2,1])", "values"),
        ("piecewise_constant_decay([10],[3,-2])", "values"),
        ("polynomial_decay(0.1,-3)", "decay_steps"),
        ("polynomial_decay(0.1,10,end_learning_rate=-1)", "end_learning_rate"),
        ("polynomial_decay(0.1,10,power=-1)", "power"),
        ("inverse_time_decay(0.1,0,1)", "decay_steps"),
        ("inverse_time_decay(0.1,10,-1)", "decay_rate"),
        ("cosine_decay(0.1,0)", "decay_steps"),
        ("cosine_decay(0.1,10,alpha=1.5)", "alpha"),
        ("cosine_decay(0.1,10,warmup_target=-1)", "warmup_target"),
        ("cosine_decay(0.1,10,warmup_target=1,warmup_steps=-1)", "warmup_steps"),
        ("cosine_decay(0.1,10,warmup_steps=5)", "warmup_target"),
        ("cosine_decay_restarts(0.1,0)", "first_decay_steps"),
        ("cosine_decay_restarts(0.1,10,t_mul=0.5)", "t_mul"),
        ("cosine_decay_restarts(0.1,10,m_mul=-1)", "m_mul"),
        ("cosine_decay_restarts(0.1,10,alpha=-1)", "alpha"),
    ],
)
def test_an_argument_that_makes_no_sense_is_refused_by_name(text: str, field: str) -> None:
    with pytest.raises(RuleError, match=rf"schedule {text.partition('(')[0]}, argument {field}"):
        make_rule(f"sgd:learning_rate={text}")


# -- schedules of one's own --------------------------------------------------------------------------------------------


@pytest.fixture
def registry() -> Iterator[None]:
    before = dict(_REGISTRY["schedule"])
    yield
    _REGISTRY["schedule"].clear()
    _REGISTRY["schedule"].update(before)


def test_one_of_ones_own_takes_ten_lines(registry: None) -> None:
    @register("noam")
    class Noam(Schedule):
        """scale min(1 / √(step+1), (step+1) / warmup^1.5) (Vaswani et al. 2017)."""

        scale: float
        warmup: int = 4000

        def __call__(self, step: int) -> float:
            return self.scale * min((step + 1) ** -0.5, (step + 1) * self.warmup**-1.5)

    rule = make_rule("adam:learning_rate=noam(2,warmup=4)")
    assert [rule.rate_at(step) for step in (0, 3, 15)] == [0.25, 1.0, 0.5]


@pytest.mark.parametrize(
    ("answer", "got"),
    [
        (lambda step: 1 / step, "ZeroDivisionError: division by zero"),
        (lambda step: math.inf, "inf"),
        (lambda step: math.nan, "nan"),
        (lambda step: -0.1, "-0.1"),
        (lambda step: None, "TypeError"),
    ],
)
def test_a_schedule_that_gives_no_number_fails_the_push_by_name(answer: Any, got: str) -> None:
    # claim 11: an infinite rate would make the whole model NaN, and nobody would know why.
    class Odd(Schedule):
        def __call__(self, step: int) -> float:
            rate: float = answer(step)
            return rate

    with pytest.raises(RuleFailed) as caught:
        apply(state(w=np.ones(2)), Sgd(Odd()), {0: dense(np.ones(2))}, staleness=0, worker=0)
    assert "learning_rate at step 0" in caught.value.field
    assert caught.value.got.startswith(got)


def test_a_rate_of_another_kind_of_number_does_not_widen_the_model() -> None:
    class Wide(Schedule):
        def __call__(self, step: int) -> float:
            return np.float64(0.5)  # which, multiplied with a float32 array, gives float64

    after = apply(
        state(w=np.ones(2, np.float32)), Sgd(Wide()), {0: dense(np.ones(2, np.float32))}, staleness=0, worker=0
    )
    assert value_of(after).tolist() == [0.5, 0.5]


def test_a_rate_beyond_all_numbers_is_infinite_as_in_keras() -> None:
    assert make("schedule", "exponential_decay(0.1,10,10)")(10_000) == math.inf
