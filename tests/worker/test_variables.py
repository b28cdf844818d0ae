"""What are a model's variables called on every worker, and do their values come and go bit for bit?"""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from protos.errors import InvalidInput, ShapeMismatch, UnknownVariable
from worker.variables import Variables, spread_seeds, to_numpy


def layered() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(4, name="block_2"),
            keras.layers.Dense(4),
            keras.layers.Dropout(0.5),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(1),
        ]
    )


def test_the_same_code_gives_the_same_names_however_many_models_came_before() -> None:
    first, second = Variables(layered()), Variables(layered())
    assert list(first.trainable) == list(second.trainable)
    assert list(first.state) == list(second.state)


def test_automatic_numbers_count_within_the_model_and_names_given_by_people_stay() -> None:
    variables = Variables(layered())
    kernels = [name for name in variables.trainable if name.endswith("kernel")]
    assert kernels == ["sequential/block_2/kernel", "sequential/dense/kernel", "sequential/dense_1/kernel"]


def test_statistics_are_state_and_random_seeds_are_no_part_of_the_model() -> None:
    variables = Variables(layered())
    assert [name.split("/")[-1] for name in variables.state] == ["moving_mean", "moving_variance"]


def test_layers_of_a_subclassed_model_get_names_too() -> None:
    class Custom(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.parts = [keras.layers.Dense(2), keras.layers.Dense(2)]

        def call(self, inputs):  # type: ignore[no-untyped-def]
            for part in self.parts:
                inputs = part(inputs)
            return inputs

    def names() -> list[str]:
        model = Custom()
        model(np.zeros((1, 2), np.float32))
        return list(Variables(model).trainable)

    assert (
        names()
        == names()
        == ["custom/dense/kernel", "custom/dense/bias", "custom/dense_1/kernel", "custom/dense_1/bias"]
    )


def test_two_variables_of_one_name_get_two() -> None:
    module = tf.Module()
    module.parts = [tf.Variable(1.0, name="w"), tf.Variable(2.0, name="w"), tf.Variable(3, name="n", trainable=False)]
    variables = Variables(module)
    assert list(variables.trainable) == ["w", "w_1"]
    assert list(variables.state) == ["n"]
    assert variables.parameters == 2


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int32", "int64", "uint32", "bool"])
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_values_are_set_and_read_bit_for_bit(dtype: str, shape: tuple[int, ...]) -> None:
    module = tf.Module()
    module.anchor = tf.Variable(0.0, name="anchor")
    module.v = tf.Variable(tf.zeros(shape, dtype), name="v", trainable=False)
    variables = Variables(module)
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(variables.values()["v"].dtype)
    variables.assign({"v": array})
    back = variables.values(["v"])["v"]
    assert back.dtype.name == dtype
    assert back.tobytes() == array.tobytes()
    assert module.v.numpy().tobytes() == array.tobytes()


def test_values_of_one_moment_do_not_change_when_the_model_does() -> None:
    module = tf.Module()
    module.w = tf.Variable([1.0, 2.0], name="w")
    before = Variables(module).values()["w"]
    module.w.assign_add([1.0, 1.0])
    assert before.tolist() == [1.0, 2.0]


def test_values_of_another_model_are_refused() -> None:
    variables = Variables(layered())
    values = variables.values()
    with pytest.raises(UnknownVariable, match="dense_9"):
        variables.check({**values, "dense_9/kernel": np.zeros(1)})
    with pytest.raises(ShapeMismatch, match=r"sequential/dense/bias.*\(4,\)"):
        variables.check({**values, "sequential/dense/bias": np.zeros(5, np.float32)})


def test_a_model_without_variables_is_refused_with_what_to_do() -> None:
    with pytest.raises(InvalidInput, match=r"keras\.Input"):
        Variables(keras.Sequential([keras.layers.Dense(1)]))
    with pytest.raises(InvalidInput, match="a Keras model"):
        Variables(object())


def test_workers_seeded_alike_drop_out_different_units() -> None:
    def seeds(worker: int) -> list[int]:
        keras.utils.set_random_seed(1)
        model = layered()
        spread_seeds(model, worker)
        return [
            int(to_numpy(variable.value)[0])
            for variable in model.variables
            if variable.path.endswith("seed_generator_state")
        ]

    assert seeds(0) == seeds(0) != seeds(1)
