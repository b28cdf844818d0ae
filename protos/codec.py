"""How does an array become bytes on the wire, and back? The only file that knows.

A partition travels in pages: runs of its elements in C order, at most PAGE_BYTES each, cut at whole rows where a row fits.
Both sides compute the same cut from shape and dtype alone, so a page needs only its number. The ps also stores and
updates values page by page: a page is one block of cache, one unit of copying, one message.

It must not know variables, rules or grpc. Next: ps/variable.py (pages at rest), client/exchange.py (pages on the way).
"""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from protos import errors
from protos.wire import Block, Buffer

# Raised when an older peer would misread a message.
PROTOCOL_VERSION = 1

# 2**18 float32 elements: value, gradient and two slots of a page sit in a second-level cache together.
PAGE_BYTES = 1 << 20
# What one message holds at most, unless a single page of wide elements is larger.
MESSAGE_BYTES = 1 << 20

# Names of <malloc.h>.
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3

Array = npt.NDArray[Any]

TRAINABLE_DTYPES = ("float16", "bfloat16", "float32", "float64")
STATE_DTYPES = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
DTYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name) for name in TRAINABLE_DTYPES + STATE_DTYPES
}
# The same, to look up without asking for a name, which takes longer than all else that is done with a small array.
_CARRIED = frozenset(DTYPES.values())
INDEX_DTYPE = np.dtype("<i8")

if sys.byteorder != "little":  # pragma: no cover - no such machine is supported by TensorFlow either
    raise ImportError("paramserver needs a little-endian machine: its wire format is the memory format")


def dtype_of(name: str, field: str = "dtype") -> np.dtype[Any]:
    """The numpy dtype of a wire name; DtypeMismatch for a name that is not carried."""
    try:
        return DTYPES[name]
    except KeyError:
        raise errors.DtypeMismatch(field=field, got=name, expected=", ".join(DTYPES)) from None


def recycle_pages() -> None:
    """Tell the allocator to keep the memory of pages that are freed, instead of giving it back and faulting it in anew.

    For programs that live on pages (ps-server, ps-worker): copying 32 MiB of pages takes a tenth of the time. Linux with
    glibc only; elsewhere nothing happens.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for parameter, value in ((M_MMAP_THRESHOLD, 1 << 30), (M_TRIM_THRESHOLD, (1 << 31) - 1), (M_TOP_PAD, 64 << 20)):
            mallopt(parameter, value)


def wire_text(text: str, most: int = 1500) -> str:
    """Text that a message can carry: valid UTF-8, and not so long that grpc drops what it is part of."""
    clean = text.encode("utf-8", "replace").decode("utf-8")
    return clean if len(clean) <= most else clean[:most] + " …"


def to_array(value: npt.ArrayLike, field: str) -> Array:
    """`value` as a C-contiguous native-endian array of a dtype that is carried; no copy where it is one already."""
    try:
        array = np.asarray(value)
    except ValueError as error:  # lists within lists, of different lengths
        raise errors.ShapeMismatch(field=field, got=error, expected="an array, or lists of equal lengths") from None
    except (TypeError, RuntimeError) as error:  # of an object that pretends, such as a tensor without a value
        raise errors.InvalidInput(field=field, got=f"{type(value).__name__} ({error})", expected="an array") from None
    if array.dtype in _CARRIED and array.flags.c_contiguous:
        return array
    if array.dtype.name not in DTYPES:
        raise errors.DtypeMismatch(field=field, got=array.dtype.name, expected=", ".join(DTYPES))
    return np.asarray(array, dtype=DTYPES[array.dtype.name], order="C")


def page_elements(shape: tuple[int, ...], itemsize: int) -> int:
    """Elements in each page but the last of an array of `shape`: whole rows where one row fits in a page."""
    most = max(1, PAGE_BYTES // itemsize)
    row = math.prod(shape[1:])
    return most // row * row if 0 < row <= most else most


def page_bounds(shape: tuple[int, ...], itemsize: int) -> Iterator[tuple[int, int]]:
    """(start, stop) element of each page, in order; nothing for an array without elements."""
    size, step = math.prod(shape), page_elements(shape, itemsize)
    return ((start, min(start + step, size)) for start in range(0, size, step))


def dense_blocks(partition: int, array: Array) -> Iterator[Block]:
    """The blocks of a whole C-contiguous partition, made one at a time as they are asked for; they share its memory."""
    flat = array.reshape(-1).view(np.uint8)
    size = array.itemsize
    for page, (start, stop) in enumerate(page_bounds(array.shape, size)):
        yield Block(partition, page, flat[start * size : stop * size].data)


def sparse_blocks(partition: int, indices: npt.NDArray[np.int64], rows: Array | None) -> Iterator[Block]:
    """Blocks of some rows of a partition, with their values or, where rows is None, to ask for them.

    indices: int64 (n,), counted within the partition. rows: (n, ...), C-contiguous.
    """
    row_bytes = 8 if rows is None else max(8, rows[:1].nbytes)
    step = max(1, PAGE_BYTES // row_bytes)
    for start in range(0, len(indices), step):
        stop = start + step
        data = b"" if rows is None else rows[start:stop].tobytes()
        index_bytes = indices[start:stop].astype(INDEX_DTYPE, copy=False).tobytes()
        yield Block(partition, start // step, data, index_bytes)


def elements(data: Buffer, dtype: np.dtype[Any]) -> Array:
    """The elements in a block's data, flat and read-only, sharing its memory, wherever in it they lie."""
    return np.frombuffer(data, dtype)


def batches(blocks: Iterator[Block]) -> Iterator[tuple[list[Block], bool]]:
    """Blocks grouped to about MESSAGE_BYTES a message, each group with whether it is the last; at least one group."""
    group: list[Block] = []
    size = 0
    for block in blocks:
        nbytes = len(block.data) + len(block.indices)
        if group and size + nbytes > MESSAGE_BYTES:
            yield group, False
            group, size = [], 0
        group.append(block)
        size += nbytes
    yield group, True
