"""Are the messages that are put together by hand the ones of the contract? Byte for byte as protobuf writes them, both ways."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos import parameter_server_pb2 as pb
from protos import wire
from protos.wire import Block

small = st.binary(max_size=300)
numbers = st.one_of(st.integers(0, 300), st.integers(0, 2**32 - 1))
large = st.one_of(st.just(0), st.integers(0, 2**64 - 1))
blocks = st.lists(st.builds(Block, numbers, numbers, small, small, large, large, st.integers(0, 5)), max_size=5)
headers = st.none() | st.builds(
    pb.Header,
    operation=st.sampled_from(pb.Operation.values()),
    session=st.text(st.characters(codec="utf-8"), max_size=40),
    sequence=st.integers(0, 2**64 - 1),
    partitions=st.lists(numbers, max_size=4),
    weight=st.floats(allow_nan=False),
    gradient_norm=st.none() | st.floats(allow_nan=False),
)
answers = st.none() | st.builds(pb.Answer, outcome=st.integers(0, 4), staleness=st.integers(0, 2**64 - 1))
errors = st.none() | st.builds(pb.Error, name=st.text(st.characters(codec="utf-8"), max_size=20))


def messages(given_blocks: list[Block]) -> list[pb.Block]:
    return [pb.Block(**block._asdict()) for block in given_blocks]


def plain(given_blocks: Any) -> list[tuple[Any, ...]]:
    return [
        (b.partition, b.page, bytes(b.data), bytes(b.indices), b.shared_offset, b.shared_bytes, b.encoding)
        for b in given_blocks
    ]


@given(headers, blocks, st.booleans())
def test_a_request_is_what_protobuf_writes_and_reads(header: Any, given_blocks: list[Block], last: bool) -> None:
    by_hand = wire.encode_request(header, given_blocks, last)
    message = pb.Request(header=header, blocks=messages(given_blocks), last=last)
    assert by_hand == message.SerializeToString()
    read = wire.decode_request(by_hand)
    assert (read.header, plain(read.blocks), read.last) == (header, plain(given_blocks), last)


@given(answers, blocks, st.booleans(), errors)
def test_a_reply_is_what_protobuf_writes_and_reads(
    answer: Any, given_blocks: list[Block], last: bool, error: Any
) -> None:
    message = pb.Reply(answer=answer, blocks=messages(given_blocks), last=last, error=error).SerializeToString()
    if error is None:
        assert wire.encode_reply(answer, given_blocks, last) == message
    read = wire.decode_reply(message)
    assert (read.answer, plain(read.blocks), read.last, read.error) == (answer, plain(given_blocks), last, error)


@given(blocks)
def test_views_and_arrays_go_out_as_bytes_do(given_blocks: list[Block]) -> None:
    views = [block._replace(data=memoryview(block.data), indices=memoryview(block.indices)) for block in given_blocks]
    assert wire.encode_request(None, views, True) == wire.encode_request(None, given_blocks, True)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_as_protobuf_reads_them(data: bytes) -> None:
    # Odd but legal encodings, fields that are new, and what is no message at all.
    for kind, decode in ((pb.Request, wire.decode_request), (pb.Reply, wire.decode_reply)):
        try:
            message: Any = kind.FromString(data)
        except wire.DecodeError:
            with pytest.raises(wire.DecodeError):
                decode(data)
            continue
        read: Any = decode(data)
        assert plain(read.blocks) == plain(message.blocks)
        assert read.last == message.last


@given(headers, blocks, st.data())
def test_a_message_that_is_cut_off_or_changed_is_read_as_protobuf_reads_it(
    header: Any, given_blocks: list[Block], data: st.DataObject
) -> None:
    whole = wire.encode_request(header, given_blocks, True)
    cut = whole[: data.draw(st.integers(0, len(whole)))]
    at = data.draw(st.integers(0, max(0, len(whole) - 1)))
    changed = whole[:at] + bytes([data.draw(st.integers(0, 255))]) + whole[at + 1 :]
    for odd in (cut, changed):
        test_any_bytes_are_read_as_protobuf_reads_them.hypothesis.inner_test(odd)  # type: ignore[attr-defined]


def test_a_field_that_is_new_is_passed_over() -> None:
    data = wire.encode_request(None, [Block(3, 0, b"abc")], True)
    newer = data + b"\xfa\x01\x03new"  # field 31, three bytes
    assert plain(wire.decode_request(newer).blocks) == [(3, 0, b"abc", b"", 0, 0, 0)]


def test_a_block_shares_the_memory_of_its_message() -> None:
    data = wire.encode_request(None, [Block(0, 0, b"x" * 1000)], True)
    (block,) = wire.decode_request(data).blocks
    assert isinstance(block.data, memoryview)
    assert block.data.obj is data
