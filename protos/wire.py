"""How are the two messages that carry values and gradients put into bytes, and taken out again, without copying the payload?

Request and Reply of the Exchange stream, exactly as protobuf encodes them (parameter_server.proto is the contract, and the
tests hold this file to protobuf's own bytes, both ways). Protobuf copies each payload several times on its way; here it is
copied once on the way out, into the message, and not at all on the way in: a block's data is a view of the message.

Whatever a message has that is not expected here is left to protobuf. It must not know what the blocks mean.
Next: codec.py (arrays to blocks), client/exchange.py and ps/servicer.py (who sends and receives).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Union

from google.protobuf.message import DecodeError

from protos import parameter_server_pb2 as pb

Buffer = Union[bytes, memoryview]

# Tags: field number and wire type in one byte. Length-delimited is 2, varint is 0.
_HEADER, _BLOCKS, _LAST, _ERROR = (
    0x0A,
    0x12,
    0x18,
    0x22,
)  # of Request (header, blocks, last) and Reply (answer, …, error)
# Of Block.
_PARTITION, _PAGE, _DATA, _INDICES, _OFFSET, _SHARED, _ENCODING = 0x08, 0x10, 0x1A, 0x22, 0x28, 0x30, 0x38


class Block(NamedTuple):
    """A piece of one partition, as message Block has it. data and indices: bytes, or a view of the message they came in.

    shared_bytes: not 0 where the data is in shared memory instead, from shared_offset on. encoding: what the data means, if
    not elements as they are; see encodings.py.
    """

    partition: int = 0
    page: int = 0
    data: Buffer = b""
    indices: Buffer = b""
    shared_offset: int = 0
    shared_bytes: int = 0
    encoding: int = 0

    def in_shared_memory(self, offset: int) -> Block:
        """The same block, its data lying there."""
        return Block(self.partition, self.page, b"", self.indices, offset, len(self.data), self.encoding)


class Request(NamedTuple):
    """As message Request; header is None where it is absent."""

    header: pb.Header | None
    blocks: Sequence[Block]
    last: bool


class Reply(NamedTuple):
    """As message Reply; answer and error are None where they are absent."""

    answer: pb.Answer | None
    blocks: Sequence[Block]
    last: bool
    error: pb.Error | None


def encode_request(header: pb.Header | None, blocks: Iterable[Block], last: bool) -> bytes:
    """The bytes of a Request."""
    return _encode(None if header is None else header.SerializeToString(), blocks, last)


def encode_reply(answer: pb.Answer | None, blocks: Iterable[Block], last: bool) -> bytes:
    """The bytes of a Reply without error."""
    return _encode(None if answer is None else answer.SerializeToString(), blocks, last)


def decode_request(data: bytes) -> Request:
    """A Request from its bytes. google.protobuf.message.DecodeError if they are none."""
    try:
        header, blocks, last, _ = _decode(data)
    except _Unexpected:
        message = pb.Request.FromString(data)
        return Request(message.header if message.HasField("header") else None, _blocks(message), message.last)
    return Request(None if header is None else pb.Header.FromString(header), blocks, last)


def decode_reply(data: bytes) -> Reply:
    """A Reply from its bytes. DecodeError if they are none."""
    try:
        answer, blocks, last, error = _decode(data)
    except _Unexpected:
        message = pb.Reply.FromString(data)
        return Reply(
            message.answer if message.HasField("answer") else None,
            _blocks(message),
            message.last,
            message.error if message.HasField("error") else None,
        )
    return Reply(
        None if answer is None else pb.Answer.FromString(answer),
        blocks,
        last,
        None if error is None else pb.Error.FromString(error),
    )


# -- out ---------------------------------------------------------------------------------------------------------------


def _encode(first: bytes | None, blocks: Iterable[Block], last: bool) -> bytes:
    """Field 1, then the blocks, then `last`: the order of the numbers, which is protobuf's."""
    parts: list[Any] = []
    if first is not None:
        parts += (b"\x0a", _varint(len(first)), first)
    for partition, page, data, indices, shared_offset, shared_bytes, encoding in blocks:
        head = b""
        if partition:
            head += b"\x08" + _varint(partition)
        if page:
            head += b"\x10" + _varint(page)
        size = len(head)
        if data_size := _nbytes(data):
            head += b"\x1a" + _varint(data_size)
            size = len(head) + data_size
        tail, end = b"", b""
        if index_size := _nbytes(indices):
            tail = b"\x22" + _varint(index_size)
        if shared_offset:
            end = b"\x28" + _varint(shared_offset)
        if shared_bytes:
            end += b"\x30" + _varint(shared_bytes)
        if encoding:
            end += b"\x38" + _varint(encoding)
        parts += (b"\x12", _varint(size + len(tail) + index_size + len(end)), head, data, tail, indices, end)
    if last:
        parts.append(b"\x18\x01")
    return b"".join(parts)


def _nbytes(buffer: Any) -> int:
    return buffer.nbytes if hasattr(buffer, "nbytes") else len(buffer)


def _varint(number: int) -> bytes:
    if number < 0x80:
        return bytes((number,))
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


# -- in ----------------------------------------------------------------------------------------------------------------


class _Unexpected(Exception):
    """Not in the form that `_encode` gives: protobuf knows whether it is a message all the same."""


def _decode(data: bytes) -> tuple[bytes | None, list[Block], bool, bytes | None]:
    """Field 1, the blocks, `last`, and field 4 of a Request or Reply."""
    first: bytes | None = None
    error: bytes | None = None
    last = False
    blocks: list[Block] = []
    view = memoryview(data)
    at, end = 0, len(data)
    try:
        while at < end:
            tag = data[at]
            at += 1
            if tag == _BLOCKS:
                size, at = _read_varint(data, at)
                blocks.append(_decode_block(data, view, at, at + size))
                at += size
            elif tag == _LAST:
                last = data[at] == 1
                if data[at] > 1:
                    raise _Unexpected
                at += 1
            elif tag == _HEADER and first is None:
                size, at = _read_varint(data, at)
                first = data[at : at + size]
                at += size
            elif tag == _ERROR and error is None:
                size, at = _read_varint(data, at)
                error = data[at : at + size]
                at += size
            else:
                raise _Unexpected
    except IndexError:
        raise _Unexpected from None
    if at != end:
        raise _Unexpected
    return first, blocks, last, error


def _decode_block(data: bytes, view: memoryview, at: int, end: int) -> Block:
    partition = page = 0
    payload: Buffer = b""
    indices: Buffer = b""
    shared_offset = shared_bytes = encoding = 0
    newest = 0
    while at < end:
        tag = data[at]
        if tag <= newest:  # out of order, or twice
            raise _Unexpected
        newest = tag
        number, at = _read_varint(data, at + 1)
        if tag == _PARTITION:
            partition = number & 0xFFFFFFFF
        elif tag == _PAGE:
            page = number & 0xFFFFFFFF
        elif tag == _DATA:
            payload = view[at : at + number]
            at += number
        elif tag == _INDICES:
            indices = view[at : at + number]
            at += number
        elif tag == _OFFSET:
            shared_offset = number & 0xFFFFFFFFFFFFFFFF
        elif tag == _SHARED:
            shared_bytes = number & 0xFFFFFFFFFFFFFFFF
        elif tag == _ENCODING and number < 0x80:
            encoding = number
        else:
            raise _Unexpected
    if at != end or end > len(data):
        raise _Unexpected
    return Block(partition, page, payload, indices, shared_offset, shared_bytes, encoding)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """The number that begins at `at`, and where the next thing begins."""
    byte = data[at]
    if byte < 0x80:
        return byte, at + 1
    number = shift = 0
    while byte >= 0x80:
        number |= (byte & 0x7F) << shift
        shift += 7
        at += 1
        if shift > 63:
            raise _Unexpected
        byte = data[at]
    return number | byte << shift, at + 1


def _blocks(message: pb.Request | pb.Reply) -> list[Block]:
    return [
        Block(b.partition, b.page, b.data, b.indices, b.shared_offset, b.shared_bytes, b.encoding)
        for b in message.blocks
    ]


__all__ = [
    "Block",
    "DecodeError",
    "Reply",
    "Request",
    "decode_reply",
    "decode_request",
    "encode_reply",
    "encode_request",
]
