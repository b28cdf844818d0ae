"""How does a run look? Loss against virtual time and against steps, staleness, and who waited, in one picture.

The only file here that needs matplotlib, and only when it is called. Next: ps/simulation/result.py (the numbers).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from protos.errors import InvalidInput
from ps.simulation.result import Result


def figure(columns: int, rows: int) -> tuple[Any, Any]:
    """A figure of so many axes, drawn without a screen; InvalidInput where matplotlib is not installed.

    rows, columns: of the grid. Returns (figure, axes[row][column]).
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InvalidInput(
            field="plot", got=str(error), expected="matplotlib", hint="pip install 'paramserver[lab]'."
        ) from None
    drawn = Figure(figsize=(5 * columns, 3.4 * rows), layout="constrained")
    FigureCanvasAgg(drawn)
    return drawn, drawn.subplots(rows, columns, squeeze=False)


def plot(result: Result, path: Path) -> None:
    """Write the picture of one run. The file's name says the format: .png, .svg, .pdf."""
    drawn, ((by_time, by_step), (staleness, idle)) = figure(2, 2)
    losses = [look.loss for look in result.looks]
    by_time.plot([look.time_s for look in result.looks], losses)
    by_time.set(xlabel="virtual time, s", ylabel="held-out loss", yscale="log")
    by_step.plot([look.step for look in result.looks], losses)
    by_step.set(xlabel="step", ylabel="held-out loss", yscale="log")
    staleness.bar(list(result.staleness), list(result.staleness.values()), width=1)
    staleness.set(xlabel="staleness", ylabel="applied pushes")
    workers = sorted(result.workers, key=lambda each: each.worker)
    idle.bar([each.worker for each in workers], [100 * each.idle_share for each in workers], width=1)
    idle.set(xlabel="worker", ylabel="waiting, % of its time", ylim=(0, 100))
    drawn.suptitle(f"{result.plan.workers} workers, {result.plan.mode}, {result.plan.rule}", fontsize=10)
    drawn.savefig(path, dpi=110)
