"""Does the study run, and is what the docs say it shows true?

Waiting falls with the slack, staleness breaks momentum, and rules made for it undo most of that.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ps.simulation import LogNormal, Plan, simulate
from tests.repo.sources import ROOT


@pytest.fixture(scope="module")
def study() -> Any:
    spec = importlib.util.spec_from_file_location("study_staleness", ROOT / "examples" / "study_staleness.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where a dataclass looks for what its annotations mean
    spec.loader.exec_module(module)
    return module


def test_the_study_writes_tables_numbers_and_pictures_and_waiting_falls_with_the_slack(
    study: Any, tmp_path: Path
) -> None:
    run = CliRunner().invoke(study.main, ["--quick", "--out", str(tmp_path)], catch_exceptions=False)
    assert run.exit_code == 0
    text = (tmp_path / "study.md").read_text(encoding="utf-8")
    assert "too short to prove anything" in text
    assert "Findings" not in text
    assert "undoes" not in text
    for rule in study.RULES:
        assert f"| loss, {rule} " in text
    for picture in ("modes.png", "workers.png"):
        assert (tmp_path / picture).read_bytes().startswith(b"\x89PNG")
    told = json.loads((tmp_path / "study.json").read_text(encoding="utf-8"))
    waiting = {tuple(run["key"][1:3]): run["idle_share"] for run in told["modes"]}
    for straggler in study.STRAGGLERS:
        shares = [waiting[mode, straggler] for mode in study.MODES]
        assert shares == sorted(shares, reverse=True)
        assert shares[0] > 0.1
        assert shares[-1] == 0


def test_staleness_breaks_momentum_and_staleness_rules_mend_most_of_it(study: Any) -> None:
    def loss(rule: str, workers: int) -> float:
        speeds = (LogNormal(1, 0.3),)
        plan = Plan(workers=workers, steps=800 // workers, rule=study.RULES[rule], model="mlp", speeds=speeds)
        return simulate(plan).final.loss

    alone, many = loss("momentum", 1), loss("momentum", 16)
    assert alone < 0.4
    assert many > 3 * alone
    for rule in ("staleness_aware", "gap_aware", "dana"):
        assert many - loss(rule, 16) > 0.5 * (many - alone), f"{rule} undoes more than half of it"
