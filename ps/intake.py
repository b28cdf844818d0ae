"""Are the blocks that arrive what they should be? Everything that a ps refuses about values, gradients and rows.

An Intake collects the blocks of one operation and hands them over only when all of them are there and right; until then
nothing of the shard is touched. Arrays share the memory of the messages they came in.

It must not know modes or rules. Next: ps/servicer.py (feeds it), ps/variable.py (what it makes).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from protos import parameter_server_pb2 as pb
from protos.codec import INDEX_DTYPE, Array, dtype_of, elements
from protos.encodings import decoded
from protos.errors import (
    DtypeMismatch,
    InvalidInput,
    NonFiniteGradient,
    NotTrainable,
    RowOutOfRange,
    ShapeMismatch,
    UnknownVariable,
)
from protos.wire import Block
from ps.feed import compute
from ps.variable import (
    DenseGradient,
    ExpectedPages,
    Gradient,
    Indices,
    Paged,
    PartitionKey,
    SparseGradient,
    frozen,
    sparse_gradient,
)


class Intake:
    """The blocks of one operation, by partition id."""

    def __init__(self, keys: Sequence[PartitionKey], *, gradients: bool = False) -> None:
        self._keys = keys
        self._gradients = gradients
        self._dense: dict[int, list[Array]] = {}
        self._expected: dict[int, ExpectedPages] = {}
        self._sparse: dict[int, list[tuple[Indices, Array]]] = {}
        self._order: dict[int, None] = {}

    def add(self, block: Block) -> None:
        """Take one block, or refuse it with a typed error that names the variable."""
        if block.partition >= len(self._keys):
            raise UnknownVariable(
                field="partition",
                got=block.partition,
                expected=f"an id below {len(self._keys)}",
                hint="Describe again.",
            )
        key = self._keys[block.partition]
        if self._gradients and not key.trainable:
            raise NotTrainable(field=key.name, got="a gradient", expected="assign", hint=f"It is {key.dtype} state.")
        self._order.setdefault(block.partition)
        if block.indices:
            self._add_rows(block, key)
        else:
            self._add_page(block, key)

    def _add_page(self, block: Block, key: PartitionKey) -> None:
        expected = self._expected.get(block.partition)
        if expected is None:
            expected = self._expected[block.partition] = ExpectedPages.of(key.shape, dtype_of(key.dtype))
        pages = self._dense.setdefault(block.partition, [])
        if block.page != len(pages) or block.page >= expected.pages or block.partition in self._sparse:
            raise InvalidInput(
                field=str(key), got=f"page {block.page}", expected=f"page {len(pages)} of {expected.pages}"
            )
        data = block.data
        if block.encoding:
            pages.append(self._decoded(block, key, expected))
            return
        if len(data) != expected.nbytes(block.page):
            raise ShapeMismatch(
                field=str(key),
                got=f"{len(data)} bytes in page {block.page}",
                expected=f"{expected.nbytes(block.page)} of {key.dtype}",
            )
        pages.append(elements(data, dtype_of(key.dtype)))

    def _decoded(self, block: Block, key: PartitionKey, expected: ExpectedPages) -> Array:
        """A page that was made smaller for the way: of a gradient only, values are exact."""
        self._refuse_encoding(block, key, allowed=self._gradients)
        dtype = dtype_of(key.dtype)
        count = expected.nbytes(block.page) // dtype.itemsize
        return frozen(decoded(block.data, block.encoding, count, dtype, f"{key}, page {block.page}"))

    @staticmethod
    def _refuse_encoding(block: Block, key: PartitionKey, *, allowed: bool) -> None:
        if block.encoding and not allowed:
            raise InvalidInput(
                field=str(key), got=f"encoding {block.encoding}", expected="none: only pages of gradients have one"
            )

    def _add_rows(self, block: Block, key: PartitionKey) -> None:
        if not key.variable_shape:
            raise ShapeMismatch(field=key.name, got="rows of a scalar", expected="a variable with rows")
        self._refuse_encoding(block, key, allowed=False)
        if len(block.indices) % INDEX_DTYPE.itemsize or block.partition in self._dense:
            raise InvalidInput(
                field=str(key), got=f"{len(block.indices)} bytes of indices", expected="int64 row numbers"
            )
        indices = np.frombuffer(block.indices, INDEX_DTYPE)
        bad = indices[(indices < 0) | (indices >= key.stop - key.start)]
        if bad.size:
            raise RowOutOfRange(
                field=str(key), got=f"row {int(bad[0]) + key.start}", expected=f"{key.start} to {key.stop - 1}"
            )
        dtype = dtype_of(key.dtype)
        row = math.prod(key.shape[1:])
        with_values = self._gradients or bool(block.data)
        if with_values and len(block.data) != len(indices) * row * dtype.itemsize:
            raise ShapeMismatch(
                field=str(key), got=f"{len(block.data)} bytes", expected=f"{len(indices)} rows of {row} {key.dtype}"
            )
        shape = (len(indices) if with_values else 0, *key.shape[1:])
        self._sparse.setdefault(block.partition, []).append((indices, elements(block.data, dtype).reshape(shape)))

    def values(self) -> dict[int, Paged]:
        """Whole values of every partition, by id, as for init."""
        if self._sparse:
            raise InvalidInput(field="blocks", got="rows", expected="whole values")
        return {index: self._paged(index) for index in range(len(self._keys))}

    def assigned(self) -> dict[int, Paged | SparseGradient]:
        """Values to assign, by partition id: whole ones, or those of some members of a pack."""
        values: dict[int, Paged | SparseGradient] = {index: self._paged(index) for index in self._dense}
        for index, parts in self._sparse.items():
            indices = np.concatenate([indices for indices, _ in parts])
            if not self._keys[index].members or len(np.unique(indices)) < len(indices):
                raise InvalidInput(field=str(self._keys[index]), got="rows", expected="whole values")
            values[index] = sparse_gradient(indices, np.concatenate([rows for _, rows in parts]))
        return values

    def gradients(self, *, guard_nonfinite: bool, scale: float = 1.0) -> dict[int, Gradient]:
        """Gradients by partition id, in the order they came. scale: what they were multiplied by, undone here."""
        result: dict[int, Gradient] = {}
        for index in self._order:
            if index in self._dense:
                value = self._paged(index)
                result[index] = DenseGradient(value)
                pages: Sequence[Array] = value.pages
            else:
                parts = self._sparse[index]
                gradient: SparseGradient = sparse_gradient(
                    np.concatenate([indices for indices, _ in parts]), np.concatenate([rows for _, rows in parts])
                )
                result[index] = gradient
                pages = [gradient.rows]
            if guard_nonfinite:
                refuse_nonfinite(self._keys[index], pages)
            if scale != 1.0:
                result[index] = _divided(result[index], scale)
        return result

    def rows(self) -> dict[int, Indices]:
        """Row numbers that a pull asks for, by partition id."""
        return {index: np.concatenate([indices for indices, _ in parts]) for index, parts in self._sparse.items()}

    def _paged(self, index: int) -> Paged:
        key = self._keys[index]
        pages = self._dense.get(index, [])
        count = ExpectedPages.of(key.shape, dtype_of(key.dtype)).pages
        if len(pages) != count:
            raise ShapeMismatch(field=str(key), got=f"{len(pages)} pages", expected=f"{count}, all of them")
        return Paged(key.shape, dtype_of(key.dtype), tuple(pages))


def _divided(gradient: Gradient, scale: float) -> Gradient:
    """The gradient by `scale`, in the precision of updates: 16-bit floats would lose what was scaled to be kept."""

    def divided(array: Array) -> Array:
        wide = compute(array)
        return frozen(wide / wide.dtype.type(scale))

    if isinstance(gradient, SparseGradient):
        return SparseGradient(gradient.indices, divided(gradient.rows))
    pages = tuple(map(divided, gradient.value.pages))
    return DenseGradient(Paged(gradient.value.shape, compute(np.empty(0, gradient.value.dtype)).dtype, pages))


def refuse_nonfinite(key: PartitionKey, pages: Sequence[Array]) -> None:
    """NonFiniteGradient if any element is NaN or Inf."""
    bad = sum(int(page.size - np.count_nonzero(np.isfinite(page))) for page in pages)
    if bad:
        raise NonFiniteGradient(
            field=str(key), got=f"{bad} of {sum(page.size for page in pages)} elements", expected="finite numbers"
        )


def partition_key(message: pb.PartitionSpec) -> PartitionKey:
    """A partition, or a pack of them, as the wire describes it, checked."""
    if message.members:
        members = [partition_key(member) for member in message.members]
        if any(member.members or (member.dtype, member.trainable) != _kind(members[0]) for member in members):
            raise DtypeMismatch(
                field=", ".join(map(str, members)),
                got="a pack of several kinds",
                expected="one dtype, all trainable or none",
            )
        return PartitionKey.pack(members)
    variable = message.variable
    shape = tuple(variable.shape)
    rows = shape[0] if shape else 1
    if not 0 <= message.start <= message.stop <= rows:
        raise ShapeMismatch(
            field=variable.name, got=f"rows {message.start} to {message.stop}", expected=f"within {rows}"
        )
    dtype = dtype_of(variable.dtype, variable.name)
    if variable.trainable and dtype.kind in "biu":
        raise DtypeMismatch(field=variable.name, got=f"trainable {variable.dtype}", expected="a float")
    return PartitionKey(variable.name, variable.dtype, shape, message.start, message.stop, variable.trainable)


def _kind(key: PartitionKey) -> tuple[str, bool]:
    return key.dtype, key.trainable


def partition_message(key: PartitionKey) -> pb.PartitionSpec:
    """The reverse of `partition_key`."""
    if key.members:
        return pb.PartitionSpec(members=[partition_message(member) for member in key.members])
    variable = pb.VariableSpec(name=key.name, dtype=key.dtype, shape=key.variable_shape, trainable=key.trainable)
    return pb.PartitionSpec(variable=variable, start=key.start, stop=key.stop)
