"""Does every wait end, and does its error say who or what was missing? Workers, ps, addresses, by name.

Waits here are tenths of a second; nothing is asserted about how long they take, only that they end and what they say.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import numpy as np
import pytest

import client
import client.fanout
import ps
from protos.errors import NotJoined, ParameterServerError, PeerUnavailable, ServerStopping, WaitTimeout
from tests.harness.proxy import Proxy
from tests.harness.threads import Task, together, until

START = {"w": np.zeros(3)}
ONE = {"w": np.ones(3)}
SHORT_S = 0.3


@contextlib.contextmanager
def two_of_three(
    mode: str, servers: int = 1, **options: int
) -> Iterator[tuple[ps.LocalCluster, client.Client, client.Client]]:
    """Workers 0 and 1 of three are there; worker 0 has no patience."""
    with (
        ps.LocalCluster(servers, mode, workers=3, rule="sgd", **options) as local,
        client.connect(local.cluster, worker=0, wait_timeout_s=SHORT_S) as zero,
        client.connect(local.cluster, worker=1) as one,
    ):
        zero.init(START)
        yield local, zero, one


@pytest.mark.parametrize("call", ["pull", "push_pull"])
@pytest.mark.parametrize("mode", ["sync", "ssp"])
def test_a_barrier_names_the_workers_that_are_missing(mode: str, call: str) -> None:
    # claim 4
    with two_of_three(mode) as (local, zero, one):
        if call == "pull":
            zero.push(ONE)
        with pytest.raises(WaitTimeout) as caught:
            zero.pull() if call == "pull" else zero.push_pull(ONE)
        message = str(caught.value)
        assert "0.3 s" in message
        assert "worker 1 (" in message
        assert "pid" in message
        assert "worker 2 (never joined)" in message
        assert f"ps 0 ({local.cluster['ps'][0]})" in message
        assert (caught.value.ps, caught.value.address) == (0, local.cluster["ps"][0])
        one.push(ONE)
        with pytest.raises(WaitTimeout, match="never joined") as caught:
            zero.pull()
        assert "worker 1" not in str(caught.value)  # which is not what is missing now
        with client.connect(local.cluster, worker=2) as two:
            pull = Task(lambda: zero.pull(wait_timeout_s=30))
            two.push(ONE)
            # A wait that ended in vain did no harm. In ssp a newcomer starts level with the slowest: it need not push first.
            assert pull.result().step in ((1,) if mode == "sync" else (2, 3))


def test_a_wait_may_be_given_with_the_call() -> None:
    # claim 4
    with two_of_three("sync") as (_, _zero, one), pytest.raises(WaitTimeout, match=r"0\.2 s"):
        one.push_pull(ONE, wait_timeout_s=0.2)


def test_a_worker_whose_connection_is_gone_is_named_as_such() -> None:
    # claim 4
    with (
        ps.LocalCluster(1, "sync", workers=2, rule="sgd") as local,
        Proxy(local.cluster["ps"][0]) as proxy,
        client.connect(local.cluster, worker=0, wait_timeout_s=SHORT_S) as zero,
    ):
        one = client.connect({**local.cluster, "ps": [proxy.address]}, worker=1, wait_timeout_s=5)
        zero.init(START)
        zero.push(ONE)
        proxy.hold()
        proxy.cut()
        until(lambda: "connection lost" in _timeout(zero))
        proxy.resume()
        one.leave()
        assert zero.pull().step == 1


def _timeout(server: client.Client) -> str:
    with pytest.raises(WaitTimeout) as caught:
        server.pull()
    return str(caught.value)


def test_init_that_waits_for_another_names_whom_it_waits_for() -> None:
    """With a chief, only worker 0 initialises. It never comes."""
    # claim 4
    with ps.LocalCluster(1, workers=2, rule="sgd") as local:
        with_chief = {"ps": local.cluster["ps"], "chief": ["chief.local:1"], "worker": ["worker.local:1"]}
        with client.connect(with_chief, worker=1, wait_timeout_s=SHORT_S) as one:
            with pytest.raises(WaitTimeout, match=r"worker 0 \(never joined\)") as caught:
                one.init(START)
            assert caught.value.address == local.cluster["ps"][0]
            with client.connect(with_chief, worker=0) as chief:
                assert chief.init(START) is True
            assert one.init(START) is False


@contextlib.contextmanager
def silent() -> Iterator[str]:
    """An address that accepts connections and never says anything."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def test_a_ps_that_accepts_and_never_answers() -> None:
    # claim 4
    with silent() as address, pytest.raises(PeerUnavailable) as caught:
        client.connect({"ps": [address], "worker": ["w:1"]}, worker=0, connect_timeout_s=SHORT_S)
    assert (caught.value.ps, caught.value.address) == (0, address)
    assert "0.3 s" in str(caught.value)


def test_a_ps_that_is_not_up() -> None:
    # claim 4
    with socket.create_server(("127.0.0.1", 0)) as listener:
        nobody = f"127.0.0.1:{listener.getsockname()[1]}"
    with ps.LocalCluster() as local:
        local._servers[0].shard.membership.num_ps = 2  # or the one that is up would say that it is alone
        cluster = {"ps": [local.cluster["ps"][0], nobody], "worker": ["w:1"]}
        with pytest.raises(PeerUnavailable) as caught:
            client.connect(cluster, worker=0, connect_timeout_s=SHORT_S)
    assert (caught.value.ps, caught.value.address) == (1, nobody)
    assert nobody in str(caught.value)


@pytest.mark.parametrize("call", ["push", "pull", "push_pull", "assign", "status", "leave"])
def test_a_ps_that_falls_silent(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection stays, nothing comes any more: stopped, or its host is stuck."""
    # claim 4
    monkeypatch.setattr(client.fanout, "MARGIN_S", 0.1)
    with ps.LocalCluster(2, "async", rule="sgd") as local, Proxy(local.cluster["ps"][1]) as proxy:
        cluster = {**local.cluster, "ps": [local.cluster["ps"][0], proxy.address]}
        server = client.connect(cluster, worker=0, wait_timeout_s=SHORT_S)
        server.init(START)
        calls = {
            "push": lambda: server.push(ONE),
            "pull": server.pull,
            "push_pull": lambda: server.push_pull(ONE),
            "assign": lambda: server.assign(ONE),
            "status": server.status,
            "leave": server.leave,
        }
        proxy.hold()
        with pytest.raises(ParameterServerError) as caught:
            calls[call]()
        error = caught.value
        error = getattr(error, "refused", {}).get(1, error)  # a push says who refused
        assert type(error) is WaitTimeout
        assert (error.ps, error.address) == (1, proxy.address)
        proxy.resume()
        if call != "leave":
            server.leave()


def test_a_pull_under_way_when_its_client_leaves() -> None:
    # claim 4
    for _ in range(10):  # a race: the answer against the end of the connection
        with two_of_three("sync") as (_local, _zero, one):
            one.push(ONE)
            pull = Task(one.pull)
            until(lambda: _zero.status()["workers"][1]["waiting_for"])
            one.leave()
            pull.error(NotJoined)


def test_everybody_who_waits_is_told_when_the_ps_stops() -> None:
    # claim 4
    with two_of_three("sync", servers=2) as (local, zero, one):
        zero.push(ONE)
        pulls = [Task(lambda: zero.pull(wait_timeout_s=60)), Task(lambda: one.push_pull(ONE))]
        until(lambda: _all_waiting(zero, 2))
        local.stop("enough for today")
        for pull in pulls:
            assert "enough for today" in str(pull.error(ServerStopping))
        for call in (zero.pull, lambda: zero.push(ONE)):
            with pytest.raises(ServerStopping, match="enough for today"):
                call()


def _all_waiting(server: client.Client, count: int) -> bool:
    return all(
        sum(bool(worker["waiting_for"]) for worker in each["workers"]) == count for each in server.status()["ps"]
    )


def test_many_workers_at_one_barrier_do_not_block_the_last() -> None:
    workers = 40
    with ps.LocalCluster(1, "sync", workers=workers, rule="sgd:learning_rate=1") as local:
        clients = together([lambda w=w: client.connect(local.cluster, worker=w) for w in range(workers)])
        clients[0].init(START)
        results = together([lambda s=s: s.push_pull(ONE) for s in clients])
        assert all(result.outcome == "applied" and values.step == 1 for values, result in results)
        together([server.leave for server in clients])
