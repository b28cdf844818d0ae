"""What does staleness do to update rules, and which of them bear it? A study with the simulator, on handwritten digits.

    python examples/study_staleness.py --out study            ten minutes
    python examples/study_staleness.py --out study --quick    seconds: the same tables of runs too short to mean anything

Part 1: eight workers work for the same virtual time in each mode, with and without a straggler. Part 2: one to 32 workers
share the same number of gradients in async. Rules have the learning rate that suits one worker, and keep it: momentum 0.9
makes of a gradient ten times as much as plain descent does, so their rates differ by ten. Losses are on held-out digits, the
median over seeds. Writes study.md, study.json, modes.png and workers.png. All of it follows from the seeds, bit for bit.
"""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import track

from ps.simulation import LogNormal, Plan, Result, Straggler, simulate
from ps.simulation.plot import figure, logarithmic

RULES = {
    "sgd": "sgd:learning_rate=0.2",
    "momentum": "momentum:learning_rate=0.02",
    "adam": "adam:learning_rate=0.003",
    "staleness_aware": "staleness_aware:learning_rate=0.02,momentum=0.9",
    "dc_asgd": "dc_asgd:learning_rate=0.2",
    "dc_asgd_adaptive": "dc_asgd_adaptive:learning_rate=0.2",
    "gap_aware": "gap_aware:learning_rate=0.02,momentum=0.9",
    "dana": "dana:learning_rate=0.02",
}
MODES: dict[str, dict[str, Any]] = {
    "sync": {"mode": "sync"},
    "ssp 1": {"mode": "ssp", "slack": 1},
    "ssp 4": {"mode": "ssp", "slack": 4},
    "ssp 16": {"mode": "ssp", "slack": 16},
    "async": {"mode": "async"},
}
STRAGGLERS: dict[str, tuple[Straggler, ...]] = {"no straggler": (), "one 4x slower": (Straggler(0, 4),)}
SPEED = LogNormal(1, 0.3)
# Lines that are told apart without colours too.
STYLES = ("o-", "s--", "^:", "v-.", "D-", "x--", "+:", "*-.")
# What of plain momentum's damage the staleness rules undo is told for these many workers.
TOLD_WORKERS = 16


@dataclass(frozen=True)
class Size:
    """How much is run. until_s: virtual time of part 1; gradients: of all workers together, of part 2."""

    until_s: float = 200
    gradients: int = 1600
    mode_workers: int = 8
    workers: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    seeds: int = 3


QUICK = Size(until_s=9, gradients=32, mode_workers=3, workers=(1, 16), seeds=1)

Key = tuple[str, str, str, int]  # rule, mode, straggler, workers


def plans(size: Size) -> Iterator[tuple[str, Key, Plan]]:
    """Every run: of which part, what it is, and its plan. (Seeds of one key follow each other.)"""
    for (rule, spec), (mode, how), (straggler, slow) in itertools.product(
        RULES.items(), MODES.items(), STRAGGLERS.items()
    ):
        plan = Plan(
            workers=size.mode_workers,
            steps=None,
            until_s=size.until_s,
            rule=spec,
            model="mlp",
            speeds=(SPEED, *slow),
            evaluate_every=20 if mode != "sync" else 2,
            **how,
        )
        for seed in range(size.seeds):
            yield "modes", (rule, mode, straggler, size.mode_workers), replace(plan, seed=seed)
    for (rule, spec), workers in itertools.product(RULES.items(), size.workers):
        plan = Plan(workers=workers, steps=size.gradients // workers, rule=spec, model="mlp", speeds=(SPEED,))
        for seed in range(size.seeds):
            yield "workers", (rule, "async", "no straggler", workers), replace(plan, seed=seed)


def summary(results: list[Result]) -> dict[str, Any]:
    """What is told of the runs of one key, one for each seed: medians. A loss that is not finite counts as endless."""

    def median(of: Callable[[Result], float]) -> float:
        return statistics.median(of(result) for result in results)

    def loss(result: Result) -> float:
        return result.final.loss if math.isfinite(result.final.loss) else math.inf

    curve = [{"time_s": look.time_s, "loss": look.loss} for look in results[0].looks]
    return {
        "loss": median(loss),
        "accuracy": median(lambda result: result.final.accuracy),
        "idle_share": median(lambda result: result.idle_share),
        "steps": median(lambda result: result.final.step),
        "gradients": median(lambda result: sum(worker.iterations for worker in result.workers)),
        "mean_staleness": median(lambda result: result.mean_staleness),
        "most_staleness": median(lambda result: max(result.staleness)),
        "curve": curve,
        "fingerprints": [result.fingerprint() for result in results],
    }


def study(size: Size) -> dict[str, dict[Key, dict[str, Any]]]:
    """The summaries of both parts, by key."""
    todo = list(plans(size))
    runs: dict[tuple[str, Key], list[Result]] = {}
    found: dict[str, dict[Key, dict[str, Any]]] = {"modes": {}, "workers": {}}
    console = Console(stderr=True)
    for part, key, plan in track(todo, "simulating", console=console, disable=not console.is_terminal):
        runs.setdefault((part, key), []).append(simulate(plan))
        if len(runs[part, key]) == size.seeds:
            found[part][key] = summary(runs.pop((part, key)))
    return found


# -- what is written ---------------------------------------------------------------------------------------------------


def table(header: list[str], rows: list[list[str]]) -> str:
    """Markdown that is readable as text too."""
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    lines = [" | ".join(cell.ljust(width) for cell, width in zip(row, widths)) for row in [header, *rows]]
    lines.insert(1, " | ".join("-" * width for width in widths))
    return "\n".join(f"| {line} |" for line in lines)


def findings(found: dict[str, dict[Key, dict[str, Any]]], size: Size) -> list[str]:
    """The sentences, with their numbers: what the tables show, whatever it is."""
    modes, by_workers = found["modes"], found["workers"]
    said = []
    for straggler in STRAGGLERS:
        shares = [f"{modes['sgd', mode, straggler, size.mode_workers]['idle_share']:.0%} ({mode})" for mode in MODES]
        said.append(f"Idle share of the workers, {straggler}: {', '.join(shares)}.")

    def loss(rule: str, workers: int) -> float:
        return float(by_workers[rule, "async", "no straggler", workers]["loss"])

    alone, many = loss("momentum", 1), loss("momentum", TOLD_WORKERS)
    course = ", ".join(f"{loss('momentum', workers):.3g} ({workers})" for workers in size.workers)
    said.append(f"Momentum in async, loss by number of workers: {course}.")
    for rule in ("staleness_aware", "gap_aware", "dana"):
        undone = (many - loss(rule, TOLD_WORKERS)) / (many - alone) if many > alone else math.nan
        said.append(
            f"With {TOLD_WORKERS} workers {rule} ends at {loss(rule, TOLD_WORKERS):.3g} where momentum ends at {many:.3g}: "
            f"it undoes {undone:.0%} of what staleness does to momentum."
        )
    return said


def report(found: dict[str, dict[Key, dict[str, Any]]], size: Size) -> str:
    """study.md: findings, then a table of the modes, and of losses by mode and by number of workers."""
    modes, parts = found["modes"], ["# What staleness does: a study"]
    if size == QUICK:
        parts.append(
            "Runs of --quick are too short to prove anything: the tables show that the study works, and no more."
        )
    else:
        parts += ["## Findings", "\n".join(f"- {finding}" for finding in findings(found, size))]
    parts.append(f"## Part 1: {size.mode_workers} workers, {size.until_s:g} s of virtual time")
    for straggler in STRAGGLERS:
        of = {mode: modes["sgd", mode, straggler, size.mode_workers] for mode in MODES}
        rows = [
            ["waiting", *(f"{each['idle_share']:.0%}" for each in of.values())],
            ["gradients", *(f"{each['gradients']:g}" for each in of.values())],
            ["steps", *(f"{each['steps']:g}" for each in of.values())],
            ["staleness, mean", *(f"{each['mean_staleness']:.1f}" for each in of.values())],
            ["staleness, most", *(f"{each['most_staleness']:g}" for each in of.values())],
        ]
        for rule in RULES:
            cells = [f"{modes[rule, mode, straggler, size.mode_workers]['loss']:.3g}" for mode in MODES]
            rows.append([f"loss, {rule}", *cells])
        parts += [f"### {straggler}", table(["", *MODES], rows)]
    parts.append(f"## Part 2: {size.gradients} gradients in async, loss by number of workers")
    rows = [
        [rule, *(f"{found['workers'][rule, 'async', 'no straggler', workers]['loss']:.3g}" for workers in size.workers)]
        for rule in RULES
    ]
    parts.append(table(["rule", *map(str, size.workers)], rows))
    return "\n\n".join(parts) + "\n"


def draw_modes(modes: dict[Key, dict[str, Any]], size: Size, path: Path) -> None:
    """Waiting by mode, and momentum's loss against virtual time in each mode."""
    drawn, ((waiting, course),) = figure(2, 1)
    for number, straggler in enumerate(STRAGGLERS):
        shares = [100 * modes["sgd", mode, straggler, size.mode_workers]["idle_share"] for mode in MODES]
        waiting.bar([at + 0.4 * number - 0.2 for at in range(len(MODES))], shares, 0.4, label=straggler)
    waiting.set_xticks(range(len(MODES)), list(MODES))
    waiting.set(ylabel="waiting, % of all workers' time", ylim=(0, 100))
    waiting.legend()
    for mode, style in zip(MODES, STYLES):
        curve = modes["momentum", mode, "one 4x slower", size.mode_workers]["curve"]
        course.plot(
            [look["time_s"] for look in curve], [look["loss"] for look in curve], style, markersize=4, label=mode
        )
    course.set(xlabel="virtual time, s", ylabel="held-out loss", title="momentum, one 4x slower")
    logarithmic(course.yaxis)
    course.legend()
    drawn.savefig(path, dpi=80)


def draw_workers(workers: dict[Key, dict[str, Any]], size: Size, path: Path) -> None:
    """Loss against the number of workers, one line a rule."""
    drawn, ((axes,),) = figure(1, 1)
    for rule, style in zip(RULES, STYLES):
        losses = [workers[rule, "async", "no straggler", count]["loss"] for count in size.workers]
        axes.plot(size.workers, losses, style, label=rule)
    axes.set(xlabel="workers", ylabel=f"held-out loss, {size.gradients} gradients", xscale="log")
    logarithmic(axes.yaxis)
    axes.set_xticks(size.workers, list(map(str, size.workers)))
    axes.legend(fontsize=7)
    drawn.savefig(path, dpi=100)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), required=True, help="Directory to write into.")
@click.option("--quick", is_flag=True, help="Short runs, to see that it works; they prove nothing.")
def main(out: Path, quick: bool) -> None:
    """Compare update rules, modes and numbers of workers. Example: python examples/study_staleness.py --out study"""
    size = QUICK if quick else Size()
    found = study(size)
    out.mkdir(parents=True, exist_ok=True)
    text = report(found, size)
    (out / "study.md").write_text(text, encoding="utf-8")
    told = {part: [{"key": key, **rest} for key, rest in by_key.items()] for part, by_key in found.items()}
    # A loss of inf or nan is written so: Python reads it back, and nothing hides.
    (out / "study.json").write_text(json.dumps(told, indent=1), encoding="utf-8")
    draw_modes(found["modes"], size, out / "modes.png")
    draw_workers(found["workers"], size, out / "workers.png")
    click.echo(text)


if __name__ == "__main__":
    main()
