"""Everything that a ps refuses about blocks, and that nothing of a refused operation is kept. (claim 11)

The blocks are made as a client makes them, and then broken. Next: test_codec.py (how blocks are made).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from protos.codec import dense_blocks, sparse_blocks
from protos.errors import (
    DtypeMismatch,
    InvalidInput,
    NonFiniteGradient,
    NotTrainable,
    ParameterServerError,
    RowOutOfRange,
    ShapeMismatch,
    UnknownVariable,
)
from protos.wire import Block, decode_request, encode_request
from ps.intake import Intake, partition_key, partition_message
from ps.variable import DenseGradient, PartitionKey, SparseGradient
from tests.core.builders import key, small_pages

# Rows 10 to 15 of an embedding, a vector of several small pages, a scalar, and state that takes no gradient.
KEYS = [
    PartitionKey("emb", "float32", (100, 2), 10, 15, True),
    key("w", (40,)),
    key("scale", ()),
    key("seen", (3,), "int64", trainable=False),
]
EMB, W, SCALE, SEEN = range(4)
VALUES = [np.ones((5, 2), "f"), np.arange(40, dtype="f"), np.array(2.0, "f"), np.arange(3)]


def blocks(partition: int) -> list[Block]:
    return list(dense_blocks(partition, VALUES[partition]))


def rows(partition: int, indices: list[int], values: Any = None) -> list[Block]:
    array = None if values is None else np.array(values, "f")
    return list(sparse_blocks(partition, np.array(indices, np.int64), array))


def fed(*given: Block, gradients: bool = False) -> Intake:
    intake = Intake(KEYS, gradients=gradients)
    for block in given:
        intake.add(block)
    return intake


def test_whole_values_come_out_as_they_went_in() -> None:
    with small_pages():
        intake = fed(*(block for partition in range(4) for block in blocks(partition)))
        values = intake.values()
    assert sorted(values) == [EMB, W, SCALE, SEEN]
    for index, value in values.items():
        np.testing.assert_array_equal(value.whole(), VALUES[index])
        assert value.whole().shape == VALUES[index].shape


def test_gradients_come_out_dense_or_sparse_as_they_came() -> None:
    with small_pages():
        gradients = fed(*blocks(W), *rows(EMB, [4, 0, 4], [[1, 2], [3, 4], [5, 6]]), gradients=True).gradients(
            guard_nonfinite=True
        )
    assert isinstance(gradients[W], DenseGradient)
    assert isinstance(gradients[EMB], SparseGradient)
    assert gradients[EMB].indices.tolist() == [0, 4]
    assert gradients[EMB].rows.tolist() == [[3, 4], [6, 8]]


def test_arrays_share_the_memory_of_the_messages_and_cannot_be_written_to() -> None:
    data = encode_request(None, blocks(EMB), True)
    value = fed(*decode_request(data).blocks).assigned()[EMB]
    assert value.pages[0].base is not None
    with pytest.raises(ValueError, match="read-only"):
        value.pages[0][0] = 1


def test_rows_that_are_asked_for_come_out_in_the_order_they_were_asked_for() -> None:
    assert fed(*rows(EMB, [3, 0, 3])).rows()[EMB].tolist() == [3, 0, 3]


def test_an_operation_without_blocks_is_empty() -> None:
    assert fed(gradients=True).gradients(guard_nonfinite=True) == {}
    assert fed().assigned() == {}
    assert fed().rows() == {}


def changed(block: Block, **fields: Any) -> Block:
    return block._replace(data=bytes(block.data))._replace(**fields)


W_PAGES = 3  # 160 bytes in pages of 64
REFUSED: dict[str, tuple[Any, type[ParameterServerError], str, str, str]] = {
    "a partition that is not": (
        lambda: [Block(partition=4, data=b"1234")],
        UnknownVariable,
        "partition",
        "4",
        "an id below 4",
    ),
    "a gradient for state": (lambda: blocks(SEEN), NotTrainable, "seen", "a gradient", "assign"),
    "a page of another length": (
        lambda: [changed(blocks(W)[0], data=bytes(60))],
        ShapeMismatch,
        "w",
        "60 bytes in page 0",
        "64 of float32",
    ),
    "a last page that is too long": (
        lambda: [*blocks(W)[:2], changed(blocks(W)[2], data=bytes(64))],
        ShapeMismatch,
        "w",
        "64 bytes in page 2",
        "32 of float32",
    ),
    "a page left out": (lambda: blocks(W)[1:], InvalidInput, "w", "page 1", "page 0 of 3"),
    "a page twice": (lambda: [blocks(W)[0], blocks(W)[0]], InvalidInput, "w", "page 0", "page 1 of 3"),
    "a page too many": (
        lambda: [*blocks(W), changed(blocks(W)[0], page=W_PAGES)],
        InvalidInput,
        "w",
        "page 3",
        "page 3 of 3",
    ),
    "pages after rows": (
        lambda: [*rows(EMB, [1], [[1, 2]]), *blocks(EMB)],
        InvalidInput,
        "emb[10:15]",
        "page 0",
        "page 0 of 1",
    ),
    "rows after pages": (
        lambda: [*blocks(EMB), *rows(EMB, [1], [[1, 2]])],
        InvalidInput,
        "emb[10:15]",
        "8 bytes of indices",
        "int64 row numbers",
    ),
    "half an index": (
        lambda: [changed(rows(EMB, [1], [[1, 2]])[0], indices=bytes(12))],
        InvalidInput,
        "emb[10:15]",
        "12 bytes of indices",
        "int64 row numbers",
    ),
    "rows of a scalar": (
        lambda: [Block(partition=SCALE, indices=bytes(8), data=bytes(4))],
        ShapeMismatch,
        "scale",
        "rows of a scalar",
        "a variable with rows",
    ),
    # The row that equals the height is the classic: it is one too many. Row numbers in messages are the variable's.
    "the row after the last": (
        lambda: rows(EMB, [0, 5], [[1, 2]] * 2),
        RowOutOfRange,
        "emb[10:15]",
        "row 15",
        "10 to 14",
    ),
    "a negative row": (lambda: rows(EMB, [-1], [[1, 2]]), RowOutOfRange, "emb[10:15]", "row 9", "10 to 14"),
    "rows without values": (
        lambda: rows(EMB, [1]),
        ShapeMismatch,
        "emb[10:15]",
        "0 bytes",
        "1 rows of 2 float32",
    ),
    "too few values": (
        lambda: rows(EMB, [1, 2], [[1.0], [2.0]]),
        ShapeMismatch,
        "emb[10:15]",
        "8 bytes",
        "2 rows of 2 float32",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_block_that_cannot_be_is_refused_by_name(case: str) -> None:
    # claim 11
    make, error, field, got, expected = REFUSED[case]
    with small_pages(), pytest.raises(error) as caught:
        fed(*make(), gradients=True)
    assert type(caught.value) is error
    assert (caught.value.field, caught.value.got, caught.value.expected) == (field, got, expected)


def test_a_value_that_is_not_complete_is_refused() -> None:
    with small_pages():
        intake = fed(*blocks(W)[:2])
        with pytest.raises(ShapeMismatch) as caught:
            intake.assigned()
    assert (caught.value.field, caught.value.got, caught.value.expected) == ("w", "2 pages", "3, all of them")


def test_an_init_must_bring_every_partition() -> None:
    with pytest.raises(ShapeMismatch) as caught:
        fed(*blocks(EMB)).values()
    assert caught.value.field == "w"


def test_values_cannot_come_as_rows() -> None:
    with pytest.raises(InvalidInput) as caught:
        fed(*rows(EMB, [1], [[1, 2]])).assigned()
    assert caught.value.expected == "whole values"


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_gradient_that_is_not_finite_is_refused_where_that_is_guarded(kind: str, bad: float) -> None:
    # claim 11
    values = [[0.0, bad], [bad, 1.0]]
    given = rows(EMB, [1, 2], values)
    if kind == "dense":
        given = list(dense_blocks(EMB, np.array([*values, [0, 0], [0, 0], [0, 0]], "f")))
    intake = fed(*given, gradients=True)
    with pytest.raises(NonFiniteGradient) as caught:
        intake.gradients(guard_nonfinite=True)
    assert caught.value.field == "emb[10:15]"
    assert caught.value.got == ("2 of 10 elements" if kind == "dense" else "2 of 4 elements")
    assert intake.gradients(guard_nonfinite=False)  # unguarded, it is the model's business


# -- how partitions are described ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("partition", KEYS, ids=str)
def test_a_partition_survives_the_wire(partition: PartitionKey) -> None:
    assert partition_key(partition_message(partition)) == partition


@pytest.mark.parametrize(
    ("change", "error", "got"),
    [
        ({"start": 3, "stop": 2}, ShapeMismatch, "rows 3 to 2"),
        ({"start": 0, "stop": 101}, ShapeMismatch, "rows 0 to 101"),
    ],
)
def test_rows_that_a_variable_has_not_are_refused(
    change: dict[str, int], error: type[ParameterServerError], got: str
) -> None:
    message = partition_message(KEYS[EMB])
    for name, value in change.items():
        setattr(message, name, value)
    with pytest.raises(error) as caught:
        partition_key(message)
    assert (caught.value.field, caught.value.got, caught.value.expected) == ("emb", got, "within 100")


@pytest.mark.parametrize(("dtype", "got"), [("complex64", "complex64"), ("int32", "trainable int32")])
def test_dtypes_that_cannot_be_are_refused(dtype: str, got: str) -> None:
    message = partition_message(KEYS[EMB])
    message.variable.dtype = dtype
    with pytest.raises(DtypeMismatch) as caught:
        partition_key(message)
    assert (caught.value.field, caught.value.got) == ("emb", got)
