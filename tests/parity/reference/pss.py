"""What does TensorFlow's own ParameterServerStrategy compute on the same problem?

A live cluster: a coordinator ("chief"), workers and two ps, each a process. Variables are partitioned over both ps;
each scheduled step reads them, computes the gradient on its worker and applies it on the ps with TensorFlow's kernels.
With one worker it is a sequence, comparable value by value; with several it is asynchronous, comparable by its final
losses. It must not know our packages. Next: sync_replicas.py, the synchronous reference.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

import click
import numpy as np
import numpy.typing as npt

from tests.parity.reference.options import Arrays, check_out, cluster_task, save, training
from tests.parity.reference.problem import Problem, Values, problem
from tests.parity.reference.processes import Cluster, end_with_parent, run_cluster

SERVERS = 2


@click.command()
@training
@click.option("--workers", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--seed", "--seeds", "seeds", default="0", show_default=True, help="One, or several as 0,1,2.")
@cluster_task
def main(
    rules: tuple[str, ...],
    learning_rate: float,
    steps: int,
    out: str,
    workers: int,
    seeds: str,
    deadline_s: float,
    task: str | None,
    cluster: str | None,
) -> None:
    """Train on a live ParameterServerStrategy cluster, once a rule and a seed.

    A worker takes STEPS steps, with several workers on average. Writes "seeds", "initial_loss" and "final_loss"
    (float32, one a seed, on the held-out batch) and "final/SEED/NAME". With one worker and one seed also "STEP/NAME"
    (whole values after STEP, 0 is the start) and "loss" (float32, one a step, before that step).

    Example: python -m tests.parity.reference.pss --rule adam --workers 3 --seeds 0,1,2,3,4 --out pss.npz
    """
    check_out(rules, out)
    try:
        seed_list = [int(seed) for seed in seeds.split(",")]
    except ValueError:
        raise click.BadParameter(f"got {seeds!r}, expected numbers such as 0,1,2", param_hint="--seeds") from None
    if task is None or cluster is None:
        run_cluster("tests.parity.reference.pss", {"chief": 1, "worker": workers, "ps": SERVERS}, "chief", deadline_s)
    elif task == "chief:0":
        end_with_parent()
        _coordinate(json.loads(cluster), rules, learning_rate, steps, out, seed_list)
    else:
        _serve(json.loads(cluster), task)


def _serve(cluster: Cluster, task: str) -> None:
    lifetime = end_with_parent()
    import tensorflow as tf

    job, index = task.split(":")
    config = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=1)
    tf.distribute.Server(cluster, job_name=job, task_index=int(index), protocol="grpc", config=config)
    lifetime.join()


def _coordinate(
    cluster: Cluster, rules: tuple[str, ...], learning_rate: float, steps: int, out: str, seeds: list[int]
) -> None:
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    strategy = tf.distribute.ParameterServerStrategy(
        tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec(cluster), task_type="chief", task_id=0, rpc_layer="grpc"
        ),
        variable_partitioner=tf.distribute.experimental.partitioners.FixedShardsPartitioner(SERVERS),
    )
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    tasks = {seed: problem(seed, steps, len(cluster["worker"])) for seed in seeds}
    for rule in rules:
        model = _PartitionedModel(strategy, rule, learning_rate, tasks[seeds[0]].values)
        save(out, rule, _train(coordinator, model, tasks, steps))


def _train(coordinator: Any, model: _PartitionedModel, tasks: Mapping[int, Problem], steps: int) -> Arrays:
    from tests.parity.reference.model import mean_loss

    recorded: Arrays = {"seeds": np.array(list(tasks))}
    losses: dict[str, list[float]] = {"initial_loss": [], "final_loss": []}
    for seed, task in tasks.items():
        workers = len(task.batches)
        model.reset(task.values)
        losses["initial_loss"].append(float(mean_loss(model.whole(), *task.held_out)))
        batches = iter(coordinator.create_per_worker_dataset(functools.partial(_worker_dataset, task)))
        if workers == 1 and len(tasks) == 1:
            recorded |= _record_steps(coordinator, model, batches, steps)
        else:
            for _ in range(steps * workers):
                coordinator.schedule(model.step, args=(batches,))
            coordinator.join()
        final = model.whole()
        losses["final_loss"].append(float(mean_loss(final, *task.held_out)))
        recorded |= {f"final/{seed}/{name}": value.numpy() for name, value in final.items()}
    return recorded | {key: np.array(values, np.float32) for key, values in losses.items()}


def _record_steps(coordinator: Any, model: _PartitionedModel, batches: Any, steps: int) -> Arrays:
    recorded: Arrays = {f"0/{name}": value.numpy() for name, value in model.whole().items()}
    losses = []
    for step in range(1, steps + 1):
        losses.append(coordinator.schedule(model.step, args=(batches,)).fetch())
        coordinator.join()
        recorded |= {f"{step}/{name}": value.numpy() for name, value in model.whole().items()}
    return {**recorded, "loss": np.array(losses, np.float32)}


def _worker_dataset(task: Problem) -> Any:
    """The endless stream of the worker that calls it: a faster worker takes more steps and begins its stream again."""
    import tensorflow as tf

    worker = tf.distribute.coordinator.experimental_get_current_worker_index()
    x = np.stack([np.stack([x for x, _ in stream]) for stream in task.batches])
    labels = np.stack([np.stack([labels for _, labels in stream]) for stream in task.batches])
    return tf.data.Dataset.from_tensor_slices((tf.gather(x, worker), tf.gather(labels, worker))).repeat()


class _PartitionedModel:
    """The variables and slots on the ps, and the step that a worker runs on them."""

    def __init__(self, strategy: Any, rule: str, learning_rate: float, values: Values) -> None:
        import tensorflow as tf

        from tests.parity.reference.model import gradients
        from tests.parity.reference.update import SLOTS, apply

        with strategy.scope():
            self._variables = {name: tf.Variable(value) for name, value in values.items()}
            self._slots = {
                slot: {name: tf.Variable(np.zeros_like(value)) for name, value in values.items()}
                for slot in SLOTS[rule]
            }
            # Last, for a scalar lies on one ps, and the next partitioned variable would begin on the other.
            self._steps = tf.Variable(0, dtype=tf.int64)

        def step(batches: Any) -> Any:
            """One step on a worker: float32 scalar, the loss at the values it read."""
            x, labels = next(batches)
            loss, grads = gradients(self.whole(), x, labels)
            number = self._steps.assign_add(1)
            for name, variable in self._variables.items():
                rows = [part.shape[0] for part in variable.variables]
                for index, grad in enumerate(tf.split(grads[name], rows)):
                    slots = {slot: self._slots[slot][name].variables[index] for slot in self._slots}
                    apply(rule, learning_rate, variable.variables[index], slots, grad, number)
            return loss

        self.step = tf.function(step)

    def whole(self) -> dict[str, Any]:
        """Every variable as one tensor, its partitions concatenated."""
        import tensorflow as tf

        return {name: tf.concat(variable.variables, axis=0) for name, variable in self._variables.items()}

    def reset(self, values: Mapping[str, npt.NDArray[np.float32]]) -> None:
        """Start again at `values`, with empty slots and at step 0."""
        self._steps.assign(0)
        zeros = {name: np.zeros_like(value) for name, value in values.items()}
        for variables, news in [(self._variables, values), *((slot, zeros) for slot in self._slots.values())]:
            for name, variable in variables.items():
                begin = 0
                for part in variable.variables:
                    part.assign(news[name][begin : begin + part.shape[0]])
                    begin += part.shape[0]


if __name__ == "__main__":
    main()
