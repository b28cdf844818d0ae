"""What is the model, as the ps hold it, and how do whole arrays become blocks for each ps and back?

A Model is what all ps describe, put together. It checks values, gradients and rows with the same rules as the ps, so that a
refused input is refused before anything is sent to anybody. It must not know grpc. Next: client/client.py.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from client.outgoing import MakeBlocks, Outgoing
from protos import parameter_server_pb2 as pb
from protos.codec import PAGE_BYTES, Array, dtype_of, to_array
from protos.errors import (
    DtypeMismatch,
    InternalError,
    InvalidInput,
    NonFiniteGradient,
    NotTrainable,
    RowOutOfRange,
    ShapeMismatch,
    UnknownVariable,
)
from protos.rows import summed_rows
from protos.segment import ALIGNMENT


@dataclass(frozen=True)
class IndexedSlices:
    """A gradient for some rows: values (n, ...) for rows indices (n,). Repeated indices are summed. As tf.IndexedSlices."""

    values: Any
    indices: Any


@dataclass(frozen=True)
class Place:
    """Where rows [start, stop) of a variable are: partition `partition` of ps `ps`; in a pack, from element `offset` on."""

    ps: int
    partition: int
    start: int
    stop: int
    offset: int | None = None


@dataclass(frozen=True)
class Variable:
    """One named array. places: in the order of their rows, without gaps."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    trainable: bool
    places: tuple[Place, ...]


class Model:
    """All variables, by name, in the order of their names."""

    def __init__(self, descriptions: Sequence[pb.DescribeReply]) -> None:
        self.num_ps = len(descriptions)
        # Whether a push must say the norm of its gradient over the whole model.
        self.wants_norm = any(description.wants_gradient_norm for description in descriptions)
        found: dict[str, tuple[pb.VariableSpec, list[Place]]] = {}
        for ps, description in enumerate(descriptions):
            for partition, held in enumerate(description.partitions):
                offset = 0 if held.members else None
                for part in held.members or [held]:
                    _, places = found.setdefault(part.variable.name, (part.variable, []))
                    places.append(Place(ps, partition, part.start, part.stop, offset))
                    if offset is not None:
                        offset += _elements(part)
        self.variables: dict[str, Variable] = {}
        for name in sorted(found):
            spec, places = found[name]
            places.sort(key=lambda place: (place.start, place.stop))
            dtype = dtype_of(spec.dtype, name)
            self.variables[name] = Variable(name, dtype, tuple(spec.shape), spec.trainable, tuple(places))
            self._check_complete(self.variables[name])
        # How many bytes of values each ps holds, each page at the next multiple of what shared memory aligns it to.
        self.shard_bytes = [sum(map(_aligned_bytes, description.partitions)) for description in descriptions]
        # By ps and partition id: which variables, and the places in them, in the order of their elements.
        self._at: dict[tuple[int, int], list[tuple[Variable, Place]]] = {}
        for variable in self.variables.values():
            for place in variable.places:
                self._at.setdefault((place.ps, place.partition), []).append((variable, place))
        for held_here in self._at.values():
            held_here.sort(key=lambda part: part[1].offset or 0)

    @staticmethod
    def _check_complete(variable: Variable) -> None:
        rows = variable.shape[0] if variable.shape else 1
        edges = [0, *(place.stop for place in variable.places)]
        if [place.start for place in variable.places] != edges[:-1] or edges[-1] != rows:
            raise InternalError(
                field=variable.name,
                got=f"rows {[(place.start, place.stop) for place in variable.places]}",
                expected=f"all of 0 to {rows}, each once",
                hint="A ps was restarted, or is not of this job.",
            )

    def variable(self, name: str) -> Variable:
        """By name, or UnknownVariable."""
        if name not in self.variables:
            known = ", ".join(list(self.variables)[:20]) + (", …" if len(self.variables) > 20 else "")
            raise UnknownVariable(
                field=str(name), got="a name that was not initialised", expected=f"one of {known or 'none'}"
            )
        return self.variables[name]

    # -- out: arrays to blocks ---------------------------------------------------------------------------------------

    def value_blocks(self, values: Mapping[str, npt.ArrayLike]) -> list[MakeBlocks]:
        """For each ps, what makes the blocks of its parts of `values`, checked against the model."""
        return self._blocks([(self.variable(name), value, "") for name, value in _items(values, "values")])

    def gradient_blocks(self, gradients: Mapping[str, Any], *, guard_nonfinite: bool) -> list[MakeBlocks]:
        """The same for gradients: dense arrays or IndexedSlices (ours or TensorFlow's)."""
        checked = []
        for name, gradient in _items(gradients, "gradients"):
            variable = self.variable(name)
            if not variable.trainable:
                raise NotTrainable(
                    field=name,
                    got="a gradient",
                    expected="assign",
                    hint=f"It is {variable.dtype.name} state without a rule.",
                )
            checked.append((variable, gradient, "gradient of "))
        return self._blocks(checked, guard_nonfinite=guard_nonfinite)

    def _blocks(self, items: Sequence[tuple[Variable, Any, str]], guard_nonfinite: bool = False) -> list[MakeBlocks]:
        outgoing = Outgoing(self)
        for variable, value, what in items:
            field = f"{what}{variable.name}"
            if hasattr(value, "indices") and hasattr(value, "values") and what:
                indices, rows = _check_rows(variable, value.indices, value.values, field)
                if guard_nonfinite:
                    _, sums = summed_rows(indices, rows)  # as the ps looks at them: finite rows may overflow together
                    _refuse_nonfinite(field, sums, "" if len(sums) == len(rows) else " of the sums of repeated rows")
                outgoing.add_rows(variable, indices, rows)
                continue
            array = _check(variable, value, field)
            if guard_nonfinite:
                _refuse_nonfinite(field, array)
            outgoing.add(variable, array)
        return outgoing.makers()

    def row_blocks(
        self, rows: Mapping[str, npt.ArrayLike]
    ) -> tuple[list[MakeBlocks], dict[str, npt.NDArray[np.int64]]]:
        """For each ps, the blocks that ask for rows; and the row numbers, checked."""
        outgoing, checked = Outgoing(self), {}
        for name, ids in _items(rows, "rows"):
            variable = self.variable(name)
            checked[name], _ = _check_rows(variable, ids, None, f"rows of {name}")
            outgoing.add_rows(variable, checked[name], None)
        return outgoing.makers(), checked

    def partitions(self, names: Sequence[str]) -> list[list[int]]:
        """For each ps, the ids of its partitions that hold anything of these variables."""
        wanted: list[dict[int, None]] = [{} for _ in range(self.num_ps)]
        for place in itertools.chain.from_iterable(self.variable(name).places for name in names):
            wanted[place.ps][place.partition] = None
        return [list(mine) for mine in wanted]

    def at(self, ps: int, partition: int) -> list[tuple[Variable, Place]]:
        """Which variable, and where in it, a partition of a ps is; of a pack, all of them in the order of their elements."""
        return self._at[ps, partition]


def _aligned_bytes(spec: pb.PartitionSpec) -> int:
    nbytes: int = sum(_elements(part) * dtype_of(part.variable.dtype).itemsize for part in spec.members or [spec])
    return nbytes + (nbytes // PAGE_BYTES * 2 + 2) * ALIGNMENT


def _elements(spec: pb.PartitionSpec) -> int:
    """How many elements a partition has."""
    shape = spec.variable.shape
    return (spec.stop - spec.start) * math.prod(shape[1:]) if shape else 1


def _items(named: Mapping[str, Any], field: str) -> Iterable[tuple[str, Any]]:
    if not isinstance(named, Mapping):
        raise InvalidInput(field=field, got=type(named).__name__, expected="a mapping of names to arrays")
    return named.items()


def _check(variable: Variable, value: npt.ArrayLike, field: str) -> Array:
    array = to_array(value, field)
    if array.dtype != variable.dtype:
        raise DtypeMismatch(field=field, got=array.dtype.name, expected=variable.dtype.name)
    if array.shape != variable.shape:
        raise ShapeMismatch(field=field, got=array.shape, expected=variable.shape)
    return array


def _check_rows(variable: Variable, ids: Any, values: Any, field: str) -> tuple[npt.NDArray[np.int64], Array]:
    """Row numbers and, if given, the values for them, checked against the variable."""
    if not variable.shape:
        raise ShapeMismatch(field=field, got="rows of a scalar", expected="a variable with rows")
    try:
        indices = np.asarray(ids)
    except ValueError as error:  # lists within lists, of different lengths
        raise ShapeMismatch(field=f"{field}, indices", got=error, expected="integers of one dimension") from None
    except (TypeError, RuntimeError) as error:
        got = f"{type(ids).__name__} ({error})"
        raise InvalidInput(field=f"{field}, indices", got=got, expected="integers of one dimension") from None
    if indices.size == 0:
        indices = indices.astype(np.int64)
    if indices.dtype.kind not in "iu" or indices.ndim != 1:
        raise DtypeMismatch(
            field=f"{field}, indices", got=f"{indices.dtype.name} {indices.shape}", expected="integers of one dimension"
        )
    bad = indices[(indices < 0) | (indices >= variable.shape[0])]
    if bad.size:
        raise RowOutOfRange(field=field, got=f"row {bad[0]}", expected=f"0 to {variable.shape[0] - 1}")
    if values is None:
        return indices.astype(np.int64), np.empty(0, variable.dtype)
    rows = to_array(values, field)
    if rows.dtype != variable.dtype:
        raise DtypeMismatch(field=field, got=rows.dtype.name, expected=variable.dtype.name)
    if rows.shape != (len(indices), *variable.shape[1:]):
        raise ShapeMismatch(field=field, got=rows.shape, expected=(len(indices), *variable.shape[1:]))
    return indices.astype(np.int64), rows


def _refuse_nonfinite(field: str, array: Array, of: str = "") -> None:
    bad = int(array.size - np.count_nonzero(np.isfinite(array)))
    if bad:
        raise NonFiniteGradient(field=field, got=f"{bad} of {array.size} elements{of}", expected="finite numbers")
