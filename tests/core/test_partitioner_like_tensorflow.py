"""Do our partitioners cut where TensorFlow's cut? TensorFlow's own code says so, live; no cluster is needed to ask it."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np

from client import partitioner as ours
from client.partitioner import row_ranges

SHAPES = [(1,), (2,), (5, 3), (13, 1), (13, 7), (100,), (1000, 16), (4096, 64), (7, 70_000), (300_000, 2)]
ITEMSIZES = {"float16": 2, "float32": 4, "float64": 8}


def test_ranges_and_numbers_of_shards_are_those_of_tensorflow() -> None:
    import tensorflow as tf
    from tensorflow.python.distribute import parameter_server_strategy_v2 as strategy

    theirs = tf.distribute.experimental.partitioners
    pairs = [
        *((ours.FixedShardsPartitioner(n), theirs.FixedShardsPartitioner(n)) for n in (1, 2, 5, 13)),
        *(
            (ours.MinSizePartitioner(least, most), theirs.MinSizePartitioner(least, most))
            for least, most in itertools.product((1, 100, 4096, 256 << 10), (1, 3, 50))
        ),
        (ours.MinSizePartitioner(), theirs.MinSizePartitioner()),
        *(
            (ours.MaxSizePartitioner(largest, most), theirs.MaxSizePartitioner(largest, most))
            for largest, most in itertools.product((1, 100, 4096, 256 << 10), (None, 1, 3, 50))
        ),
    ]
    for (mine, other), shape, (dtype, itemsize) in itertools.product(pairs, SHAPES, ITEMSIZES.items()):
        asked = other(tf.TensorShape(shape), tf.as_dtype(dtype))
        # The strategy cuts no variable in more pieces than it has rows.
        assert mine.shards(shape, itemsize, 4) == min(asked[0], shape[0]), (mine, shape, dtype)

    for rows, shards in [(13, 5), (10, 4), (7, 7), (100, 8), (3, 5)]:
        ranges = row_ranges(rows, min(rows, shards))
        assert tensorflow_ranges(tf, strategy, rows, shards) == ranges, (rows, shards)


def tensorflow_ranges(tf: Any, strategy: Any, rows: int, shards: int) -> list[tuple[int, int]]:
    """The row ranges of the ShardedVariable that TensorFlow's ParameterServerStrategy makes of a variable of `rows` rows."""
    made: list[Any] = []

    def create(next_creator: Any, **kwargs: Any) -> Any:
        made.append(tf.Variable(kwargs["initial_value"]()))
        return made[-1]

    extended = strategy.ParameterServerStrategyV2Extended
    stand_in = SimpleNamespace(
        _variable_partitioner=tf.distribute.experimental.partitioners.FixedShardsPartitioner(shards),
        _create_variable_round_robin=create,
        _create_var_creator=lambda next_creator, **kwargs: None,
    )
    numbers = np.arange(rows, dtype=np.float32).reshape(rows, 1)
    sharded = extended._create_variable(stand_in, None, name="w", initial_value=numbers, shape=None, dtype=tf.float32)
    parts = sharded.variables if hasattr(sharded, "variables") else [sharded]
    held = [part.numpy().ravel().astype(int).tolist() for part in parts]
    assert list(itertools.chain.from_iterable(held)) == list(range(rows))
    return [(part[0], part[-1] + 1) for part in held]
