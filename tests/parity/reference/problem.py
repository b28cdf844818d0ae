"""Which problem do both sides of a parity check solve?

A classification with a teacher: three dense layers, small batches, everything drawn from a seed. It must not know
TensorFlow, processes or update rules: numpy only, so that any side can build it. Next: model.py, its loss and gradient.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Values = dict[str, npt.NDArray[np.float32]]
Batch = tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]

# Odd on purpose: no first axis splits evenly over two ps.
SIZES = (13, 17, 9, 5)


@dataclass(frozen=True)
class Problem:
    """Initial values by name, a stream of batches for each worker, and one batch that no worker sees.

    `values` maps "dense0/kernel" to float32 (13, 17), "dense0/bias" to (17,), and so on; `batches[worker][step]` and
    `held_out` are (x, labels): float32 (batch_size, 13) and int64 (batch_size,) with classes 0 to 4.
    """

    values: Values
    batches: list[list[Batch]]
    held_out: Batch

    def union(self, step: int) -> Batch:
        """The batches of all workers at `step` as one. They are of one size, so its mean loss is the mean of theirs."""
        parts = [stream[step] for stream in self.batches]
        return np.concatenate([x for x, _ in parts]), np.concatenate([labels for _, labels in parts])


def problem(seed: int, steps: int, workers: int, batch_size: int = 16, held_out_size: int = 512) -> Problem:
    """The problem of `seed`. A batch depends on (seed, worker, step) alone: a longer problem extends a shorter one."""
    teacher = _dense_values(np.random.default_rng([seed, 0]), scale=2.0)
    return Problem(
        values=_dense_values(np.random.default_rng([seed, 1]), scale=1.0),
        batches=[
            [_batch(np.random.default_rng([seed, 2, worker, step]), teacher, batch_size) for step in range(steps)]
            for worker in range(workers)
        ],
        held_out=_batch(np.random.default_rng([seed, 3]), teacher, held_out_size),
    )


def _dense_values(rng: np.random.Generator, scale: float) -> Values:
    values: Values = {}
    for layer, (inputs, outputs) in enumerate(itertools.pairwise(SIZES)):
        kernel = rng.standard_normal((inputs, outputs)) * scale / inputs**0.5
        values[f"dense{layer}/kernel"] = kernel.astype(np.float32)
        values[f"dense{layer}/bias"] = (rng.standard_normal(outputs) * 0.1).astype(np.float32)
    return values


def _batch(rng: np.random.Generator, teacher: Values, size: int) -> Batch:
    x = rng.standard_normal((size, SIZES[0])).astype(np.float32)
    hidden = x
    for layer in range(len(SIZES) - 1):
        hidden = np.tanh(hidden @ teacher[f"dense{layer}/kernel"] + teacher[f"dense{layer}/bias"])
    return x, np.argmax(hidden, axis=1).astype(np.int64)
