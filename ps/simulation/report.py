"""How does a person read a run? Tables on a terminal; in a pipe, the same without colours.

Next: ps/simulation/plot.py (as a picture), ps/simulation/result.py (the numbers).
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from ps.simulation.result import Look, Result, WorkerTimes

# Rows that a table has at most.
MOST_LOOKS, MOST_WORKERS, MOST_BINS = 12, 8, 8


def print_report(result: Result, console: Console) -> None:
    """What was simulated, the loss, the staleness, the workers, and a line that identifies the run."""
    console.print(str(result.plan), highlight=False, markup=False, emoji=False, soft_wrap=True)
    console.print(_losses(result.looks), _staleness(result), _workers(result.workers))
    told = "; ".join(
        f"ps {index}: " + ", ".join(f"{name} {count}" for name, count in counters.items() if count)
        for index, counters in enumerate(result.counters)
    )
    console.print(told, highlight=False)
    console.print(
        f"{result.duration_s:g} s of virtual time, {result.final.step} steps, loss {result.final.loss:.4g}, "
        f"accuracy {result.final.accuracy:.1%}, idle {result.idle_share:.1%}, run {result.fingerprint()}",
        highlight=False,
        soft_wrap=True,
    )


def _losses(looks: Sequence[Look]) -> Table:
    table = Table("virtual s", "step", "loss", "accuracy", title="On held-out examples", title_justify="left")
    every = max(1, -(-len(looks) // MOST_LOOKS))
    for look in [*looks[:-1:every], looks[-1]]:
        table.add_row(f"{look.time_s:.1f}", str(look.step), f"{look.loss:.4g}", f"{look.accuracy:.1%}")
    return table


def _staleness(result: Result) -> Table:
    mean = f"Staleness of applied pushes, {result.mean_staleness:.1f} on average"
    table = Table("staleness", "pushes", "", title=mean, title_justify="left")
    most = max(result.staleness, default=0)
    width = max(1, -(-(most + 1) // MOST_BINS))
    bins = [
        (low, sum(result.staleness.get(staleness, 0) for staleness in range(low, low + width)))
        for low in range(0, most + 1, width)
    ]
    fullest = max(count for _, count in bins) or 1
    for low, count in bins:
        label = str(low) if width == 1 else f"{low} to {low + width - 1}"
        table.add_row(label, str(count), "█" * round(24 * count / fullest))
    return table


def _workers(workers: Sequence[WorkerTimes]) -> Table:
    table = Table("worker", "iterations", "busy s", "idle s", "idle share", title="Workers", title_justify="left")
    shown = sorted(workers, key=lambda each: (each.idle_share, each.worker))
    if len(workers) > MOST_WORKERS:
        table.title = f"Workers, those that waited least and most of {len(workers)}"
        shown = shown[: MOST_WORKERS // 2] + shown[-MOST_WORKERS // 2 :]
    for each in shown:
        table.add_row(
            str(each.worker),
            str(each.iterations),
            f"{each.busy_s:.1f}",
            f"{each.idle_s:.1f}",
            f"{each.idle_share:.1%}",
        )
    return table
