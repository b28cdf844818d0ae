"""What does a shard hold? Immutable values: pages, partitions, and the state of the whole shard.

An update never changes an array; it makes new pages and a new ShardState that shares what did not change. So a pull that
holds a state can be neither torn nor held up, an update that fails leaves no trace, and an old version lives on exactly as
long as somebody still refers to it.

It must not know threads, time, grpc or modes. Next: ps/apply.py (how one state becomes the next).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Union

import numpy as np
import numpy.typing as npt

from protos.codec import Array, page_bounds, page_elements
from protos.rows import summed_rows

Indices = npt.NDArray[np.int64]
# The slot of a 16-bit variable that holds it in float32: that is what is updated, and the value is it, rounded.
MASTER = "engine/master"


def frozen(array: Array) -> Array:
    """The array, made read-only: whoever tries to write to shared state gets an error at once."""
    array.setflags(write=False)
    return array


@dataclass(frozen=True)
class Paged:
    """An immutable array cut in flat pages (protos/codec.py says where)."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    pages: tuple[Array, ...]

    @staticmethod
    def of(array: Array) -> Paged:
        """The pages of `array`; it must be C-contiguous and is shared, not copied."""
        flat = frozen(array.reshape(-1))
        pages = tuple(flat[start:stop] for start, stop in page_bounds(array.shape, array.itemsize))
        return Paged(array.shape, array.dtype, pages)

    @staticmethod
    def cut_like(array: Array, like: Paged) -> Paged:
        """The pages of `array` with the bounds of `like`, whatever the dtypes: pages that pair one to one."""
        flat, pages, start = frozen(array.reshape(-1)), [], 0
        for page in like.pages:
            pages.append(flat[start : start + page.size])
            start += page.size
        return Paged(like.shape, array.dtype, tuple(pages))

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def whole(self) -> Array:
        """One array of the full shape (a copy unless there is a single page)."""
        if len(self.pages) == 1:
            return self.pages[0].reshape(self.shape)
        flat = np.concatenate(self.pages) if self.pages else np.empty(0, self.dtype)
        return flat.astype(self.dtype, copy=False).reshape(self.shape)

    def rows(self, indices: Indices) -> Array:
        """The rows at `indices`, shape (n, *shape[1:]), in that order; repeated indices repeat their row."""
        row = math.prod(self.shape[1:])
        out: Array = np.empty((len(indices), row), self.dtype)
        for page, chosen, places in self._pages_of_rows(indices, row):
            out[places] = self.pages[page].reshape(-1, row)[chosen]
        for page, part, where, columns in self._stretches_of_long_rows(indices, row):
            out[where, columns] = self.pages[page][part]
        return out.reshape(len(indices), *self.shape[1:])

    def with_rows(self, indices: Indices, rows: Array) -> Paged:
        """The same value with the rows at `indices` (unique) replaced; pages without any of them are shared."""
        row = math.prod(self.shape[1:])
        rows = rows.reshape(len(indices), row)
        copies: dict[int, Array] = {}
        for page, chosen, places in self._pages_of_rows(indices, row):
            copies[page] = self.pages[page].copy()
            copies[page].reshape(-1, row)[chosen] = rows[places]
        for page, part, where, columns in self._stretches_of_long_rows(indices, row):
            if page not in copies:
                copies[page] = self.pages[page].copy()
            copies[page][part] = rows[where, columns]
        pages = tuple(frozen(copies[page]) if page in copies else old for page, old in enumerate(self.pages))
        return Paged(self.shape, self.dtype, pages)

    def _pages_of_rows(self, indices: Indices, row: int) -> Iterator[tuple[int, Indices, npt.NDArray[np.intp]]]:
        """(page, rows within it, positions in `indices`) for each page touched, where pages hold whole rows."""
        if row == 0 or len(indices) == 0 or row > len(self.pages[0]):
            return
        rows_per_page = len(self.pages[0]) // row  # every page but the last has the size of the first
        page_of = indices // rows_per_page
        order = np.argsort(page_of, kind="stable")
        for where in np.split(order, np.flatnonzero(np.diff(page_of[order])) + 1):
            page = int(page_of[where[0]])
            yield page, indices[where] - page * rows_per_page, where

    def _stretches_of_long_rows(self, indices: Indices, row: int) -> Iterator[tuple[int, slice, int, slice]]:
        """(page, elements within it, position in `indices`, columns) where a row is longer than a page."""
        if row == 0 or len(indices) == 0 or row <= len(self.pages[0]):
            return
        step = len(self.pages[0])
        for where, index in enumerate(indices):
            begin, end = int(index) * row, (int(index) + 1) * row
            for page in range(begin // step, -(-end // step)):
                first, last = max(begin, page * step), min(end, (page + 1) * step)
                yield page, slice(first - page * step, last - page * step), where, slice(first - begin, last - begin)


@dataclass(frozen=True)
class DenseGradient:
    """A gradient for every element of a partition: its pages."""

    value: Paged


@dataclass(frozen=True)
class SparseGradient:
    """A gradient for some rows. indices: int64, sorted, unique, counted within the partition. rows: (n, *shape[1:])."""

    indices: Indices
    rows: Array


Gradient = Union[DenseGradient, SparseGradient]
# Gradients of one push for one shard, by partition id.
Gradients = Mapping[int, Gradient]


def sparse_gradient(indices: Indices, rows: Array) -> SparseGradient:
    """Rows with repeated indices summed, as `tf.IndexedSlices` means them."""
    unique, total = summed_rows(indices, rows)
    return SparseGradient(unique, frozen(total))


@dataclass(frozen=True)
class PartitionKey:
    """Which rows of which variable: rows [start, stop) on axis 0 (a scalar is one row).

    Or a pack: `members`, small partitions of one dtype whose elements lie one after the other. It is one flat array then, of
    variable_shape (n,), and all that is done element by element is done to all of them at once.
    """

    name: str
    dtype: str
    variable_shape: tuple[int, ...]
    start: int
    stop: int
    trainable: bool
    members: tuple[PartitionKey, ...] = ()

    @staticmethod
    def pack(members: Sequence[PartitionKey]) -> PartitionKey:
        """The pack of these partitions, which are of one dtype and all trainable or all not."""
        size = sum(math.prod(member.shape) for member in members)
        names = [str(member) for member in members]
        text = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if names[3:] else "")
        return PartitionKey(text, members[0].dtype, (size,), 0, size, members[0].trainable, tuple(members))

    @property
    def parts(self) -> tuple[PartitionKey, ...]:
        """The members of a pack; else itself."""
        return self.members or (self,)

    def at(self, element: int) -> PartitionKey:
        """Which of the parts holds this element."""
        for part in self.parts:
            element -= math.prod(part.shape)
            if element < 0:
                return part
        return self

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.stop - self.start, *self.variable_shape[1:]) if self.variable_shape else ()

    @property
    def whole(self) -> bool:
        return not self.variable_shape or (self.start, self.stop) == (0, self.variable_shape[0])

    def __str__(self) -> str:
        return self.name if self.whole else f"{self.name}[{self.start}:{self.stop}]"


@dataclass(frozen=True)
class Partition:
    """A partition's value and its slots. Slots of an elementwise rule are paged as the value is."""

    key: PartitionKey
    value: Paged
    slots: Mapping[str, Paged] = field(default_factory=dict)

    def parts(self) -> Iterator[tuple[PartitionKey, Array]]:
        """The partitions in a pack, or this one, and their values as arrays of their shape."""
        flat, start = self.value.whole().reshape(-1), 0
        for key in self.key.parts:
            size = math.prod(key.shape)
            yield key, flat[start : start + size].reshape(key.shape)
            start += size

    def with_value(self, value: Paged | SparseGradient) -> Partition:
        """The partition with another value, or other rows of it. A master copy becomes exactly it: no digits stay behind.

        Of rows that are not named it keeps them.
        """
        new = self.value.with_rows(value.indices, value.rows) if isinstance(value, SparseGradient) else value
        if MASTER not in self.slots:
            return Partition(self.key, new, self.slots)
        old = self.slots[MASTER]
        if isinstance(value, SparseGradient):
            master = old.with_rows(value.indices, value.rows.astype(old.dtype))
        else:
            master = Paged(value.shape, old.dtype, tuple(frozen(page.astype(old.dtype)) for page in value.pages))
        return Partition(self.key, new, {**self.slots, MASTER: master})


@dataclass(frozen=True)
class ShardState:
    """All that a shard holds at one version."""

    version: int
    partitions: tuple[Partition, ...]

    @property
    def value_bytes(self) -> int:
        return sum(partition.value.nbytes for partition in self.partitions)

    @property
    def slot_bytes(self) -> int:
        return sum(slot.nbytes for partition in self.partitions for slot in partition.slots.values())

    def with_values(self, values: Mapping[int, Paged | SparseGradient]) -> ShardState:
        """The state with some values, or rows of them, replaced, by partition id; masters follow, version and slots stay."""
        partitions = list(self.partitions)
        for index, value in values.items():
            partitions[index] = partitions[index].with_value(value)
        return ShardState(self.version, tuple(partitions))


class ExpectedPages(NamedTuple):
    """How many pages a partition must have on the wire, and how long they must be. Nothing is allocated to know it."""

    pages: int
    full_bytes: int
    last_bytes: int

    @staticmethod
    def of(shape: tuple[int, ...], dtype: np.dtype[Any]) -> ExpectedPages:
        size, step = math.prod(shape), page_elements(shape, dtype.itemsize)
        pages = -(-size // step)
        return ExpectedPages(pages, step * dtype.itemsize, (size - max(0, pages - 1) * step) * dtype.itemsize)

    def nbytes(self, page: int) -> int:
        return self.full_bytes if page < self.pages - 1 else self.last_bytes
