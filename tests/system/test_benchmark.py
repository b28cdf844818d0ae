"""Does the benchmark work, and does it end all that it started, also when it is killed? Ours alone: no speed is judged."""

from __future__ import annotations

import json
import signal

import pytest

from benchmarks.cases import STEPS, named
from benchmarks.peers import require
from benchmarks.rounds import Missing, Series, Subject, run
from tests.harness.processes import Programs

QUICK = ("-m", "benchmarks.vs_tf_pss", "--quick", "--cases", "tiny", "--rounds", "1", "--parts", "steps")


def test_it_measures_tells_and_leaves_nothing_behind(programs: Programs) -> None:
    out, markdown = programs.directory / "result.json", programs.directory / "table.md"
    program = programs.python(*QUICK, "--contestants", "ours,limits", "--json", out, "--markdown", markdown)
    assert program.wait() == 0, program.text()
    programs.assert_none_left()
    assert "Steps per second" in program.stdout and "tiny" in program.stdout
    assert "| tiny (64 B) | 1 | 1 |" in markdown.read_text(encoding="utf-8")
    (row,) = json.loads(out.read_text(encoding="utf-8"))["steps"]
    assert (row["case"], row["bytes"], row["workers"], row["ps"]) == ("tiny", 64, 1, 1)
    assert {"ours", "raw TCP", "memcpy"} <= set(row["steps_per_s"])
    for numbers in row["steps_per_s"].values():
        assert numbers["min"] <= numbers["median"] <= numbers["max"] and len(numbers["rounds"]) == 1


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_killed_or_asked_to_end_it_leaves_nothing_behind(programs: Programs, number: signal.Signals) -> None:
    program = programs.python(*QUICK, "--seconds", "600", "--contestants", "ours")
    program.expect(r"1 worker, 1 ps, tiny$")  # from here on it measures, for ten minutes
    program.signal(number)
    assert program.wait() != 0
    programs.assert_none_left()


def test_a_ratio_is_taken_within_a_round() -> None:
    # Both were twice as slow in the second round: somebody else was at work. The ratio does not see it.
    ours, theirs = Series([400.0, 200.0, 410.0]), Series([100.0, 50.0, 100.0])
    ratio = ours.over(theirs)
    assert (ratio.least, ratio.median, ratio.most) == (4.0, 4.0, 4.1)


def test_subjects_take_turns_and_the_first_is_not_always_the_same() -> None:
    order: list[str] = []

    class Counting(Subject):
        """Measures nothing."""

        def measure(self, seconds: float) -> float:
            order.append(self.name)
            return 1.0

    series = run([Counting("a", []), Counting("b", [])], rounds=2, seconds=1.0, done=lambda: None)
    assert order == ["a", "b"] + ["a", "b"] + ["b", "a"]  # warming up, then two rounds
    assert series == {"a": Series([1.0, 1.0]), "b": Series([1.0, 1.0])}


def test_a_peer_that_is_not_installed_is_missing_with_a_reason() -> None:
    with pytest.raises(Missing, match="pip install no_such_package"):
        require("no_such_package")


def test_the_cases_are_those_that_are_compared() -> None:
    assert [(case.name, len(case.variables), case.bytes) for case in STEPS.values()] == [
        ("tiny", 1, 64),
        ("mlp", 6, 1_077_288),
        ("deep", 100, 832_000),
        ("wide", 6, 33_574_912),
    ]
    # A process is told of a case by its name alone.
    assert all(named(case.name) == case for case in (*STEPS.values(), named("1x33554432"), named("100x33554432")))
    assert named("100x33554432").bytes == pytest.approx(named("1x33554432").bytes, rel=1e-4)
    assert len(named("100x33554432").variables) == 100
