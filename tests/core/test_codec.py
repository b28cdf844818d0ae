"""How does an array become bytes, and back? Bit for bit, whatever its dtype, shape and layout, and cut the same by all."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos import codec, wire
from protos import parameter_server_pb2 as pb
from protos.codec import (
    DTYPES,
    batches,
    dense_blocks,
    dtype_of,
    elements,
    page_bounds,
    page_elements,
    sparse_blocks,
    to_array,
)
from protos.errors import DtypeMismatch, ShapeMismatch
from tests.core.builders import small_pages

shapes = st.lists(st.integers(0, 9), max_size=4).map(tuple)


def there_and_back(array: Any) -> Any:
    """Through the wire's own messages, as bytes."""
    blocks = [
        wire.decode_request(wire.encode_request(None, [block], True)).blocks[0] for block in dense_blocks(0, array)
    ]
    assert [block.page for block in blocks] == list(range(len(blocks)))
    pages = [elements(block.data, array.dtype) for block in blocks]
    flat = np.concatenate(pages) if pages else np.empty(0, array.dtype)
    return flat.reshape(array.shape)


def random_bits(dtype: np.dtype[Any], shape: tuple[int, ...]) -> Any:
    """Every bit pattern, NaNs with payloads, infinities and subnormals too."""
    count = math.prod(shape) * dtype.itemsize
    data = np.random.default_rng(count).integers(0, 2 if dtype.kind == "b" else 256, count, np.uint8)
    return data.view(dtype).reshape(shape)


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("shape", [(), (1,), (300,), (7, 11), (3, 40), (0,), (3, 0, 2)])
def test_every_dtype_travels_bit_for_bit(name: str, shape: tuple[int, ...]) -> None:
    # claim 7
    array = random_bits(dtype_of(name), shape)
    with small_pages():
        back = there_and_back(array)
    assert back.dtype == array.dtype
    assert back.tobytes() == array.tobytes()


@given(shape=shapes, itemsize=st.sampled_from([1, 2, 4, 8]), page_bytes=st.integers(8, 200))
def test_pages_follow_one_another_from_the_first_element_to_the_last(
    shape: tuple[int, ...], itemsize: int, page_bytes: int
) -> None:
    # claim 7
    with small_pages(page_bytes):
        bounds, step = list(page_bounds(shape, itemsize)), page_elements(shape, itemsize)
    edges = [0, *(stop for _, stop in bounds)]
    assert [start for start, _ in bounds] == edges[:-1]
    assert edges[-1] == math.prod(shape)
    assert all(stop - start == step for start, stop in bounds[:-1])  # so a page's number is enough to know where it is
    assert all(0 < (stop - start) * itemsize <= page_bytes for start, stop in bounds)
    row = math.prod(shape[1:])
    if row and row * itemsize <= page_bytes:
        assert all(start % row == 0 for start, _ in bounds)


def test_a_page_is_a_mebibyte_at_most() -> None:
    assert list(page_bounds((1 << 18,), 4)) == [(0, 1 << 18)]
    assert [stop - start for start, stop in page_bounds(((1 << 18) + 1,), 4)] == [1 << 18, 1]
    assert page_elements((10, 300_000), 4) == 1 << 18  # a row that does not fit is cut
    assert page_elements((1000, 1000), 4) == 262 * 1000  # rows that fit are not


def test_a_page_holds_one_element_where_elements_are_wider_than_pages() -> None:
    with small_pages(4):
        assert list(page_bounds((3,), 8)) == [(0, 1), (1, 2), (2, 3)]


# -- what a caller may hand over ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        np.arange(24, dtype=np.float32).reshape(4, 6)[::2, 1::2],
        np.arange(24, dtype=np.float32).reshape(4, 6).T,
        np.asfortranarray(np.arange(24, dtype=np.float64).reshape(4, 6)),
        np.broadcast_to(np.float32(3), (4, 5)),
        np.arange(6, dtype=">f4").reshape(2, 3),
        np.arange(6, dtype=">i8"),
        np.arange(5)[::-1],
        np.float32(2.5),
        [[1.0, 2.0], [3.0, 4.0]],
        7,
        True,
    ],
    ids=[
        "strided",
        "transposed",
        "fortran",
        "broadcast",
        "big-endian",
        "big ints",
        "reversed",
        "scalar",
        "list",
        "int",
        "bool",
    ],
)
def test_any_layout_becomes_native_and_contiguous_with_the_same_numbers(value: Any) -> None:
    array = to_array(value, "w")
    assert array.flags.c_contiguous
    assert array.dtype.isnative
    np.testing.assert_array_equal(array, value)
    np.testing.assert_array_equal(there_and_back(array), value)
    assert array.shape == np.shape(value)


def test_an_array_that_is_right_already_is_not_copied() -> None:
    value = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert np.shares_memory(to_array(value, "w"), value)


@pytest.mark.parametrize(
    ("value", "error", "got"),
    [
        (np.zeros(2, np.complex64), DtypeMismatch, "complex64"),
        (np.array(["a"]), DtypeMismatch, "str32"),
        (None, DtypeMismatch, "object"),
        (np.zeros(2, "M8[s]"), DtypeMismatch, "datetime64[s]"),
        ([[1], [2, 3]], ShapeMismatch, "inhomogeneous"),
    ],
)
def test_what_cannot_be_carried_is_refused_by_name(value: Any, error: type[Exception], got: str) -> None:
    # claim 11
    with pytest.raises(error) as caught:
        to_array(value, "gradient of w")
    assert caught.value.field == "gradient of w"  # type: ignore[attr-defined]
    assert got in caught.value.got  # type: ignore[attr-defined]


def test_a_dtype_that_is_not_carried_is_refused_with_those_that_are() -> None:
    with pytest.raises(DtypeMismatch) as caught:
        dtype_of("float8_e5m2", "w")
    assert (caught.value.field, caught.value.got) == ("w", "float8_e5m2")
    assert "bfloat16" in caught.value.expected


# -- rows ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [1, 3, 16, 40])
def test_rows_travel_with_their_numbers(width: int) -> None:
    indices = np.array([5, 0, 5, 9, 2], np.int64)
    rows = np.arange(5 * width, dtype=np.float32).reshape(5, width)
    with small_pages():
        blocks = list(sparse_blocks(3, indices, rows))
    assert {block.partition for block in blocks} == {3}
    assert [block.page for block in blocks] == list(range(len(blocks)))
    assert np.concatenate([np.frombuffer(block.indices, np.int64) for block in blocks]).tolist() == indices.tolist()
    assert b"".join(block.data for block in blocks) == rows.tobytes()
    for block in blocks:
        count = len(block.indices) // 8
        assert len(block.data) == count * width * 4
        assert count == 1 or len(block.data) <= 64


def test_rows_that_are_asked_for_travel_without_values() -> None:
    with small_pages():
        blocks = list(sparse_blocks(0, np.arange(20), None))
    assert [len(block.indices) for block in blocks] == [64, 64, 32]
    assert all(block.data == b"" for block in blocks)


# -- messages ------------------------------------------------------------------------------------------------------------


@given(sizes=st.lists(st.integers(0, 150), max_size=20))
def test_blocks_are_grouped_to_messages_in_order_and_the_last_says_so(sizes: list[int]) -> None:
    blocks = [pb.Block(page=page, data=bytes(size)) for page, size in enumerate(sizes)]
    most, codec.MESSAGE_BYTES = codec.MESSAGE_BYTES, 100
    try:
        groups = list(batches(iter(blocks)))
    finally:
        codec.MESSAGE_BYTES = most
    assert [block.page for group, _ in groups for block in group] == list(range(len(sizes)))
    assert [last for _, last in groups] == [False] * (len(groups) - 1) + [True]
    for group, _ in groups:
        assert len(group) <= 1 or sum(len(block.data) for block in group) <= 100


def test_an_operation_without_blocks_is_still_one_message() -> None:
    assert list(batches(iter(()))) == [([], True)]


def test_blocks_share_the_memory_of_the_array() -> None:
    # A variable of gigabytes must not exist twice.
    array = np.zeros(1 << 20, np.float32)
    first = next(dense_blocks(0, array))
    array[:] = 1
    assert np.frombuffer(first.data, np.float32).all()
