"""How do whole arrays and rows of a model become blocks for each ps?

What is given is collected by partition; then each partition gets its blocks. A pack that is given whole goes as one flat
array, put together anew each time it is sent; one that is given in part goes as the elements that are there.

It must not know what is checked about arrays. Next: client/receiver.py (the way back), protos/codec.py (the blocks).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Union

import numpy as np
import numpy.typing as npt

from protos.codec import Array, dense_blocks, sparse_blocks
from protos.wire import Block

if TYPE_CHECKING:
    from client.model import Model, Place, Variable

# Makes the blocks of one operation anew: a call that is retried sends them again.
MakeBlocks = Callable[[], Iterator[Block]]
Indices = npt.NDArray[np.int64]

# Of one place: all of its part, or rows of it; None instead of the rows' values asks for them.
_Part = Union[Array, tuple[Indices, Union[Array, None]]]


class Outgoing:
    """Arrays and rows of one operation, by partition."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._parts: dict[tuple[int, int], list[tuple[Variable, Place, _Part]]] = {}

    def add(self, variable: Variable, array: Array) -> None:
        """A whole variable. array: C-contiguous, of its shape and dtype."""
        for place in variable.places:
            piece = array[place.start : place.stop] if variable.shape else array
            self._parts.setdefault((place.ps, place.partition), []).append((variable, place, piece))

    def add_rows(self, variable: Variable, indices: Indices, rows: Array | None) -> None:
        """Some rows of a variable. rows: (n, ...) for indices (n,); None to ask for them."""
        for place, mine in rows_by_place(variable, indices):
            values = None if rows is None else np.ascontiguousarray(rows[mine])
            part = indices[mine] - place.start, values
            self._parts.setdefault((place.ps, place.partition), []).append((variable, place, part))

    def makers(self) -> list[MakeBlocks]:
        """For each ps, what makes its blocks."""
        by_ps: list[list[tuple[int, list[tuple[Variable, Place, _Part]]]]] = [[] for _ in range(self._model.num_ps)]
        for (ps, partition), parts in self._parts.items():
            by_ps[ps].append((partition, parts))
        return [lambda mine=mine: self._blocks(mine) for mine in by_ps]  # type: ignore[misc]

    def _blocks(self, partitions: Sequence[tuple[int, list[tuple[Variable, Place, _Part]]]]) -> Iterator[Block]:
        for partition, parts in partitions:
            _, place, _ = parts[0]
            whole = all(isinstance(part, np.ndarray) for *_, part in parts)
            if place.offset is not None and whole and len(parts) == len(self._model.at(place.ps, partition)):
                yield from dense_blocks(partition, self._together(place.ps, partition, parts))
                continue
            for variable, place, part in parts:
                if place.offset is not None:
                    yield from sparse_blocks(partition, *_as_elements(variable, place, part))
                elif isinstance(part, tuple):
                    yield from sparse_blocks(partition, *part)
                else:
                    yield from dense_blocks(partition, part)

    def _together(self, ps: int, partition: int, parts: Sequence[tuple[Variable, Place, _Part]]) -> Array:
        """A pack, all of whose members are given, as one flat array."""
        _, last = self._model.at(ps, partition)[-1]
        by_offset = sorted(parts, key=lambda part: part[1].offset or 0)
        arrays = [part.reshape(-1) for *_, part in by_offset if isinstance(part, np.ndarray)]
        assert last.offset is not None
        return np.concatenate(arrays)


def _as_elements(variable: Variable, place: Place, part: _Part) -> tuple[Indices, Array | None]:
    """A part of a pack as element numbers and, if it is not only asked for, the elements."""
    assert place.offset is not None
    if isinstance(part, np.ndarray):
        return np.arange(place.offset, place.offset + part.size), part.reshape(-1)
    indices, rows = part
    return place.offset + elements_of_rows(variable, indices), None if rows is None else rows.reshape(-1)


def elements_of_rows(variable: Variable, rows: npt.NDArray[np.integer]) -> Indices:
    """The numbers of all elements of these rows, row by row."""
    width = math.prod(variable.shape[1:])
    return (rows.astype(np.int64)[:, None] * width + np.arange(width)).reshape(-1)


def rows_by_place(variable: Variable, indices: Indices) -> Iterator[tuple[Place, npt.NDArray[np.intp]]]:
    """For each place that has any of the rows, which positions of `indices` those are."""
    for place in variable.places:
        mine = np.flatnonzero((indices >= place.start) & (indices < place.stop))
        if mine.size:
            yield place, mine
