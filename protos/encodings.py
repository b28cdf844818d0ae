"""What do the bytes of a gradient mean that was made smaller for the way? Block.encoding says which of these it is.

    FLOAT16, BFLOAT16   every element, in 2 bytes
    INT8                float32 scales, one for each RUN elements, then each element as int8: scale · element
    TOP_K               uint32 positions, rising, then the elements at them in the variable's dtype; all others are 0
    SIGN                float32 scales, one for each RUN elements, then a bit each, the highest of a byte first: ±scale

Only dense pages of gradients are encoded. How many elements there are follows from the page, as without; all is little-endian.
It must not know what was lost. Next: client/compression.py (the other direction, and what becomes of what is lost).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from protos import parameter_server_pb2 as pb
from protos.codec import DTYPES, Array
from protos.errors import InvalidInput, ShapeMismatch
from protos.wire import Buffer

# Elements that share a scale: one byte of scale for 64 elements.
RUN = 256
SCALE = np.dtype("<f4")
POSITION = np.dtype("<u4")
HALVES: dict[int, np.dtype[Any]] = {
    pb.ENCODING_FLOAT16: DTYPES["float16"],
    pb.ENCODING_BFLOAT16: DTYPES["bfloat16"],
}


def decoded(data: Buffer, encoding: int, count: int, dtype: np.dtype[Any], field: str) -> Array:
    """`count` elements of `dtype`, flat. InvalidInput or ShapeMismatch, by field, for bytes that are not so encoded."""
    known: dict[int, Callable[[Buffer, int, np.dtype[Any], str], Array]] = {
        pb.ENCODING_INT8: _int8,
        pb.ENCODING_TOP_K: _top_k,
        pb.ENCODING_SIGN: _sign,
    }
    if encoding in HALVES:
        _check_bytes(data, 2 * count, encoding, count, field)
        with np.errstate(over="ignore"):
            return np.frombuffer(data, HALVES[encoding]).astype(dtype)
    if encoding not in known:
        names = ", ".join(name.removeprefix("ENCODING_").lower() for name in pb.Encoding.keys()[1:])
        raise InvalidInput(field=field, got=f"encoding {encoding}", expected=f"one of {names}")
    return known[encoding](data, count, dtype, field)


def runs(count: int) -> int:
    """How many scales so many elements have."""
    return math.ceil(count / RUN)


def _check_bytes(data: Buffer, expected: int, encoding: int, count: int, field: str) -> None:
    if len(data) != expected:
        name = pb.Encoding.Name(encoding).removeprefix("ENCODING_").lower()
        raise ShapeMismatch(field=field, got=f"{len(data)} bytes", expected=f"{expected}: {count} elements as {name}")


def _scaled(data: Buffer, units: Array, count: int, dtype: np.dtype[Any]) -> Array:
    """units (count,), each times the scale of its run; 16-bit floats are multiplied in float32."""
    scales = np.frombuffer(data, SCALE, runs(count)).repeat(RUN)[:count]
    with np.errstate(all="ignore"):
        product: Array = units * scales.astype(
            np.promote_types(np.float32, dtype) if dtype.itemsize > 2 else np.float32
        )
        return product.astype(dtype, copy=False)


def _int8(data: Buffer, count: int, dtype: np.dtype[Any], field: str) -> Array:
    scale_bytes = runs(count) * SCALE.itemsize
    _check_bytes(data, scale_bytes + count, pb.ENCODING_INT8, count, field)
    return _scaled(data, np.frombuffer(data, np.int8, offset=scale_bytes), count, dtype)


def _sign(data: Buffer, count: int, dtype: np.dtype[Any], field: str) -> Array:
    scale_bytes = runs(count) * SCALE.itemsize
    _check_bytes(data, scale_bytes + math.ceil(count / 8), pb.ENCODING_SIGN, count, field)
    bits = np.unpackbits(np.frombuffer(data, np.uint8, offset=scale_bytes), count=count)
    return _scaled(data, bits.astype(np.int8) * 2 - 1, count, dtype)


def _top_k(data: Buffer, count: int, dtype: np.dtype[Any], field: str) -> Array:
    pair = POSITION.itemsize + dtype.itemsize
    kept = len(data) // pair
    if len(data) % pair:
        raise ShapeMismatch(field=field, got=f"{len(data)} bytes", expected=f"a multiple of {pair}: {dtype} as top_k")
    positions = np.frombuffer(data, POSITION, kept).astype(np.int64)
    if kept and (positions[-1] >= count or (np.diff(positions) <= 0).any()):
        raise InvalidInput(
            field=field, got="positions as top_k", expected=f"numbers below {count}, each more than the one before"
        )
    result = np.zeros(count, dtype)
    result[positions] = np.frombuffer(data, dtype, kept, kept * POSITION.itemsize)
    return result
