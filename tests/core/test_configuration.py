"""Who may say what the job does? The command line and the first init may each say a part, and must not differ."""

from __future__ import annotations

from typing import Any

import pytest

from protos.errors import ConfigurationConflict, RuleError
from ps.configuration import Configuration, agree

NOTHING = Configuration()


def test_what_one_side_leaves_out_the_other_may_say() -> None:
    flags, init = Configuration(mode="ssp", rule="sgd"), Configuration(slack=2)
    assert agree(flags, init) == agree(init, flags)
    assert agree(flags, init) == Configuration("ssp", 2, None, "sgd:learning_rate=0.01")
    assert agree(NOTHING, NOTHING) == NOTHING


def test_the_same_rule_may_be_said_in_different_words() -> None:
    short, long = Configuration(rule="adam"), Configuration(rule="adam:epsilon=1e-7, learning_rate=0.001")
    assert agree(short, long) == agree(long, short)


def test_zero_is_something_that_was_said() -> None:
    assert agree(Configuration(slack=0), NOTHING).slack == 0
    with pytest.raises(ConfigurationConflict):
        agree(Configuration(slack=0), Configuration(slack=1))


@pytest.mark.parametrize(
    ("field", "mine", "theirs", "got", "expected"),
    [
        ("mode", "sync", "async", "'async'", "'sync', as the job already is"),
        ("slack", 1, 2, "2", "1, as the job already is"),
        ("backup_workers", 0, 1, "1", "0, as the job already is"),
        (
            "rule",
            "sgd",
            "sgd:learning_rate=0.5",
            "'sgd:learning_rate=0.5'",
            "'sgd:learning_rate=0.01', as the job already is",
        ),
    ],
)
def test_a_conflict_prints_both(field: str, mine: Any, theirs: Any, got: str, expected: str) -> None:
    # claim 11
    with pytest.raises(ConfigurationConflict) as caught:
        agree(Configuration(**{field: mine}), Configuration(**{field: theirs}))
    assert (caught.value.field, caught.value.got, caught.value.expected) == (field, got, expected)
    assert caught.value.hint


def test_a_rule_that_is_none_is_refused_on_either_side() -> None:
    for sides in [(Configuration(rule="nadamm"), NOTHING), (NOTHING, Configuration(rule="sgd:momentums=0.9"))]:
        with pytest.raises(RuleError):
            agree(*sides)
