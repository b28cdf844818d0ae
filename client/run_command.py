"""The command line of `ps-run`: how does one command start a whole job on this machine?

This file turns flags, environment and defaults into `Settings`, once, and refuses what cannot work before anything is
started. It must not know how processes are started or in which order. Read next: `run_job.py`.
"""

from __future__ import annotations

import asyncio
import math
import os
import secrets
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from client.run_job import Job, Settings
from protos.errors import InvalidInput

_EXIT_NOT_FOUND = 127
_OF_ONE_PS = ("cluster", "index", "bind")
_DEFAULT_LEASE_S = 10.0
_PS_LEAVE_S = 10.0
# Runs the ps that this client is installed with. `python -m ps` would take a ps.py in the user's directory for it, and
# Python 3.10 has no -P against that.
_BOOT = "import sys; sys.path.insert(0, sys.argv.pop(1)); from ps.__main__ import main; main(prog_name='ps-server')"


def _finite(ctx: click.Context, param: click.Parameter, value: float | None) -> float | None:
    if value is not None and not math.isfinite(value):
        raise click.BadParameter(f"got {value}, expected a finite number of seconds")
    return value


def _program(command: tuple[str, ...]) -> str | None:
    """The path of the program of COMMAND. `ps-worker` is found beside this Python even without an activated venv."""
    return shutil.which(command[0]) or shutil.which(command[0], path=os.path.dirname(sys.executable))


def server_program(bin_dir: Path) -> tuple[str, ...]:
    """How a ps is started: the script `ps-server` of this installation, or, where there is none, the package itself."""
    script = shutil.which("ps-server", path=str(bin_dir))
    return (script,) if script else (sys.executable, "-c", _BOOT, str(Path(__file__).resolve().parents[1]))


def _plural(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def _check_mode(mode: str | None, slack: int | None, backup_workers: int | None) -> None:
    """A flag that only one mode has is refused without it: no init could make sense of it later."""
    for flag, value, its_mode in (("--slack", slack, "ssp"), ("--backup-workers", backup_workers or None, "sync")):
        if value is not None and mode != its_mode:
            got = f"with --mode {mode}" if mode else "without --mode"
            raise click.UsageError(f"got {flag} {value} {got}, expected --mode {its_mode}, which alone has it")


def _compression(ctx: click.Context, param: click.Parameter, said: str) -> str:
    if said not in ("", "none"):
        from client import compression  # which takes a while to load

        try:
            compression.parse(said)
        except InvalidInput as error:
            raise click.BadParameter(f"got {error.got}, expected {error.expected}") from None
    return said or "none"


def _children_environment(
    ps_options: Iterable[str],
    run_id: str,
    connect_timeout_s: float | None,
    wait_timeout_s: float | None,
    compression: str,
) -> dict[str, str]:
    # The options of the ps were read here, once, and go on as flags: nobody may read them again and disagree. And which
    # ps a process is, nobody's environment can know.
    dropped = {"PARAMSERVER_PROGRESS_FD", *(f"PARAMSERVER_{name.upper()}" for name in (*ps_options, *_OF_ONE_PS))}
    environment = {key: value for key, value in os.environ.items() if key not in dropped}
    environment |= {"PARAMSERVER_RUN_ID": run_id, "PYTHONUNBUFFERED": "1", "PARAMSERVER_COMPRESSION": compression}
    if connect_timeout_s is not None:
        environment["PARAMSERVER_CONNECT_TIMEOUT_S"] = f"{connect_timeout_s:g}"
    if wait_timeout_s is not None:
        environment["PARAMSERVER_WAIT_TIMEOUT_S"] = f"{wait_timeout_s:g}"
    return environment


@click.command(context_settings={"allow_interspersed_args": False, "help_option_names": ["-h", "--help"]})
@click.option(
    "-n",
    "--workers",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    envvar="PARAMSERVER_WORKERS",
    show_envvar=True,
    help="How many copies of COMMAND to start.",
)
@click.option(
    "-s",
    "--servers",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    envvar="PARAMSERVER_SERVERS",
    show_envvar=True,
    help="How many ps daemons share the model.",
)
@click.option(
    "--mode",
    type=click.Choice(["async", "sync", "ssp"]),
    envvar="PARAMSERVER_MODE",
    show_envvar=True,
    help="async: apply on arrival. sync: one update from one gradient of each worker. "
    "ssp: async, but no worker leads by more than the slack.  [default: left to the ps, or the first init]",
)
@click.option(
    "--slack",
    type=click.IntRange(min=0),
    envvar="PARAMSERVER_SLACK",
    show_envvar=True,
    help="ssp: iterations by which a worker may lead the slowest.",
)
@click.option(
    "--backup-workers",
    type=click.IntRange(min=0),
    envvar="PARAMSERVER_BACKUP_WORKERS",
    show_envvar=True,
    help="sync: how many of the slowest workers a step does not wait for.",
)
@click.option(
    "--rule",
    metavar="SPEC",
    envvar="PARAMSERVER_RULE",
    show_envvar=True,
    help="Update rule, NAME or NAME:key=value,key=value, such as adam:learning_rate=0.001.",
)
@click.option(
    "--rules",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE.py",
    envvar="PARAMSERVER_RULES",
    show_envvar=True,
    help="A Python file that registers more update rules.",
)
@click.option(
    "--guard-nonfinite",
    is_flag=True,
    envvar="PARAMSERVER_GUARD_NONFINITE",
    show_envvar=True,
    help="Refuse gradients with NaN or Inf.",
)
@click.option(
    "--story-dir",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    envvar="PARAMSERVER_STORY_DIR",
    show_envvar=True,
    help="Each ps writes its event log here.",
)
@click.option(
    "--record",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    envvar="PARAMSERVER_RECORD",
    show_envvar=True,
    help="Each ps writes the run, gradients and all, as FILE.psN: `python -m ps.replay FILE` makes it again.",
)
@click.option(
    "--no-shared-memory", is_flag=True, help="Exchange values and gradients through connections, not shared memory."
)
@click.option(
    "--apply-threads",
    type=click.IntRange(1),
    metavar="N",
    envvar="PARAMSERVER_APPLY_THREADS",
    show_envvar=True,
    help="Threads of each ps that update large variables together.  [default: processors]",
)
@click.option(
    "--lease",
    type=click.FloatRange(0.1),
    callback=_finite,
    metavar="SECONDS",
    envvar="PARAMSERVER_LEASE",
    show_envvar=True,
    help="How long a worker may be without a connection until the ps count it as lost.  [default: 10]",
)
@click.option(
    "--grace",
    "grace_s",
    type=click.FloatRange(min=0),
    default=5.0,
    show_default=True,
    callback=_finite,
    metavar="SECONDS",
    envvar="PARAMSERVER_GRACE_S",
    show_envvar=True,
    help="Time between asking a process to stop and killing it.",
)
@click.option(
    "--compression",
    default="none",
    callback=_compression,
    metavar="NAME",
    envvar="PARAMSERVER_COMPRESSION",
    show_envvar=True,
    show_default=True,
    help="Make gradients smaller for the way: float16, bfloat16, int8, sign, top_k or top_k:RATIO. What is lost of one goes "
    "with the next.",
)
@click.option(
    "--connect-timeout",
    "connect_timeout_s",
    type=click.FloatRange(min=0, min_open=True),
    callback=_finite,
    metavar="SECONDS",
    envvar="PARAMSERVER_CONNECT_TIMEOUT_S",
    show_envvar=True,
    help="How long the ps may take to serve, and the workers to reach them.  [default: 60]",
)
@click.option(
    "--wait-timeout",
    "wait_timeout_s",
    type=click.FloatRange(min=0, min_open=True),
    callback=_finite,
    metavar="SECONDS",
    envvar="PARAMSERVER_WAIT_TIMEOUT_S",
    show_envvar=True,
    help="How long a worker waits for the others.",
)
@click.option(
    "--run-id",
    metavar="ID",
    envvar="PARAMSERVER_RUN_ID",
    show_envvar=True,
    help="Identity of this job; processes of another run are refused.  [default: random]",
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND...")
def main(
    workers: int,
    servers: int,
    grace_s: float,
    connect_timeout_s: float | None,
    wait_timeout_s: float | None,
    run_id: str | None,
    compression: str,
    command: tuple[str, ...],
    **ps_options: Any,
) -> None:
    """Start ps daemons and copies of COMMAND on this machine, as one job.

    Every process gets TF_CONFIG and PARAMSERVER_RUN_ID. The workers start once all ps serve. Each line of output is
    prefixed with its task, such as [worker 0] or [ps 1]; workers that report progress get a bar on a terminal.

    The job ends when all workers have ended. When one fails, or a ps does, the rest is stopped and its exit code
    returned. Ctrl-C asks all to stop; a second one kills at once. No process is left behind.

    When the reader of the output goes away, as in `ps-run ... | head`, the job is stopped as other programs are (141).
    When the output is closed, or a disk is full, the job goes on without it.

    \b
    Examples:
      ps-run -n 2 -- ps-worker model.py --steps 100
      ps-run -n 4 -s 2 --mode sync --rule adam:learning_rate=0.001 -- python train.py

    \b
    Exit codes:
      0      done
      2      wrong usage or bad input
      3      no port could be kept
      4      a ps did not serve in time
      127    COMMAND cannot be executed
      128+n  signal n ended ps-run or the worker that failed; 143 also when `ps-ctl stop` ended the job
      other  the code of the first worker or ps that failed

    A flag wins over its environment variable, which wins over the default.
    """
    if not command:
        raise click.UsageError("COMMAND is missing: what shall the workers run? Example: ps-run -- ps-worker model.py")
    if run_id == "":
        raise click.BadParameter("got an empty string, expected a name for the job", param_hint="--run-id")
    _check_mode(ps_options["mode"], ps_options["slack"], ps_options["backup_workers"])
    program = _program(command)
    if program is None:
        why = "it is not found on PATH"
        if os.path.exists(command[0]):
            why = f"it is no program on PATH and no executable file (a script? try: python {command[0]})"
        click.echo(f"ps-run: cannot execute {command[0]!r}: {why}. Nothing was started.", err=True)
        sys.exit(_EXIT_NOT_FOUND)

    ps_flags: list[str] = []
    described = [_plural(workers, "worker"), f"{servers} ps"]
    for name, value in ps_options.items():
        flag = "--" + name.replace("_", "-")
        if value is None or value is False:
            described += [f"{name} left to the ps"] if name in ("mode", "rule") else []
            continue
        ps_flags += [flag] if value is True else [flag, str(value)]
        text = "" if value is True else f" {value:g} s" if name == "lease" else f" {value}"
        described.append(name.replace("_", " ") + text)
    connect_timeout_or_default_s = 60.0 if connect_timeout_s is None else connect_timeout_s
    described += [f"grace {grace_s:g} s", f"connect timeout {connect_timeout_or_default_s:g} s"]
    described += [f"wait timeout {wait_timeout_s:g} s"] if wait_timeout_s is not None else []
    described += [f"compression {compression}"] if compression != "none" else []
    run_id = run_id or secrets.token_hex(8)
    settings = Settings(
        workers=workers,
        servers=servers,
        command=(program, *command[1:]),
        server=(*server_program(Path(sys.executable).parent), *ps_flags),
        environment=_children_environment(ps_options, run_id, connect_timeout_s, wait_timeout_s, compression),
        run_id=run_id,
        grace_s=grace_s,
        connect_timeout_s=connect_timeout_or_default_s,
        # A worker that ended without leaving is lost only after its lease: wait for what the ps says of it.
        leave_s=max(_PS_LEAVE_S, (ps_options["lease"] or _DEFAULT_LEASE_S) + 2),
        size=f"{_plural(workers, 'worker')}, {servers} ps",
        summary=", ".join(described),
    )

    async def run() -> int:
        return await Job(settings).run()

    sys.exit(asyncio.run(run()))
