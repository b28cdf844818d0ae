"""How long does an update take, against TensorFlow's fused kernels and against plain numpy? The program itself.

`python -m benchmarks.rules`: a variable of 8 M float32, each side in a process of its own with the same number of threads,
in turns, round after round; a ratio is taken within a round. Next: rule_sides.py, what each side does.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks import machine
from benchmarks.rounds import Series
from benchmarks.rule_sides import OURS, OURS_NUMPY, PLAIN, TENSORFLOW
from benchmarks.tasks import Task, TaskFailed, Tasks

RULES = ("sgd", "momentum", "adam", "adagrad", "lamb")
NO_KERNEL = ("lamb",)
SIDES = (TENSORFLOW, OURS, OURS_NUMPY, PLAIN)
THREADS = (1, 2)
WIDTH = 150


@dataclass(frozen=True)
class Row:
    """One rule with one number of threads: milliseconds of an update by side, each round; and those of all cores together."""

    rule: str
    threads: int
    ms: dict[str, Series]
    cpu_ms: dict[str, Series]

    def ratio(self, side: str, other: str, *, cpu: bool = False) -> Series | None:
        column = self.cpu_ms if cpu else self.ms
        return column[side].over(column[other]) if {side, other} <= set(column) else None


RATIOS = ((OURS, TENSORFLOW), (OURS_NUMPY, TENSORFLOW), (PLAIN, OURS), (PLAIN, OURS_NUMPY))


@click.command(context_settings={"max_content_width": 110, "help_option_names": ["-h", "--help"]})
@click.option("--rounds", type=click.IntRange(1), help="Turns of each side. Default: 9, or 2 with --quick.")
@click.option("--elements", type=click.IntRange(1), help="Size of the variable. Default: 8388608, or 1048576.")
@click.option("--rule", "rules", type=click.Choice(RULES), multiple=True, default=RULES, help="Only this; repeatable.")
@click.option("--quick", is_flag=True, help="A look at whether all works: a small variable, two rounds, 2 threads.")
@click.option("--json", "out", type=click.Path(dir_okay=False, path_type=Path), help="Write every number there too.")
def main(rounds: int | None, elements: int | None, rules: tuple[str, ...], quick: bool, out: Path | None) -> None:
    """Time update rules against TensorFlow's kernels and plain numpy.

    Example: python -m benchmarks.rules --rule adam --rounds 21 --json rules.json
    """
    elements, rounds = elements or (1 << 20 if quick else 1 << 23), rounds or (2 if quick else 9)
    about = {**machine.describe(), "load before": f"{machine.load():.1f}"}
    about["variable"] = f"{elements} float32, {rounds} rounds of {3 if quick else 5} updates"
    try:
        rows = measure(rules, THREADS[-1:] if quick else THREADS, elements, rounds, 3 if quick else 5)
    except TaskFailed as error:
        raise click.ClickException(str(error)) from None
    about["load after"] = f"{machine.load():.1f}"
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    for name, value in about.items():
        console.print(f"{name}: {value}", highlight=False)
    console.print(_table(rows))
    if out is not None:
        out.write_text(json.dumps({"machine": about, "rules": [_as_json(row) for row in rows]}, indent=2) + "\n")


def measure(rules: tuple[str, ...], threads: tuple[int, ...], elements: int, rounds: int, updates: int) -> list[Row]:
    """All rules on all sides. Raises TaskFailed."""
    rows = []
    with Tasks() as tasks, Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("", total=len(rules) * len(threads) * rounds)
        for count in threads:
            started = {side: tasks.start(side, "benchmarks.rule_sides", side, str(count)) for side in SIDES}
            for rule in rules:
                progress.update(bar, description=f"{rule}, {count} threads")
                sides = {side: task for side, task in started.items() if side != TENSORFLOW or rule not in NO_KERNEL}
                command = {"rule": rule, "elements": elements, "updates": updates}
                for task in sides.values():
                    task.ask(command)  # for warming up
                turns = []
                for number in range(rounds):
                    turns.append(_round(sides, command, backwards=bool(number % 2)))
                    progress.advance(bar)
                columns = [
                    {side: Series([turn[side][key] for turn in turns]) for side in sides} for key in ("ms", "cpu_ms")
                ]
                rows.append(Row(rule, count, *columns))
    return rows


def _round(sides: dict[str, Task], command: dict[str, Any], *, backwards: bool) -> dict[str, Any]:
    """Everybody's turn, one after the other."""
    order = list(sides.items())
    return {side: task.ask(command) for side, task in (reversed(order) if backwards else order)}


def _table(rows: list[Row]) -> Table:
    table = Table(title="Milliseconds of an update, and ratios within a round (median; least – most)", show_lines=True)
    ratios = [f"{side} / {other}" for side, other in RATIOS]
    for column in ("rule", "threads", *SIDES, *ratios, f"{ratios[0]}, CPU time"):
        table.add_column(column, justify="left" if column == "rule" else "right")
    for row in sorted(rows, key=lambda row: (RULES.index(row.rule), row.threads)):
        cells = [*(row.ms.get(side) for side in SIDES), *(row.ratio(*pair) for pair in RATIOS)]
        cells.append(row.ratio(*RATIOS[0], cpu=True))
        table.add_row(row.rule, str(row.threads), *map(_cell, cells))
    return table


def _cell(series: Series | None) -> str:
    if series is None:
        return "[dim]–[/dim]"
    return f"{_short(series.median)}\n[dim]{_short(series.least)}–{_short(series.most)}[/dim]"


def _short(number: float) -> str:
    return f"{number:.0f}" if number >= 100 else f"{number:.3g}"


def _as_json(row: Row) -> dict[str, Any]:
    ratios = {f"{side} / {other}": row.ratio(side, other) for side, other in RATIOS}
    ratios |= {f"{side} / {other}, CPU time": row.ratio(side, other, cpu=True) for side, other in RATIOS}
    return {
        "rule": row.rule,
        "threads": row.threads,
        "ms": {side: _numbers(series) for side, series in row.ms.items()},
        "cpu_ms": {side: _numbers(series) for side, series in row.cpu_ms.items()},
        "ratios": {name: _numbers(series) for name, series in ratios.items() if series is not None},
    }


def _numbers(series: Series) -> dict[str, Any]:
    return {"median": series.median, "min": series.least, "max": series.most, "rounds": series.values}


if __name__ == "__main__":
    main()
