"""How do the gradients of several workers become one? The mean, exact, the same bits whatever the order of arrival."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ps.aggregation import mean
from ps.variable import DenseGradient, SparseGradient
from tests.core.builders import dense, small_pages, sparse, state


def whole(gradient: Any) -> Any:
    assert isinstance(gradient, DenseGradient)
    return gradient.value.whole()


def test_the_mean_is_the_sum_by_the_count() -> None:
    # claim 5
    now = state(w=np.zeros(40, np.float32))
    gradients = {worker: {0: dense(np.arange(40, dtype=np.float32) * worker)} for worker in range(3)}
    with small_pages():
        combined = mean(gradients, now)
    np.testing.assert_array_equal(whole(combined[0]), np.arange(40))


def test_the_order_of_arrival_does_not_change_a_bit() -> None:
    # claim 5: float addition is not associative, so the sum is made in the order of worker indices.
    rng = np.random.default_rng(0)
    now = state(e=np.zeros((5, 2), np.float32), w=np.zeros(100, np.float32))
    pushed: dict[int, Any] = {
        worker: {
            0: sparse([worker, 4], rng.normal(size=(2, 2)).astype("f")),
            1: dense(rng.normal(size=100).astype("f") * 10.0**worker),
        }
        for worker in range(4)
    }
    results = [mean({worker: pushed[worker] for worker in order}, now) for order in itertools.permutations(pushed)]
    for result in results:
        assert isinstance(result[0], SparseGradient)
        assert result[0].rows.tobytes() == results[0][0].rows.tobytes()
        assert whole(result[1]).tobytes() == whole(results[0][1]).tobytes()
    assert list(results[0]) == [0, 1]


def test_a_worker_that_pushed_nothing_for_a_variable_counts_as_zero() -> None:
    # As it would in one process with the union batch. A variable that nobody pushed for is left out.
    now = state(a=np.zeros(2, np.float32), b=np.zeros(2, np.float32))
    combined = mean({0: {0: dense(np.array([3, 6], np.float32))}, 1: {}, 2: {}}, now)
    assert whole(combined[0]).tolist() == [1, 2]
    assert list(combined) == [0]


def test_sparse_gradients_give_a_sparse_mean_over_all_workers() -> None:
    now = state(e=np.zeros((9, 1), np.float32))
    combined = mean({0: {0: sparse([1, 7], [[2.0], [4.0]])}, 1: {0: sparse([7], [[6.0]])}}, now)[0]
    assert isinstance(combined, SparseGradient)
    assert combined.indices.tolist() == [1, 7]
    assert combined.rows.tolist() == [[1], [5]]


def test_sparse_and_dense_together_give_a_dense_mean() -> None:
    now = state(e=np.zeros((3, 2), np.float32))
    combined = mean({0: {0: sparse([1], np.full((1, 2), 4.0, "f"))}, 1: {0: dense(np.full((3, 2), 2.0, "f"))}}, now)
    assert whole(combined[0]).tolist() == [[1, 1], [3, 3], [1, 1]]


def test_one_contribution_is_its_own_mean() -> None:
    gradient = dense(np.ones(3, np.float32))
    assert mean({4: {0: gradient}}, state(w=np.zeros(3, np.float32)))[0] is gradient


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=str)
@pytest.mark.parametrize("kind", ["dense", "sparse", "both"])
def test_narrow_floats_are_summed_in_float32_and_stay_it(dtype: Any, kind: str) -> None:
    # 40000 + 40000 is beyond float16; and 256 + 1 is 256 in bfloat16, where the mean of 256, 1, 1, 1, 1 is 52.
    now = state(w=np.zeros((1, 1), dtype))

    def gradient(worker: int, number: float) -> Any:
        rows = np.array([[number]], dtype)
        return dense(rows) if kind == "dense" or (kind == "both" and worker) else sparse([0], rows)

    numbers = [40000.0, 40000.0] if dtype is np.float16 else [256.0, 1.0, 1.0, 1.0, 1.0]
    expected = 40000 if dtype is np.float16 else 52
    combined = mean({worker: {0: gradient(worker, number)} for worker, number in enumerate(numbers)}, now)[0]
    result = combined.rows if isinstance(combined, SparseGradient) else whole(combined)
    assert result.dtype == np.float32  # the update rounds, once, and not before
    assert float(result[0, 0]) == expected


def test_contributions_stay_as_they_came() -> None:
    now = state(e=np.zeros((3, 1), np.float32), w=np.zeros(2, np.float32))
    pushed = {w: {0: sparse([w], [[1.0]]), 1: dense(np.array([1, 2], np.float32))} for w in range(2)}
    combined = mean(pushed, now)
    for gradients in pushed.values():
        assert gradients[0].rows.tolist() == [[1]]
        assert whole(gradients[1]).tolist() == [1, 2]
    assert not combined[0].rows.flags.writeable  # type: ignore[union-attr]
    assert not whole(combined[1]).flags.writeable


def test_a_variable_without_elements_has_a_mean_without_elements() -> None:
    now = state(w=np.zeros((0, 3), np.float32))
    combined = mean({w: {0: dense(np.zeros((0, 3), np.float32))} for w in range(2)}, now)
    assert whole(combined[0]).shape == (0, 3)
