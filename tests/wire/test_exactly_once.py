"""What if the connection breaks while a push is under way? It is tried again, and applied once.

A proxy stands between client and ps (tests/harness/proxy.py) and breaks the connection at the worst moments: before the
push has arrived as a whole, and after it was applied but before the answer came back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import client
import ps
from protos import parameter_server_pb2 as pb
from protos.errors import NotJoined, PeerUnavailable, PushFailed
from tests.harness.proxy import Proxy
from tests.harness.raw import RawPeer
from tests.harness.state import counters_add_up
from tests.harness.threads import Task, until

# 8 MiB: many messages, so that a cut after 4 MiB is in the middle of a push.
BIG = np.zeros(1 << 21, np.float32)
# Fits in the window that HTTP/2 grants at first: arrives as a whole though nothing comes back.
SMALL = np.zeros(1000, np.float32)
ONE = {"w": np.ones_like(SMALL)}


@contextlib.contextmanager
def behind_proxy(
    mode: str = "async",
    workers: int = 1,
    servers: int = 1,
    lease_s: float = 10.0,
    retry_budget_s: float = 30.0,
    start: Any = SMALL,
) -> Iterator[tuple[ps.LocalCluster, Proxy, client.Client]]:
    """Worker 0 reaches the last ps through a proxy; everybody else goes there directly."""
    with (
        ps.LocalCluster(servers, mode, workers, rule="sgd:learning_rate=1", lease_s=lease_s) as local,
        Proxy(local.cluster["ps"][-1]) as proxy,
    ):
        cluster = {**local.cluster, "ps": [*local.cluster["ps"][:-1], proxy.address]}
        with client.connect(
            cluster, worker=0, retry_budget_s=retry_budget_s, wait_timeout_s=20, shared_memory=False
        ) as server:
            server.init({"w": start}, partitioner=client.FixedShardsPartitioner(servers))
            server.pull()
            yield local, proxy, server


def counters(server: client.Client, ps: int = -1) -> dict[str, int]:
    found: dict[str, int] = server.status()["ps"][ps]["counters"]
    return found


@pytest.mark.parametrize("call", ["push", "push_pull"])
def test_cut_before_the_push_has_arrived(call: str) -> None:
    # claim 2
    with behind_proxy(start=BIG) as (local, proxy, server):
        proxy.cut_after("up", 4 << 20)
        result = (
            server.push({"w": np.ones_like(BIG)}) if call == "push" else server.push_pull({"w": np.ones_like(BIG)})[1]
        )
        proxy.wait_until_cut("up")
        assert (result.outcome, result.duplicate, result.version) == ("applied", False, (1,))
        assert proxy.connections == 2
        np.testing.assert_array_equal(server.pull()["w"], -1)
        assert (counters(server)["applied"], counters(server)["duplicate"]) == (1, 0)
        joins = [event for event in local.stories()[0] if event.kind in ("join", "lost")]
        assert [event.generation for event in joins] == [1]  # the same session, not a second process


@pytest.mark.parametrize("call", ["push", "push_pull"])
def test_cut_after_it_was_applied_and_before_the_answer(call: str) -> None:
    # claim 2
    with behind_proxy() as (local, proxy, server), client.connect(local.cluster, observer=True) as observer:
        proxy.hold("down")
        push = Task(lambda: server.push(ONE) if call == "push" else server.push_pull(ONE)[1])
        until(lambda: observer.status()["step"] == 1)
        proxy.cut()
        proxy.resume()
        result = push.result()
        assert (result.outcome, result.duplicate, result.staleness, result.version) == ("applied", True, 0, (1,))
        np.testing.assert_array_equal(server.pull()["w"], -1)
        assert (counters(server)["applied"], counters(server)["duplicate"]) == (1, 1)
        assert counters_add_up(server.status())  # claim 3


def test_cut_in_the_middle_of_a_pull() -> None:
    with behind_proxy(start=BIG) as (_, proxy, server):
        server.push({"w": np.ones_like(BIG)})
        proxy.cut_after("down", 4 << 20)
        values = server.pull()
        proxy.wait_until_cut("down")
        np.testing.assert_array_equal(values["w"], -1)
        assert values.version == (1,)


@pytest.mark.parametrize("servers", [1, 2])
def test_cut_while_a_push_waits_for_the_others(servers: int) -> None:
    """Buffered in sync mode, then the connection breaks: the gradient is in the step once, and the wait goes on."""
    # claim 2
    with (
        behind_proxy("sync", workers=2, servers=servers) as (local, proxy, server),
        client.connect(local.cluster, worker=1) as other,
    ):
        other.pull()
        push = Task(lambda: server.push_pull(ONE))
        until(lambda: other.status()["ps"][-1]["workers"][0]["waiting_for"])
        proxy.cut()
        if servers == 1:  # it waits again; with two it still waits for the answer of the other ps
            until(lambda: proxy.connections == 2 and other.status()["ps"][0]["workers"][0]["waiting_for"])
        other.push({"w": 3 * np.ones_like(SMALL)})
        values, result = push.result()
        assert (result.outcome, values.version) == ("applied", (1,) * servers)
        np.testing.assert_array_equal(values["w"], -2)
        assert counters(other)["applied"] == 2


def test_cut_in_the_middle_of_init() -> None:
    with ps.LocalCluster(servers=2) as local, Proxy(local.cluster["ps"][0]) as proxy:
        start = {"w": np.arange(1 << 20, dtype=np.float32), "v": np.arange(1 << 20, dtype=np.float32)}
        with client.connect({**local.cluster, "ps": [proxy.address, local.cluster["ps"][1]]}, worker=0) as server:
            proxy.cut_after("up", 1 << 20)
            server.init(start, rule="sgd")
            proxy.wait_until_cut("up")
            for name, value in server.pull().items():
                np.testing.assert_array_equal(value, start[name])


def test_cut_after_init_was_taken_and_before_the_answer() -> None:
    with (
        ps.LocalCluster() as local,
        Proxy(local.cluster["ps"][0]) as proxy,
        client.connect({**local.cluster, "ps": [proxy.address]}, worker=0) as server,
        client.connect(local.cluster, observer=True) as observer,
    ):
        start = {"w": np.ones(10_000, np.float32)}
        # BeginInit must be answered, the values' answer must not: hold back once the values are on their way.
        proxy.hold_after("up", 20_000, "down")
        init = Task(lambda: server.init(start, rule="sgd"))
        until(lambda: observer.status()["ps"][0]["initialized"])
        proxy.cut()
        proxy.resume()
        assert init.result() is True
        np.testing.assert_array_equal(server.pull()["w"], 1)


def test_many_cuts_in_a_row() -> None:
    # claim 2
    pushes = 12
    with behind_proxy(start=BIG) as (_, proxy, server):
        for number in range(pushes):
            proxy.cut_after("up" if number % 2 else "down", 1 + number * 500_000)
            server.push_pull({"w": np.ones_like(BIG)})
        np.testing.assert_array_equal(server.pull()["w"], -pushes)
        assert counters(server)["applied"] == pushes
        assert counters_add_up(server.status())
        assert proxy.connections > 3


def test_counted_out_by_the_lease_and_back_again() -> None:
    """The answer is lost, and the connection stays away for longer than the lease. Even so: once."""
    # claim 2
    with behind_proxy(lease_s=0.2) as (local, proxy, server), client.connect(local.cluster, observer=True) as observer:
        proxy.hold("down")
        push = Task(lambda: server.push(ONE))
        until(lambda: observer.status()["step"] == 1)
        proxy.refuse()
        until(lambda: observer.status()["workers"][0]["state"] == "lost")
        proxy.resume()
        result = push.result()
        assert (result.outcome, result.duplicate) == ("applied", True)
        np.testing.assert_array_equal(observer.pull()["w"], -1)
        assert observer.status()["workers"][0]["state"] == "active"
        assert server.push_pull(ONE)[1].step == 2


def test_an_idle_connection_that_breaks_is_taken_up_again_before_it_is_missed() -> None:
    """A worker that computes for long makes no call. Its session is kept all the same, or a barrier would go on without it."""
    # claim 5
    with (
        behind_proxy("sync", workers=2, servers=2) as (local, proxy, server),
        client.connect(local.cluster, worker=1) as other,
    ):
        other.pull()
        proxy.cut()
        until(lambda: proxy.connections == 2 and other.status()["ps"][1]["workers"][0]["state"] == "active")
        assert other.push({"w": 3 * np.ones_like(SMALL)}).outcome == "buffered"
        result = server.push(ONE)
        assert (result.outcome, result.version) == ("applied", (1, 1))
        np.testing.assert_array_equal(other.pull()["w"], -2)
    for story in local.stories():
        assert [event.kind for event in story if event.worker == 0] == ["join", "init", "push", "leave"]


def test_one_ps_out_of_reach_names_it_and_says_how_to_go_on() -> None:
    """The budget is spent: the push fails as a whole, names ps and address, and can be sent again."""
    # claim 4, claim 12
    with (
        behind_proxy(servers=2, retry_budget_s=0.2) as (local, proxy, server),
        client.connect(local.cluster, observer=True) as observer,
    ):
        proxy.refuse()
        with pytest.raises(PushFailed) as caught:
            server.push(ONE)
        failed = caught.value
        assert list(failed.refused) == [1]
        reason = failed.refused[1]
        assert type(reason) is PeerUnavailable
        assert (reason.ps, reason.address) == (1, proxy.address)
        assert "ps 1" in str(failed)
        assert proxy.address in str(failed)
        assert observer.status()["version"] == [1, 0]
        proxy.resume()
        result = until(lambda: _push_or_none(server, failed.sequence))
        assert (result.outcome, result.version) == ("applied", (1, 1))
        np.testing.assert_array_equal(server.pull()["w"], -1)
        assert [each["counters"]["applied"] for each in observer.status()["ps"]] == [1, 1]


def test_no_ps_in_reach_is_said_so() -> None:
    # claim 4
    with (
        behind_proxy(retry_budget_s=0.2) as (local, proxy, server),
        client.connect(local.cluster, observer=True) as observer,
    ):
        proxy.refuse()
        for call in (
            lambda: server.push(ONE),
            server.pull,
            lambda: server.push_pull(ONE),
            lambda: server.assign(ONE),
        ):
            with pytest.raises(PeerUnavailable) as caught:
                call()
            assert (caught.value.ps, caught.value.address) == (0, proxy.address)
            assert "0.2 s" in str(caught.value)
            assert "broken" not in str(caught.value)  # but what broke it
        assert observer.status()["step"] == 0
        proxy.resume()
        assert until(lambda: _push_or_none(server)).version == (1,)  # grpc dials again after a second at the latest


OUTCOMES = pb.Outcome.Name


@contextlib.contextmanager
def raw_workers(mode: str, count: int) -> Iterator[tuple[list[RawPeer], client.Client]]:
    with contextlib.ExitStack() as stack:
        local = stack.enter_context(ps.LocalCluster(1, mode, count, rule="sgd:learning_rate=1"))
        peers = [
            stack.enter_context(RawPeer(local.cluster["ps"][0], worker=worker, num_workers=count))
            for worker in range(count)
        ]
        observer = stack.enter_context(client.connect(local.cluster, observer=True))
        grant = peers[0].call("BeginInit", pb.BeginInitRequest(session=peers[0].session))
        spec = pb.VariableSpec(name="w", dtype="float64", shape=[1], trainable=True)
        table = [pb.PartitionSpec(variable=spec, start=0, stop=1)]
        peers[0].operation(pb.OPERATION_INIT, [pb.Block(data=bytes(8))], table=table, grant=grant.grant)
        yield peers, observer


def push(peer: RawPeer, sequence: int, number: float, version: int = 0) -> tuple[str, str, int, int]:
    """Outcome, first outcome, staleness, version."""
    block = pb.Block(data=np.float64(number).tobytes())
    (reply,) = peer.operation(pb.OPERATION_PUSH, [block], sequence=sequence, version=version)
    answer = reply.answer
    short = [pb.Outcome.Name(outcome).removeprefix("OUTCOME_").lower() for outcome in (answer.outcome, answer.first)]
    return short[0], short[1], answer.staleness, answer.version


def test_sent_again_it_answers_what_the_first_answered_in_async() -> None:
    # claim 2, claim 3
    with raw_workers("async", 1) as ((peer,), observer):
        assert push(peer, 1, 1) == ("applied", "unspecified", 0, 1)
        assert push(peer, 2, 2) == ("applied", "unspecified", 1, 2)
        assert push(peer, 1, 1) == ("duplicate", "applied", 0, 1)
        assert push(peer, 2, 100) == ("duplicate", "applied", 1, 2)
        assert observer.pull()["w"] == -3
        assert counters(observer) | {"pulls": 0} == {
            "sent": 4, "applied": 2, "duplicate": 2, "buffered": 0, "stale": 0, "refused": 0, "pulls": 0
        }  # fmt: skip


def test_sent_again_it_answers_what_the_first_answered_in_sync() -> None:
    # claim 2, claim 3
    with raw_workers("sync", 2) as ((zero, one), observer):
        assert push(zero, 1, 1) == ("buffered", "unspecified", 0, 0)
        assert push(zero, 1, 1) == ("duplicate", "buffered", 0, 0)  # while it is buffered
        assert push(one, 1, 3) == ("applied", "unspecified", 0, 1)
        assert push(one, 1, 3) == ("duplicate", "applied", 0, 1)
        assert push(zero, 1, 1) == ("duplicate", "buffered", 0, 0)  # and when the step is over
        assert push(zero, 2, 100) == ("stale", "unspecified", 1, 1)
        assert push(zero, 2, 100) == ("duplicate", "stale", 1, 1)
        assert push(zero, 3, 1, version=1) == ("buffered", "unspecified", 0, 1)
        assert observer.pull()["w"] == -2
        found = counters(observer)
        assert [found[name] for name in ("sent", "applied", "buffered", "stale", "duplicate")] == [8, 2, 1, 1, 4]
        assert counters_add_up(observer.status())


def test_a_refused_sequence_is_free_for_a_push_that_is_right() -> None:
    # claim 2, claim 11
    with raw_workers("async", 1) as ((peer,), observer):
        with pytest.raises(Exception, match="version"):
            push(peer, 1, 1, version=7)
        assert push(peer, 1, 1) == ("applied", "unspecified", 0, 1)
        assert counters(observer)["refused"] == 1


def test_a_process_that_was_replaced_can_do_nothing_any_more() -> None:
    """Its connection broke and another process has its index: what it sends again is refused, not applied a second time."""
    # claim 2
    with (
        behind_proxy(retry_budget_s=1) as (local, proxy, server),
        client.connect(local.cluster, observer=True) as observer,
    ):
        proxy.hold("down")
        push = Task(lambda: server.push(ONE))
        until(lambda: observer.status()["step"] == 1)
        proxy.refuse()
        second = until(lambda: _connect_or_none(local))
        assert observer.status()["workers"][0]["generation"] == 2
        proxy.resume()
        push.error(NotJoined)
        with pytest.raises(NotJoined):
            server.pull()
        np.testing.assert_array_equal(second.pull()["w"], -1)
        second.leave()


def _push_or_none(server: client.Client, sequence: int | None = None) -> client.PushResult | None:
    with contextlib.suppress(PeerUnavailable, PushFailed):
        return server.push(ONE, sequence=sequence)
    return None


def _connect_or_none(local: ps.LocalCluster) -> client.Client | None:
    """The index is taken until the ps has seen that the connection is gone."""
    with contextlib.suppress(client.errors.WorkerIndexTaken):
        return client.connect(local.cluster, worker=0)
    return None
