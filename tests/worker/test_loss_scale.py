"""Are gradients that are too small for 16 bits kept, and is no batch lost where they are too large?"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import client
import ps
import worker
from protos.errors import InvalidInput, NonFiniteGradient
from worker.loss_scale import LARGEST, LossScale
from worker.progress import Progress

TINY = 2.0**-14


class Half(tf.Module):
    """w x, in float16."""

    def __init__(self) -> None:
        super().__init__()
        self.w = tf.Variable(tf.ones((2,), tf.float16), name="w")

    def __call__(self, x: Any) -> Any:
        return x * self.w


def trained(x: float, slope: float, rate: float, loss_scale: str | float | None, count: int = 1) -> Any:
    """w after `count` batches whose loss is slope · w x: its gradient is slope · x / 2 for each of the two elements."""
    batch = np.full((1, 2), x, np.float16), np.zeros(1, np.float32)
    with ps.LocalCluster(servers=2) as local, client.connect(local.cluster, worker=0) as server:
        summary = worker.train(
            server,
            Half(),
            [batch] * count,
            lambda labels, outputs: slope * tf.reduce_mean(tf.cast(outputs, tf.float32), axis=1),
            rule=f"sgd:learning_rate={rate}",
            loss_scale=loss_scale,
            progress=Progress(),
        )
        assert summary.steps == summary.applied == count
        return server.pull()["w"]


def test_a_gradient_too_small_for_float16_is_kept_by_the_loss_scale_and_lost_without() -> None:
    x, slope, rate = TINY, TINY, 2.0**26  # a gradient of 2⁻²⁹, where float16 ends at 2⁻²⁴: a step of 1/8
    assert trained(x, slope, rate, None).tolist() == [1, 1]
    assert trained(x, slope, rate, 2.0**14).tolist() == [0.875, 0.875]
    assert trained(x, slope, rate, "dynamic").tolist() == [0.875, 0.875]


def test_with_mixed_precision_what_flows_back_in_float16_is_kept_too() -> None:
    # Keras's usual case: float32 variables, float16 in between. The slope of the output, 2⁻²⁶, is 0 there.
    def kernel(loss_scale: str | None) -> Any:
        layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones", dtype="mixed_float16")
        batch = np.full((1, 1), 4, np.float32), np.zeros(1, np.float32)
        with ps.LocalCluster() as local, client.connect(local.cluster, worker=0) as server:
            worker.train(
                server,
                keras.Sequential([keras.Input((1,)), layer]),
                [batch],
                lambda labels, outputs: 2.0**-26 * tf.cast(outputs[:, 0], tf.float32),
                rule=f"sgd:learning_rate={2.0**22}",
                loss_scale=loss_scale,
                progress=Progress(),
            )
            (value,) = server.pull().values()
            return value.item()

    assert kernel(None) == 1
    assert kernel("dynamic") == 0.75


def test_a_gradient_that_overflows_is_computed_again_at_a_smaller_scale_and_nothing_is_skipped() -> None:
    # A gradient of 4: at 2¹⁵ and 2¹⁴ it is Inf in float16. Each of the three batches makes its step all the same.
    assert trained(8.0, 1.0, 0.0625, "dynamic", count=3).tolist() == [0.25, 0.25]


def test_the_scale_makes_no_difference_where_nothing_under_or_overflows() -> None:
    assert trained(0.7, 0.3, 0.1, "dynamic", 3).tobytes() == trained(0.7, 0.3, 0.1, None, 3).tobytes()


class Batch:
    """A batch whose gradient overflows from a scale on, and how often it was computed."""

    def __init__(self, overflows_at: float) -> None:
        self.overflows_at = overflows_at
        self.scales: list[float] = []

    def __call__(self, scale: float) -> tuple[float, dict[str, Any]]:
        self.scales.append(scale)
        fine, bad = np.array([scale]), np.array([0, np.inf if len(self.scales) % 2 else np.nan])
        bad = bad if scale >= self.overflows_at else np.zeros(2)
        return 0.5, {"fine": fine, "rows": client.IndexedSlices(bad, np.arange(2))}


def test_the_scale_is_halved_until_the_gradient_is_finite_and_stays_there() -> None:
    scaling, batch = LossScale(16, growth_steps=100), Batch(overflows_at=4)
    loss, gradients, scale = scaling.gradients(batch)
    assert (loss, scale, gradients["fine"].tolist()) == (0.5, 2, [2])
    assert batch.scales == [16, 8, 4, 2]
    scaling.gradients(batch)
    assert batch.scales[4:] == [2]


def test_the_scale_doubles_after_enough_good_batches_in_a_row_up_to_a_limit() -> None:
    scaling, easy = LossScale(4, growth_steps=3), Batch(overflows_at=1e9)
    assert [scaling.gradients(easy)[2] for _ in range(7)] == [4, 4, 4, 8, 8, 8, 16]
    scaling.gradients(Batch(overflows_at=16))  # back to 8, and counting anew: this one was the first
    assert [scaling.gradients(easy)[2] for _ in range(3)] == [8, 8, 16]
    assert [LossScale(LARGEST, growth_steps=1).gradients(easy)[2] for _ in range(2)] == [LARGEST, LARGEST]


def test_a_gradient_that_is_finite_at_no_scale_ends_the_training_with_its_name() -> None:
    scaling, batch = LossScale(4, growth_steps=10), Batch(overflows_at=0)
    with pytest.raises(NonFiniteGradient, match=r"gradient of rows.*loss scale of 1;.*see the data"):
        scaling.gradients(batch)
    assert batch.scales == [4, 2, 1]


def test_a_fixed_scale_leaves_what_is_not_finite_to_the_ps() -> None:
    batch = Batch(overflows_at=0)
    assert np.isinf(LossScale.parse("8").gradients(batch)[1]["rows"].values).any()
    assert batch.scales == [8]


@pytest.mark.parametrize("said", ["Dynamic", "0", "-1", "nan", "inf", "", 0])
def test_a_loss_scale_that_is_none_is_refused(said: Any) -> None:
    with pytest.raises(InvalidInput, match=r"loss scale.*'dynamic', or a number above 0"):
        LossScale.parse(said)


def test_with_local_steps_the_inner_optimizer_scales() -> None:
    with ps.LocalCluster() as local, client.connect(local.cluster, worker=0) as server:
        with pytest.raises(InvalidInput, match=r"loss_scale.*local_steps 2.*LossScaleOptimizer"):
            worker.train(server, Half(), [], lambda labels, outputs: outputs, loss_scale="dynamic", local_steps=2)
