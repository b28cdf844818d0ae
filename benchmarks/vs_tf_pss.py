"""How much faster than TensorFlow's ParameterServerStrategy are we, and how far from the limits? The program itself.

`python -m benchmarks.vs_tf_pss`: live clusters of real processes on this machine, measured in turns, round after round;
tables, and a JSON file if asked for. benchmarks/README.md says what each column is.
Next: steps.py, transfers.py, training.py, its three parts.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks import machine, steps, table, training, transfers
from benchmarks.cases import LARGE_BYTES, STEPS, TRAINED, Case, Shape
from benchmarks.ours import transports
from benchmarks.rounds import Missing
from benchmarks.steps import Plan, Row
from benchmarks.tasks import TaskFailed

QUICK_BYTES = 1 << 20
WIDTH = 150

Results = dict[str, list[Row]]
TABLES: dict[str, list[Callable[[list[Row]], Table]]] = {
    "steps": [table.steps_table, table.ratios_table],
    "transfers": [table.transfers_table],
    "workers": [table.workers_table],
    "training": [table.training_table],
}
PARTS = tuple(TABLES)


def _listed(known: tuple[str, ...]) -> Callable[[click.Context, click.Parameter, str], tuple[str, ...]]:
    """A callback that reads `a,b` where each must be one of `known`."""

    def read(context: click.Context, parameter: click.Parameter, text: str) -> tuple[str, ...]:
        words = tuple(dict.fromkeys(word.strip() for word in text.split(",")))
        for word in words:
            if word not in known:
                raise click.BadParameter(f"got {word!r}, expected some of {','.join(known)}")
        return words

    return read


COUNTS = _listed(("1", "2", "3", "4"))


@click.command(context_settings={"max_content_width": 110, "help_option_names": ["-h", "--help"]})
@click.option("--cases", callback=_listed(tuple(STEPS)), default=",".join(STEPS), show_default=True)
@click.option("--workers", callback=COUNTS, default="1,2", show_default=True, help="Numbers of workers.")
@click.option("--ps", callback=COUNTS, default="1,2", show_default=True, help="Numbers of ps.")
@click.option("--rounds", type=click.IntRange(1), help="Turns of each contestant. Default: 5, or 2 with --quick.")
@click.option("--seconds", type=click.FloatRange(0.01), help="Length of a turn. Default: 1, or 0.3 with --quick.")
@click.option(
    "--contestants",
    callback=_listed(steps.KINDS),
    default=",".join(steps.KINDS),
    show_default=True,
    help="Who takes part.",
)
@click.option("--parts", callback=_listed(PARTS), default=",".join(PARTS), show_default=True, help="What is measured.")
@click.option(
    "--quick", is_flag=True, help="A look at whether all works: short turns, 1 worker and 1 ps, 1 MB for 32 MB."
)
@click.option("--json", "out", type=click.Path(dir_okay=False, path_type=Path), help="Write every number there too.")
@click.option(
    "--markdown", type=click.Path(dir_okay=False, path_type=Path), help="Write the tables there, for a README."
)
def main(
    cases: tuple[str, ...],
    workers: tuple[str, ...],
    ps: tuple[str, ...],
    rounds: int | None,
    seconds: float | None,
    contestants: tuple[str, ...],
    parts: tuple[str, ...],
    quick: bool,
    out: Path | None,
    markdown: Path | None,
) -> None:
    """Measure ours against TensorFlow's ParameterServerStrategy, other peers, and the machine's limits.

    Takes about twenty minutes; let the machine do nothing else. Exit code 1 if ours does not start or a process fails.

    Example: python -m benchmarks.vs_tf_pss --cases mlp,wide --workers 1 --ps 1 --rounds 7 --json result.json
    """
    signal.signal(signal.SIGTERM, _end)
    shapes = [Shape()] if quick else [Shape(int(w), int(p)) for w in workers for p in ps]
    chosen = [STEPS[name] for name in cases]
    large = QUICK_BYTES if quick else LARGE_BYTES
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    about: dict[str, Any] = {**machine.describe(), "load before": f"{machine.load():.1f}"}
    with _progress() as progress:
        task = progress.add_task("", total=None)

        def say(text: str) -> None:
            progress.update(task, description=text)
            if not progress.console.is_terminal:
                progress.console.print(text, highlight=False)

        plan = Plan(
            rounds or (2 if quick else 5),
            seconds or (0.3 if quick else 1.0),
            done=lambda: progress.advance(task),
            say=say,
        )
        about["rounds"] = f"{plan.rounds} of {plan.seconds:g} s"
        results: Results = {}
        try:
            if "steps" in parts:
                results["steps"] = [row for shape in shapes for row in steps.measure(shape, chosen, contestants, plan)]
            if "transfers" in parts:
                results["transfers"] = [transfers.large(transport, plan, large) for transport in transports()]
            if "workers" in parts:
                results["workers"] = [row for each in transports() for row in transfers.two_workers(each, chosen, plan)]
            if "training" in parts:
                trained = [case for case in chosen if case.name in TRAINED]
                results["training"] = _training(trained, plan, "pss" in contestants)
        except TaskFailed as error:
            raise click.ClickException(str(error)) from None
    about["load after"] = f"{machine.load():.1f}"
    _print(console, about, results)
    if markdown is not None:
        markdown.write_text(_markdown(about, results), encoding="utf-8")
    if out is not None:
        record = {part: [table.as_json(row) for row in rows] for part, rows in results.items()}
        out.write_text(json.dumps({"machine": about, **record}, indent=2) + "\n", encoding="utf-8")


def _training(cases: list[Case], plan: Plan, pss: bool) -> list[Row]:
    if not cases:
        return []
    try:
        return [row for each in transports() for row in training.measure(each, cases, plan, pss=pss)]
    except Missing as error:
        return [Row("training", 0, Shape(), {}, {"training": str(error)})]


def _progress() -> Progress:
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f} turns"),
        TimeElapsedColumn(),
    )
    return Progress(*columns, console=Console(stderr=True), transient=True)


def _print(console: Console, about: dict[str, Any], results: Results) -> None:
    for name, value in about.items():
        console.print(f"{name}: {value}", highlight=False)
    for part, rows in results.items():
        for shown in _tables(part, rows):
            console.print(shown)
        for line in table.remarks(rows):
            console.print(line, style="dim", highlight=False, markup=False)


def _markdown(about: dict[str, Any], results: Results) -> str:
    lines = [f"- {name}: {value}" for name, value in about.items()] + [""]
    for part, rows in results.items():
        lines += [table.as_markdown(shown) for shown in _tables(part, rows)]
        remarks = table.remarks(rows)
        lines += [f"- {line}" for line in remarks] + [""] * bool(remarks)
    return "\n".join(lines)


def _tables(part: str, rows: list[Row]) -> list[Table]:
    """Of the rows with a measurement; none without."""
    measured = [row for row in rows if row.series]
    return [make(measured) for make in TABLES[part]] if measured else []


def _end(number: int, frame: FrameType | None) -> None:
    """As an exception, so that every process is ended on the way out."""
    sys.exit(128 + number)


if __name__ == "__main__":
    main()
