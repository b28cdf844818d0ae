"""What does a shard hold? Pages that are cut the same everywhere, never written to, and shared where nothing changed."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos.codec import page_bounds
from ps.variable import ExpectedPages, Paged, PartitionKey, sparse_gradient
from tests.core.builders import key, partition, small_pages, state

# Pages of 64 bytes hold 16 float32: shapes with one page, several, rows that fit and rows longer than a page.
SHAPES = [(), (1,), (16,), (17,), (5, 4), (3, 16), (4, 7), (2, 40), (3, 5, 7), (1, 100), (0,), (0, 4), (4, 0)]


def numbers(shape: tuple[int, ...]) -> Any:
    return np.arange(math.prod(shape), dtype=np.float32).reshape(shape)


@pytest.mark.parametrize("shape", SHAPES)
def test_pages_put_together_are_the_array(shape: tuple[int, ...]) -> None:
    with small_pages():
        paged = Paged.of(numbers(shape))
        whole = paged.whole()
        assert whole.shape == shape
        np.testing.assert_array_equal(whole, numbers(shape))
        expected = ExpectedPages.of(shape, paged.dtype)
        assert [page.nbytes for page in paged.pages] == [expected.nbytes(page) for page in range(expected.pages)]
        assert paged.nbytes == whole.nbytes == sum(page.nbytes for page in paged.pages)


def test_pages_hold_whole_rows_where_a_row_fits() -> None:
    with small_pages(64):
        assert list(page_bounds((4, 7), 4)) == [(0, 14), (14, 28)]  # two rows of 28 bytes, not two rows and a bit
        assert list(page_bounds((2, 40), 4)) == [(0, 16), (16, 32), (32, 48), (48, 64), (64, 80)]  # no row fits


def test_an_array_without_elements_has_no_page_and_keeps_its_shape_and_dtype() -> None:
    for dtype in (np.float32, ml_dtypes.bfloat16, np.bool_):
        paged = Paged.of(np.zeros((3, 0, 2), dtype))
        assert paged.pages == ()
        assert paged.whole().shape == (3, 0, 2)
        assert paged.whole().dtype == dtype
        assert paged.nbytes == 0


def test_a_scalar_is_one_page_of_one_element() -> None:
    paged = Paged.of(np.array(2.5))
    assert [page.shape for page in paged.pages] == [(1,)]
    assert paged.whole().shape == ()
    assert paged.whole() == 2.5


def test_nobody_can_write_to_what_a_shard_holds() -> None:
    # claim 1: a pull holds these very arrays.
    with small_pages():
        paged = Paged.of(numbers((5, 4)))
        changed = paged.with_rows(np.array([1]), np.ones((1, 4), np.float32))
    for page in (*paged.pages, *changed.pages):
        with pytest.raises(ValueError, match="read-only"):
            page[0] = 0


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape and shape[0]])
@given(data=st.data())
def test_rows_are_those_of_numpy(shape: tuple[int, ...], data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, shape[0] - 1), max_size=8))
    indices = np.array(ids, np.int64)
    with small_pages():
        paged = Paged.of(numbers(shape))
        rows = paged.rows(indices)
        assert rows.dtype == np.float32
        np.testing.assert_array_equal(rows, numbers(shape)[indices])

        unique = np.unique(indices)
        news = -1 - numbers((len(unique), *shape[1:]))
        changed = paged.with_rows(unique, news)
        oracle = numbers(shape)
        oracle[unique] = news
        np.testing.assert_array_equal(changed.whole(), oracle)
        np.testing.assert_array_equal(paged.whole(), numbers(shape))  # the old one is as it was


def test_pages_that_did_not_change_are_shared_not_copied() -> None:
    with small_pages():
        paged = Paged.of(numbers((12, 4)))  # three pages of four rows
        changed = paged.with_rows(np.array([5, 6]), np.zeros((2, 4), np.float32))
    assert [new is old for new, old in zip(changed.pages, paged.pages)] == [True, False, True]


def test_a_row_longer_than_a_page_changes_only_the_pages_it_lies_in() -> None:
    with small_pages():
        paged = Paged.of(numbers((3, 40)))  # rows of 160 bytes over pages of 64: row 0 lies in pages 0, 1 and half of 2
        changed = paged.with_rows(np.array([0]), np.zeros((1, 40), np.float32))
    assert [new is old for new, old in zip(changed.pages, paged.pages)] == [False] * 3 + [True] * 5
    np.testing.assert_array_equal(changed.whole(), np.vstack([np.zeros((1, 40)), numbers((3, 40))[1:]]))


def test_slots_are_cut_as_their_value_is_whatever_their_dtype() -> None:
    with small_pages():
        value = Paged.of(np.zeros(40, np.float16))  # 32 to a page
        slot = Paged.cut_like(np.zeros(40, np.float32), value)  # float32 alone would have 16 to a page
    assert [page.size for page in value.pages] == [page.size for page in slot.pages] == [32, 8]
    assert slot.dtype == np.float32


# -- sparse gradients --------------------------------------------------------------------------------------------------


def test_repeated_rows_are_summed_and_sorted() -> None:
    gradient = sparse_gradient(np.array([4, 1, 4]), np.array([[1.0, 2.0], [10.0, 20.0], [3.0, 4.0]], np.float32))
    assert gradient.indices.tolist() == [1, 4]
    assert gradient.rows.tolist() == [[10, 20], [4, 6]]
    assert not gradient.rows.flags.writeable


def test_rows_without_repetition_are_sorted_only() -> None:
    gradient = sparse_gradient(np.array([2, 0]), np.array([[2.0], [0.5]], np.float32))
    assert gradient.indices.tolist() == [0, 2]
    assert gradient.rows.tolist() == [[0.5], [2]]


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_sums_of_narrow_rows_are_made_in_float32_and_rounded_once(dtype: Any) -> None:
    # 256 + 1 + 1 … in bfloat16 stays 256 at every step; the sum is 264.
    rows = np.array([[256.0]] + [[1.0]] * 8, dtype)
    gradient = sparse_gradient(np.zeros(9, np.int64), rows)
    assert gradient.rows.dtype == dtype
    assert float(gradient.rows[0, 0]) == 264


# -- partitions and shards ---------------------------------------------------------------------------------------------


def test_a_partition_is_rows_of_a_variable_and_is_named_so() -> None:
    whole = PartitionKey("emb/table", "float32", (13, 4), 0, 13, True)
    part = PartitionKey("emb/table", "float32", (13, 4), 3, 6, True)
    assert (whole.whole, part.whole) == (True, False)
    assert (str(whole), str(part)) == ("emb/table", "emb/table[3:6]")
    assert (whole.shape, part.shape) == ((13, 4), (3, 4))
    scalar = key("loss scale", ())
    assert (scalar.shape, scalar.whole, str(scalar)) == ((), True, "loss scale")


def test_a_shard_knows_its_bytes() -> None:
    now = state(a=np.zeros((3, 4), np.float32), n=np.zeros(5, np.int64))
    assert now.value_bytes == 48 + 40
    assert now.slot_bytes == 0


def test_replacing_values_shares_the_rest() -> None:
    before = state(a=np.zeros(3, np.float32), b=np.zeros(3, np.float32))
    after = before.with_values({1: partition("b", np.ones(3, np.float32)).value})
    assert after.partitions[0] is before.partitions[0]
    assert after.partitions[1].value.whole().tolist() == [1, 1, 1]
    assert before.partitions[1].value.whole().tolist() == [0, 0, 0]
    assert after.version == before.version == 0
