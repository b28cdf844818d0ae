"""A rule of one's own, in a file: the example of the docs as a user writes it, and files that are wrong."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protos.errors import RuleError
from ps.apply import apply, with_slots
from ps.rules import UpdateRule, configured, load_rules, make_rule, registered
from ps.variable import ShardState
from tests.core.builders import dense, partition

SIGNUM = '''
import numpy as np

from ps.rules import UpdateRule, register


@register("signum")
class Signum(UpdateRule):
    """Sign of an averaged gradient (Bernstein et al. 2018)."""

    learning_rate: float = 1e-3
    momentum: float = 0.9
    slots = ("velocity",)

    def update(self, ctx, value, grad, velocity):
        velocity = self.momentum * velocity + (1 - self.momentum) * grad
        return value - ctx.learning_rate * np.sign(velocity), velocity
'''


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    before = dict(configured._REGISTRY["rule"])
    yield
    configured._REGISTRY["rule"].clear()
    configured._REGISTRY["rule"].update(before)


def write(tmp_path: Path, text: str, name: str = "mine.py") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_a_rule_of_fifteen_lines_trains(tmp_path: Path) -> None:
    assert load_rules(write(tmp_path, SIGNUM)) == ["signum"]
    rule = make_rule("signum:learning_rate=0.5")
    assert repr(rule) == "Signum(learning_rate=0.5, momentum=0.9)"
    assert rule.spec() == "signum:learning_rate=0.5,momentum=0.9"
    now = ShardState(0, (with_slots(partition("w", np.zeros(3, np.float32)), rule),))
    for gradient in ([5.0, -0.1, 0.0], [-1.0, -0.1, 0.0]):
        now = apply(now, rule, {0: dense(np.array(gradient, np.float32))}, staleness=0, worker=0)
    # The average of 5 and -1 still points up: one more step down.
    assert now.partitions[0].value.whole().tolist() == [-1.0, 1.0, 0.0]
    np.testing.assert_allclose(now.partitions[0].slots["velocity"].whole(), [0.35, -0.019, 0], rtol=1e-5)


def test_a_file_with_future_annotations_works_too(tmp_path: Path) -> None:
    load_rules(write(tmp_path, "from __future__ import annotations\n" + SIGNUM))
    assert make_rule("signum:momentum=0.5") == registered()["signum"](momentum=0.5)  # type: ignore[call-arg]


def test_a_file_may_register_several_and_may_be_loaded_again(tmp_path: Path) -> None:
    text = SIGNUM + "\n\n@register('other')\nclass Other(Signum):\n    momentum: float = 0.0\n"
    path = write(tmp_path, text)
    assert load_rules(path) == ["signum", "other"]
    assert sorted(load_rules(path)) == ["other", "signum"]
    assert make_rule("other").slots == ("velocity",)


def test_a_file_may_replace_a_rule_of_ours(tmp_path: Path) -> None:
    assert load_rules(write(tmp_path, SIGNUM.replace('"signum"', '"sgd"'))) == ["sgd"]
    assert make_rule("sgd").slots == ("velocity",)


@pytest.mark.parametrize(
    ("text", "got", "expected"),
    [
        ("", "no rule", "@register(name) on a subclass of UpdateRule"),
        ("def update(:", "SyntaxError", "a file that imports"),
        ("import no_such_module_anywhere", "ModuleNotFoundError", "a file that imports"),
        (SIGNUM + "\n1 / 0", "ZeroDivisionError: division by zero", "a file that imports"),
        (SIGNUM.replace('("velocity",)', '"velocity"'), "'velocity'", "a tuple of names: ('velocity',)"),
        (SIGNUM.replace("(UpdateRule)", ""), "<class", "a subclass of UpdateRule"),
    ],
)
def test_a_wrong_file_is_told_and_registers_nothing(tmp_path: Path, text: str, got: str, expected: str) -> None:
    # claim 11
    before = registered()
    with pytest.raises(RuleError) as caught:
        load_rules(write(tmp_path, text))
    assert got in caught.value.got
    assert expected in caught.value.expected
    assert registered() == before


def test_a_file_that_is_not_there_or_not_python_is_told(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere.py", tmp_path, write(tmp_path, SIGNUM, "mine.txt")):
        with pytest.raises(RuleError) as caught:
            load_rules(path)
        assert caught.value.field == "--rules"
        assert caught.value.got == str(path)


def test_a_rule_that_is_not_elementwise_is_given_whole_variables(tmp_path: Path) -> None:
    text = """
import numpy as np
from ps.rules import UpdateRule, register

@register("lamb_like")
class LambLike(UpdateRule):
    elementwise = False

    def update(self, ctx, value, grad):
        return value - ctx.learning_rate * grad * np.linalg.norm(value) / np.linalg.norm(grad)
"""
    load_rules(write(tmp_path, text))
    rule: UpdateRule = make_rule("lamb_like:learning_rate=1")
    value: Any = np.array([[3.0, 0.0], [0.0, 4.0]], np.float32)
    now = ShardState(0, (with_slots(partition("w", value), rule),))
    now = apply(now, rule, {0: dense(np.eye(2, dtype=np.float32))}, staleness=0, worker=0)
    np.testing.assert_allclose(now.partitions[0].value.whole(), value - 5 / np.sqrt(2) * np.eye(2), rtol=1e-6)
