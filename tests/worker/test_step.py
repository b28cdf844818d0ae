"""Are the loss and the gradients that a worker pushes those of the model, the data and the loss it was given?"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import client
from protos.errors import InvalidInput
from worker.step import TensorLearner, TensorReplica

X = np.arange(12, dtype=np.float32).reshape(4, 3) / 10
Y = np.array([1, 0, 2, 1], np.float32)


class Line(tf.Module):
    """w·x + b, with w and b to be learnt."""

    def __init__(self) -> None:
        super().__init__()
        self.w = tf.Variable([1.0, 2.0, 3.0], name="w")
        self.b = tf.Variable(0.5, name="b")

    def __call__(self, x: Any) -> Any:
        return tf.linalg.matvec(x, self.w) + self.b


def squared(labels: Any, outputs: Any) -> Any:
    return (outputs - labels) ** 2


def replica_of(model: Any, loss: Any, inputs: Any, labels: Any) -> tuple[TensorReplica, tuple[Any, Any]]:
    batch = tf.nest.map_structure(tf.constant, (inputs, labels))
    return TensorReplica(model, loss, tf.nest.map_structure(tf.TensorSpec.from_tensor, batch)), batch


def test_gradients_are_those_of_the_formula() -> None:
    replica, batch = replica_of(Line(), squared, X, Y)
    loss, gradients = replica.gradients(batch)
    error = X @ np.array([1, 2, 3], np.float32) + np.float32(0.5) - Y
    assert loss == pytest.approx(np.mean(error**2))
    np.testing.assert_allclose(gradients["w"], 2 * X.T @ error / 4, rtol=1e-5)
    np.testing.assert_allclose(gradients["b"], 2 * error.mean(), rtol=1e-5)
    assert replica.examples(batch) == 4


def test_a_loss_per_example_is_averaged_and_a_scalar_taken_as_it_is() -> None:
    one, batch = replica_of(Line(), squared, X, Y)
    other, _ = replica_of(Line(), lambda labels, outputs: tf.reduce_mean(squared(labels, outputs)), X, Y)
    assert one.gradients(batch)[0] == other.gradients(batch)[0]


def test_the_gradient_of_an_embedding_is_sparse() -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Embedding(100, 3), keras.layers.Flatten()])
    ids = np.array([[7, 9], [7, 7]], np.int32)
    replica, batch = replica_of(model, lambda labels, outputs: tf.reduce_sum(outputs, axis=1), ids, Y[:2])
    _, gradients = replica.gradients(batch)
    (gradient,) = gradients.values()
    assert isinstance(gradient, client.IndexedSlices)
    dense = np.zeros((100, 3), np.float32)
    np.add.at(dense, gradient.indices, gradient.values)
    assert dense[7].tolist() == [1.5] * 3  # three times in two examples
    assert dense[9].tolist() == [0.5] * 3
    assert not dense[[0, 8, 99]].any()


def test_regularisation_is_part_of_the_loss() -> None:
    model = keras.Sequential(
        [keras.Input((3,)), keras.layers.Dense(1, use_bias=False, kernel_regularizer=keras.regularizers.L2(0.1))]
    )
    replica, batch = replica_of(model, lambda labels, outputs: 0.0 * tf.reduce_sum(outputs), X, Y)
    loss, gradients = replica.gradients(batch)
    (kernel,) = replica.values().values()
    assert loss == pytest.approx(0.1 * np.sum(kernel**2))
    np.testing.assert_allclose(*gradients.values(), 0.2 * kernel, rtol=1e-6)


def test_inputs_and_labels_may_be_dicts() -> None:
    parts = {"a": keras.Input((3,), name="a"), "b": keras.Input((3,), name="b")}
    model = keras.Model(parts, keras.layers.Dense(1)(parts["a"] + parts["b"]))
    inputs, labels = {"a": X, "b": -X}, {"target": Y}
    replica, batch = replica_of(model, lambda labels, outputs: squared(labels["target"], outputs[:, 0]), inputs, labels)
    loss, _ = replica.gradients(batch)
    assert loss == pytest.approx(np.mean(Y**2))


def test_dropout_is_on_and_statistics_move_while_training() -> None:
    model = keras.Sequential([keras.Input((3,)), keras.layers.BatchNormalization(), keras.layers.Dense(1)])
    replica, batch = replica_of(model, lambda labels, outputs: squared(labels, outputs[:, 0]), X, Y)
    before = {name: value.copy() for name, value in replica.values(replica.non_trainable).items()}
    replica.gradients(batch)
    after = replica.values(replica.non_trainable)
    assert all((before[name] != after[name]).any() for name in before)


def test_a_variable_that_the_loss_does_not_reach_gets_no_gradient() -> None:
    model = Line()
    model.idle = tf.Variable(1.0, name="idle")
    replica, batch = replica_of(model, squared, X, Y)
    assert sorted(replica.gradients(batch)[1]) == ["b", "w"]


def test_a_loss_that_reaches_no_variable_is_refused() -> None:
    replica, batch = replica_of(Line(), lambda labels, outputs: labels, X, Y)
    with pytest.raises(InvalidInput, match="depends on no variable"):
        replica.gradients(batch)


def test_the_last_short_batch_is_not_traced_anew() -> None:
    traced = []

    def loss(labels: Any, outputs: Any) -> Any:
        traced.append(1)
        return squared(labels, outputs)

    dataset = tf.data.Dataset.from_tensor_slices((X, Y)).batch(3)
    replica = TensorReplica(Line(), loss, dataset.element_spec)
    assert [replica.examples(batch) for batch in dataset if replica.gradients(batch)] == [3, 1]
    assert len(traced) == 1


@pytest.mark.parametrize(
    "optimizer", [keras.optimizers.SGD(0.5), keras.optimizers.Adam(0.5)], ids=lambda each: each.name
)
def test_training_in_place_leaves_an_array_that_was_assigned_as_it_was(optimizer: Any) -> None:
    # TensorFlow keeps an array that begins at a multiple of 64 bytes instead of a copy. What was pulled is still needed.
    memory = np.zeros(40, np.float32)
    first = -memory.ctypes.data % 64 // 4
    pulled = memory[first : first + 3]
    batch = (tf.constant(X), tf.constant(Y))
    learner = TensorLearner(Line(), squared, tf.nest.map_structure(tf.TensorSpec.from_tensor, batch), optimizer)
    learner.assign({"w": pulled})
    for _ in range(2):
        learner.train(batch)
    assert learner.values(["w"])["w"].all()
    assert not pulled.any()
