"""What does a ps see of a gradient that was made smaller, and is nothing of it lost? Both sides, without any ps.

The error-feedback identity: what was sent and what is still kept are together the sum of the gradients. It is exact where
the arithmetic is: here gradients are small multiples of a power of two.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.compression import Compressor, parse
from protos import parameter_server_pb2 as pb
from protos.codec import PAGE_BYTES, dense_blocks, sparse_blocks
from protos.encodings import RUN, decoded
from protos.errors import InvalidInput
from protos.wire import Block

METHODS = ["float16", "bfloat16", "int8", "sign", "top_k", "top_k:0.3"]
FLOATS = [np.dtype(kind) for kind in ("float32", "float64", "float16")] + [np.dtype(ml_dtypes.bfloat16)]


class Line:
    """A model that is one variable on one ps, as far as a Compressor asks."""

    def __init__(self, dtype: Any) -> None:
        self._dtype = np.dtype(dtype)

    def at(self, ps: int, partition: int) -> Any:
        return [(self, None)]

    @property
    def dtype(self) -> Any:
        return self._dtype


def sent(compressor: Compressor, gradient: np.ndarray, sequence: int = 0, scale: float = 1.0) -> list[Block]:
    """The blocks of a push of one gradient; answered."""
    model: Any = Line(gradient.dtype)
    (make,) = compressor.push(model, [lambda: dense_blocks(0, gradient)], sequence, scale)
    compressor.answered(sequence)
    return list(make())


def seen(blocks: list[Block], like: np.ndarray) -> np.ndarray:
    """What the ps makes of them."""
    pages, left = [], like.size
    for block in blocks:
        count = min(left, PAGE_BYTES // like.dtype.itemsize)
        left -= count
        raw = np.frombuffer(block.data, like.dtype) if not block.encoding else None
        pages.append(decoded(block.data, block.encoding, count, like.dtype, "w") if raw is None else raw)
    return np.concatenate(pages)


def kept(compressor: Compressor, like: np.ndarray) -> np.ndarray:
    pages = -(-like.nbytes // PAGE_BYTES)
    return np.concatenate([compressor.residual(0, 0, page) for page in range(pages)])


def multiples(seed: int, size: int, dtype: Any, unit: float = 0.125) -> np.ndarray:
    return (np.random.default_rng(seed).integers(-40, 40, size) * unit).astype(dtype)


@pytest.mark.parametrize("said", METHODS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("size", [1, 7, RUN, RUN + 1, 5000])
def test_what_was_sent_and_what_is_kept_are_the_sum_of_the_gradients(said: str, dtype: Any, size: int) -> None:
    compressor = Compressor(parse(said))
    wide = np.float64
    total, arrived = np.zeros(size), np.zeros(size)
    for step in range(6):
        gradient = multiples(step, size, dtype)
        total += gradient.astype(wide)
        arrived += seen(sent(compressor, gradient, step), gradient).astype(wide)
    # A mean is no multiple, and 16-bit floats are rounded once more: there to the rounding of the residual's own precision.
    exact = not said.startswith("sign")
    tolerance = 0 if exact else 1e-4
    np.testing.assert_allclose(arrived + kept(compressor, gradient), total, rtol=0, atol=tolerance)


def test_a_mean_that_is_exact_makes_the_signs_exact_too() -> None:
    compressor = Compressor(parse("sign"))
    gradient = np.tile(np.array([1, -3, 2, -2], np.float32), RUN)
    (block,) = sent(compressor, gradient)
    assert block.encoding == pb.ENCODING_SIGN
    assert seen([block], gradient).tolist() == [2, -2, 2, -2] * RUN
    assert kept(compressor, gradient).tolist() == [-1, -1, 0, 0] * RUN


@pytest.mark.parametrize(
    ("said", "most"), [("float16", 0.5), ("bfloat16", 0.5), ("int8", 0.27), ("sign", 0.05), ("top_k", 0.021)]
)
def test_as_many_bytes_travel_as_the_method_says(said: str, most: float) -> None:
    compressor = Compressor(parse(said))
    sent(compressor, multiples(0, 3 * PAGE_BYTES // 8, np.float32))  # one and a half pages
    assert 0 < compressor.traffic.sent_bytes <= most * compressor.traffic.raw_bytes
    assert compressor.traffic.raw_bytes == 1.5 * PAGE_BYTES


def test_what_would_not_be_smaller_and_rows_go_as_they_are() -> None:
    compressor = Compressor(parse("bfloat16"))
    half = multiples(0, 10, np.float16)
    (block,) = sent(compressor, half)
    assert (block.encoding, bytes(block.data)) == (0, half.tobytes())
    model: Any = Line(np.float32)
    rows = list(sparse_blocks(0, np.arange(3), np.ones((3, 2), np.float32)))
    assert list(compressor.push(model, [lambda: iter(rows)], 1, 1.0)[0]()) == rows


def test_int8_is_exact_for_multiples_of_its_step_and_else_off_by_half_a_step_at_most() -> None:
    x = np.random.default_rng(0).normal(size=3 * RUN).astype(np.float32)
    compressor = Compressor(parse("int8"))
    off = np.abs(seen(sent(compressor, x), x) - x).reshape(3, RUN).max(axis=1)
    step = 2 ** np.ceil(np.log2(np.abs(x).reshape(3, RUN).max(axis=1) / 127))
    assert (off <= step / 2).all()
    whole = np.arange(-127, 128, dtype=np.float32)
    assert seen(sent(Compressor(parse("int8")), whole), whole).tolist() == whole.tolist()


def test_top_k_sends_the_largest_and_each_in_its_turn() -> None:
    compressor, zero = Compressor(parse("top_k:0.2")), np.zeros(10, np.float32)
    first = np.array([1, 9, 2, 8, 3, 7, 4, 6, 5, -10], np.float32)
    arrived = [seen(sent(compressor, gradient), zero).tolist() for gradient in (first, zero, zero, zero, zero)]
    assert [sorted(np.flatnonzero(one)) for one in arrived] == [[1, 9], [3, 5], [7, 8], [4, 6], [0, 2]]
    assert np.sum(arrived, axis=0).tolist() == first.tolist()
    assert not kept(compressor, zero).any()


@pytest.mark.parametrize("said", METHODS)
def test_the_largest_numbers_do_not_overflow_and_are_kept_whole(said: str) -> None:
    for dtype in FLOATS:
        largest = np.nextafter(dtype.type(np.inf), dtype.type(0))
        gradient = np.full(300, largest)
        gradient[::2] = -largest
        compressor = Compressor(parse(said))
        arrived = seen(sent(compressor, gradient), gradient)
        assert np.isfinite(arrived).all()
        assert np.isfinite(kept(compressor, gradient)).all()


@pytest.mark.parametrize("said", METHODS)
@pytest.mark.parametrize("odd", [np.nan, np.inf])
def test_what_is_not_finite_arrives_as_such_once_and_does_not_come_again(said: str, odd: float) -> None:
    compressor = Compressor(parse(said))
    gradient = np.ones(600, np.float32)
    gradient[300] = odd
    assert not np.isfinite(seen(sent(compressor, gradient), gradient)).all()
    assert np.isfinite(seen(sent(compressor, np.ones(600, np.float32), 1), gradient)).all()


def test_a_push_that_is_sent_again_has_the_same_bytes_and_takes_nothing_from_the_residual_twice() -> None:
    compressor, gradient = Compressor(parse("int8")), multiples(0, 600, np.float32, 0.3)
    model: Any = Line(np.float32)
    first, again = (list(compressor.push(model, [lambda: dense_blocks(0, gradient)], 5, 1.0)[0]()) for _ in range(2))
    assert first == again
    compressor.answered(5)
    residual = kept(compressor, gradient)
    np.testing.assert_array_equal(seen(first, gradient) + residual, gradient)
    assert list(compressor.push(model, [lambda: dense_blocks(0, gradient)], 6, 1.0)[0]()) != first


def test_residuals_are_of_a_loss_scale_of_1_so_that_it_may_change() -> None:
    gradient = multiples(0, 300, np.float32)
    plain, scaled = Compressor(parse("sign")), Compressor(parse("sign"))
    for step, scale in enumerate((1.0, 8.0, 0.5)):
        one = seen(sent(plain, gradient, step), gradient)
        other = seen(sent(scaled, gradient * np.float32(scale), step, scale), gradient)
        assert (other / np.float32(scale)).tolist() == one.tolist()


@given(st.integers(1, 700), st.sampled_from(METHODS), st.integers(0, 2**32 - 1))
def test_any_bits_are_sent_and_taken(size: int, said: str, seed: int) -> None:
    # Subnormals, zeros of both signs, the largest numbers, NaN and Inf among them.
    gradient = np.random.default_rng(seed).integers(0, 2**32, size, np.uint32).view(np.float32)
    compressor = Compressor(parse(said))
    for step in range(2):
        assert seen(sent(compressor, gradient, step), gradient).dtype == np.float32
    assert np.isfinite(kept(compressor, gradient)).all()


@pytest.mark.parametrize("said", ["int9", "top_k:0", "top_k:1", "top_k:x", "top_k:", "int8:3", "none:1", "gzip"])
def test_a_compression_that_is_none_is_refused_by_name(said: str) -> None:
    with pytest.raises(InvalidInput, match=r"compression.*expected none, float16, bfloat16, int8, sign, top_k"):
        parse(said)
    assert parse("none") is parse("") is None


def test_a_push_that_was_refused_leaves_the_residual_as_it_was_also_if_another_went_between() -> None:
    model: Any = Line(np.float32)
    compressor = Compressor(parse("sign"))
    ones = [multiples(step, 512, np.float32, 1.0) for step in range(3)]

    def push(sequence: int) -> list[Block]:
        return list(compressor.push(model, [lambda: dense_blocks(0, ones[sequence])], sequence, 1.0)[0]())

    arrived = seen(push(0), ones[0])
    before = kept(compressor, ones[0])
    push(1)
    compressor.refused(1, [0])
    assert kept(compressor, ones[0]) is not before
    assert kept(compressor, ones[0]).tolist() == before.tolist()
    push(1)
    arrived = arrived + seen(push(2), ones[0])
    compressor.refused(1, [0])
    np.testing.assert_allclose(arrived + kept(compressor, ones[0]), ones[0] + ones[2], atol=1e-4)
