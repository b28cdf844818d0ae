"""Does the benchmark of update rules work? Nothing is judged: only a quiet machine can say what is fast."""

from __future__ import annotations

import json

from tests.harness.processes import Programs


def test_it_compares_all_sides_and_leaves_nothing_behind(programs: Programs) -> None:
    out = programs.directory / "rules.json"
    size = ("--elements", "600000", "--rounds", "1")
    program = programs.python("-m", "benchmarks.rules", "--quick", "--rule", "adam", *size, "--json", out)
    assert program.wait() == 0, program.text()
    programs.assert_none_left()
    assert "TensorFlow" in program.stdout and "adam" in program.stdout
    (row,) = json.loads(out.read_text(encoding="utf-8"))["rules"]
    assert (row["rule"], row["threads"]) == ("adam", 2)
    assert set(row["ms"]) == {"TensorFlow", "ours", "ours, numpy", "plain numpy"}
    assert {"ours / TensorFlow", "plain numpy / ours"} <= set(row["ratios"])
    for numbers in row["ms"].values():
        assert 0 < numbers["min"] <= numbers["median"] <= numbers["max"]
