"""How is a model trained from a script? `train`: the loop of loop.py, with TensorFlow's parts put in.

    with client.connect() as server:          # cluster and task from TF_CONFIG
        summary = worker.train(server, model, dataset, loss, rule="adam:learning_rate=0.001", epochs=3)

Next: evaluation.py (the values in the end), command.py (`ps-worker`, which does this for a model file).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from client import Client
from protos.errors import InvalidInput
from worker import data, loop
from worker import local_steps as local
from worker import prefetch as ahead
from worker.loss_scale import LossScale
from worker.progress import Progress, choose
from worker.step import TensorLearner, TensorReplica


def train(
    server: Client,
    model: Any,
    dataset: Any,
    loss: Callable[[Any, Any], Any],
    *,
    rule: str | Mapping[str, Any] | None = None,
    steps: int | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    local_steps: int | None = None,
    inner_optimizer: Any = None,
    loss_scale: str | float | None = None,
    prefetch: bool | ahead.Ahead = False,
    progress: Progress | None = None,
    started: Callable[[TensorReplica], None] | None = None,
) -> loop.Summary:
    """Train `model`, a Keras model or tf.Module, on `dataset`, pairs (inputs, labels), as this worker of the job.

    loss(labels, outputs): scalar or one number per example. steps: batches of this worker, beginning the dataset again
    when it ends; or epochs: passes over it (1). batch_size: see data.py. progress: by default what fits the terminal.
    local_steps: batches between pushes, trained on with `inner_optimizer`, a Keras optimizer (SGD); see local_steps.py. None:
    the gradient of every batch is pushed. loss_scale: "dynamic" or a number, by which the loss is multiplied where gradients
    are too small for 16 bits; see loss_scale.py. prefetch: push and pull while the next batch is computed, on values that
    are one push older; not in sync mode; see prefetch.py. An Ahead instead of True lets the caller settle what is under way.
    started: called with the replica once the model is on the ps.

    The model holds the values of the last pull in the end. Does not leave: the `with` block of `server` does, and the other
    workers go on. Raises InvalidInput for a dataset or model that does not fit, and what the client raises.
    """
    if steps is not None and epochs is not None:
        raise InvalidInput(field="steps", got=f"steps {steps} and epochs {epochs}", expected="one of them")
    for field, number in (
        ("steps", steps),
        ("epochs", epochs),
        ("batch_size", batch_size),
        ("local_steps", local_steps),
    ):
        if number is not None and number < 1:
            raise InvalidInput(field=field, got=number, expected="1 or more")
    if inner_optimizer is not None and local_steps is None:
        raise InvalidInput(
            field="local_steps",
            got="None, and an inner_optimizer",
            expected="how many batches it trains on before a push",
        )
    if loss_scale is not None and local_steps is not None:
        raise InvalidInput(
            field="loss_scale",
            got=f"{loss_scale}, and local_steps {local_steps}",
            expected="one of them: what is pushed is no gradient",
            hint="keras.optimizers.LossScaleOptimizer(...) as inner_optimizer scales the loss of local steps.",
        )
    if prefetch and local_steps is not None:
        raise InvalidInput(
            field="prefetch",
            got=f"{prefetch}, and local_steps {local_steps}",
            expected="one of them: local steps begin again from what was pulled",
        )
    scaling = LossScale.parse(loss_scale)

    def told(replica: TensorReplica) -> None:
        if started is not None:
            started(replica)

    batches = data.to_batches(dataset, data.model_ranks(model), batch_size)
    build(model, batches)
    passes = data.passes(batches, steps=steps, epochs=epochs)
    with progress if progress is not None else choose() as shown:
        if local_steps is None:
            replica = TensorReplica(model, loss, batches.element_spec)
            train = loop.run
            if prefetch:
                thread = prefetch if isinstance(prefetch, ahead.Ahead) else ahead.Ahead(server)
                train = functools.partial(ahead.run, thread)
            return train(server, replica, passes, rule, shown.update, lambda: told(replica), loss_scale=scaling)
        learner = TensorLearner(model, loss, batches.element_spec, inner_optimizer)
        return local.run(server, learner, passes, rule, shown.update, lambda: told(learner), local_steps=local_steps)


def build(model: Any, batches: Any) -> None:
    """A Keras model that was given no input shape has no variables before its first batch."""
    if getattr(model, "built", True):
        return
    for inputs, _ in batches.take(1):
        model(inputs)
