"""How do the blocks that arrive become whole arrays and rows again?

A variable that lies in one pack is a view of the pack's flat array: many small variables cost one copy of memory. All
arrays are new ones at each pull, and the caller's own. Next: client/outgoing.py (the way there).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from client.model import Model, Place, Variable
from client.outgoing import elements_of_rows, rows_by_place
from protos.codec import INDEX_DTYPE, Array, elements, page_elements
from protos.copying import Bytes, copy_all
from protos.wire import Block

# Where rows, or elements of a pack, go in their order: an array and positions on its axis 0.
_Target = tuple[Array, npt.NDArray[np.int64]]


class Receiver:
    """Arrays being filled with what the ps send. `values` is complete when every ps has sent its last block."""

    def __init__(self, model: Model, names: Sequence[str], rows: Mapping[str, npt.NDArray[np.int64]]) -> None:
        self._model = model
        self.values: dict[str, Array] = {}
        self._bytes: dict[str, Bytes] = {}
        self._packs: dict[tuple[int, int], Array] = {}
        self._copied: dict[tuple[int, int], list[tuple[Variable, Place]]] = {}
        self._targets: dict[tuple[int, int], list[_Target]] = {}
        self._filled: dict[tuple[int, int], int] = {}
        self._copies: list[tuple[Bytes, bytes | memoryview]] = []
        for name in names:
            self._expect(model.variable(name))
        for name, ids in rows.items():
            self._expect_rows(model.variable(name), ids)

    def _expect(self, variable: Variable) -> None:
        first, *others = variable.places
        if first.offset is not None and not others:
            flat = self._pack(variable, first)
            size = math.prod(variable.shape)
            self.values[variable.name] = flat[first.offset : first.offset + size].reshape(variable.shape)
            return
        value = np.empty(variable.shape, variable.dtype)
        self.values[variable.name] = value
        self._bytes[variable.name] = value.reshape(-1).view(np.uint8)
        for place in variable.places:
            if place.offset is not None:
                self._copied.setdefault((place.ps, place.partition), []).append((variable, place))

    def _pack(self, variable: Variable, place: Place) -> Array:
        """The flat array of a pack, made when first asked for."""
        key = place.ps, place.partition
        if key not in self._packs:
            last, its_place = self._model.at(*key)[-1]
            assert its_place.offset is not None
            self._packs[key] = np.empty(its_place.offset + _size(last, its_place), variable.dtype)
        return self._packs[key]

    def _expect_rows(self, variable: Variable, ids: npt.NDArray[np.int64]) -> None:
        value = np.empty((len(ids), *variable.shape[1:]), variable.dtype)
        self.values[variable.name] = value
        for place, mine in rows_by_place(variable, ids):
            target = (value, mine) if place.offset is None else (value.reshape(-1), elements_of_rows(variable, mine))
            self._targets.setdefault((place.ps, place.partition), []).append(target)

    def start(self, ps: int) -> None:
        """Blocks from this ps come from the beginning (again): a call was retried."""
        self._filled = {key: count for key, count in self._filled.items() if key[0] != ps}
        self._copies = []

    def take(self, ps: int, block: Block) -> None:
        """Put one block where it belongs."""
        key = ps, block.partition
        if block.indices:
            self._take_rows(key, block)
            return
        here = self._model.at(*key)
        if here[0][1].offset is None:
            variable, place = here[0]
            shape = (place.stop - place.start, *variable.shape[1:]) if variable.shape else ()
            start = place.start * math.prod(variable.shape[1:])
            start += block.page * page_elements(shape, variable.dtype.itemsize)
            self._copy(block, self._bytes[variable.name], start * variable.dtype.itemsize)
            return
        if key in self._packs:
            self._copy(block, self._packs[key].view(np.uint8), 0)
        for variable, place in self._copied.get(key, ()):
            assert place.offset is not None
            itemsize = variable.dtype.itemsize
            mine = memoryview(block.data)[place.offset * itemsize :][: _size(variable, place) * itemsize]
            self._copy(
                block._replace(data=mine),
                self._bytes[variable.name],
                place.start * math.prod(variable.shape[1:]) * itemsize,
            )

    def _copy(self, block: Block, to: Bytes, start: int) -> None:
        """As bytes, for the elements in a message lie anywhere: a plain copy of memory."""
        copy = to[start : start + len(block.data)], block.data
        if block.shared_bytes:
            self._copies.append(copy)  # it stays there: all of them at once, in `finish`
        else:
            copy_all([copy])

    def finish(self) -> None:
        """The reply of a ps is here: bring over what it left in shared memory."""
        copies, self._copies = self._copies, []
        copy_all(copies)

    def _take_rows(self, key: tuple[int, int], block: Block) -> None:
        """Rows come in the order in which they were asked for, from one variable after the other."""
        count, done = len(block.indices) // INDEX_DTYPE.itemsize, self._filled.get(key, 0)
        self._filled[key] = done + count
        taken = 0
        for array, positions in self._targets[key]:
            if done < len(positions) and taken < count:
                where = positions[done : done + count - taken]
                data = elements(block.data, array.dtype).reshape(count, *array.shape[1:])
                array[where] = data[taken : taken + len(where)]
                taken += len(where)
            done = max(0, done - len(positions))


def _size(variable: Variable, place: Place) -> int:
    return (place.stop - place.start) * math.prod(variable.shape[1:]) if variable.shape else 1
