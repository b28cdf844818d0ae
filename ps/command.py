"""The command line of `ps-server`: one ps, from its command line to its exit code.

Exit codes: 0 every worker has left, or `ps-ctl stop`; 1 a worker was lost; 2 bad input; 3 the port is taken; 128 + n signal n.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import signal
import sys
from pathlib import Path

import click

from protos.cluster import Cluster, check_address, parse_cluster, parse_task, parse_tf_config
from protos.codec import recycle_pages
from protos.errors import AddressInUse, ClusterError, ParameterServerError
from ps.configuration import Configuration
from ps.consistency import MODES
from ps.fused import available
from ps.rules import load_rules
from ps.server import GRACE_S, Server, Settings
from ps.threads import usable_cpus

EPILOG = """\b
Examples:
  TF_CONFIG='{"cluster": {"ps": ["10.0.0.1:2222"], "worker": ["10.0.0.2:1", "10.0.0.3:1"]},
              "task": {"type": "ps", "index": 0}}' ps-server --mode sync --rule adam:learning_rate=0.001
  ps-server --cluster '{"ps": ["127.0.0.1:2222"], "worker": ["127.0.0.1:2223"]}' --index 0
"""


def _seconds(context: click.Context, parameter: click.Parameter, value: float) -> float:
    if math.isnan(value):  # smaller than nothing, so no range refuses it
        raise click.BadParameter(f"got {value}, expected a number of seconds")
    return value


@click.command(
    context_settings={
        "auto_envvar_prefix": "PARAMSERVER",
        "max_content_width": 110,
        "help_option_names": ["-h", "--help"],
    },
    epilog=EPILOG,
)
@click.option("--cluster", help="Cluster description as JSON, or @FILE. Default: TF_CONFIG.")
@click.option(
    "--index", type=click.IntRange(0), help="Which ps of the cluster this is. Default: the task of TF_CONFIG."
)
@click.option("--bind", help="HOST:PORT to listen on, if other than the address in the cluster: 0.0.0.0:2222.")
@click.option(
    "--mode", type=click.Choice(MODES), help="When gradients are applied. Default: the first init says, or async."
)
@click.option("--slack", type=click.IntRange(0), help="ssp: iterations a worker may lead the slowest. Default 0.")
@click.option(
    "--backup-workers", type=click.IntRange(0), help="sync: take the first N-K gradients of a step, drop the rest."
)
@click.option("--rule", help="Update rule: NAME or NAME:key=value,… Default: the first init says.")
@click.option("--rules", type=click.Path(path_type=Path), help="Python file that registers rules of your own.")
@click.option("--guard-nonfinite", is_flag=True, help="Refuse gradients that hold NaN or Inf.")
@click.option(
    "--lease",
    type=click.FloatRange(0.1),
    callback=_seconds,
    default=10.0,
    show_default=True,
    help="Seconds without a connection until a worker counts as lost.",
)
@click.option(
    "--run-id", default="", help="Identity of the job; processes of another run are refused. Default: a new one."
)
@click.option(
    "--story-dir", type=click.Path(file_okay=False, path_type=Path), help="Write the event log there: story-psN.jsonl."
)
@click.option(
    "--record",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write down the run, gradients and all, as FILE.psN: `python -m ps.replay FILE` makes it again.",
)
@click.option(
    "--shared-memory/--no-shared-memory",
    default=True,
    show_default=True,
    help="Exchange values and gradients with workers on this host through shared memory.",
)
@click.option(
    "--apply-threads",
    type=click.IntRange(1),
    default=usable_cpus,
    show_default="processors",
    help="Threads that update large variables together; results are the same bits for any number.",
)
@click.option("--log-level", type=click.Choice(["debug", "info", "warning"]), default="info", show_default=True)
def main(
    cluster: str | None,
    index: int | None,
    bind: str | None,
    mode: str | None,
    slack: int | None,
    backup_workers: int | None,
    rule: str | None,
    rules: Path | None,
    guard_nonfinite: bool,
    lease: float,
    run_id: str,
    story_dir: Path | None,
    record: Path | None,
    shared_memory: bool,
    apply_threads: int,
    log_level: str,
) -> None:
    """One ps: holds a shard of the model and applies gradients to it, until every worker has left.

    Each option can be set by an environment variable too: PARAMSERVER_MODE for --mode, and so on. A flag comes first.
    """
    logging.basicConfig(
        level=log_level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s", datefmt="%H:%M:%S"
    )
    recycle_pages()
    try:
        description, index = _place(cluster, index)
        if not description.num_workers:
            raise ClusterError(field="cluster.worker", got="no workers", expected="the address of at least one")
        if rules is not None:
            load_rules(rules)
        settings = Settings(
            index=index,
            ps_addresses=description.ps,
            num_workers=description.num_workers,
            bind=check_address("--bind", bind, lowest_port=0) if bind else "",
            run_id=run_id,
            configuration=Configuration(mode or "", slack, backup_workers, rule or ""),
            guard_nonfinite=guard_nonfinite,
            lease_s=lease,
            story_dir=story_dir,
            record=record,
            shared_memory=shared_memory,
            apply_threads=apply_threads,
        )
        asyncio.run(_serve(settings))
    except AddressInUse as error:
        _die(error, 3)
    except ParameterServerError as error:
        _die(error, 2)
    except OSError as error:
        _die(error, 2)


def _place(cluster: str | None, index: int | None) -> tuple[Cluster, int]:
    """The cluster, and which ps of it this is: from the flags, then from TF_CONFIG."""
    if cluster is not None:
        text = Path(cluster[1:]).read_text(encoding="utf-8") if cluster.startswith("@") else cluster
        try:
            description = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ClusterError(field="--cluster", got=f"{text[:80]!r} ({error})", expected="JSON, or @FILE") from None
        parsed = parse_cluster(description)
        if index is None:
            raise ClusterError(field="--index", got="nothing", expected="the index of this ps, as --cluster is given")
        return parsed, parse_task(parsed, {"type": "ps", "index": index}).index
    parsed, task = parse_tf_config(os.environ.get("TF_CONFIG"))
    if index is not None:
        return parsed, parse_task(parsed, {"type": "ps", "index": index}).index
    if task.type != "ps":
        raise ClusterError(
            field="task.type", got=repr(task.type), expected="'ps' for ps-server", hint="Or give --index."
        )
    return parsed, task.index


async def _serve(settings: Settings) -> None:
    """Serve, and end the process: at once, also where a rule is still at work in a thread, which nobody can interrupt."""
    server = Server(settings)
    code = 0

    def on_signal(number: signal.Signals) -> None:
        nonlocal code
        code = 128 + number
        server.stop(f"stopped by {number.name}")

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it, and the background jobs of a shell
            asyncio.get_running_loop().add_signal_handler(number, on_signal, number)
    port = await server.start()
    logging.info("settings: %s", _described(settings, server.shard.membership.run_id))
    host = (settings.bind or settings.ps_addresses[settings.index]).rpartition(":")[0]
    print(f"ps {settings.index} serving on {host}:{port}", flush=True)
    reason = await server.run()
    # Calls that are over may have a last turn to take; asyncio.run would cancel them, and grpc print a traceback for each.
    if rest := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(rest, timeout=GRACE_S)
    logging.info("ps %d ends: %s; %s", settings.index, reason, server.summary())
    if code == 0 and (lost := server.lost_workers()):
        logging.error("lost without leaving: %s", ", ".join(f"worker {worker}" for worker in lost))
        code = 1
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # closed by whoever started us
            stream.flush()
    os._exit(code)


def _described(settings: Settings, run_id: str) -> str:
    told = settings.configuration
    extras = {
        "slack": told.slack,
        "backup workers": told.backup_workers,
        "stories in": settings.story_dir,
        "record": settings.record,
    }
    return ", ".join(
        [
            f"ps {settings.index} of {len(settings.ps_addresses)}",
            "1 worker" if settings.num_workers == 1 else f"{settings.num_workers} workers",
            f"mode {told.mode or 'as the first init says, or async'}",
            f"rule {told.rule or 'as the first init says'}",
            *(f"{name} {value}" for name, value in extras.items() if value is not None),
            f"NaN and Inf {'refused' if settings.guard_nonfinite else 'accepted'}",
            f"lease {settings.lease_s:g} s",
            *([] if settings.shared_memory else ["no shared memory"]),
            f"large updates {'fused' if available() else 'by numpy'}, apply threads {settings.apply_threads}",
            f"run id {run_id or 'as the first client says'}",
        ]
    )


def _die(error: Exception, code: int) -> None:
    print(f"ps-server: {type(error).__name__}: {error}", file=sys.stderr)
    sys.exit(code)
