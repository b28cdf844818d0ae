"""What does a worker train on? A dataset of single examples or of batches becomes batches, as often as asked for.

Single examples are batched by batch_size (32 if not said), the last short batch kept. Batches stay as they are, unless a
batch_size is said: then they are made anew. Which of the two a dataset yields follows from the ranks of its inputs and of the
model's. It must not know the ps. Next: training.py, which uses it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from protos.errors import InvalidInput

DEFAULT_BATCH_SIZE = 32


def model_ranks(model: Any) -> list[int] | None:
    """Rank of each input of a Keras model, the batch dimension counted; None for a model that does not say."""
    inputs = getattr(model, "inputs", None) if getattr(model, "built", False) else None
    if not inputs:
        return None
    return [len(tensor.shape) for tensor in tf.nest.flatten(inputs)]


def to_batches(source: Any, ranks: list[int] | None, batch_size: int | None) -> tf.data.Dataset:
    """Batches of (inputs, labels) from what make_dataset returned.

    source: a tf.data.Dataset of pairs, or any iterable of pairs of arrays. ranks: see model_ranks. InvalidInput if it is
    neither, or if the ranks do not fit the model.
    """
    dataset = source if isinstance(source, tf.data.Dataset) else _from_iterable(source, ranks)
    spec = dataset.element_spec
    if not isinstance(spec, tuple) or len(spec) != 2:
        raise InvalidInput(field="make_dataset", got=f"elements {spec}", expected="pairs (inputs, labels)")
    if _is_single(spec[0], spec[1], ranks):
        dataset = dataset.batch(batch_size or DEFAULT_BATCH_SIZE)
    elif batch_size is not None:
        dataset = dataset.unbatch().batch(batch_size)
    return dataset.prefetch(2)


def passes(dataset: tf.data.Dataset, *, steps: int | None, epochs: int | None) -> Iterator[tuple[Any, int | None]]:
    """(batch, number of batches in all, None while not known): `steps` of them, beginning again as often as needed, or
    `epochs` passes; one pass if neither is said. Nothing for a dataset that is empty.
    """
    epochs = 1 if steps is None and epochs is None else epochs
    total, done = steps, 0
    if epochs is not None and (known := int(dataset.cardinality())) >= 0:
        total = known * epochs
    for epoch in itertools.count():
        if epoch == epochs:
            return
        before = done
        for batch in dataset:
            done += 1
            yield batch, total
            if done == steps:
                return
        if epoch == 0 and epochs is not None:
            total = done * epochs
        if done == before:
            if epoch == 0:
                return
            raise InvalidInput(
                field="make_dataset",
                got=f"nothing in pass {epoch + 1}, after {done} batches",
                expected="a dataset that can be read again",
                hint="A generator is empty after one pass: return a tf.data.Dataset or a list.",
            )


def _is_single(inputs: Any, labels: Any, ranks: list[int] | None) -> bool:
    """Whether an element is one example, not a batch."""
    shapes = [spec.shape for spec in tf.nest.flatten(inputs)]
    if ranks is None or any(
        shape.rank is None for shape in shapes
    ):  # the labels must tell: one is a scalar, a batch has more
        return bool(all(spec.shape.rank == 0 for spec in tf.nest.flatten(labels)))
    have = sorted(shape.rank for shape in shapes)
    want = sorted(ranks)
    if have == want:
        return False
    if have == [rank - 1 for rank in want]:
        return True
    raise InvalidInput(
        field="make_dataset",
        got=f"inputs of rank {have} (shapes {[tuple(shape) for shape in shapes]})",
        expected=f"rank {want} for batches, as the model's inputs have, or one less for single examples",
    )


def _from_iterable(source: Any, ranks: list[int] | None) -> tf.data.Dataset:
    """Pairs of arrays as a dataset. What the first is like, all are; the first dimension of a batch may differ."""
    try:
        iterator = iter(source)
    except TypeError:
        raise InvalidInput(
            field="make_dataset", got=type(source).__name__, expected="a tf.data.Dataset of pairs (inputs, labels)"
        ) from None
    first = next(iterator, None)
    if not isinstance(first, tuple) or len(first) != 2:
        raise InvalidInput(
            field="make_dataset",
            got="no element" if first is None else f"elements such as {str(first)[:80]}",
            expected="pairs (inputs, labels)",
            hint="tf.data.Dataset.from_tensor_slices((inputs, labels)) makes them from whole arrays.",
        )
    inputs, labels = first
    spec: Any = tf.nest.map_structure(
        lambda array: tf.TensorSpec(np.shape(array), np.asarray(array).dtype), (inputs, labels)
    )
    if not _is_single(spec[0], spec[1], ranks):
        spec = tf.nest.map_structure(lambda one: tf.TensorSpec([None, *one.shape[1:]], one.dtype), spec)
    unread = [itertools.chain([first], iterator)] if iterator is source else []  # a generator cannot be begun again

    def elements() -> Iterator[Any]:
        return iter(unread.pop() if unread else source)

    return tf.data.Dataset.from_generator(elements, output_signature=spec)
