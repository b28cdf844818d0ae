"""In which pieces does maths get a partition? Pages, the whole variable, or the rows of a sparse gradient.

A Feed splits paged arrays in such pieces and joins what maths made of them; where the pieces lie is nobody else's concern.
It must not know rules. Next: ps/apply.py, which feeds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from protos.codec import Array
from ps.variable import MASTER, DenseGradient, Gradient, Paged, Partition, SparseGradient, frozen


@dataclass(frozen=True)
class Feed:
    """One partition and one gradient, and the pieces they are fed in."""

    partition: Partition
    gradient: Gradient
    whole: bool

    @staticmethod
    def of(partition: Partition, gradient: Gradient, *, whole: bool, dense: bool) -> Feed:
        """whole: one piece of the full shape. dense: a sparse gradient gets zeros in the rows it does not name."""
        if dense and isinstance(gradient, SparseGradient):
            gradient = densify(gradient, partition.value)
        return Feed(partition, gradient, whole)

    def split(self, paged: Paged) -> Sequence[Array]:
        """The pieces of the value or of a slot, read-only."""
        if isinstance(self.gradient, SparseGradient):
            return [frozen(paged.rows(self.gradient.indices))]
        return [frozen(paged.whole())] if self.whole else paged.pages

    def join(self, pieces: Sequence[Array], old: Paged) -> Paged:
        """`old` with these pieces instead of its own."""
        if isinstance(self.gradient, SparseGradient):
            return old.with_rows(self.gradient.indices, pieces[0])
        return Paged.cut_like(pieces[0], old) if self.whole else dataclasses.replace(old, pages=tuple(pieces))

    def values(self) -> Sequence[Array]:
        """The pieces of the value in the precision of updates: those of its master copy, if it has one."""
        return [compute(piece) for piece in self.split(self.partition.slots.get(MASTER, self.partition.value))]

    def gradients(self) -> Sequence[Array]:
        """The pieces of the gradient in the precision of updates."""
        if isinstance(self.gradient, SparseGradient):
            return [compute(self.gradient.rows)]
        return [compute(piece) for piece in self.split(self.gradient.value)]

    def join_gradient(self, pieces: Sequence[Array]) -> Gradient:
        """The gradient with these pieces, which stay in the precision of updates."""
        if isinstance(self.gradient, SparseGradient):
            return SparseGradient(self.gradient.indices, pieces[0])
        value = self.gradient.value
        if self.whole:
            return DenseGradient(Paged.cut_like(pieces[0], value))
        return DenseGradient(Paged(value.shape, compute(np.empty(0, value.dtype)).dtype, tuple(pieces)))


def compute(array: Array) -> Array:
    """The array in the precision of updates, read-only: float32 for 16-bit floats, else its own."""
    return frozen(array.astype(np.float32) if array.dtype.itemsize == 2 else array)


def densify(gradient: SparseGradient, like: Paged) -> DenseGradient:
    """The same gradient with zeros in the rows it does not name, in the pages of `like`."""
    whole: Array = np.zeros(like.shape, gradient.rows.dtype)
    whole[gradient.indices] = gradient.rows
    return DenseGradient(Paged.cut_like(whole, like))
