"""How are rows shown, and written down? Tables for people and for a README, plain dicts for a JSON file.

A number is the median of the rounds, with the least and the most below it. A ratio is taken within each round. It must not
know how anything was measured. Next: vs_tf_pss.py, the program.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from benchmarks.limits import MEMCPY, TCP
from benchmarks.rounds import Series
from benchmarks.steps import Row
from benchmarks.training import BOTH, COMPUTE, PREFETCH, PUSH_PULL
from benchmarks.transfers import MANY_VARIABLES, ONE_VARIABLE, ONE_WORKER, PULL, PUSH, TWO_WORKERS

PSS = "PSS"
OURS = ("ours", "ours, shared memory")
PEERS = ("torch rpc", "Ray", "gloo")
LIMITS = (TCP, MEMCPY)
NOTHING = "[dim]–[/dim]"
CASE = ("case", "workers", "ps")


def steps_table(rows: Sequence[Row]) -> Table:
    """Everyone's steps per second."""
    there = {name for row in rows for name in row.series}
    names = [name for name in (PSS, *OURS, *PEERS, *LIMITS) if name in there]
    table = _table("Steps per second of all workers together (median; least – most)", CASE)
    for name in names:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*_case(row), *(_cell(row.series.get(name)) for name in names))
    return table


def ratios_table(rows: Sequence[Row]) -> Table:
    """Ours against the others, and against the wire."""
    there = {name for row in rows for name in row.series}
    pairs = [(mine, their) for their in (PSS, *PEERS, TCP) for mine in OURS if {mine, their} <= there]
    table = _table("Ratios of steps per second, taken within a round (median; least – most)", CASE)
    for mine, their in pairs:
        table.add_column(f"{mine} / {their}", justify="right")
    for row in rows:
        both = [(row.series.get(mine), row.series.get(their)) for mine, their in pairs]
        ratios = [mine.over(their) if mine and their else None for mine, their in both]
        table.add_row(*_case(row), *(_cell(ratio, "×") for ratio in ratios))
    return table


def transfers_table(rows: Sequence[Row]) -> Table:
    """Pull, push and raw TCP in GB/s, and as a share; what a hundred variables cost against one."""
    table = _table("One worker, one ps, large variables (median; least – most)", ["over", "bytes"])
    for heading in ("raw TCP, GB/s", "pull, GB/s", "push, GB/s", "pull / raw TCP", "push / raw TCP", "cost 100 : 1"):
        table.add_column(heading, justify="right")
    for row in rows:
        tcp, pull, push = (row.series[name] for name in (TCP, PULL, PUSH))
        table.add_row(
            row.case,
            _megabytes(row.bytes),
            *(_cell(Series([rate * row.bytes / 1e9 for rate in each.values])) for each in (tcp, pull, push)),
            _cell(pull.over(tcp)),
            _cell(push.over(tcp)),
            _cell(row.series[ONE_VARIABLE].over(row.series[MANY_VARIABLES]), "×"),
        )
    return table


def workers_table(rows: Sequence[Row]) -> Table:
    """Two workers on one ps against one."""
    table = _table("Steps per second of all workers together, one ps", ["case"])
    for heading in (ONE_WORKER, TWO_WORKERS, "two / one"):
        table.add_column(heading, justify="right")
    for row in rows:
        one, two = row.series[ONE_WORKER], row.series[TWO_WORKERS]
        table.add_row(row.case, _cell(one), _cell(two), _cell(two.over(one), "×"))
    return table


def training_table(rows: Sequence[Row]) -> Table:
    """What is left of the slower of computing and talking, when both are done."""
    table = _table("Steps per second with a GradientTape step, batch 32", ["case"])
    pss = any(PSS in row.series for row in rows)
    prefetch = any(PREFETCH in row.series for row in rows)
    ways = [BOTH, PREFETCH] if prefetch else [BOTH]
    for heading in (COMPUTE, PUSH_PULL, *ways, *(f"{way} / slower" for way in ways)):
        table.add_column(heading, justify="right")
    if prefetch:
        table.add_column("staleness, prefetch", justify="right")
    if pss:
        table.add_column(PSS, justify="right")
        table.add_column(f"{ways[-1]} / {PSS}", justify="right")
    for row in rows:
        cells = [row.case, *(_cell(row.series.get(name)) for name in (COMPUTE, PUSH_PULL, *ways))]
        cells += [_cell(row.series[way].over(slower(row))) for way in ways]
        if prefetch:
            cells.append(f"{row.staleness.get(PREFETCH, 0.0):.2f}")
        if pss:
            cells += [_cell(row.series[PSS]), _cell(row.series[ways[-1]].over(row.series[PSS]), "×")]
        table.add_row(*cells)
    return table


def slower(row: Row) -> Series:
    """The slower of computing alone and push_pull alone, round by round."""
    pairs = zip(row.series[COMPUTE].values, row.series[PUSH_PULL].values)
    return Series([min(pair) for pair in pairs])


def remarks(rows: Sequence[Row]) -> list[str]:
    """Who was not there, and why, and what else to know: each once."""
    absent = {f"not measured: {name}: {reason}" for row in rows for name, reason in row.missing.items()}
    return sorted(absent | {f"{name}: {remark}" for row in rows for name, remark in row.remarks.items()})


def as_markdown(table: Table) -> str:
    """The same table for a README: a cell's second line in brackets."""

    def plain(cell: Any) -> str:
        first, _, second = Text.from_markup(str(cell)).plain.partition("\n")
        return f"{first} ({second})" if second else first

    cells = zip(*([plain(column.header), *map(plain, column.cells)] for column in table.columns))
    head, *rows = (f"| {' | '.join(row)} |" for row in cells)
    lines = "|".join(" ---: " if column.justify == "right" else " --- " for column in table.columns)
    return "\n".join([f"**{table.title}**", "", head, f"|{lines}|", *rows, ""])


def as_json(row: Row) -> dict[str, Any]:
    """A row with every round, medians, and the ratios of ours to everyone else."""
    ratios = {
        f"{mine} / {their}": _numbers(row.series[mine].over(row.series[their]))
        for mine in OURS
        for their in row.series
        if mine in row.series and their != mine
    }
    return {
        "case": row.case,
        "bytes": row.bytes,
        "workers": row.shape.workers,
        "ps": row.shape.ps,
        "steps_per_s": {name: _numbers(series) for name, series in row.series.items()},
        "ratios": ratios,
        "missing": row.missing,
        "remarks": row.remarks,
        "staleness": row.staleness,
    }


def _numbers(series: Series) -> dict[str, Any]:
    return {"median": series.median, "min": series.least, "max": series.most, "rounds": series.values}


def _table(title: str, columns: Sequence[str]) -> Table:
    table = Table(title=title, show_lines=True)
    for column in columns:
        table.add_column(column)
    return table


def _case(row: Row) -> tuple[str, str, str]:
    return f"{row.case}\n[dim]{_megabytes(row.bytes)}[/dim]", str(row.shape.workers), str(row.shape.ps)


def _cell(series: Series | None, unit: str = "") -> str:
    if series is None:
        return NOTHING
    return f"{_short(series.median)}{unit}\n[dim]{_short(series.least)} – {_short(series.most)}[/dim]"


def _short(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def _megabytes(count_bytes: int) -> str:
    return f"{count_bytes / 1e6:.3g} MB" if count_bytes >= 10_000 else f"{count_bytes} B"
