"""What becomes of a step that asks other ps for a sum, and of its failure? Updates, without a network."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from protos.errors import RuleFailed
from ps.aggregation import Contribution
from ps.rules import Transform, make_rule, register
from ps.sums import DONE, Key
from ps.updates import Updates
from tests.core.builders import dense, run, state


@register("one_fails")
class OneFails(Transform):
    """g ← nothing: it raises."""

    def transform(self, ctx: Any, value: Any, grad: Any, *slots: Any) -> Any:
        raise ArithmeticError("thirteen")


class Others:
    """The other ps: they have nothing to add, and can be out of reach."""

    def __init__(self, reached: bool) -> None:
        self.reached, self.asked = reached, []  # type: ignore[var-annotated]

    async def of(self, key: Key, parts: Any) -> Any:
        self.asked.append((key, parts.tolist()))
        return parts

    async def failed(self, key: Key, failure: str) -> None:
        self.asked.append((key, failure))
        if not self.reached:
            raise RuleFailed(field="sum", got="no answer", expected="ps 0")


def made(others: Any, grad: Any, rule: str) -> Any:
    contributions = {0: Contribution({0: dense(np.asarray(grad, "f"))})}
    return run(Updates(others).compute(state(w=np.zeros(2, np.float32)), make_rule(rule), contributions))


def test_a_step_with_a_sum_ends_with_a_sum_of_nothing_and_one_without_asks_nobody() -> None:
    others = Others(reached=True)
    assert made(others, [3, 4], "sgd:learning_rate=1,global_clipnorm=1").version == 1
    assert others.asked == [(Key(0, 0, 0), [25.0]), (Key(0, 0, 1), DONE.tolist())]
    others = Others(reached=True)
    assert made(others, [3, 4], "sgd:learning_rate=1").version == 1
    assert others.asked == []


@pytest.mark.parametrize("reached", [True, False])
def test_why_a_step_failed_is_told_whether_or_not_the_others_can_be(reached: bool) -> None:
    others = Others(reached)
    with pytest.raises(RuleFailed, match="ArithmeticError: thirteen"):
        made(others, [3, 4], "sgd:transforms=[clip_by_global_norm(1),one_fails]")
    assert others.asked[-1][0] == Key(0, 0, 1)
