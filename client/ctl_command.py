"""The command line of `ps-ctl`: what do the ps of a job say of themselves, and how are they told to stop?

Status and Stop need no session, so this works beside any job, also one whose workers are all stuck. It must not know
variables or modes. Read next: client/status.py (one ps, and how the answers become one dict).
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import click
from rich import box
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from client.status import Answer, Status, ask, job_status
from protos import parameter_server_pb2 as pb
from protos.cluster import check_address
from protos.errors import ClusterError, ParameterServerError, Unavailable, WaitTimeout

_EXIT_FAILED = 1
_EXIT_UNREACHABLE = 4
_POLL_S = 0.05
# Where nobody says how wide: rather long lines than cut ones.
_NOT_A_TERMINAL_COLUMNS = 200

T = TypeVar("T")

EPILOG = """\b
Examples:
  ps-ctl status --target 127.0.0.1:2222
  ps-ctl status --target 127.0.0.1:2222 --json | jq .step
  ps-ctl stop --target 127.0.0.1:2222

\b
Exit codes:
  0  done
  1  a ps refused, or did not stop in time
  2  wrong usage or bad input
  4  a ps could not be reached; what the others said is still shown
"""


def _address(ctx: click.Context, param: click.Parameter, value: str) -> str:
    try:
        return check_address("--target", value)
    except ClusterError as error:
        raise click.BadParameter(f"got {error.got}, expected {error.expected}") from None


def _shared_options(command: Callable[..., Any]) -> Callable[..., Any]:
    options = (
        click.option("--target", required=True, metavar="HOST:PORT", callback=_address, help="Any ps of the cluster."),
        click.option("--only", is_flag=True, help="Only the target, not all ps of its cluster."),
        click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs."),
        click.option(
            "--timeout",
            "timeout_s",
            type=click.FloatRange(min=0, min_open=True),
            default=5.0,
            show_default=True,
            metavar="SECONDS",
            help="How long each ps may take to answer.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.group(context_settings={"help_option_names": ["-h", "--help"]}, epilog=EPILOG)
def main() -> None:
    """Look at the ps of a running job, or stop them."""


@main.command(epilog="Example: ps-ctl status --target 127.0.0.1:2222")
@_shared_options
def status(target: str, only: bool, as_json: bool, timeout_s: float) -> None:
    """Show what each ps holds and has counted, and where each worker is.

    With --json: the dict of client.status(), and "unreachable", the addresses of the ps that did not answer.
    """
    answers, missing = _reach(target, only, timeout_s)
    job = job_status(answers)
    if as_json:
        click.echo(json.dumps(job | {"unreachable": missing}, indent=2))
    else:
        _show(job)
    _exit_naming(missing)


@main.command(epilog="Example: ps-ctl stop --target 127.0.0.1:2222")
@_shared_options
def stop(target: str, only: bool, as_json: bool, timeout_s: float) -> None:
    """Stop all ps of the cluster and wait until they serve no longer. Workers that wait are told why."""
    answers, missing = _reach(target, only, timeout_s)
    request = pb.StopRequest(reason=f"stopped by ps-ctl stop ({socket.gethostname()}, pid {os.getpid()})")

    def stopped(answer: Answer) -> bool:
        peer, _ = answer
        try:
            peer.call("Stop", request, timeout_s)
        except Unavailable:
            return True  # it went down by itself between the two calls
        return _until_down(peer.address, timeout_s)

    outcomes = _at_once(stopped, answers)
    down = [peer.address for (peer, _), ended in zip(answers, outcomes) if ended]
    still = [peer.address for (peer, _), ended in zip(answers, outcomes) if not ended]
    if as_json:
        click.echo(json.dumps({"stopped": down, "still_there": still, "unreachable": missing}, indent=2))
    else:
        for (peer, reply), ended in zip(answers, outcomes):
            what = "stopped" if ended else f"told to stop, but still there after {timeout_s:g} s"
            click.echo(f"ps {reply.ps_index} at {peer.address}: {what}")
    _exit_naming(missing)
    if still:
        sys.exit(_EXIT_FAILED)


# ---- asking --------------------------------------------------------------------------------------------------------


def _reach(target: str, only: bool, timeout_s: float) -> tuple[list[Answer], list[str]]:
    """The answers of the target and, unless `only`, of the other ps of its cluster, by index; who did not answer.

    Ends the program when the target itself does not answer: who the others are, only it can say.
    """
    try:
        first = ask(target, timeout_s)
    except ParameterServerError as error:
        unreachable = isinstance(error, (Unavailable, WaitTimeout))
        hint = " See whether it is up and the address is right." if unreachable else ""
        click.echo(f"ps-ctl: {type(error).__name__}: --target {target}: {error}.{hint}", err=True)
        sys.exit(_EXIT_UNREACHABLE if unreachable else _EXIT_FAILED)
    own_index = first[1].ps_index
    others = [] if only else [a for index, a in enumerate(first[1].ps_addresses) if index != own_index]

    def ask_or_none(address: str) -> Answer | None:
        try:
            return ask(address, timeout_s)
        except ParameterServerError:
            return None  # named by whoever called us, beside what the others said

    found = _at_once(ask_or_none, others)
    answers = [first, *(answer for answer in found if answer is not None)]
    missing = [address for address, answer in zip(others, found) if answer is None]
    return sorted(answers, key=lambda answer: answer[1].ps_index), missing


def _at_once(ask: Callable[[Any], T], whom: Sequence[Any]) -> list[T]:
    """`ask` of each, at the same time, so that several that do not answer cost one timeout."""
    if not whom:
        return []
    with ThreadPoolExecutor(len(whom)) as pool:
        return list(pool.map(ask, whom))


def _until_down(address: str, timeout_s: float) -> bool:
    """Whether the ps stops serving in time. Each try is a new connection: an old one may outlive the port."""
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        try:
            peer, _ = ask(address, timeout_s)
        except Unavailable:
            return True
        except WaitTimeout:
            return False
        peer.close()
        time.sleep(_POLL_S)
    return False


def _exit_naming(missing: Sequence[str]) -> None:
    if missing:
        click.echo(f"ps-ctl: PeerUnavailable: no answer from {', '.join(missing)}", err=True)
        sys.exit(_EXIT_UNREACHABLE)


# ---- showing -------------------------------------------------------------------------------------------------------


def _show(job: Status) -> None:
    narrow = sys.stdout.isatty() or os.environ.get("COLUMNS")  # where somebody says how wide, no wider
    console = Console(highlight=False, markup=False, emoji=False, width=None if narrow else _NOT_A_TERMINAL_COLUMNS)
    mode = job["mode"] or "not said yet"
    mode += "".join(f", {key.replace('_', ' ')} {job[key]}" for key in ("slack", "backup_workers") if job[key])
    console.print(f"run {job['run_id']}: mode {mode}, rule {job['rule'] or 'not said yet'}, step {job['step']}")
    for table in (_holdings(job), _counters(job), _workers(job)):
        console.print()
        console.print(table)


def _table(*headings: str) -> Table:
    """Columns of numbers and words that stay whole; what wraps is added by the caller."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in headings:
        table.add_column(heading, no_wrap=True)
    return table


def _holdings(job: Status) -> Table:
    table = _table("ps", "version", "bytes", "of which slots")
    table.add_column("address", overflow="fold")
    for ps in job["ps"]:
        sizes = decimal(ps["bytes"]), decimal(ps["slot_bytes"])
        table.add_row(str(ps["index"]), str(ps["version"]), *sizes, ps["address"])
    return table


def _counters(job: Status) -> Table:
    names = list(job["ps"][0]["counters"])
    table = _table("ps", *names)
    for ps in job["ps"]:
        table.add_row(str(ps["index"]), *(str(ps["counters"][name]) for name in names))
    return table


def _workers(job: Status) -> Table:
    table = _table("worker", "state", "generation", "clock")
    for heading in ("origin", "waiting for"):
        table.add_column(heading, overflow="fold")
    for worker in job["workers"]:
        index = worker["worker"]
        seen = {ps["index"]: row for ps in job["ps"] for row in ps["workers"] if row["worker"] == index}
        columns = ("state", "generation", "clock", "origin", "waiting_for")
        cells = (_across({ps: str(row[column]) for ps, row in seen.items()}) for column in columns)
        table.add_row(str(index), *cells)
    return table


def _across(values: dict[int, str]) -> str:
    """What all ps say alike, said once; else who says what."""
    if len(set(values.values())) == 1:
        return next(iter(values.values()))
    return ", ".join(f"ps {index}: {value}" for index, value in values.items() if value)
