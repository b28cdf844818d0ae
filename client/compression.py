"""How is a gradient made smaller for the way, and what becomes of what is lost? It is kept, and goes with the next one.

    x = gradient + residual        sent = what the ps makes of the bytes of x        residual ← x - sent

So what was sent, and what is still kept, are the sum of the gradients (error feedback: Seide et al. 2014; Stich, Cordonnier,
Jaggi 2018; Karimireddy et al. 2019). Each page has a residual, in the precision of updates; it is this worker's, and lost
with it. A page that would not become smaller goes as it is, and so do rows. Values are always exact.

Next: protos/encodings.py (what the bytes mean), client/outgoing.py (the pages).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from client.model import Model
from client.outgoing import MakeBlocks
from protos import parameter_server_pb2 as pb
from protos.codec import elements
from protos.encodings import HALVES, POSITION, RUN, SCALE, decoded, runs
from protos.errors import InvalidInput
from protos.wire import Block

# Of all elements, with top_k.
TOP_K_RATIO = 0.01
# Pushes that failed and may be sent again, as they were.
KEPT = 8

# Of a page: ps, partition, number.
_Key = tuple[int, int, int]
Floats = npt.NDArray[np.floating[Any]]
# The bytes of a page's elements, given flat in the precision of updates; and the variable's dtype.
Encode = Callable[[Floats, np.dtype[Any]], bytes]


class Traffic(NamedTuple):
    """Bytes of gradients that were pushed: as they are, and as they were sent. Both 0 while nothing is compressed."""

    raw_bytes: int
    sent_bytes: int


@dataclass(frozen=True)
class Method:
    """One of the encodings, and how to make it."""

    encoding: int
    encode: Encode


def parse(said: str, what: str = "compression") -> Method | None:
    """What none, float16, bfloat16, int8, sign, top_k or top_k:RATIO means; else InvalidInput."""
    name, given, ratio = said.strip().partition(":")
    if name == "top_k":
        try:
            share = float(ratio) if given else TOP_K_RATIO
        except ValueError:
            share = math.nan
        if 0 < share < 1:
            return Method(pb.ENCODING_TOP_K, lambda x, dtype: _top_k(x, dtype, share))
    elif not given and name in ("", "none"):
        return None
    elif not given and name in _METHODS:
        return _METHODS[name]
    raise InvalidInput(
        field=what, got=repr(said), expected=f"none, {', '.join(_METHODS)}, top_k, or top_k:RATIO such as top_k:0.05"
    )


@dataclass
class _Encoded:
    """One push to one ps, until it is answered: its blocks, and the residuals before and after."""

    blocks: list[Block] | None = None
    changed: dict[_Key, tuple[Floats, Floats]] = field(default_factory=dict)


class Compressor:
    """The residuals of one session. From any thread: a push is encoded under a lock, whole."""

    def __init__(self, method: Method | None) -> None:
        self._method = method
        self._lock = threading.Lock()  # guards all below
        self._residuals: dict[_Key, Floats] = {}
        self._unanswered: dict[int, list[_Encoded]] = {}
        self._traffic = Traffic(0, 0)

    def __bool__(self) -> bool:
        """Whether anything is done at all."""
        return self._method is not None

    @property
    def traffic(self) -> Traffic:
        return self._traffic

    def residual(self, ps: int, partition: int, page: int) -> Floats | None:
        """What of the gradients of this page is still to be sent."""
        return self._residuals.get((ps, partition, page))

    def push(self, model: Model, makers: Sequence[MakeBlocks], sequence: int, scale: float) -> list[MakeBlocks]:
        """The same blocks for each ps, encoded. scale: what these gradients were multiplied by; residuals are of 1.

        A sequence that comes again, after a failure, gets the bytes it had: some ps may have taken them.
        """
        if self._method is None:
            return list(makers)
        with self._lock:
            by_ps = self._unanswered.setdefault(sequence, [_Encoded() for _ in makers])
            for ps, (make, encoded) in enumerate(zip(makers, by_ps)):
                if encoded.blocks is None:
                    dtypes = (model.at(ps, block.partition)[0][0].dtype for block in make())
                    pairs = zip(make(), dtypes)
                    encoded.blocks = [self._block(self._method, *pair, ps, scale, encoded) for pair in pairs]
            while len(self._unanswered) > KEPT:
                del self._unanswered[min(self._unanswered)]
            return [lambda encoded=encoded: iter(encoded.blocks or ()) for encoded in by_ps]  # type: ignore[misc]

    def answered(self, sequence: int) -> None:
        """Every ps has taken this push."""
        with self._lock:
            self._unanswered.pop(sequence, None)

    def refused(self, sequence: int, by: Iterable[int]) -> None:
        """These ps have not taken this push: its residuals are as before, and another gradient may come instead."""
        with self._lock:
            for encoded in [self._unanswered[sequence][ps] for ps in by] if sequence in self._unanswered else []:
                for key, (before, after) in encoded.changed.items():
                    now = self._residuals[key]  # another thread may have pushed since
                    self._residuals[key] = before if now is after else now + (before - after)
                encoded.blocks, encoded.changed = None, {}

    def _block(
        self, method: Method, block: Block, dtype: np.dtype[Any], ps: int, scale: float, encoded: _Encoded
    ) -> Block:
        raw_bytes = len(block.data)
        if not block.indices and raw_bytes:
            key = ps, block.partition, block.page
            before = self._residuals.get(key)
            block = self._page(method, block, key, dtype, scale)
            after = self._residuals[key]
            encoded.changed[key] = np.zeros_like(after) if before is None else before, after
        self._traffic = Traffic(self._traffic.raw_bytes + raw_bytes, self._traffic.sent_bytes + len(block.data))
        return block

    def _page(self, method: Method, block: Block, key: _Key, dtype: np.dtype[Any], scale: float) -> Block:
        gradient = elements(block.data, dtype)
        wide = np.dtype(np.float32) if dtype.itemsize == 2 else dtype
        with np.errstate(all="ignore"):
            x: Floats = gradient.astype(wide)
            if (kept := self._residuals.get(key)) is not None:
                x += kept * wide.type(scale)
            data, encoding = method.encode(x, dtype), method.encoding
            if len(data) < len(block.data):
                sent = decoded(data, encoding, len(x), dtype, "page")
            else:
                sent, encoding = x.astype(dtype), pb.ENCODING_NONE
                data = sent.tobytes()
            x -= sent.astype(wide, copy=False)
            x /= wide.type(scale)
        x[~np.isfinite(x)] = 0  # NaN and Inf went as such: they are not to come again with every gradient
        self._residuals[key] = x
        return block._replace(data=data, encoding=encoding)


# -- the encodings -------------------------------------------------------------------------------------------------------


def _half(encoding: int) -> Encode:
    def encode(x: Floats, dtype: np.dtype[Any]) -> bytes:
        half = HALVES[encoding]
        y = x.astype(half)
        over = np.isinf(y) & np.isfinite(x)
        if over.any():
            largest = np.nextafter(half.type(np.inf), half.type(0))
            y[over] = np.copysign(largest, x[over]).astype(half)
        return y.tobytes()

    return encode


def _by_runs(x: Floats) -> Floats:
    """x as rows of RUN elements, the last one filled up with zeros."""
    padded = np.zeros(runs(len(x)) * RUN, x.dtype)
    padded[: len(x)] = x
    return padded.reshape(-1, RUN)


def _int8(x: Floats, dtype: np.dtype[Any]) -> bytes:
    """The scale is the least power of two that holds the run in ±127: so multiples of it, and what is left, are exact."""
    rows = _by_runs(x)
    most = np.abs(rows).max(axis=1).astype(np.float64)
    mantissa, exponent = np.frexp(np.where(np.isfinite(most), most, 0) / 127)
    exponent = np.clip(np.where(mantissa == 0.5, exponent - 1, exponent), -149, 127)
    scales = np.ldexp(1.0, exponent)
    steps = np.clip(np.rint(rows / scales[:, None]), -127, 127)
    largest = _largest(dtype) / scales[:, None]  # 127 of the largest steps may be more than a float16 holds
    steps = np.clip(steps, -np.floor(largest), np.floor(largest))
    steps[~np.isfinite(most)] = 0
    scales[~np.isfinite(most)] = np.nan
    return b"".join((scales.astype(SCALE).tobytes(), steps.astype(np.int8).reshape(-1)[: len(x)].tobytes()))


def _sign(x: Floats, dtype: np.dtype[Any]) -> bytes:
    """The scale is the mean of the run's absolute values."""
    rows = np.abs(_by_runs(x))
    counts = np.full(len(rows), RUN)
    counts[-1] = len(x) - (len(rows) - 1) * RUN
    most = min(_largest(dtype), float(np.finfo(SCALE).max))
    rows = np.where(np.isfinite(rows), np.minimum(rows, most), rows)  # so no sum is too large; Inf stays Inf
    scales = rows.sum(axis=1, dtype=np.float64) / counts
    return b"".join((scales.astype(SCALE).tobytes(), np.packbits(x >= 0).tobytes()))


def _top_k(x: Floats, dtype: np.dtype[Any], ratio: float) -> bytes:
    kept = max(1, math.ceil(ratio * len(x)))
    positions = np.sort(np.argpartition(np.abs(x), len(x) - kept)[len(x) - kept :])
    return b"".join((positions.astype(POSITION).tobytes(), x[positions].astype(dtype).tobytes()))


def _largest(dtype: np.dtype[Any]) -> float:
    return float(np.nextafter(dtype.type(np.inf), dtype.type(0)))


_METHODS = {
    "float16": Method(pb.ENCODING_FLOAT16, _half(pb.ENCODING_FLOAT16)),
    "bfloat16": Method(pb.ENCODING_BFLOAT16, _half(pb.ENCODING_BFLOAT16)),
    "int8": Method(pb.ENCODING_INT8, _int8),
    "sign": Method(pb.ENCODING_SIGN, _sign),
}
