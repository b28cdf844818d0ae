"""How does a run look? Loss against virtual time and against steps, staleness, and who waited, in one picture.

The only file here that needs matplotlib, and only when it is called. Next: ps/simulation/result.py (the numbers).
"""

from __future__ import annotations

import os
import textwrap
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


def check(path: Path) -> None:
    """InvalidInput, before a run has taken its time, if no picture can be written there."""
    known = figure(1, 1)[0].canvas.get_supported_filetypes()
    if path.suffix[1:].lower() not in known:
        raise InvalidInput(field="plot", got=path, expected="a name that ends in .png, .svg or .pdf")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        why = f"no directory {path.parent}" if not path.parent.is_dir() else f"{path}, which may not be written"
        raise InvalidInput(field="plot", got=why, expected="a file that can be written")


def logarithmic(axis: Any) -> None:
    """Powers of ten are far apart on this axis, and its numbers plain: 6, and not 6 × 10⁰."""
    from matplotlib.ticker import LogFormatter

    class Plain(LogFormatter):
        def __call__(self, number: float, position: int | None = None) -> str:
            return f"{number:g}" if super().__call__(number, position) else ""

    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    axis.set_major_formatter(Plain())
    axis.set_minor_formatter(Plain())


def plot(result: Result, path: Path) -> None:
    """Write the picture of one run. The file's name says the format: .png, .svg, .pdf."""
    drawn, ((by_time, by_step), (staleness, idle)) = figure(2, 2)
    losses = [look.loss for look in result.looks]
    by_time.plot([look.time_s for look in result.looks], losses)
    by_time.set(xlabel="virtual time, s", ylabel="held-out loss")
    by_step.plot([look.step for look in result.looks], losses)
    by_step.set(xlabel="step", ylabel="held-out loss")
    for axes in (by_time, by_step):
        logarithmic(axes.yaxis)
    staleness.bar(list(result.staleness), list(result.staleness.values()), width=1)
    staleness.set(xlabel="staleness", ylabel="applied pushes")
    workers = sorted(result.workers, key=lambda each: each.worker)
    idle.bar([each.worker for each in workers], [100 * each.idle_share for each in workers], width=1)
    idle.set(xlabel="worker", ylabel="waiting, % of its time", ylim=(0, 100))
    for axes in (staleness, idle):
        axes.xaxis.get_major_locator().set_params(integer=True)
    if not any(each.idle_share for each in workers):
        idle.text(0.5, 0.5, "nobody waited", transform=idle.transAxes, ha="center")
    drawn.suptitle(textwrap.fill(str(result.plan), 110), fontsize=9, parse_math=False)
    drawn.savefig(path, dpi=110)
