"""What is done about a peer that says nothing, and what does a stream hold that has nothing to say?

Keepalive on both sides, calls tried again over a broken connection, observers that are read to, streams at rest.
"""

from __future__ import annotations

import contextlib
import gc
import threading
import weakref
from collections.abc import Iterator
from typing import Any
from unittest import mock

import grpc
import numpy as np
import pytest

import client
import ps
from client.transport import Peer
from protos import parameter_server_pb2 as pb
from protos.errors import InvalidVersion, PeerUnavailable, WaitTimeout
from ps import exchange
from tests.harness.proxy import Proxy
from tests.harness.raw import RawPeer
from tests.harness.threads import Task, until

ZEROS = {"w": np.zeros(3)}
ONES = {"w": np.ones(3)}
BIG = {"w": np.zeros(1 << 21, np.float32)}  # 8 MiB: more than fits in a connection that is not read from


# -- keepalive -----------------------------------------------------------------------------------------------------------


def test_both_sides_ask_whether_the_other_is_alive_and_neither_minds_being_asked() -> None:
    # claim 4. That it works is in tests/system/test_stopping.py: a frozen worker is lost.
    with (
        mock.patch.object(grpc.aio, "server", wraps=grpc.aio.server) as serve,
        mock.patch.object(grpc, "insecure_channel", wraps=grpc.insecure_channel) as connect,
        ps.LocalCluster(1, rule="sgd") as local,
        client.connect(local.cluster, worker=0),
    ):
        served = dict(serve.call_args.kwargs["options"])
        called = dict(connect.call_args.kwargs["options"])
    for options in (served, called):
        assert 0 < options["grpc.keepalive_time_ms"] <= 5_000
        assert 0 < options["grpc.keepalive_timeout_ms"] <= 10_000
        assert (
            0 < options["grpc.http2.ping_timeout_ms"] <= 10_000
        )  # which is what ends the connection in newer versions
        assert options["grpc.keepalive_permit_without_calls"] == 1
        assert options["grpc.http2.max_pings_without_data"] == 0  # no limit: a barrier may be silent for long
    # Who is asked more often than this ends the connection.
    assert served["grpc.http2.min_recv_ping_interval_without_data_ms"] < called["grpc.keepalive_time_ms"]
    assert called["grpc.http2.min_ping_interval_without_data_ms"] < called["grpc.keepalive_time_ms"]


# -- a connection that breaks ---------------------------------------------------------------------------


@pytest.fixture
def broke(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when a unary call has failed because its connection broke."""
    call, event = Peer.call, threading.Event()

    def watched(self: Peer, *args: Any, **options: Any) -> Any:
        try:
            return call(self, *args, **options)
        except PeerUnavailable:
            event.set()
            raise

    monkeypatch.setattr(Peer, "call", watched)
    return event


@pytest.mark.parametrize("doing", ["leave", "status"])
def test_leave_and_status_are_tried_again(broke: threading.Event, doing: str) -> None:
    # claim 4
    with ps.LocalCluster(1, rule="sgd") as local, Proxy(local.cluster["ps"][0]) as proxy:
        server = client.connect({**local.cluster, "ps": [proxy.address]}, worker=0, retry_budget_s=30)
        with client.connect(local.cluster, observer=True) as observer:
            proxy.refuse()
            call = Task(getattr(server, doing))
            assert broke.wait(30)
            proxy.resume()
            call.result()
            state = "left" if doing == "leave" else "active"
            assert observer.status()["workers"][0]["state"] == state
        server.leave()


# -- a push that was applied, and whose answer is an error ---------------------------------------------------------------


def test_a_push_pull_whose_pull_waits_in_vain_says_its_sequence_and_is_not_applied_twice() -> None:
    # claim 2
    with (
        ps.LocalCluster(1, "ssp", workers=2, slack=0, rule="sgd:learning_rate=1") as local,
        client.connect(local.cluster, worker=0) as zero,
        client.connect(local.cluster, worker=1) as one,
    ):
        zero.init(ZEROS)
        with pytest.raises(WaitTimeout) as caught:
            zero.push_pull(ONES, wait_timeout_s=0.2)
        assert caught.value.sequence == 1
        again = zero.push(ONES, sequence=caught.value.sequence)
        assert (again.outcome, again.duplicate) == ("applied", True)
        one.push({})
        np.testing.assert_array_equal(zero.pull()["w"], -1)


# -- observers ---------------------------------------------------------------------------


def test_an_observer_takes_what_is_there_where_shards_are_of_different_versions() -> None:
    # claim 4: nobody waits for an observer, so it might wait for one version for ever.
    with ps.LocalCluster(2, "sync", workers=1, rule="sgd") as local:
        with client.connect(local.cluster, worker=0) as server:
            server.init(ZEROS)
        with (
            RawPeer(local.cluster["ps"][0], worker=0, num_ps=2) as half,  # steps on ps 0 only
            client.connect(local.cluster, observer=True) as observer,
        ):
            half.operation(pb.OPERATION_PUSH, sequence=1, version=0)
            assert observer.pull(wait_timeout_s=0.2).version == (1, 0)


def test_a_ps_knows_while_an_observer_is_reading() -> None:
    with (
        ps.LocalCluster(1, rule="sgd") as local,
        Proxy(local.cluster["ps"][0]) as proxy,
        client.connect(local.cluster, worker=0) as server,
        client.connect({**local.cluster, "ps": [proxy.address]}, observer=True) as observer,
    ):
        shard = local._servers[0].shard
        server.init(BIG)
        observer.status()
        proxy.hold_after("down", 1 << 16, "down")
        pull = Task(observer.pull)
        until(lambda: server.status() and shard.observers_reading == 1)
        server.pull()  # a worker is none
        assert shard.observers_reading == 1
        proxy.resume()
        pull.result()
        until(lambda: server.status() and shard.observers_reading == 0)


# -- streams at rest ---------------------------------------------------------------------------


@contextlib.contextmanager
def intakes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[weakref.ref[Any]]]:
    """Every Intake that is made in the block."""
    made: list[weakref.ref[Any]] = []
    intake = exchange.Intake

    def watched(*args: Any, **options: Any) -> Any:
        new = intake(*args, **options)
        made.append(weakref.ref(new))
        return new

    with monkeypatch.context() as patch:
        patch.setattr(exchange, "Intake", watched)
        yield made


@pytest.mark.parametrize("fate", ["taken", "refused"])
def test_a_stream_at_rest_holds_no_gradient(monkeypatch: pytest.MonkeyPatch, fate: str) -> None:
    with (
        ps.LocalCluster(1, rule="sgd") as local,
        client.connect(local.cluster, worker=0) as server,
        intakes(monkeypatch) as made,
    ):
        server.init(ZEROS)
        if fate == "taken":
            server.push(ONES)
        else:
            with pytest.raises(InvalidVersion):
                server.push(ONES, version=(99,))
        assert len(made) >= 2
        until(lambda: (server.status(), gc.collect(), not any(intake() for intake in made))[-1], timeout_s=20)
