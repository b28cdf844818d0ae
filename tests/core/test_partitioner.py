"""Where is a variable cut, and which ps gets which piece? Every row exactly once, the same answer for everybody, even bytes.

Next: test_partitioner_like_tensorflow.py, which asks TensorFlow itself.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.partitioner import (
    DEFAULT,
    FixedShardsPartitioner,
    MaxSizePartitioner,
    MinSizePartitioner,
    Partitioner,
    Piece,
    WholeVariables,
    cut,
    place,
    row_ranges,
)
from protos.errors import InvalidInput

PARTITIONERS = [
    WholeVariables(),
    DEFAULT,
    FixedShardsPartitioner(1),
    FixedShardsPartitioner(5),
    MinSizePartitioner(64, max_shards=3),
    MinSizePartitioner(64, max_shards=None),
    MaxSizePartitioner(100),
    MaxSizePartitioner(100, max_shards=4),
]
sizes = st.tuples(st.lists(st.integers(0, 40), max_size=3).map(tuple), st.sampled_from([1, 2, 4, 8]))
models = st.dictionaries(st.text(min_size=1, max_size=3), sizes, max_size=8)


def test_thirteen_rows_over_five_are_three_three_three_two_two() -> None:
    assert [stop - start for start, stop in row_ranges(13, 5)] == [3, 3, 3, 2, 2]
    assert row_ranges(13, 5) == [(0, 3), (3, 6), (6, 9), (9, 11), (11, 13)]
    assert row_ranges(10, 4) == [(0, 3), (3, 6), (6, 8), (8, 10)]  # the example in TensorFlow's source
    assert row_ranges(0, 1) == [(0, 0)]


@given(rows=st.integers(0, 500), shards=st.integers(1, 40))
def test_ranges_follow_one_another_and_differ_by_one_row_at_most(rows: int, shards: int) -> None:
    ranges = row_ranges(rows, shards)
    assert len(ranges) == shards
    edges = [0, *(stop for _, stop in ranges)]
    assert [start for start, _ in ranges] == edges[:-1]
    assert edges[-1] == rows
    lengths = [stop - start for start, stop in ranges]
    assert lengths == sorted(lengths, reverse=True)
    assert max(lengths) - min(lengths) <= 1


@pytest.mark.parametrize("partitioner", PARTITIONERS, ids=repr)
@given(model=models, num_ps=st.integers(1, 8), elementwise=st.booleans())
def test_every_row_of_every_variable_is_somewhere_exactly_once(
    partitioner: Partitioner, model: dict[str, Any], num_ps: int, elementwise: bool
) -> None:
    placed = place(cut(model, partitioner, num_ps, elementwise=elementwise), num_ps)
    assert len(placed) == num_ps  # a ps that holds nothing is legal
    pieces = [piece for held in placed for piece in held]
    for name, (shape, itemsize) in model.items():
        mine = sorted((piece.start, piece.stop) for piece in pieces if piece.name == name)
        assert mine[0][0] == 0
        assert [start for start, _ in mine[1:]] == [stop for _, stop in mine[:-1]]
        assert mine[-1][1] == (shape[0] if shape else 1)
        assert sum(piece.nbytes for piece in pieces if piece.name == name) == math.prod(shape) * itemsize
        if not elementwise or not shape:
            assert len(mine) == 1
        elif shape[0]:
            assert all(start < stop for start, stop in mine)  # no empty pieces
    assert {piece.name for piece in pieces} == set(model)


@given(model=models, num_ps=st.integers(1, 8), seed=st.randoms())
def test_all_clients_agree_where_everything_is(model: dict[str, Any], num_ps: int, seed: Any) -> None:
    shuffled = list(model)
    seed.shuffle(shuffled)
    one = place(cut(model, DEFAULT, num_ps, elementwise=True), num_ps)
    other = place(cut({name: model[name] for name in shuffled}, DEFAULT, num_ps, elementwise=True), num_ps)
    assert one == other


# -- even bytes ------------------------------------------------------------------------------------------------------------

# 93.7 M, 15.5 M, 4.1 M, 0.7 M and 40 small ones: elements of float32, and the same as bytes.
FLOATS = {"embedding": (93_700, 1000), "softmax": (1_000, 15_500), "dense": (4_100, 1_000), "small": (700, 1_000)}
BYTES = {"embedding": (366_016, 64), "softmax": (1_000, 3_875), "dense": (1_025, 1_000), "small": (175, 1_000)}
BIASES = {f"bias {index}": (64 + 17 * index,) for index in range(40)}


@pytest.mark.parametrize("num_ps", range(1, 9))
@pytest.mark.parametrize("large", [FLOATS, BYTES], ids=["elements", "bytes"])
def test_the_largest_ps_holds_at_most_15_percent_more_than_the_mean(large: dict[str, Any], num_ps: int) -> None:
    model = {name: (shape, 4) for name, shape in {**large, **BIASES}.items()}
    placed = place(cut(model, DEFAULT, num_ps, elementwise=True), num_ps)
    loads = [sum(piece.nbytes for piece in held) for held in placed]
    assert sum(loads) == sum(math.prod(shape) * itemsize for shape, itemsize in model.values())
    assert max(loads) <= 1.15 * sum(loads) / num_ps


def test_the_largest_piece_goes_first_and_each_to_the_ps_that_holds_the_least() -> None:
    pieces = [Piece(name, 0, 1, nbytes) for name, nbytes in zip("abcdef", (5, 9, 4, 8, 7, 6))]
    # 9 and 8 and 7 to one ps each, then 6 joins 7, 5 joins 8, and 4 joins 9.
    assert [[piece.nbytes for piece in held] for held in place(pieces, 3)] == [[9, 4], [5, 8], [7, 6]]


@given(sizes=st.lists(st.integers(0, 1000), min_size=1, max_size=40), num_ps=st.integers(1, 8))
def test_no_ps_holds_more_than_the_mean_and_one_piece(sizes: list[int], num_ps: int) -> None:
    pieces = [Piece(f"v{index}", 0, 1, nbytes) for index, nbytes in enumerate(sizes)]
    loads = [sum(piece.nbytes for piece in held) for held in place(pieces, num_ps)]
    assert sum(loads) == sum(sizes)
    assert max(loads) <= sum(sizes) / num_ps + max(sizes)
    assert min(loads) >= max(loads) - max(sizes)


def test_small_variables_are_not_cut() -> None:
    pieces = cut({"w": ((256, 256), 4), "v": ((257, 256), 4)}, DEFAULT, 4, elementwise=True)
    assert [(piece.name, piece.start, piece.stop) for piece in pieces] == [
        ("w", 0, 256),  # 256 KiB exactly
        ("v", 0, 129),
        ("v", 129, 257),
    ]


def test_variables_without_bytes_are_spread_too() -> None:
    placed = place(cut(dict.fromkeys("abcd", ((0,), 4)), DEFAULT, 2, elementwise=True), 2)
    assert [len(held) for held in placed] == [2, 2]


# -- bad input -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "field", "got"),
    [
        (lambda: FixedShardsPartitioner(0), "FixedShardsPartitioner.num_shards", "0"),
        (lambda: MinSizePartitioner(0), "MinSizePartitioner.min_shard_bytes", "0"),
        (lambda: MinSizePartitioner(1, max_shards=0), "MinSizePartitioner.max_shards", "0"),
        (lambda: MaxSizePartitioner(-1), "MaxSizePartitioner.max_shard_bytes", "-1"),
        (lambda: MaxSizePartitioner(1, max_shards=0), "MaxSizePartitioner.max_shards", "0"),
    ],
)
def test_a_partitioner_that_cannot_be_is_refused_by_field(make: Any, field: str, got: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        make()
    assert (caught.value.field, caught.value.got, caught.value.expected) == (field, got, "at least 1")


def test_the_repr_of_a_partitioner_is_its_identity() -> None:
    assert repr(MinSizePartitioner(5, 2)) == "MinSizePartitioner(min_shard_bytes=5, max_shards=2)"
    assert len({repr(partitioner) for partitioner in PARTITIONERS}) == len(PARTITIONERS)
