"""What does a ps refuse that no client of ours would send? Bare messages, each answered with a typed error.

After every refusal the same stream carries a good operation, and nothing has changed on the ps.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import numpy as np
import pytest

import client
import ps
from client import partitioner
from protos import parameter_server_pb2 as pb
from protos.codec import PAGE_BYTES, dense_blocks
from protos.errors import (
    ClusterError,
    DtypeMismatch,
    InitConflict,
    InternalError,
    InvalidInput,
    InvalidVersion,
    NonFiniteGradient,
    NotInitialized,
    NotJoined,
    NotTrainable,
    ParameterServerError,
    ProtocolMismatch,
    ReadOnly,
    RowOutOfRange,
    ShapeMismatch,
    UnknownVariable,
)
from tests.harness.raw import RawPeer
from tests.harness.state import everything, refused

# In the order of their names, so partition ids: big 0 (3 pages), n 1, row 2, scalar 3.
BIG = np.zeros(2 * PAGE_BYTES // 4 + 5, np.float32)
START = {"big": BIG, "n": np.arange(4), "row": np.zeros((5, 2), np.float32), "scalar": np.float32(0)}
PUSH, PULL, ASSIGN, INIT = pb.OPERATION_PUSH, pb.OPERATION_PULL, pb.OPERATION_ASSIGN, pb.OPERATION_INIT


Peers = tuple[RawPeer, client.Client]


@contextlib.contextmanager
def raw(guard: bool = False, worker: int | None = 0, init: bool = True) -> Iterator[Peers]:
    """A raw peer at an initialised ps, and an observer. Worker 1 has initialised it."""
    with (
        ps.LocalCluster(workers=2, mode="async", rule="sgd:learning_rate=1", guard_nonfinite=guard) as local,
        client.connect(local.cluster, worker=1) as other,
        client.connect(local.cluster, observer=True) as observer,
    ):
        if init:
            with mock.patch.object(partitioner, "SMALL_BYTES", 0):  # each variable a partition of its own
                other.init(START)
        with RawPeer(local.cluster["ps"][0], worker=worker, num_workers=2) as peer:
            yield peer, observer


@pytest.fixture(scope="module")
def peers() -> Iterator[Peers]:
    """One ps for all: as nothing that is refused changes it, it is as new for each test."""
    with raw() as peers:
        yield peers


def ids(*numbers: int) -> bytes:
    return np.array(numbers, "<i8").tobytes()


def encoded(encoding: int, data: bytes, **where: Any) -> pb.Block:
    """The page of `row`, 10 elements, or what is said to be it."""
    return pb.Block(partition=2, data=data, encoding=encoding, **where)  # type: ignore[arg-type]


def block(partition: int, page: int = 0, data: bytes = b"", indices: bytes = b"") -> pb.Block:
    return pb.Block(partition=partition, page=page, data=data, indices=indices)


PAGES = [block(b.partition, b.page, bytes(b.data)) for b in dense_blocks(0, BIG)]
ROW = bytes(8)  # one row of `row`
BAD_BLOCKS: dict[str, tuple[type[ParameterServerError], list[pb.Block]]] = {
    "partition id": (UnknownVariable, [block(4, data=ROW)]),
    "partition id far off": (UnknownVariable, [block(2**32 - 1)]),
    "page that is not there": (InvalidInput, [block(2, page=1, data=bytes(40))]),
    "page too early": (InvalidInput, [PAGES[1], PAGES[0], PAGES[2]]),
    "page twice": (InvalidInput, [PAGES[0], PAGES[0]]),
    "page far off": (InvalidInput, [*PAGES, block(0, page=2**32 - 1)]),
    "page too short": (ShapeMismatch, [block(2, data=bytes(36))]),
    "page too long": (ShapeMismatch, [block(2, data=bytes(44))]),
    "page of half an element": (ShapeMismatch, [block(2, data=bytes(39))]),
    "empty page": (ShapeMismatch, [block(2)]),
    "pages missing": (ShapeMismatch, PAGES[:2]),
    "pages missing, others there": (ShapeMismatch, [block(2, data=bytes(40)), *PAGES[:1], block(3, data=bytes(4))]),
}
BAD_GRADIENTS: dict[str, tuple[type[ParameterServerError], list[pb.Block]]] = {
    **BAD_BLOCKS,
    "for state": (NotTrainable, [block(1, data=bytes(32))]),
    "rows for state": (NotTrainable, [block(1, data=bytes(8), indices=ids(0))]),
    "row of the height": (RowOutOfRange, [block(2, data=ROW, indices=ids(5))]),
    "negative row": (RowOutOfRange, [block(2, data=ROW * 2, indices=ids(0, -1))]),
    "row far off": (RowOutOfRange, [block(2, data=ROW, indices=ids(2**62))]),
    "half an index": (InvalidInput, [block(2, data=ROW, indices=ids(0)[:4])]),
    "rows without values": (ShapeMismatch, [block(2, indices=ids(0))]),
    "fewer values than rows": (ShapeMismatch, [block(2, data=ROW, indices=ids(0, 1))]),
    "rows of a scalar": (ShapeMismatch, [block(3, data=bytes(4), indices=ids(0))]),
    "rows after a page": (InvalidInput, [block(2, data=bytes(40)), block(2, data=ROW, indices=ids(0))]),
    "an encoding that is none": (InvalidInput, [encoded(9, bytes(40))]),
    "an encoding far off": (InvalidInput, [encoded(-1, bytes(40))]),
    "float16, too long": (ShapeMismatch, [encoded(pb.ENCODING_FLOAT16, bytes(40))]),
    "bfloat16, too short": (ShapeMismatch, [encoded(pb.ENCODING_BFLOAT16, bytes(19))]),
    "int8 without scale": (ShapeMismatch, [encoded(pb.ENCODING_INT8, bytes(10))]),
    "signs without scale": (ShapeMismatch, [encoded(pb.ENCODING_SIGN, bytes(2))]),
    "signs, one byte short": (ShapeMismatch, [encoded(pb.ENCODING_SIGN, bytes(5))]),
    "top_k, half a pair": (ShapeMismatch, [encoded(pb.ENCODING_TOP_K, bytes(12))]),
    "top_k, beyond the page": (InvalidInput, [encoded(pb.ENCODING_TOP_K, bytes([10, 0, 0, 0]) + bytes(4))]),
    "top_k, the same twice": (InvalidInput, [encoded(pb.ENCODING_TOP_K, bytes(8) + bytes(8))]),
    "encoded rows": (InvalidInput, [encoded(pb.ENCODING_FLOAT16, bytes(4), indices=ids(0))]),
    "a page after rows": (InvalidInput, [block(2, data=ROW, indices=ids(0)), block(2, data=bytes(40))]),
}


SEQUENCES = itertools.count(100)


def still_usable(peer: RawPeer) -> None:
    """The same stream carries a good push."""
    (reply,) = peer.operation(PUSH, [block(2, data=bytes(40))], sequence=next(SEQUENCES))
    assert reply.answer.outcome == pb.OUTCOME_APPLIED


@pytest.mark.parametrize("name", BAD_GRADIENTS)
def test_bad_gradients(name: str, peers: Peers) -> None:
    # claim 11
    kind, blocks = BAD_GRADIENTS[name]
    good = block(3, data=bytes(4))
    peer, observer = peers
    with refused(observer, kind):
        peer.operation(PUSH, blocks, sequence=1)
    if name != "rows of a scalar":  # which is the same variable
        with refused(observer, kind):  # a good block before it makes no difference
            peer.operation(PUSH, [good, *blocks] if blocks[-1].partition != 3 else [*blocks], sequence=1)
    with refused(observer, kind):  # nor does it when the rest is still to come
        peer.say(
            pb.Request(header=pb.Header(operation=PUSH, sequence=1), blocks=blocks),
            *(pb.Request() for _ in range(10)),
            pb.Request(last=True),
        )
    still_usable(peer)


@pytest.mark.parametrize("name", [*BAD_BLOCKS, "rows", "made smaller"])
def test_bad_values_to_assign(name: str, peers: Peers) -> None:
    # claim 11
    others = {
        "rows": (InvalidInput, [block(2, data=ROW, indices=ids(1))]),
        "made smaller": (InvalidInput, [encoded(pb.ENCODING_FLOAT16, bytes(20))]),  # values are exact
    }
    kind, blocks = (BAD_BLOCKS | others)[name]
    peer, observer = peers
    with refused(observer, kind):
        peer.operation(ASSIGN, blocks)
    still_usable(peer)


BAD_PULLS: dict[str, tuple[type[ParameterServerError], dict[str, Any], list[pb.Block]]] = {
    "partition id": (UnknownVariable, {"partitions": [4]}, []),
    "good and bad partition id": (UnknownVariable, {"partitions": [0, 2**32 - 1]}, []),
    "rows of no partition": (UnknownVariable, {"by_rows": True}, [block(4, indices=ids(0))]),
    "row out of range": (RowOutOfRange, {"by_rows": True}, [block(2, indices=ids(5))]),
    "negative row": (RowOutOfRange, {"by_rows": True}, [block(2, indices=ids(-1))]),
    "rows of a scalar": (ShapeMismatch, {"by_rows": True}, [block(3, indices=ids(0))]),
    "half an index": (InvalidInput, {"by_rows": True}, [block(2, indices=ids(0)[:3])]),
}


@pytest.mark.parametrize("name", BAD_PULLS)
def test_bad_pulls(name: str, peers: Peers) -> None:
    # claim 11
    kind, header, blocks = BAD_PULLS[name]
    peer, observer = peers
    with refused(observer, kind):
        peer.operation(PULL, blocks, **header)
    still_usable(peer)


def test_nan_reaches_no_shard_that_guards() -> None:
    # claim 11
    bad = np.array([[np.nan, 0]] * 5, np.float32).tobytes()
    with raw(guard=True) as (peer, observer):
        for blocks in ([block(2, data=bad)], [block(2, data=bad[:8], indices=ids(3))]):
            with refused(observer, NonFiniteGradient, "row"):
                peer.operation(PUSH, blocks, sequence=1)
        still_usable(peer)


def test_headers_that_cannot_be() -> None:
    # claim 11
    one = [block(2, data=bytes(40))]
    with raw() as (peer, observer):
        cases: list[tuple[type[ParameterServerError], Callable[[], Any]]] = [
            (NotJoined, lambda: peer.say(pb.Request(blocks=one, last=True))),  # no header, and no session was said yet
            (NotJoined, lambda: peer.operation(PUSH, one, sequence=1, session="unknown")),
            (InvalidInput, lambda: peer.operation(pb.OPERATION_UNSPECIFIED, one)),
            (InvalidInput, lambda: peer.operation(17, one)),  # type: ignore[arg-type]
            (InvalidInput, lambda: peer.say(pb.Request(blocks=one, last=True))),  # no header: no operation
            (InvalidVersion, lambda: peer.operation(PUSH, one, sequence=1, version=1)),
            (InvalidVersion, lambda: peer.operation(PUSH, one, sequence=1, version=2**64 - 1)),
            (InvalidInput, lambda: peer.operation(PUSH, one, sequence=1, seat=9)),
            (InvalidInput, lambda: peer.operation(PUSH, one)),  # no sequence
        ]
        for kind, call in cases:
            with refused(observer, kind):
                call()
        still_usable(peer)


def test_every_push_that_a_ps_refuses_is_counted_once_whatever_for() -> None:
    # claim 3: at the header, at a block, at the end of the blocks, or by the shard.
    one = [block(2, data=bytes(40))]
    nan = [block(2, data=np.full((5, 2), np.nan, np.float32).tobytes())]
    headers = [{"seat": 9}, {"session": "unknown"}, {"partitions": [4]}, {"version": 1}, {"sequence": 0}]
    wrong = [(blocks, {}) for _, blocks in BAD_GRADIENTS.values()] + [(nan, {})] + [(one, header) for header in headers]
    with raw(guard=True) as (peer, observer):
        for operation in (PUSH, pb.OPERATION_PUSH_PULL):
            for blocks, header in wrong:
                before = observer.status()["ps"][0]["counters"]
                with pytest.raises(ParameterServerError):
                    peer.operation(operation, blocks, **{"sequence": 1, **header})
                assert observer.status()["ps"][0]["counters"] == before | {"refused": before["refused"] + 1}
        for operation in (PULL, ASSIGN):  # what is refused of these is no push
            before = observer.status()["ps"][0]["counters"]
            with pytest.raises(ParameterServerError):
                peer.operation(operation, [block(4, data=ROW)])
            assert observer.status()["ps"][0]["counters"] == before


def test_a_session_that_left_is_unknown() -> None:
    # claim 11
    with raw() as (peer, observer):
        peer.call("Leave", pb.LeaveRequest(session=peer.session))
        with refused(observer, NotJoined):
            peer.operation(PUSH, [block(2, data=bytes(40))], sequence=2)
        with refused(observer, NotJoined):
            peer.call("Leave", pb.LeaveRequest(session=peer.session))


def test_an_observer_that_pushes_all_the_same() -> None:
    # claim 11
    with raw(worker=None) as (peer, observer):
        for operation in (PUSH, pb.OPERATION_PUSH_PULL, ASSIGN):
            with refused(observer, ReadOnly):
                peer.operation(operation, [block(2, data=bytes(40))], sequence=1)
        replies = peer.operation(PULL, partitions=[2])
        assert replies[-1].answer.version == 0


def test_before_init_everything_is_refused() -> None:
    # claim 11
    with raw(init=False) as (peer, observer):
        for operation in (PUSH, PULL, pb.OPERATION_PUSH_PULL, ASSIGN):
            with refused(observer, NotInitialized):
                peer.operation(operation, [block(2, data=bytes(40))], sequence=1)


def spec(name: str, dtype: str, shape: Sequence[int], trainable: bool = True) -> pb.VariableSpec:
    return pb.VariableSpec(name=name, dtype=dtype, shape=shape, trainable=trainable)


def part(start: int = 0, stop: int = 2, dtype: str = "float32", shape: Sequence[int] = (2,)) -> pb.PartitionSpec:
    return pb.PartitionSpec(variable=spec("w", dtype, shape), start=start, stop=stop)


BAD_INITS: dict[str, tuple[type[ParameterServerError], list[pb.PartitionSpec], list[pb.Block]]] = {
    "no values": (ShapeMismatch, [part()], []),
    "values of another size": (ShapeMismatch, [part()], [block(0, data=bytes(4))]),
    "values for nothing": (UnknownVariable, [part()], [block(0, data=bytes(8)), block(1, data=bytes(8))]),
    "unknown dtype": (DtypeMismatch, [part(dtype="float8")], [block(0, data=bytes(2))]),
    "a type to be evaluated": (DtypeMismatch, [part(dtype="object")], [block(0, data=bytes(16))]),
    "trainable integers": (DtypeMismatch, [part(dtype="int32")], [block(0, data=bytes(8))]),
    "rows beyond the end": (ShapeMismatch, [part(stop=3)], [block(0, data=bytes(12))]),
    "rows backwards": (ShapeMismatch, [part(start=2, stop=1)], []),
    "more than any memory": (ShapeMismatch, [part(stop=2**61, shape=(2**61,))], [block(0, data=bytes(PAGE_BYTES))]),
    "more than any number": (ShapeMismatch, [part(stop=2**63, shape=(2**63, 2**63))], []),
}


@pytest.mark.parametrize("name", BAD_INITS)
def test_bad_inits(name: str) -> None:
    # claim 11
    kind, table, blocks = BAD_INITS[name]
    with raw(init=False) as (peer, observer):
        request = pb.BeginInitRequest(session=peer.session, variables=[spec("w", "float32", (2,))])
        grant = peer.call("BeginInit", request)
        with refused(observer, kind):
            peer.operation(INIT, blocks, table=table, grant=grant.grant)
        with refused(observer, InitConflict):  # nobody was granted this
            peer.operation(INIT, [block(0, data=bytes(8))], table=[part()], grant=0)
        (reply,) = peer.operation(INIT, [block(0, data=bytes(8))], table=[part()], grant=grant.grant)
        assert reply.answer.version == 0
        assert list(observer.pull()) == ["w"]
        with refused(observer, InitConflict):  # another has been here
            peer.operation(INIT, [block(0, data=bytes(8))], table=[part()], grant=0)


def test_a_second_init_after_updates_is_refused_whatever_its_grant() -> None:
    # claim 11
    with raw() as (peer, observer):
        still_usable(peer)
        with refused(observer, InitConflict):
            peer.operation(INIT, [block(0, data=bytes(8))], table=[part()], grant=1000)


def test_join_of_somebody_else(peers: Peers) -> None:
    # claim 11
    peer, observer = peers
    wrong: list[tuple[type[ParameterServerError], dict[str, Any], str]] = [
        (ProtocolMismatch, {"protocol_version": 0}, "client 0"),
        (ProtocolMismatch, {"protocol_version": 99}, "client 99"),
        (ClusterError, {"ps_index": 1}, "ps 1 of 1"),
        (ClusterError, {"num_ps": 7}, "ps 0 of 7"),
        (ClusterError, {"num_workers": 7}, "7 workers"),
        (ClusterError, {"worker": 2}, "2"),
    ]
    for kind, fields, mention in wrong:
        request = pb.JoinRequest()
        request.CopyFrom(peer.join_request)
        request.session = "another"
        for field, value in fields.items():
            setattr(request, field, value)
        with refused(observer, kind, mention):
            peer.call_stream("Join", request)


def test_garbage_instead_of_messages(peers: Peers) -> None:
    """Bytes that are no message end their own call; the ps and everybody else go on."""
    # claim 9
    peer, observer = peers
    before = everything(observer)
    with pytest.raises(InternalError):
        peer.call_bytes("Describe", b"\xff" * 100)
    with pytest.raises(ParameterServerError):
        peer.call_bytes("Exchange", b"cos\nsystem\n(S'true'\ntR.")
    assert everything(observer) == before
    still_usable(peer)
