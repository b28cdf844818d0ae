"""How far are we from TensorFlow, in one table? `python -m benchmarks.parity`

Runs our ps and workers and TensorFlow's own clusters as real processes on the same problem (tests/parity says which), prints
mode × rule × reference with the largest difference, and compares the final losses of asynchronous runs of three workers
over several seeds, where the order of arrival makes every run another. Writes both as JSON.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tests.parity.cases import STEPS, Row, compare, compare_with_story, reference
from tests.parity.ours import Job, run_jobs

RULES = ("sgd", "momentum", "nesterov", "adam")


def steps_table(directory: Path, console: Console) -> list[Row]:
    """Every step against every reference."""
    alone = {rule: Job("async", rule, workers=1) for rule in RULES}
    sync = {rule: Job("sync", rule, workers=3) for rule in RULES}
    story = Job("async", "sgd", workers=3)
    console.print("[dim]ours, async, 1 worker …")
    ours = run_jobs(list(alone.values()), _new(directory, "alone"))
    console.print("[dim]ours, sync and async, 3 workers …")
    ours |= run_jobs([*sync.values(), story], _new(directory, "three"))
    references = _new(directory, "references")
    plan = (
        ("ParameterServerStrategy", "pss", "1", alone),
        ("SyncReplicasOptimizer", "sync_replicas", "3", sync),
        ("union batch, 1 process", "single", "3", sync),
    )
    rows = []
    for name, program, workers, jobs in plan:
        console.print(f"[dim]{escape(name)} …")
        theirs = reference(program, RULES, references, "--workers", workers)
        rows += [compare(job, ours[job], theirs[rule], name) for rule, job in jobs.items()]
    return [*rows, compare_with_story(story, ours[story])]


def losses(directory: Path, rule: str, seeds: list[int], console: Console) -> dict[str, Any]:
    """Final held-out losses of async with 3 workers, ours and ParameterServerStrategy's, one a seed."""
    from tests.parity.reference.model import mean_loss
    from tests.parity.reference.problem import problem

    console.print(f"[dim]ours, async {escape(rule)}, 3 workers, seeds {seeds} …")
    jobs = [Job("async", rule, workers=3, seed=seed) for seed in seeds]
    records = run_jobs(jobs, _new(directory, "losses"))
    ours = [float(mean_loss(records[job].final, *problem(job.seed, STEPS, 3).held_out)) for job in jobs]
    console.print(f"[dim]ParameterServerStrategy, {escape(rule)}, 3 workers, seeds {seeds} …")
    listed = ",".join(str(seed) for seed in seeds)
    theirs = reference("pss", [rule], _new(directory, "pss"), "--workers", "3", "--seeds", listed)[rule]
    return {
        "rule": rule,
        "seeds": seeds,
        "initial": [float(loss) for loss in theirs["initial_loss"]],
        "ours": ours,
        "ParameterServerStrategy": [float(loss) for loss in theirs["final_loss"]],
    }


def _new(directory: Path, name: str) -> Path:
    path = directory / name
    path.mkdir()
    return path


def _print_rows(console: Console, rows: list[Row]) -> None:
    table = Table(title="Difference from the reference, largest over all variables and steps")
    for column in ("mode", "workers", "rule", "reference", "steps"):
        table.add_column(column)
    for column in ("max |difference|", "relative to the norm", "bit for bit"):
        table.add_column(column, justify="right")
    for row in rows:
        equal = "yes" if row.bit_equal else "no"
        table.add_row(
            row.mode,
            str(row.workers),
            row.rule,
            row.reference,
            str(row.steps),
            f"{row.max_abs:.1e}" if row.max_abs else "0",
            f"{row.max_relative:.1e}" if row.max_relative else "0",
            equal,
        )
    console.print(table)


def _print_losses(console: Console, result: dict[str, Any]) -> None:
    table = Table(title=escape(f"Final held-out loss, async, 3 workers, {result['rule']}, {STEPS} steps a worker"))
    for column in ("", *(f"seed {seed}" for seed in result["seeds"]), "mean", "spread (standard deviation)"):
        table.add_column(column, justify="right" if column else "left")
    for name in ("initial", "ours", "ParameterServerStrategy"):
        values = result[name]
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        table.add_row(name, *(f"{value:.3f}" for value in values), f"{statistics.mean(values):.3f}", f"{spread:.3f}")
    console.print(table)


@click.command()
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("parity.json"), show_default=True, help="JSON file."
)
@click.option(
    "--rule", type=click.Choice(RULES), default="adam", show_default=True, help="Rule of the loss comparison."
)
@click.option("--seeds", type=click.IntRange(1), default=5, show_default=True, help="Seeds of the loss comparison.")
def main(out: Path, rule: str, seeds: int) -> None:
    """Print and write how far we are from TensorFlow. Takes about four minutes on two cores.

    Example: python -m benchmarks.parity --out parity.json
    """
    console = Console()
    console.width = max(console.width, 120)  # in a pipe too: the tables are wide
    with tempfile.TemporaryDirectory() as directory:
        rows = steps_table(Path(directory), console)
        result = losses(Path(directory), rule, list(range(seeds)), console)
    _print_rows(console, rows)
    _print_losses(console, result)
    out.write_text(
        json.dumps({"steps": [dataclasses.asdict(row) for row in rows], "losses": result}, indent=2), encoding="utf-8"
    )
    console.print(f"written to {out}")


if __name__ == "__main__":
    main()
