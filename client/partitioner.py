"""Where is a variable cut, and which ps gets which piece? Pure arithmetic.

The partitioners are named as TensorFlow's (tf.distribute.experimental.partitioners) and cut where its ShardedVariable
cuts: on axis 0, the first pieces one row longer when rows do not divide evenly (13 rows over 5: 3, 3, 3, 2, 2). Placement
is by bytes: the largest piece first, each to the ps that holds the least (Graham 1969: within 4/3 of the best).

Next: client/initialize.py, which uses both.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from protos.errors import InvalidInput


@dataclass(frozen=True)
class Piece:
    """Rows [start, stop) of a variable."""

    name: str
    start: int
    stop: int
    nbytes: int


class Partitioner:
    """Says in how many pieces a variable is cut. repr() is its identity: two initialisers must mean the same."""

    def shards(self, shape: Sequence[int], itemsize: int, num_ps: int) -> int:
        """How many pieces, at least 1. shape: of the variable; itemsize: bytes of one element."""
        return 1


def _at_least(field: str, value: Any, least: int) -> None:
    """For numbers of pieces or bytes."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise InvalidInput(field=field, got=repr(value), expected=f"a whole number, at least {least}")
    if value < least:
        raise InvalidInput(field=field, got=value, expected=f"at least {least}")


@dataclass(frozen=True)
class WholeVariables(Partitioner):
    """Cut nothing."""


@dataclass(frozen=True)
class FixedShardsPartitioner(Partitioner):
    """Cut every variable in `num_shards` pieces, or in as many as it has rows."""

    num_shards: int

    def __post_init__(self) -> None:
        _at_least("FixedShardsPartitioner.num_shards", self.num_shards, 1)

    def shards(self, shape: Sequence[int], itemsize: int, num_ps: int) -> int:
        return max(1, min(self.num_shards, _rows(shape)))


@dataclass(frozen=True)
class MinSizePartitioner(Partitioner):
    """Cut in pieces of about `min_shard_bytes`, but in no more than `max_shards`, and no more than it has rows.

    As TensorFlow's: ceil(bytes / min_shard_bytes) pieces. max_shards None: one for each ps.
    """

    min_shard_bytes: int = 256 << 10
    max_shards: int | None = 1

    def __post_init__(self) -> None:
        _at_least("MinSizePartitioner.min_shard_bytes", self.min_shard_bytes, 1)
        if self.max_shards is not None:
            _at_least("MinSizePartitioner.max_shards", self.max_shards, 1)

    def shards(self, shape: Sequence[int], itemsize: int, num_ps: int) -> int:
        most = num_ps if self.max_shards is None else self.max_shards
        nbytes = math.prod(shape) * itemsize
        return max(1, min(_rows(shape), most, math.ceil(nbytes / self.min_shard_bytes)))


@dataclass(frozen=True)
class MaxSizePartitioner(Partitioner):
    """Cut so that no piece holds more than `max_shard_bytes`, as far as whole rows and `max_shards` allow."""

    max_shard_bytes: int
    max_shards: int | None = None

    def __post_init__(self) -> None:
        _at_least("MaxSizePartitioner.max_shard_bytes", self.max_shard_bytes, 1)
        if self.max_shards is not None:
            _at_least("MaxSizePartitioner.max_shards", self.max_shards, 1)

    def shards(self, shape: Sequence[int], itemsize: int, num_ps: int) -> int:
        rows = _rows(shape)
        row_bytes = math.prod(shape[1:]) * itemsize
        if not rows or not row_bytes:
            return 1
        rows_per_shard = max(1, self.max_shard_bytes // row_bytes)
        shards = math.ceil(rows / rows_per_shard)
        return max(1, min(shards, rows, self.max_shards or shards))


# What is used when nobody says otherwise: large variables are spread over all ps, small ones stay whole.
DEFAULT = MinSizePartitioner(min_shard_bytes=256 << 10, max_shards=None)


def _rows(shape: Sequence[int]) -> int:
    return shape[0] if shape else 1


def row_ranges(rows: int, shards: int) -> list[tuple[int, int]]:
    """(start, stop) of each piece, the first rows % shards of them one longer."""
    short, extra = divmod(rows, shards)
    starts = [index * short + min(index, extra) for index in range(shards + 1)]
    return list(itertools.pairwise(starts))


def cut(
    variables: Mapping[str, tuple[tuple[int, ...], int]], partitioner: Partitioner, num_ps: int, *, elementwise: bool
) -> list[Piece]:
    """All pieces of all variables. variables: name -> (shape, itemsize). A rule that is not elementwise forbids cutting."""
    pieces = []
    for name, (shape, itemsize) in variables.items():
        shards = partitioner.shards(shape, itemsize, num_ps) if elementwise and shape else 1
        _at_least(f"{type(partitioner).__name__}.shards of {name}", shards, 1)
        row_bytes = math.prod(shape[1:]) * itemsize
        ranges = row_ranges(_rows(shape), shards)
        pieces += [Piece(name, start, stop, (stop - start) * row_bytes) for start, stop in ranges]
    return pieces


def place(pieces: Sequence[Piece], num_ps: int) -> list[list[Piece]]:
    """Which pieces each ps holds, balanced by bytes; the same answer for the same pieces. A ps may get none."""
    held: list[list[Piece]] = [[] for _ in range(num_ps)]
    loads = [(0, 0, index) for index in range(num_ps)]  # bytes, pieces, ps
    for piece in sorted(pieces, key=lambda piece: (-piece.nbytes, piece.name, piece.start)):
        nbytes, count, index = heapq.heappop(loads)
        held[index].append(piece)
        heapq.heappush(loads, (nbytes + piece.nbytes, count + 1, index))
    return [sorted(mine, key=lambda piece: (piece.name, piece.start)) for mine in held]


# Pieces up to so many bytes are packed; a pack holds at most a page. What is larger gains nothing by it.
SMALL_BYTES = 64 << 10


def pack(pieces: Sequence[Piece], kinds: Mapping[str, Hashable], most_bytes: int) -> list[list[Piece]]:
    """The pieces of one ps, small ones of one kind together, in packs of at most `most_bytes`; the others each alone.

    kinds: by name, what only equals may share a pack: the dtype; None for what is never packed.
    """
    packs: list[list[Piece]] = []
    open_packs: dict[Hashable, tuple[list[Piece], int]] = {}
    for piece in pieces:
        kind = kinds[piece.name]
        if kind is None or not 0 < piece.nbytes <= min(SMALL_BYTES, most_bytes):
            packs.append([piece])
            continue
        mine, nbytes = open_packs.get(kind, ([], 0))
        if not mine or nbytes + piece.nbytes > most_bytes:
            mine, nbytes = [], 0
            packs.append(mine)
        mine.append(piece)
        open_packs[kind] = mine, nbytes + piece.nbytes
    return packs
