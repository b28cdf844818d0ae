"""How long is a gradient, over the whole model? As the client says it to a rule that clips by it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from client.model import IndexedSlices
from client.norm import global_norm
from protos.codec import DTYPES


def test_it_is_the_length_of_all_arrays_together() -> None:
    assert global_norm({}) == 0
    assert global_norm({"a": np.array([3.0]), "b": np.array([[0, 4]], np.float32)}) == 5


def test_repeated_rows_count_as_their_sum() -> None:
    assert global_norm({"a": IndexedSlices(np.array([[1.0], [2.0], [4.0]]), [7, 7, 1])}) == 5


def test_16_bit_floats_are_squared_in_32_bits() -> None:
    assert global_norm({"a": np.array([300], np.float16)}) == 300  # 300² is beyond float16
    assert global_norm({"a": np.array([3, 4], DTYPES["bfloat16"])}) == 5


def test_squares_beyond_float32_are_summed_in_float64() -> None:
    assert global_norm({"a": np.array([3e25, 4e25], np.float32)}) == pytest.approx(5e25)


def test_what_no_float_holds_is_infinitely_long_and_no_error() -> None:
    assert global_norm({"a": np.array([1.2e154]), "b": np.array([1.2e154])}) == math.inf  # only together
    assert global_norm({"a": np.array([1e200])}) == math.inf
    assert math.isnan(global_norm({"a": np.array([np.nan])}))
