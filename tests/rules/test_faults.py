"""Is the author of a rule told where it failed, and what to do about it?"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protos.errors import RuleError, RuleFailed
from ps.apply import apply, with_slots
from ps.faults import log_once
from ps.rules import UpdateRule, configured, load_rules, make_rule
from ps.variable import ShardState
from tests.core.builders import dense, partition


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configured, "_REGISTRY", {kind: dict(known) for kind, known in configured._REGISTRY.items()})


def refusal(tmp_path: Path, body: str, *fields: str) -> RuleFailed:
    """What a push says to a rule with this in its `update`, for a variable w of shape (2, 4)."""
    lines = ["import numpy as np", "from ps.rules import UpdateRule, register", "@register('mine')"]
    lines += ["class Mine(UpdateRule):", *(f"    {field}" for field in fields)]
    if not any("def update" in field for field in fields):
        lines.append("    def update(self, ctx, value, grad):")
    path = tmp_path / "mine.py"
    path.write_text("\n".join([*lines, f"        {body}", ""]), encoding="utf-8")
    load_rules(path)
    rule: UpdateRule = make_rule("mine")
    value: Any = np.ones((2, 4), np.float32)
    now = ShardState(0, (with_slots(partition("w", value), rule),))
    with pytest.raises(RuleFailed) as caught:
        apply(now, rule, {0: dense(value)}, staleness=0, worker=0)
    return caught.value


def test_an_exception_says_where_it_comes_from(tmp_path: Path) -> None:
    error = refusal(tmp_path, "return {}['boom']")
    assert str(error) == (
        "rule mine, variable w: the update rule failed: KeyError: 'boom' (mine.py, line 6). "
        "Nothing was applied on this ps."
    )


def test_the_place_is_the_authors_line_when_numpy_raised(tmp_path: Path) -> None:
    assert "(mine.py, line 6)" in refusal(tmp_path, "return np.mean(value, axis=1)").got


@pytest.mark.parametrize(
    ("body", "fields", "hint"),
    [
        ("value -= grad", (), "Arguments are read-only"),
        ("return value", ("slots = ('v', 'u')",), "Mine names 2 slots (v, u): update gets ctx, value, grad, v, u."),
        (
            "return value",
            ("def update(self, ctx, value, grad, v):",),
            "Mine names 0 slots: update gets ctx, value, grad.",
        ),
        ("return np.mean(value, axis=1)", (), "elementwise = False gives whole variables"),
        ("return value[:, 0]", (), "elementwise = False gives whole variables"),
        ("rows, columns = value.shape", (), "elementwise = False gives whole variables"),
        ("return value - ctx.read_value", (), "needs_read_value = True"),
        ("value = value - grad", (), "Is there a return?"),
        ("return value * np.float64(2)", (), "A numpy float64 scalar"),
    ],
)
def test_a_hint_is_given_where_the_reason_is_known(
    tmp_path: Path, body: str, fields: tuple[str, ...], hint: str
) -> None:
    error = refusal(tmp_path, body, *fields)
    assert hint in error.hint
    assert error.hint.endswith("Nothing was applied on this ps.")


@pytest.mark.parametrize("body", ["raise ValueError('too steep')", "return value.astype(np.float16)"])
def test_no_hint_is_given_where_it_is_not(tmp_path: Path, body: str) -> None:
    assert refusal(tmp_path, body).hint == "Nothing was applied on this ps."


def test_a_wrong_shape_says_what_the_right_one_is_of(tmp_path: Path) -> None:
    error = refusal(tmp_path, "return value[:3]")
    assert (error.got, error.expected) == ("float32 (3,)", "float32 (8,), a flat piece of w")
    assert refusal(tmp_path, "return value[0]", "elementwise = False").expected == "float32 (2, 4)"


def test_a_file_that_does_not_import_says_where(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("import numpy as np\n\nrate = np.ones(3)[7]\n", encoding="utf-8")
    with pytest.raises(RuleError, match=r"\(mine.py, line 3\)"):
        load_rules(path)


def test_a_traceback_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    error = refusal(tmp_path, f"raise KeyError('{tmp_path.name}')")
    with caplog.at_level(logging.WARNING):
        log_once(error)
        log_once(error)
    (record,) = caplog.records
    assert "Traceback" in record.getMessage()
    assert 'mine.py", line 6, in update' in record.getMessage()


def test_a_name_of_the_package_is_taken_over_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "mine.py"
    text = "from ps.rules import UpdateRule, register\n@register('sgd')\nclass Mine(UpdateRule): pass\n"
    path.write_text(text, encoding="utf-8")
    with caplog.at_level(logging.WARNING):
        load_rules(path)
        load_rules(path)  # the second time it replaces its own
    (record,) = caplog.records
    assert "its Mine is now the rule sgd, in place of this package's own Sgd" in record.getMessage()
