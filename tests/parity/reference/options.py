"""What do all reference programs take and write?

The options that they share, so that their files can be compared, and the one way to save. It must not know TensorFlow:
the process that starts a cluster never imports it. Next: single.py, which is nothing but these options and a loop.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import click
import numpy as np
import numpy.typing as npt

RULES = ("sgd", "momentum", "nesterov", "adam")
Arrays = dict[str, npt.NDArray[Any]]
Command = TypeVar("Command", bound=Callable[..., Any])


def training(command: Command) -> Command:
    """Add --rule, --learning-rate, --steps and --out to a command."""
    for option in (
        click.option("--out", required=True, help="The .npz file. With several rules, {rule} in it stands for each."),
        click.option("--steps", type=click.IntRange(min=1), default=50, show_default=True),
        click.option("--learning-rate", type=float, default=0.01, show_default=True),
        click.option(
            "--rule",
            "rules",
            type=click.Choice(RULES),
            multiple=True,
            required=True,
            help="May be repeated: start-up costs far more than the training.",
        ),
    ):
        command = option(command)
    return command


def cluster_task(command: Command) -> Command:
    """Add --deadline, and two for the program's own use: it starts itself again as every task of a cluster."""
    for option in (
        click.option("--cluster", hidden=True, help="The cluster of that task as JSON."),
        click.option("--task", hidden=True, help="Be this task of a cluster, JOB:INDEX, instead of starting one."),
        click.option(
            "--deadline",
            "deadline_s",
            type=float,
            default=120.0,
            show_default=True,
            help="Seconds after which the run is ended as failed.",
        ),
    ):
        command = option(command)
    return command


def check_out(rules: tuple[str, ...], out: str) -> None:
    """Raise click.BadParameter when several rules would overwrite one file."""
    if len(set(rules)) > 1 and "{rule}" not in out:
        raise click.BadParameter(f"got {out!r} for {len(rules)} rules, expected {{rule}} in it", param_hint="--out")


def save(out: str, rule: str, arrays: Arrays) -> None:
    """Write the record of one rule. It appears under its name only when complete."""
    path = Path(out.replace("{rule}", rule))
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("wb") as file:
        np.savez(file, **cast(Any, arrays))
    partial.replace(path)
