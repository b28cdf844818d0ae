"""Which batches does a worker train on, whatever make_dataset returned, and how many?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from protos.errors import InvalidInput
from worker.data import model_ranks, passes, to_batches

X = np.arange(20, dtype=np.float32).reshape(10, 2)
Y = np.arange(10)
SINGLE = tf.data.Dataset.from_tensor_slices((X, Y))
RANKS = [2]


def sizes(source: Any, ranks: list[int] | None = RANKS, batch_size: int | None = None) -> list[int]:
    return [len(labels) for _, labels in to_batches(source, ranks, batch_size)]


@pytest.mark.parametrize("ranks", [RANKS, None], ids=["ranks known", "ranks not known"])
def test_single_examples_are_batched_and_the_last_short_batch_is_kept(ranks: list[int] | None) -> None:
    assert sizes(SINGLE, ranks) == [10]  # 32 if nothing is said
    assert sizes(SINGLE, ranks, 4) == [4, 4, 2]


@pytest.mark.parametrize("ranks", [RANKS, None], ids=["ranks known", "ranks not known"])
def test_batches_stay_as_they_are_unless_a_size_is_said(ranks: list[int] | None) -> None:
    assert sizes(SINGLE.batch(3), ranks) == [3, 3, 3, 1]
    assert sizes(SINGLE.batch(3), ranks, 4) == [4, 4, 2]


def test_no_example_is_lost_or_changed_by_batching_anew() -> None:
    labels = np.concatenate([labels for _, labels in to_batches(SINGLE.batch(3), RANKS, 4)])
    assert labels.tolist() == Y.tolist()


def test_several_inputs_are_told_by_their_ranks() -> None:
    pairs = tf.data.Dataset.from_tensor_slices(({"image": np.zeros((4, 5, 5)), "id": X[:4]}, Y[:4]))
    assert sizes(pairs, [3, 2], 3) == [3, 1]
    assert sizes(pairs.batch(2), [3, 2]) == [2, 2]


def test_the_ranks_come_from_the_model() -> None:
    assert model_ranks(keras.Sequential([keras.Input((28, 28)), keras.layers.Flatten()])) == [3]
    assert model_ranks(keras.Sequential([keras.layers.Flatten()])) is None
    assert model_ranks(tf.Module()) is None


def test_a_list_of_batches_or_examples_will_do() -> None:
    assert sizes([(X[:6], Y[:6]), (X[6:], Y[6:])]) == [6, 4]
    assert sizes(list(zip(X, Y)), batch_size=7) == [7, 3]


def test_a_generator_is_read_from_its_first_element() -> None:
    def generate() -> Iterator[Any]:
        yield X[:6], Y[:6]
        yield X[6:], Y[6:]

    assert sizes(generate()) == [6, 4]


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (tf.data.Dataset.from_tensor_slices(X), "pairs"),
        (tf.data.Dataset.from_tensor_slices((X, Y, Y)), "pairs"),
        (SINGLE.batch(2).batch(2), "rank"),
        (7, "got int"),
        ([], "no element"),
        ([X], "pairs"),
    ],
)
def test_what_is_no_dataset_of_pairs_is_refused(source: Any, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        to_batches(source, RANKS, None)


def test_steps_repeat_the_data_and_epochs_pass_over_it() -> None:
    batches = to_batches(SINGLE, RANKS, 4)
    assert [total for _, total in passes(batches, steps=7, epochs=None)] == [7] * 7
    assert [total for _, total in passes(batches, steps=None, epochs=2)] == [6] * 6
    assert len(list(passes(batches, steps=None, epochs=None))) == 3


def test_how_many_there_will_be_is_known_after_the_first_pass() -> None:
    unknown = to_batches(SINGLE.filter(lambda x, y: y < 6), RANKS, 4)
    assert [total for _, total in passes(unknown, steps=None, epochs=2)] == [None, None, 4, 4]


def test_no_data_is_no_batch_but_data_that_are_gone_are_an_error() -> None:
    assert list(passes(to_batches(SINGLE.take(0), RANKS, 4), steps=5, epochs=None)) == []
    once = to_batches(iter([(X, Y)]), RANKS, None)
    with pytest.raises(InvalidInput, match="can be read again"):
        list(passes(once, steps=5, epochs=None))
