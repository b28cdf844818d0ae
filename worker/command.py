"""The command line of `ps-worker`: one worker, or the evaluator, from its command line to its exit code.

Arguments and TF_CONFIG are checked here, before anything heavy is imported. Next: program.py (what it then does).

Exit codes: 0 done; 1 failed while running; 2 bad input; 4 a ps cannot be reached; 128 + n ended by signal n.
"""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path

import click
from click.core import ParameterSource

from client.settings import resolve
from protos.cluster import parse_tf_config
from protos.codec import recycle_pages
from protos.errors import (
    ClusterError,
    Conflict,
    InvalidInput,
    NonFiniteGradient,
    ParameterServerError,
    PeerUnavailable,
)
from worker import modelfile, program
from worker.loss_scale import LossScale
from worker.stopping import Stopping

EPILOG = """\b
Examples:
  ps-run -n 2 -s 2 -- ps-worker examples/digits.py --epochs 8
  ps-run -n 2 --mode sync --rule diloco -- ps-worker model.py --local-steps 50
  ps-run -n 4 --mode ssp --slack 2 -- ps-worker model.py --prefetch
  TF_CONFIG='{"cluster": {"ps": ["10.0.0.1:2222"], "worker": ["10.0.0.2:1", "10.0.0.3:1"]},
              "task": {"type": "worker", "index": 0}}' ps-worker model.py --steps 1000 --batch-size 64

\b
MODEL.py defines:
  build_model()                             the model (Keras, or a tf.Module)
  make_dataset(worker_index, num_workers)   this worker's share: a tf.data.Dataset of (inputs, labels)
  loss(labels, outputs)                     a scalar, or one number per example
  rule()               optional             "adam:learning_rate=0.001" or a dict; used unless the ps was told a rule
  inner_optimizer()    optional             a Keras optimizer, for --local-steps; plain SGD without
  evaluate(model)      optional             a number, or a dict of numbers; runs in worker 0 at the end

\b
Exit codes: 0 done; 1 failed while running; 2 bad input; 4 a ps cannot be reached; 128+n ended by signal n.
"""


def _requirements(context: click.Context, parameter: click.Parameter, pairs: tuple[str, ...]) -> dict[str, float]:
    required = {}
    for pair in pairs:
        name, _, number = pair.partition("=")
        try:
            required[name] = float(number)
        except ValueError:
            raise click.BadParameter(f"got {pair!r}, expected NAME=NUMBER such as accuracy=0.95") from None
    return required


def _loss_scale(context: click.Context, parameter: click.Parameter, said: str | None) -> str | None:
    try:
        LossScale.parse(said)
    except InvalidInput:
        raise click.BadParameter(f"got {said!r}, expected dynamic, or a number above 0 such as 1024") from None
    return said


@click.command(
    context_settings={
        "auto_envvar_prefix": "PARAMSERVER",
        "max_content_width": 110,
        "help_option_names": ["-h", "--help"],
    },
    epilog=EPILOG,
)
@click.argument("model", metavar="MODEL.py", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--steps", type=click.IntRange(1), help="Batches this worker trains on; its data repeats if need be.")
@click.option("--epochs", type=click.IntRange(1), help="Passes over this worker's data. Default: 1.")
@click.option(
    "--batch-size",
    type=click.IntRange(1),
    help="Examples in a batch. Default: as the dataset is batched, or 32 if it is not.",
)
@click.option(
    "--local-steps",
    type=click.IntRange(1),
    metavar="H",
    help="Train on H batches with inner_optimizer(), then push how far the values have come; for rules such as diloco and "
    "elastic_average. Default: push the gradient of every batch.",
)
@click.option(
    "--loss-scale",
    metavar="dynamic|NUMBER",
    callback=_loss_scale,
    help="Multiply the loss where gradients are too small for 16 bits; the ps divides. dynamic: as far as goes without "
    "overflow. Default: none.",
)
@click.option(
    "--prefetch",
    is_flag=True,
    help="Push and pull while the next batch is computed, on values that are one push older; the staleness says so. In async, "
    "and ssp with slack. Default: one after the other.",
)
@click.option("--rule", help="Update rule, NAME or NAME:key=value,…, instead of the model file's rule().")
@click.option("--seed", type=click.IntRange(0), help="Seed of first values, shuffling and dropout. Default: none.")
@click.option(
    "--log-every", type=click.IntRange(1), help="Print a line every N steps. Default: a bar, or a line a second."
)
@click.option(
    "--evaluate-every",
    type=click.FloatRange(0),
    default=5.0,
    show_default=True,
    help="Evaluator: seconds between evaluations.",
)
@click.option(
    "--require",
    multiple=True,
    metavar="NAME=NUMBER",
    callback=_requirements,
    help="Exit with 1 if what evaluate calls NAME is less in the end.",
)
@click.option(
    "--connect-timeout",
    type=float,
    envvar="PARAMSERVER_CONNECT_TIMEOUT_S",
    help="Seconds to wait for a ps. Default: 60.",
)
@click.option(
    "--wait-timeout",
    type=float,
    envvar="PARAMSERVER_WAIT_TIMEOUT_S",
    help="Seconds to wait for other workers. Default: 300.",
)
def main(
    model: Path,
    steps: int | None,
    epochs: int | None,
    batch_size: int | None,
    local_steps: int | None,
    loss_scale: str | None,
    prefetch: bool,
    rule: str | None,
    seed: int | None,
    log_every: int | None,
    evaluate_every: float,
    require: dict[str, float],
    connect_timeout: float | None,
    wait_timeout: float | None,
) -> None:
    """Train the model of MODEL.py as one worker of the job in TF_CONFIG, or evaluate it as its evaluator.

    A worker that has no more data leaves, and the others go on. Worker 0 (the chief, if there is one) then waits for them
    and runs evaluate(model), if the file has it. State without gradients, such as moving statistics, is each worker's own
    while it trains; in the end it is worker 0's.

    Each option can be set by an environment variable too: PARAMSERVER_STEPS for --steps, and so on. A flag comes first.
    """
    source = click.get_current_context().get_parameter_source
    if source("steps") is not source("epochs"):  # one by flag, the other by environment: the flag comes first
        steps = None if source("epochs") is ParameterSource.COMMANDLINE else steps
        epochs = None if source("steps") is ParameterSource.COMMANDLINE else epochs
    if steps is not None and epochs is not None:
        raise click.UsageError(f"got --steps {steps} and --epochs {epochs}, expected one of them")
    if loss_scale is not None and local_steps is not None:
        raise click.UsageError(
            f"got --loss-scale {loss_scale} and --local-steps {local_steps}, expected one of them: what is pushed after local "
            "steps is no gradient. inner_optimizer() may return a keras.optimizers.LossScaleOptimizer."
        )
    if prefetch and local_steps is not None:
        raise click.UsageError(
            f"got --prefetch and --local-steps {local_steps}, expected one of them: local steps begin again from what was "
            "pulled."
        )
    stopping = Stopping()
    recycle_pages()
    try:
        cluster, task = parse_tf_config(os.environ.get("TF_CONFIG"))
        if task.type == "ps":
            raise ClusterError(
                field="task.type", got="'ps'", expected="'worker', 'chief' or 'evaluator'", hint="ps-server runs a ps."
            )
        limits = resolve(connect_timeout_s=connect_timeout, wait_timeout_s=wait_timeout)
        modelfile.check(model)
        settings = program.Settings(
            path=model,
            steps=steps,
            epochs=epochs,
            batch_size=batch_size,
            local_steps=local_steps,
            loss_scale=loss_scale,
            prefetch=prefetch,
            rule=rule,
            seed=seed,
            log_every=log_every,
            evaluate_every_s=evaluate_every,
            required=require,
            connect_timeout_s=limits.connect_timeout_s,
            wait_timeout_s=limits.wait_timeout_s,
        )
        evaluator = task.type == "evaluator"
        who = "the evaluator" if evaluator else f"worker {cluster.worker_index(task)} of {cluster.num_workers}"
        print(f"ps-worker: {who}, {len(cluster.ps)} ps; {_described(settings)}", flush=True)
        if evaluator:
            program.follow(settings, stopping)
        else:
            program.work(settings, stopping)
    except ParameterServerError as error:
        stopping.hold()
        _die(f"{type(error).__name__}: {error}", _exit_code(error))
    except SyntaxError as error:
        traceback.print_exception(type(error), error, None)
        sys.exit(1)
    except Exception:  # noqa: BLE001 - of the model file, most likely: shown from here down, without click's part
        stopping.hold()
        traceback.print_exc()
        sys.exit(1)


def _described(settings: program.Settings) -> str:
    length = f"steps {settings.steps}" if settings.steps else f"epochs {settings.epochs or 1}"
    return (
        f"model {settings.path}, {length}, batch size {settings.batch_size or 'as the data has it'}, "
        f"{f'local steps {settings.local_steps}, ' if settings.local_steps else ''}"
        f"{f'loss scale {settings.loss_scale}, ' if settings.loss_scale else ''}"
        f"{'prefetch, ' if settings.prefetch else ''}"
        f"rule {settings.rule or 'as the file or the ps has it'}, seed {'none' if settings.seed is None else settings.seed}, "
        f"connect timeout {settings.connect_timeout_s:g} s, wait timeout {settings.wait_timeout_s:g} s"
    )


def _exit_code(error: ParameterServerError) -> int:
    if isinstance(error, PeerUnavailable):
        return 4
    return 2 if isinstance(error, (InvalidInput, Conflict)) and not isinstance(error, NonFiniteGradient) else 1


def _die(message: str, code: int) -> None:
    print(f"ps-worker: {message}", file=sys.stderr, flush=True)
    sys.exit(code)
