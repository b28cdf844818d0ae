"""How is a rule named and configured? NAME:key=value,… and mappings, and what is refused about them. Nothing is evaluated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Optional

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos.errors import RuleError
from ps.rules import Adam, Momentum, Sgd, UpdateRule, configured, make_rule, register, registered


@pytest.fixture
def registry() -> Iterator[dict[str, type[UpdateRule]]]:
    """The registry, put back afterwards: what a test registers is not tested by test_contract.py."""
    before = dict(configured._REGISTRY["rule"])
    yield configured._REGISTRY["rule"]
    configured._REGISTRY["rule"].clear()
    configured._REGISTRY["rule"].update(before)


@pytest.mark.parametrize(
    ("spec", "rule"),
    [
        ("sgd", Sgd()),
        ("sgd:", Sgd()),
        ("sgd:learning_rate=1", Sgd(1.0)),
        ("sgd:learning_rate=1e-3", Sgd(1e-3)),
        (" sgd : learning_rate = .5 , ", Sgd(0.5)),
        ("adam:beta_1=0.5,epsilon=1e-8", Adam(beta_1=0.5, epsilon=1e-8)),
        ("momentum:nesterov=true", Momentum(nesterov=True)),
        ("momentum:nesterov=True", Momentum(nesterov=True)),
        ("momentum:nesterov=1,momentum=0", Momentum(nesterov=True, momentum=0.0)),
        ("momentum:nesterov=0", Momentum()),
        ({"name": "sgd"}, Sgd()),
        ({"name": "sgd", "learning_rate": 1}, Sgd(1.0)),
        ({"name": "sgd", "learning_rate": np.float64(0.5)}, Sgd(0.5)),
        ({"name": "sgd", "learning_rate": "0.5"}, Sgd(0.5)),
        ({"name": "momentum", "nesterov": True}, Momentum(nesterov=True)),
    ],
)
def test_what_a_spec_means(spec: Any, rule: UpdateRule) -> None:
    assert make_rule(spec) == rule


@given(
    rate=st.floats(0, allow_nan=False, allow_infinity=False),
    beta=st.floats(0, 1, exclude_max=True),
    nesterov=st.booleans(),
)
def test_numbers_survive_their_text_to_the_last_bit(rate: float, beta: float, nesterov: bool) -> None:
    for rule in (Adam(rate, beta_1=beta), Momentum(rate, beta, nesterov)):
        assert make_rule(rule.spec()) == rule


WRONG: list[tuple[Any, str, str, str]] = [
    ("sdg", "rule", "'sdg'", "one of adam, momentum, sgd"),
    ("", "rule", "''", "one of adam, momentum, sgd"),
    ("Adam", "rule", "'Adam'", "one of adam, momentum, sgd"),
    ("adam,learning_rate=1", "rule", "'adam,learning_rate=1'", "one of adam, momentum, sgd"),
    ("sgd:0.1", "rule sgd", "'0.1'", "key=value"),
    ("sgd:=0.1", "rule sgd", "'=0.1'", "key=value"),
    ("sgd:momentums=0.9", "rule sgd", "argument 'momentums'", "one of learning_rate, …"),
    ("sgd:learning_rate=1,learning_rate=2", "rule sgd", "learning_rate twice", "each argument once"),
    ("sgd:learning_rate=fast", "rule sgd, argument learning_rate", "'fast'", "a finite number or a schedule"),
    ("sgd:learning_rate=", "rule sgd, argument learning_rate", "''", "a finite number or a schedule"),
    ("sgd:learning_rate=nan", "rule sgd, argument learning_rate", "'nan'", "a finite number or a schedule"),
    ("sgd:learning_rate=inf", "rule sgd, argument learning_rate", "'inf'", "a finite number or a schedule"),
    (
        "sgd:learning_rate=__import__('os')",
        "rule sgd, argument learning_rate",
        "\"__import__('os')\"",
        "a finite number or a schedule",
    ),
    ("momentum:nesterov=yes", "rule momentum, argument nesterov", "'yes'", "true or false"),
    ("momentum:nesterov=2", "rule momentum, argument nesterov", "'2'", "true or false"),
    (
        {"name": "sgd", "learning_rate": True},
        "rule sgd, argument learning_rate",
        "True",
        "a finite number or a schedule",
    ),
    (
        {"name": "sgd", "learning_rate": None},
        "rule sgd, argument learning_rate",
        "None",
        "a finite number or a schedule",
    ),
    ({"name": "sgd", "learning_rate": [1]}, "rule sgd, argument learning_rate", "[1]", "a finite number or a schedule"),
    ({"learning_rate": 1}, "rule", "{'learning_rate': 1}", 'a mapping with "name"'),
    (None, "rule", "None", "NAME:key=value,… or a mapping"),
]


@pytest.mark.parametrize(("spec", "field", "got", "expected"), WRONG)
def test_a_wrong_spec_is_told_by_field(spec: Any, field: str, got: str, expected: str) -> None:
    # claims 9 and 11
    with pytest.raises(RuleError) as caught:
        make_rule(spec)
    known = f"one of {', '.join(registered())}"  # other tests register rules of their own
    expected = known if expected == "one of adam, momentum, sgd" else expected
    assert (caught.value.field, caught.value.got) == (field, got)
    assert caught.value.expected.startswith(expected.rstrip("…"))


def test_fields_may_be_integers_text_and_optional(registry: Any) -> None:
    @register("odd")
    class Odd(UpdateRule):
        every: int = 2
        norm: str = "l2"
        clip: Optional[float] = None
        limit: int | None = 5

    assert make_rule("odd") == Odd()
    assert make_rule("odd:every=3,norm=l1,clip=0.5,limit=None") == Odd(every=3, norm="l1", clip=0.5, limit=None)
    assert make_rule(Odd(clip=1.5).spec()) == Odd(clip=1.5)
    assert make_rule({"name": "odd", "every": 3.0}) == Odd(every=3)
    for value in (2.5, "2.5"):
        with pytest.raises(RuleError) as caught:
            make_rule({"name": "odd", "every": value})
        assert caught.value.expected == "int"


@pytest.mark.parametrize("value", ["l1,l2", " l1", "l1 "])
def test_text_that_a_spec_could_not_say_is_refused_by_name(registry: Any, value: str) -> None:
    @register("odd")
    class Odd(UpdateRule):
        norm: str = "l2"

    with pytest.raises(RuleError) as caught:
        make_rule({"name": "odd", "norm": value})
    assert (caught.value.field, caught.value.got) == ("rule odd, argument norm", repr(value))


def test_a_rule_may_refuse_its_arguments(registry: Any) -> None:
    @register("proud")
    class Proud(UpdateRule):
        def __post_init__(self) -> None:
            if self.learning_rate <= 0:
                raise ValueError("learning_rate must be positive")

    with pytest.raises(RuleError) as caught:
        make_rule("proud:learning_rate=0")
    assert caught.value.got == "ValueError: learning_rate must be positive"


# -- what is registered, and what is not -------------------------------------------------------------------------------


def test_the_same_name_again_replaces_a_rule_as_a_notebook_needs(registry: Any) -> None:
    for number in (1.0, 2.0):

        @register("mine")
        class Mine(UpdateRule):
            learning_rate: float = number

    assert make_rule("mine").learning_rate == 2
    assert registered()["mine"] is Mine


def slots_with_annotation() -> None:
    @register("bad")
    class Bad(UpdateRule):
        slots: tuple[str, ...] = ("velocity",)


def a_slot_twice() -> Any:
    class Bad(UpdateRule):
        slots = ("m", "v")
        worker_slots = ("m",)

    return register("bad")(Bad)


def slots_that_are_text() -> None:
    @register("bad")
    class Bad(UpdateRule):
        slots = "velocity"  # type: ignore[assignment]


def a_field_that_no_command_line_can_say() -> None:
    @register("bad")
    class Bad(UpdateRule):
        betas: tuple[float, float] = (0.9, 0.99)


def a_field_without_default() -> None:
    @register("bad")
    class Bad(UpdateRule):
        momentum: float


def registered_twice() -> None:
    class Bad(UpdateRule):
        """Two names for one class: which one would its spec say?"""

    register("bad")(register("good")(Bad))


def no_rule_at_all() -> None:
    register("bad")(int)  # type: ignore[type-var]


@pytest.mark.parametrize(
    ("doing", "got"),
    [
        (slots_with_annotation, "slots as a field"),
        (slots_that_are_text, "'velocity'"),
        (a_slot_twice, "m, v, m"),
        (a_field_that_no_command_line_can_say, "tuple[float, float]"),
        (a_field_without_default, "non-default argument"),
        (registered_twice, "Bad: "),
        (no_rule_at_all, "<class 'int'>"),
    ],
)
def test_a_class_that_cannot_be_a_rule_is_refused_when_it_is_registered(registry: Any, doing: Any, got: str) -> None:
    with pytest.raises(RuleError) as caught:
        doing()
    assert got in caught.value.got
    assert "bad" in caught.value.field
    assert "bad" not in registry


@pytest.mark.parametrize("name", ["", "two words", "a:b", "a,b", "a=b"])
def test_a_name_that_a_spec_could_not_say_is_refused(registry: Any, name: str) -> None:
    with pytest.raises(RuleError) as caught:
        register(name)(Sgd)
    assert caught.value.got == repr(name)


def test_a_rule_without_update_says_so() -> None:
    with pytest.raises(TypeError, match="UpdateRule does not define update"):
        UpdateRule().update(None, None, None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ("sgd:learning_rate=-1", "learning_rate"),
        ("momentum:momentum=1.5", "momentum"),
        ("adam:beta_1=1", "beta_1"),
        ("adam:beta_2=-0.1", "beta_2"),
        ("adam:epsilon=-1e-7", "epsilon"),
        ("adamw:weight_decay=-0.1", "weight_decay"),
        ("sgd:weight_decay=-0.1", "weight_decay"),
        ("muon:adam_weight_decay=-0.1", "adam_weight_decay"),
    ],
)
def test_an_argument_that_makes_no_sense_is_refused_by_name(spec: str, field: str) -> None:
    with pytest.raises(RuleError, match=rf"argument {field}"):
        make_rule(spec)
