"""Does the page on update rules name every schedule, transform and aggregation, with its arguments? Do its examples parse?"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from ps.rules import make_rule, registered

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "update-rules.md").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"^\| `(\w+)` \|(?: `(.*?)`)? \|", PAGE, re.MULTILINE))
OURS = [
    pytest.param(cls, id=f"{kind} {name}")
    for kind in ("schedule", "transform", "aggregation")
    for name, cls in registered(kind).items()
    if cls.__module__.startswith("ps.rules")
]


@pytest.mark.parametrize("cls", OURS)
def test_each_has_a_row_with_its_arguments_and_defaults(cls: Any) -> None:
    arguments = [
        field.name if field.default is dataclasses.MISSING else f"{field.name}={_said(field.default)}"
        for field in dataclasses.fields(cls)
    ]
    assert ROWS[cls.name] == ", ".join(arguments)


def _said(default: Any) -> str:
    return str(default).lower() if isinstance(default, bool) else str(default)


@pytest.mark.parametrize("spec", re.findall(r"--rule '([^']+)'", PAGE))
def test_every_example_of_a_command_line_is_a_rule(spec: str) -> None:
    assert make_rule(make_rule(spec).spec()) == make_rule(spec)
