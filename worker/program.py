"""What does `ps-worker` do with a model file? As a worker it trains and, as worker 0, evaluates; as an evaluator it follows.

Called with everything resolved; TensorFlow is imported here, after the job was joined. Next: training.py, evaluation.py.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import client
from client import Client, Values
from protos.errors import InvalidInput, ParameterServerError
from worker import modelfile
from worker.evaluation import GONE, SILENCE_S, final_values
from worker.evaluation import follow as follow_job
from worker.modelfile import ModelFile
from worker.stopping import Stopping


@dataclass(frozen=True)
class Settings:
    """What was resolved from flags, environment and defaults. required: the least that evaluate may say in the end."""

    path: Path
    steps: int | None
    epochs: int | None
    batch_size: int | None
    rule: str | None
    seed: int | None
    log_every: int | None
    evaluate_every_s: float
    required: Mapping[str, float]
    connect_timeout_s: float
    wait_timeout_s: float
    local_steps: int | None = None
    loss_scale: str | None = None
    prefetch: bool = False


class RequirementNotMet(ParameterServerError):
    """The job is done, but the model is not as good as was asked."""

    summary = "the result is not good enough"


def work(settings: Settings, stopping: Stopping) -> None:
    """Be a worker, from joining to leaving; worker 0 then evaluates what the job has come to."""
    with contextlib.ExitStack() as until_pulled:
        with _connect(settings) as server:
            assert server.worker is not None
            stopping.leave = server.leave
            file, model = _load(settings)
            if settings.required and file.evaluate is None:
                raise InvalidInput(
                    field="--require",
                    got=f"no evaluate(model) in {settings.path}",
                    expected="one, whose result it is held against",
                )
            if settings.seed is not None:
                _seed_differently(model, settings.seed, server.worker)
            dataset = file.make_dataset(server.worker, server.num_workers)
            last = _train(settings, server, file, model, dataset, stopping)
            if server.worker != 0 or file.evaluate is None:
                return
            observer = until_pulled.enter_context(_observing(settings))  # before leaving: so the ps wait for its pull
        stopping.leave = observer.leave
        values = final_values(observer, fallback=last, wait_timeout_s=settings.wait_timeout_s)
    if values is last:
        print(f"the ps ended first: this is step {last.step}, which worker 0 saw last", flush=True)
    _evaluate(settings, file, model, values)


def follow(settings: Settings, stopping: Stopping) -> None:
    """Be an evaluator: evaluate now and then, and once every worker has left."""
    with _observing(settings) as observer:
        stopping.leave = observer.leave
        file, model = _load(settings)
        if file.evaluate is None:
            raise InvalidInput(
                field=str(settings.path),
                got="no evaluate(model)",
                expected="one, as this is an evaluator",
                hint="Define it, or leave the evaluator out of TF_CONFIG.",
            )
        if not getattr(model, "built", True):
            from worker import data, training

            training.build(
                model, data.to_batches(file.make_dataset(0, observer.num_workers), None, settings.batch_size)
            )
        result: dict[str, float] = {}

        def evaluate(values: Values) -> None:
            print(f"step {values.step}: ", end="")
            result.update(_evaluate(settings, file, model, values, require=False))

        period_s = settings.evaluate_every_s
        final = follow_job(observer, evaluate, period_s=period_s, wait_timeout_s=settings.wait_timeout_s)
    if not final:
        print("the ps ended before a last evaluation: what is above is not what the job came to", flush=True)
        if settings.required:
            raise RequirementNotMet(field="--require", got="no last evaluation", expected="one, to hold against it")
        return
    _require(settings, result)


def _connect(settings: Settings, observer: bool = False) -> Client:
    return client.connect(
        observer=observer,
        connect_timeout_s=settings.connect_timeout_s,
        wait_timeout_s=settings.wait_timeout_s,
        retry_budget_s=SILENCE_S if observer else None,
    )


@contextlib.contextmanager
def _observing(settings: Settings) -> Iterator[Client]:
    """An observer, which counts nowhere: it does not matter if the ps are gone before it leaves."""
    observer = _connect(settings, observer=True)
    try:
        yield observer
    finally:
        with contextlib.suppress(*GONE):
            observer.leave()


def _load(settings: Settings) -> tuple[ModelFile, Any]:
    """The model file and its model. Imports TensorFlow, if the file has not done so."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    if importlib.util.find_spec("tensorflow") is None:
        raise InvalidInput(
            field="tensorflow",
            got="no such package",
            expected="TensorFlow",
            hint="pip install 'paramserver[tensorflow]'",
        )
    file = modelfile.load(settings.path)

    import keras

    if keras.backend.backend() != "tensorflow":
        raise InvalidInput(field="KERAS_BACKEND", got=keras.backend.backend(), expected="tensorflow")
    if settings.seed is not None:
        keras.utils.set_random_seed(settings.seed)
    return file, file.build_model()


def _seed_differently(model: Any, seed: int, worker: int) -> None:
    """The same first values everywhere, but shuffling and dropout of each worker's own."""
    import keras

    from worker.variables import spread_seeds

    keras.utils.set_random_seed(seed + 1 + worker)
    spread_seeds(model, worker)


def _train(settings: Settings, server: Client, file: ModelFile, model: Any, dataset: Any, stopping: Stopping) -> Values:
    """Train, and say how it went; the values pulled last."""
    from worker import progress
    from worker.prefetch import Ahead
    from worker.step import TensorReplica
    from worker.training import train

    inner = file.inner_optimizer() if settings.local_steps and file.inner_optimizer is not None else None

    def started(replica: TensorReplica) -> None:
        status = server.status()
        variables = replica.variables
        with_what = "plain SGD, as the file has no inner_optimizer()" if inner is None else type(inner).__name__
        local = f"; {settings.local_steps} local steps a push, with {with_what}" if settings.local_steps else ""
        print(
            f"training {variables.parameters} parameters in {len(variables.trainable)} variables, mode {status['mode']}, "
            f"rule {status['rule']}, from step {status['step']}{local}",
            flush=True,
        )

    ahead = Ahead(server) if settings.prefetch else None
    if ahead is not None:
        stopping.leave = ahead.leave  # with what is under way
    summary = train(
        server,
        model,
        dataset,
        file.loss,
        rule=_rule(settings, server, file),
        steps=settings.steps,
        epochs=settings.epochs,
        batch_size=settings.batch_size,
        local_steps=settings.local_steps,
        inner_optimizer=inner,
        loss_scale=settings.loss_scale,
        prefetch=ahead if ahead is not None else False,
        progress=progress.choose(settings.log_every),
        started=started,
    )
    print(f"worker {server.worker}: {summary}", flush=True)
    raw_bytes, sent_bytes = server.traffic()
    if raw_bytes:
        print(f"worker {server.worker}: gradients of {raw_bytes:,} bytes sent in {sent_bytes:,}", flush=True)
    return summary.values


def _rule(settings: Settings, server: Client, file: ModelFile) -> Any:
    """What this worker asks for: its flag, which must agree with the ps; else, where the ps was told none, the file's."""
    if settings.rule is not None or file.rule is None:
        return settings.rule
    return None if server.status()["rule"] else file.rule()


def _evaluate(
    settings: Settings, file: ModelFile, model: Any, values: Values, require: bool = True
) -> dict[str, float]:
    """Put the values into the model, evaluate it and print the result: `accuracy 0.978 (loss 0.0712)`."""
    from worker.variables import Variables

    variables = Variables(model)
    variables.check(values)
    variables.assign(values)
    result = file.evaluated(model)
    (first, value), *others = result.items()
    rest = ", ".join(f"{name} {number:.4g}" for name, number in others)
    print(f"{first} {value:.4g}" + (f" ({rest})" if rest else ""), flush=True)
    if require:
        _require(settings, result)
    return result


def _require(settings: Settings, result: Mapping[str, float]) -> None:
    for name, least in settings.required.items():
        if name not in result:
            raise InvalidInput(
                field="--require", got=name, expected=f"one of {', '.join(result) or 'what evaluate says'}"
            )
        if not result[name] >= least:  # NaN is not enough either
            raise RequirementNotMet(field=name, got=f"{result[name]:.4g}", expected=f"at least {least:g}")
