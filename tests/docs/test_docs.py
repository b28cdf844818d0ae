"""Is what the docs say true? Every Python excerpt runs, the README's program trains, every claim names a test that exists."""

from __future__ import annotations

import ast
import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ps.rules import make_rule, registered

REPOSITORY = Path(__file__).resolve().parents[2]
DOCS = sorted((REPOSITORY / "docs").rglob("*.md"))
LINK = re.compile(r"\[[^\]]*\]\(([^)#:]+)(?:#[^)]*)?\)")


def blocks(path: Path, language: str) -> list[str]:
    """The fenced blocks of a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", path.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("path", [path for path in DOCS if blocks(path, "python")], ids=lambda path: path.name)
def test_the_excerpts_of_a_page_run_one_after_the_other(path: Path) -> None:
    # A process for each page: what one registers or starts is not there for the next.
    program = "\n".join(blocks(path, "python"))
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr
    said = re.findall(r"print\(.*\)\s+# (\[.*\])", program)
    for line in said:
        assert line in run.stdout, f"the page promises {line!r}, the program printed\n{run.stdout}"


def test_the_program_of_the_readme_trains(tmp_path: Path) -> None:
    (program,) = blocks(REPOSITORY / "README.md", "python")
    assert len(program.splitlines()) <= 15, "the README promises a program of at most 15 lines"
    train = tmp_path / "train.py"
    train.write_text(program, encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "client.run",
        "-n",
        "2",
        "-s",
        "2",
        "--mode",
        "sync",
        "--",
        sys.executable,
        str(train),
    ]
    run = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=180, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    said = re.search(r"\[worker 0\] worker 0: step 64, loss [\d.]+, w \[(.*)\]", run.stdout)
    assert said, run.stdout
    weights = [float(number) for number in said[1].split()]
    assert weights == pytest.approx([1, -2, 3, 0.5], abs=0.3)


def claims() -> list[tuple[int, str, str]]:
    """(claim, file, test) of every test that docs/protocol.md names."""
    text = (REPOSITORY / "docs" / "protocol.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \|.*$", text, re.MULTILINE)
    assert [int(row) for row in rows] == list(range(1, 13)), "docs/protocol.md lists the claims 1 to 12, each once"
    named = []
    for line in re.findall(r"^\| \d+ \|.*$", text, re.MULTILINE):
        number = int(line.split("|")[1])
        named += [(number, file, test) for file, test in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", line)]
    return named


def test_every_claim_but_the_one_for_checkpoints_has_a_test() -> None:
    assert {number for number, _, _ in claims()} == set(range(1, 13)) - {8}


@pytest.mark.parametrize(("number", "file", "test"), claims(), ids=lambda value: str(value))
def test_a_claim_names_a_test_that_says_so(number: int, file: str, test: str) -> None:
    source = (REPOSITORY / file).read_text(encoding="utf-8")
    functions = {
        node.name: node for node in ast.walk(ast.parse(source)) if hasattr(node, "name") and hasattr(node, "args")
    }
    assert test in functions, f"docs/protocol.md names {file}::{test}, which is not there"
    lines = source.splitlines()
    node = functions[test]
    body = "\n".join(lines[max(0, node.lineno - 4) : node.end_lineno])
    assert re.search(rf"# claims? [^\n:]*\b{number}\b", body), f"{file}::{test} does not say '# claim {number}'"


@pytest.mark.parametrize("path", [*DOCS, REPOSITORY / "README.md"], ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    for target in LINK.findall(path.read_text(encoding="utf-8")):
        assert (path.parent / target).exists(), f"{path.name} links to {target}"


ROWS = re.findall(
    r"^\| `(\w+)` \| `([^`]*)` \|", (REPOSITORY / "docs/update-rules.md").read_text(encoding="utf-8"), re.M
)


# Those of the package: other tests register rules of their own.
OURS = [name for name, cls in registered().items() if cls.__module__.startswith("ps.rules.")]


def test_every_rule_has_a_row() -> None:
    text = (REPOSITORY / "docs/update-rules.md").read_text(encoding="utf-8")
    assert set(OURS) <= set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE))


@pytest.mark.parametrize(("name", "defaults"), [row for row in ROWS if row[0] in OURS])
def test_the_defaults_in_the_row_of_a_rule_are_its_own_and_all_of_them(name: str, defaults: str) -> None:
    said = dict(item.split("=") for item in defaults.split(", "))
    for field, value in said.items():
        assert make_rule(f"{name}:{field}={value}") == make_rule(name), field
    rule = make_rule(name)
    assert set(said) >= {field.name for field in dataclasses.fields(rule)} - rule.options - {"learning_rate"}
