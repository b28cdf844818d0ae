"""What does `python -m ps.simulate` print, write and refuse?"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ps.simulate import main
from ps.simulation import Constant
from ps.simulation.plot import figure, logarithmic
from ps.story import Event
from tests.repo.sources import ROOT

SMALL = ["--workers", "3", "--steps", "5", "--data", "synthetic", "--batch-size", "4"]


def simulated(*arguments: str) -> Result:
    return CliRunner().invoke(main, [*SMALL, *arguments])


def test_it_prints_tables() -> None:
    said = simulated("--mode", "ssp", "--slack", "2").output
    for part in ("On held-out examples", "Staleness of applied pushes", "idle share", "sent 15, applied 15"):
        assert part in said


def test_as_a_program_it_prints_json_and_the_same_each_time() -> None:
    command = [sys.executable, "-m", "ps.simulate", *SMALL, "--json", "--speed", "lognormal(1,0.5)", "--seed", "7"]
    runs = [
        subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120) for _ in range(2)
    ]
    assert runs[0].stdout == runs[1].stdout
    told = json.loads(runs[0].stdout)
    assert told["plan"]["seed"] == 7
    assert [worker["iterations"] for worker in told["workers"]] == [5, 5, 5]
    assert runs[0].stderr == "", "a bar is for terminals"


def test_it_draws_the_run_and_writes_its_story(tmp_path: Path) -> None:
    run = simulated("--servers", "2", "--plot", str(tmp_path / "run.png"), "--story-dir", str(tmp_path / "stories"))
    assert run.exit_code == 0, run.output
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")
    lines = (tmp_path / "stories" / "story-ps1.jsonl").read_text(encoding="utf-8").splitlines()
    told = [json.loads(line) for line in lines]
    times = [event.pop("time_s") for event in told]
    assert times == sorted(times)
    events = [Event.from_json(json.dumps(event)) for event in told]
    assert sum(event.outcome == "applied" for event in events) == 15


@pytest.mark.parametrize("losses", [[2.1, 6.5], [0.02, 3], [0.4, 0.7]])
def test_the_numbers_of_a_loss_axis_are_plain(losses: list[float]) -> None:
    drawn, ((axes,),) = figure(1, 1)
    axes.plot([0, 1], losses)
    logarithmic(axes.yaxis)
    drawn.canvas.draw()
    labels = [label.get_text() for which in ("major", "minor") for label in axes.yaxis.get_ticklabels(which=which)]
    assert any(labels)
    assert all(float(label) > 0 for label in labels if label)


def test_everybody_works_until_a_time() -> None:
    told = json.loads(CliRunner().invoke(main, ["--data", "synthetic", "--until", "7.5", "--json"]).output)
    assert [worker["iterations"] for worker in told["workers"]] == [7] * 4


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--speed", "quick(1)"], "quick"),
        (["--rule", "sdg"], "sdg"),
        (["--slack", "3"], "slack"),
        (["--mode", "sync", "--backup-workers", "3"], "backup_workers"),
        (["--rules", "nowhere.py"], "nowhere.py"),
        (["--plot", "nowhere/run.png"], "nowhere"),
        (["--plot", "run.txt"], ".png"),
        (["--speed", "lognormal(0)"], "median"),
    ],
)
def test_bad_input_is_refused_in_a_line_with_code_2(arguments: list[str], word: str) -> None:
    run = simulated(*arguments)
    assert run.exit_code == 2
    assert word in run.output
    assert "Traceback" not in run.output
    assert "Workers" not in run.output, "refused before it has run"


def test_what_is_in_brackets_is_printed_as_it_is() -> None:
    rule = "sgd:learning_rate=0.1,transforms=[clip_by_norm(1)]"
    assert "transforms=[clip_by_norm(1)]" in simulated("--rule", rule).output


def test_a_straggler_alone_is_slower_than_the_others_which_take_a_second() -> None:
    told = json.loads(simulated("--speed", "straggler(worker=1,factor=3)", "--json").output)
    assert [worker["busy_s"] for worker in told["workers"]] == [5, 15, 5]


def test_a_rule_that_fails_in_mid_run_ends_it_with_the_tables_of_what_there_is(tmp_path: Path) -> None:
    text = "from ps.rules import UpdateRule, register\n@register('tires')\nclass Tires(UpdateRule):\n"
    text += "    def update(self, ctx, value, grad):\n        return value - grad * (1 / (7 - ctx.step))\n"
    path = tmp_path / "mine.py"
    path.write_text(text, encoding="utf-8")
    run = simulated("--rules", str(path), "--rule", "tires")
    assert run.exit_code == 1
    assert "at step 7, 3 s of virtual time: RuleFailed: " in run.output
    assert "(mine.py, line 5)" in run.output
    assert "idle share" in run.output


def test_a_rule_for_local_steps_is_warned_of() -> None:
    run = simulated("--rule", "diloco")
    assert (run.exit_code, "warning: diloco is for local steps" in run.output) == (0, True)


def test_an_interrupt_is_told_in_a_line_after_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: Constant, *of: float) -> float:
        if of[2] >= 3:
            raise KeyboardInterrupt
        return 1.0

    monkeypatch.setattr(Constant, "duration_s", interrupted)
    run = simulated()
    assert run.exit_code == 130
    assert "ps.simulate: at step 7, 3 s of virtual time: interrupted\n" in run.output
    assert "idle share" in run.output


def test_the_help_has_an_example() -> None:
    assert "python -m ps.simulate --workers 16" in CliRunner().invoke(main, ["--help"]).output
