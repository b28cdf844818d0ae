"""One side of the benchmark of update rules, in a process of its own: it makes updates of one large variable and times them.

`python -m benchmarks.rule_sides SIDE THREADS`. SIDE: `TensorFlow`, a fused kernel of `tf.raw_ops`, in place; `ours`, the engine
as ps-server has it, from one immutable state to the next; `ours, numpy`, the same where LLVM is not installed; `plain numpy`,
the rule's own lines on whole arrays. Next: rules.py, the program.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.tasks import Message, answers, follow_parent, serve
from protos.codec import recycle_pages
from ps import fused
from ps.apply import alone, updating, with_slots
from ps.rules import Context, make_rule
from ps.threads import Threads
from ps.variable import DenseGradient, Paged, Partition, PartitionKey, ShardState

TENSORFLOW, OURS, OURS_NUMPY, PLAIN = "TensorFlow", "ours", "ours, numpy", "plain numpy"
Step = Callable[[], object]


class Side:
    """Prepares a rule when it is asked for it first, and lets go of the one before."""

    def __init__(self, side: str, threads: int) -> None:
        self._side, self._threads = side, threads
        self._prepared: tuple[str, int] | None = None
        self._step: Step = lambda: None
        if side == TENSORFLOW:
            import tensorflow as tf

            tf.config.threading.set_intra_op_parallelism_threads(threads)
            tf.config.threading.set_inter_op_parallelism_threads(1)
        elif side != PLAIN:
            recycle_pages()  # as ps-server does
        if side == OURS_NUMPY:
            mock.patch.object(fused, "_llvm", return_value=None).start()

    def handle(self, message: Message) -> Message:
        """{"rule", "elements", "updates"}: the median of so many updates, in ms of time, and of all cores together."""
        wanted = message["rule"], message["elements"]
        if self._prepared != wanted:
            self._step = lambda: None
            self._step, self._prepared = self._prepare(*wanted), wanted
        times = [_timed(self._step) for _ in range(message["updates"])]
        wall_ms, cpu_ms = (statistics.median(column) * 1e3 for column in zip(*times))
        return {"ms": wall_ms, "cpu_ms": cpu_ms}

    def _prepare(self, rule: str, elements: int) -> Step:
        rng = np.random.default_rng(0)
        value, gradient = (rng.standard_normal(elements, dtype=np.float32) for _ in range(2))
        if self._side == TENSORFLOW:
            return _tensorflow(rule, value, gradient)
        return _plain(rule, value, gradient) if self._side == PLAIN else _ours(rule, value, gradient, self._threads)


def _timed(step: Step) -> tuple[float, float]:
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    step()
    return time.perf_counter() - wall_s, time.process_time() - cpu_s


def _ours(name: str, value: Any, gradient: Any, threads: int) -> Step:
    rule, each = make_rule(name), Threads(threads).each
    key = PartitionKey("w", "float32", value.shape, 0, len(value), trainable=True)
    state = ShardState(0, (with_slots(Partition(key, Paged.of(value)), rule),))
    pushed = {0: DenseGradient(Paged.of(gradient))}

    def step() -> None:
        nonlocal state
        state = alone(updating(state, rule, pushed, staleness=0, worker=0, each=each))

    return step


def _plain(name: str, value: Any, gradient: Any) -> Step:
    """No engine: what a script would do."""
    rule = make_rule(name)
    arrays = [value, *(rule.init_slot(slot, value) for slot in rule.slot_names())]
    number = 0

    def step() -> None:
        nonlocal arrays, number
        answer = rule.update(Context(number, rule.rate_at(number)), arrays[0], gradient, *arrays[1:])
        arrays, number = list(answer) if isinstance(answer, tuple) else [answer], number + 1

    return step


def _tensorflow(name: str, value: Any, gradient: Any) -> Step:
    """The kernels that TensorFlow's own optimizers call; it has none for LAMB."""
    import tensorflow as tf

    rule: Any = make_rule(name)
    var, grad = tf.Variable(value), tf.constant(gradient)
    one, two = (tf.Variable(tf.fill(value.shape, 0.1)) for _ in range(2))
    rate, ops = rule.learning_rate, tf.raw_ops
    if name == "sgd":
        return lambda: ops.ResourceApplyGradientDescent(var=var.handle, alpha=rate, delta=grad)
    if name == "momentum":
        return lambda: ops.ResourceApplyKerasMomentum(
            var=var.handle, accum=one.handle, lr=rate, grad=grad, momentum=rule.momentum
        )
    if name == "adagrad":
        return lambda: ops.ResourceApplyAdagradV2(
            var=var.handle, accum=one.handle, lr=rate, epsilon=rule.epsilon, grad=grad
        )
    numbers = {"beta1": rule.beta_1, "beta2": rule.beta_2, "epsilon": rule.epsilon}
    powers = {"beta1_power": rule.beta_1, "beta2_power": rule.beta_2}
    return lambda: ops.ResourceApplyAdam(
        var=var.handle, m=one.handle, v=two.handle, lr=rate, grad=grad, **numbers, **powers
    )


def main(side: str, threads: str) -> None:
    commands = follow_parent()
    serve(commands, answers(), Side(side, int(threads)).handle)


if __name__ == "__main__":
    main(*sys.argv[1:])
