"""The program `python -m ps.simulate`: a job of many virtual workers, in virtual time. Example: see --help.

The same seed gives the same bits. The function behind it is ps.simulation.simulate. Next: ps/simulation/run.py.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from protos.errors import ParameterServerError
from ps.consistency import MODES

if TYPE_CHECKING:
    from ps.simulation import Plan, Result

# A run that is shorter has no bar.
BAR_AFTER_S = 1.0

EPILOG = """\b
Examples:
  python -m ps.simulate --workers 16 --mode ssp --slack 4 --speed 'lognormal(median=1,sigma=0.5)' \\
      --speed 'straggler(worker=0,factor=4)' --rule momentum:learning_rate=0.05 --plot run.png
  python -m ps.simulate --workers 1000 --steps 20 --mode sync --backup-workers 50 --json
"""


@click.command(context_settings={"max_content_width": 110, "help_option_names": ["-h", "--help"]}, epilog=EPILOG)
@click.option("-n", "--workers", type=click.IntRange(1), default=4, show_default=True, help="Virtual workers.")
@click.option("-s", "--servers", type=click.IntRange(1), default=1, show_default=True, help="ps.")
@click.option("--steps", type=click.IntRange(1), help="Iterations of each worker. Default: 100, or what fits --until.")
@click.option(
    "--until", type=click.FloatRange(0, min_open=True), help="Virtual seconds in which an iteration must be done."
)
@click.option("--mode", type=click.Choice(MODES), default="async", show_default=True)
@click.option("--slack", type=click.IntRange(0), help="ssp: iterations a worker may lead the slowest. Default 0.")
@click.option("--backup-workers", type=click.IntRange(0), help="sync: take the first N-K gradients of a step.")
@click.option("--rule", default="sgd:learning_rate=0.1", show_default=True, help="Update rule: NAME:key=value,…")
@click.option("--rules", type=click.Path(path_type=Path), help="Python file that registers rules of your own.")
@click.option(
    "--speed",
    "speeds",
    multiple=True,
    default=["constant(1)"],
    show_default=True,
    help="Virtual seconds of an iteration: constant(1), unless told, or lognormal(median=1,sigma=0.5); then, once for each, "
    "straggler(worker=0,factor=4) and pause(worker=2,at_s=10,for_s=5).",
)
@click.option("--model", type=click.Choice(["softmax", "mlp"]), default="softmax", show_default=True)
@click.option("--data", type=click.Choice(["digits", "synthetic"]), default="digits", show_default=True)
@click.option("--batch-size", type=click.IntRange(1), default=32, show_default=True, help="Examples of one gradient.")
@click.option(
    "--evaluate-every",
    type=click.IntRange(1),
    default=20,
    show_default=True,
    help="Steps between two looks at the loss.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of everything that is random.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON instead of tables.")
@click.option("--plot", "picture", type=click.Path(dir_okay=False, path_type=Path), help="Draw the run into FILE.png.")
@click.option(
    "--story-dir", type=click.Path(file_okay=False, path_type=Path), help="Write the event log there: story-psN.jsonl."
)
def main(**options: Any) -> None:
    """Train a small model with many virtual workers on the core of the ps, in virtual time.

    Membership, modes, update rules and the story are those of the daemons; gradients are real; only time is not.
    Prints the loss against virtual time and steps, the staleness of pushes, and how long each worker waited.
    """
    so_far: list[Result] = []
    try:
        if options["picture"] is not None:
            from ps.simulation.plot import check, plot

            check(options["picture"])
        plan = _plan(options)
        _warn(plan)
        result = _simulate(plan, so_far.append)
        _print(result, options["as_json"])
        if options["story_dir"] is not None:
            _write_stories(result, options["story_dir"])
        if options["picture"] is not None:
            plot(result, options["picture"])
    except (ParameterServerError, OSError) as error:
        interrupted = isinstance(error.__cause__, KeyboardInterrupt)  # it came while a rule was computing
        _broken_off(so_far, options["as_json"], "interrupted" if interrupted else f"{type(error).__name__}: {error}")
        sys.exit(130 if interrupted else 1 if so_far else 2)
    except KeyboardInterrupt:
        _broken_off(so_far, options["as_json"], "interrupted")
        sys.exit(130)


def _print(result: Result, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(result.to_json(), indent=1))
        return
    from rich.console import Console

    from ps.simulation.report import print_report

    print_report(result, Console())


def _broken_off(so_far: list[Result], as_json: bool, why: str) -> None:
    """The tables of what there is, and a line that says where it ended, and why. JSON is of whole runs."""
    where = ""
    for result in so_far:
        if not as_json:
            _print(result, as_json)
        where = f"at step {result.final.step}, {result.duration_s:g} s of virtual time: "
    click.echo(f"ps.simulate: {where}{why}", err=True)


def _warn(plan: Plan) -> None:
    from ps.rules import Diloco, ElasticAverage, make_rule

    if isinstance(rule := make_rule(plan.rule), (Diloco, ElasticAverage)):
        click.echo(
            f"ps.simulate: warning: {rule.name} is for local steps (ps-worker --local-steps), and virtual workers make none: "
            "what it gets here are gradients",
            err=True,
        )


def _plan(options: dict[str, Any]) -> Plan:
    from ps.rules import load_rules
    from ps.simulation import Constant, Plan, parse_speed

    if options["rules"] is not None:
        load_rules(options["rules"])
    steps, until_s = options["steps"], options["until"]
    speeds = tuple(map(parse_speed, options["speeds"]))
    if not any(speed.distribution for speed in speeds):
        speeds = (Constant(1), *speeds)
    same = ("workers", "servers", "mode", "slack", "backup_workers", "rule", "model", "data", "batch_size")
    return Plan(
        steps=100 if steps is None and until_s is None else steps,
        until_s=until_s,
        speeds=speeds,
        evaluate_every=options["evaluate_every"],
        seed=options["seed"],
        **{name: options[name] for name in same},
    )


def _simulate(plan: Plan, broken_off: Callable[[Result], None]) -> Result:
    from ps.simulation import simulate

    with _bar(plan) as progress:
        return simulate(plan, progress, broken_off)


@contextlib.contextmanager
def _bar(plan: Plan) -> Iterator[Any]:
    """What to call after each iteration: draws a bar on a terminal, once the run has lasted a moment."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"))
    began_s = time.monotonic()
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True, auto_refresh=False) as progress:
        task = progress.add_task("simulating", total=1.0, visible=False)
        drawn_s = 0.0

        def tell(iterations: int, time_s: float) -> None:
            nonlocal drawn_s
            if (now_s := time.monotonic()) - max(drawn_s, began_s + BAR_AFTER_S) < 0.1:
                return
            drawn_s = now_s
            parts = [time_s / plan.until_s] if plan.until_s is not None else []
            parts += [iterations / (plan.workers * plan.steps)] if plan.steps is not None else []
            progress.update(
                task, completed=max(parts), visible=True, description=f"{iterations} iterations", refresh=True
            )

        yield tell


def _write_stories(result: Result, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for ps in range(result.plan.servers):
        lines = "".join(f"{line}\n" for line in result.story_lines(ps))
        (folder / f"story-ps{ps}.jsonl").write_text(lines, encoding="utf-8")


if __name__ == "__main__":
    main(prog_name="python -m ps.simulate")
