"""What does the header of a pull or a push say? Checked arguments in, one header for each ps out.

It must not know connections. Next: protos/parameter_server.proto (what the fields mean), client/client.py (sends them).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence

import numpy as np

from client.model import Model
from protos import parameter_server_pb2 as pb
from protos.errors import InvalidInput, InvalidVersion


def pull_headers(
    model: Model, names: Sequence[str] | None, wait_s: float, *, averages: bool = False
) -> list[pb.Header]:
    """Of a pull of whole variables: those of `names`, or all. Rows are asked for by blocks."""
    everything = names is None
    partitions: list[list[int]] = [[] for _ in range(model.num_ps)] if names is None else model.partitions(names)
    return [
        pb.Header(
            operation=pb.OPERATION_PULL,
            partitions=mine,
            by_rows=not everything,
            wait_ms=milliseconds(wait_s),
            averages=averages,
        )
        for mine in partitions
    ]


def push_headers(
    operation: pb.Operation, sequence: int, at: Sequence[int], weight: float, scale: float, norm: float | None
) -> list[pb.Header]:
    """Of a push of gradients computed at these versions, one per ps. norm: of the whole gradient, where a ps wants it."""
    return [
        pb.Header(
            operation=operation,
            sequence=sequence,
            version=version,
            weight=weight,
            gradient_scale=scale,
            gradient_norm=norm,
        )
        for version in at
    ]


def checked_version(version: object, num_ps: int) -> tuple[int, ...]:
    """One version per ps, as a pull has them, or InvalidVersion."""
    numbers = tuple(version) if isinstance(version, (tuple, list)) else ()
    if len(numbers) != num_ps or not all(_is_version(number) for number in numbers):
        raise InvalidVersion(
            field="version", got=repr(version), expected=f"{num_ps} numbers, one per ps, as a pull has them"
        )
    return tuple(int(number) for number in numbers)


def _is_version(number: object) -> bool:
    return isinstance(number, (int, np.integer)) and not isinstance(number, bool) and bool(0 <= number < 1 << 64)


def milliseconds(seconds: float) -> int:
    """Rounded up: a short wait is not none."""
    return math.ceil(seconds * 1000)


def positive(number: float, field: str) -> float:
    """A weight or a scale, or InvalidInput."""
    real = isinstance(number, (int, float, np.integer, np.floating)) and not isinstance(number, bool)
    if not real or not 0 < number <= sys.float_info.max:
        raise InvalidInput(field=field, got=repr(number)[:80], expected="a finite number above 0")
    return float(number)
