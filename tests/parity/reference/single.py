"""What does one process compute that sees the batches of all workers at once?

The plainest reference: eager, local, every step recorded; `sync` training must equal it. It must not know of any
cluster. Next: processes.py, and with it pss.py and sync_replicas.py, the same training on live TensorFlow clusters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
import numpy as np
import tensorflow as tf

from tests.parity.reference.model import gradients
from tests.parity.reference.options import Arrays, check_out, save, training
from tests.parity.reference.problem import Values, problem
from tests.parity.reference.update import BETA_1, BETA_2, EPSILON, MOMENTUM, SLOTS, apply

Step = Callable[[dict[str, Any], int], None]


@click.command()
@training
@click.option(
    "--workers", type=click.IntRange(min=1), default=3, show_default=True, help="Whose batches make the union."
)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option(
    "--optimizer",
    type=click.Choice(["kernels", "keras"]),
    default="kernels",
    show_default=True,
    help="TensorFlow's fused kernels, or the optimizers of Keras 3.",
)
def main(
    rules: tuple[str, ...], learning_rate: float, steps: int, out: str, workers: int, seed: int, optimizer: str
) -> None:
    """Train in one process on the union of the workers' batches and record every step.

    Writes "STEP/NAME" (values after STEP, 0 is the start), "gradient/STEP/NAME" (what step STEP applied) and "loss"
    (float32, one a step, before that step).

    Example: python -m tests.parity.reference.single --rule adam --workers 3 --steps 50 --out single.npz
    """
    check_out(rules, out)
    for rule in rules:
        save(out, rule, record(rule, learning_rate, steps, workers, seed, optimizer))


def record(rule: str, learning_rate: float, steps: int, workers: int, seed: int, optimizer: str = "kernels") -> Arrays:
    """What `main` writes for one rule, without a process of its own: for tests that hold TensorFlow already."""
    task = problem(seed, steps, workers)
    recorded: Arrays = {f"0/{name}": value for name, value in task.values.items()}
    losses = []
    variables, update = (_kernels if optimizer == "kernels" else _keras)(rule, learning_rate, task.values)
    for step in range(1, steps + 1):
        loss, grads = gradients(variables, *task.union(step - 1))
        update(grads, step)
        losses.append(loss.numpy())
        for name, variable in variables.items():
            recorded[f"{step}/{name}"] = variable.numpy()
            recorded[f"gradient/{step}/{name}"] = grads[name].numpy()
    return {**recorded, "loss": np.array(losses, np.float32)}


def _kernels(rule: str, learning_rate: float, values: Values) -> tuple[dict[str, Any], Step]:
    variables = {name: tf.Variable(value) for name, value in values.items()}
    slots = {name: {slot: tf.Variable(tf.zeros_like(value)) for slot in SLOTS[rule]} for name, value in values.items()}

    def update(grads: dict[str, Any], step: int) -> None:
        for name, variable in variables.items():
            apply(rule, learning_rate, variable, slots[name], grads[name], step)

    return variables, update


def _keras(rule: str, learning_rate: float, values: Values) -> tuple[dict[str, Any], Step]:
    import keras

    variables = {name: tf.Variable(value) for name, value in values.items()}
    if rule == "adam":
        optimizer = keras.optimizers.Adam(learning_rate, beta_1=BETA_1, beta_2=BETA_2, epsilon=EPSILON)
    else:
        momentum = 0.0 if rule == "sgd" else MOMENTUM
        optimizer = keras.optimizers.SGD(learning_rate, momentum=momentum, nesterov=rule == "nesterov")
    optimizer.build(list(variables.values()))

    def update(grads: dict[str, Any], step: int) -> None:
        optimizer.apply([grads[name] for name in variables])

    return variables, update


if __name__ == "__main__":
    main()
