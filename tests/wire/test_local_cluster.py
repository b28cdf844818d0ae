"""A cluster in one process, for lessons, tests and notebooks: does it come and go as often as one likes?"""

from __future__ import annotations

import threading

import numpy as np
import pytest

import client
import ps
from protos.errors import (
    ClusterError,
    ConfigurationConflict,
    NotInitialized,
    PeerUnavailable,
    RuleError,
    ServerStopping,
    Unavailable,
)
from tests.harness.threads import Task, until

W = {"w": np.zeros(2)}
ONE = {"w": np.ones(2)}


def test_a_worker_comes_back_after_it_left_and_its_generation_rises() -> None:
    with (
        ps.LocalCluster(2, "async", 2, rule="sgd:learning_rate=1") as local,
        client.connect(local.cluster, observer=True) as observer,
    ):
        for generation in range(1, 4):
            with client.connect(local.cluster, worker=0) as server:
                server.init(W)
                server.push(ONE)
                worker = observer.status()["workers"][0]
                assert (worker["state"], worker["generation"]) == ("active", generation)
            assert observer.status()["workers"][0]["state"] == "left"
        np.testing.assert_array_equal(observer.pull()["w"], -3)
    for story in local.stories():
        told = [
            (event.kind, event.generation) for event in story if event.worker == 0 and event.kind in ("join", "push")
        ]
        assert told == [(kind, generation) for generation in (1, 2, 3) for kind in ("join", "push")]


def test_two_clusters_at_once_know_nothing_of_each_other() -> None:
    with (
        ps.LocalCluster(2, "async", rule="sgd:learning_rate=1") as outer,
        ps.LocalCluster(1, "sync", 2) as inner,
        client.connect(outer.cluster, worker=0) as one,
        client.connect(inner.cluster, worker=0) as two,
    ):
        one.init(W)
        with pytest.raises(NotInitialized):
            two.pull()
        two.init({"v": np.ones(1)}, rule="adam")
        one.push(ONE)
        assert list(one.pull()) == ["w"]
        assert (one.mode, two.mode) == ("async", "sync")
        assert one.status()["run_id"] != two.status()["run_id"]
        with ps.LocalCluster(1) as third:
            assert third.cluster["ps"] != inner.cluster["ps"]
        assert two.pull().step == 0


def test_an_error_in_the_block_still_leaves_and_says_why() -> None:
    with ps.LocalCluster(2, "sync", 2, rule="sgd") as local, client.connect(local.cluster, worker=1) as other:

        def fail() -> None:
            with client.connect(local.cluster, worker=0) as server:
                server.init(W)
                1 / 0  # noqa: B018

        with pytest.raises(ZeroDivisionError, match="by zero"):
            fail()
        assert other.status()["workers"][0]["state"] == "left"
        assert other.push_pull(ONE)[1].outcome == "applied"  # the barrier has shrunk
    for story in local.stories():
        leaves = [event.reason for event in story if event.kind == "leave"]
        assert leaves == ["failed: ZeroDivisionError: division by zero", ""]


def test_stop_while_one_waits_and_afterwards() -> None:
    # claim 4
    with ps.LocalCluster(2, "sync", 2, rule="sgd") as local:
        server = client.connect(local.cluster, worker=0, connect_timeout_s=0.3, retry_budget_s=0.3)
        server.init(W)
        wait = Task(lambda: server.push_pull(ONE))
        with client.connect(local.cluster, observer=True) as observer:
            until(lambda: observer.status()["ps"][1]["workers"][0]["waiting_for"])
        local.stop("end of the lesson")
        assert "end of the lesson" in str(wait.error(ServerStopping))
        local.stop("again")  # does no harm
        with pytest.raises(Unavailable):
            server.pull()
        with pytest.raises(PeerUnavailable):
            client.connect(local.cluster, worker=1, connect_timeout_s=0.3)
        server.leave()  # there is nothing left to leave


def test_the_block_may_end_before_its_clients_have_left() -> None:
    with ps.LocalCluster(1, "async", rule="sgd") as local:
        server = client.connect(local.cluster, worker=0, connect_timeout_s=0.3, retry_budget_s=0.3)
        server.init(W)
    with pytest.raises(ServerStopping, match="closed"):
        server.pull()
    server.leave()


def test_nothing_is_left_behind() -> None:
    def ours() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if "local-cluster" in thread.name]

    before = ours()
    for _ in range(3):
        with ps.LocalCluster(3) as local:
            with client.connect(local.cluster, worker=0) as server:
                server.init(W, rule="sgd")
            assert len(ours()) == len(before) + 1  # one event loop for all ps
    assert ours() == before


def test_what_cannot_be_is_refused_at_once() -> None:
    with pytest.raises(RuleError, match="unheard_of"):
        ps.LocalCluster(rule="unheard_of")
    for options in ({"mode": "eventual"}, {"mode": "async", "slack": 1}, {"mode": "sync", "backup_workers": 1}):
        with pytest.raises(ConfigurationConflict), ps.LocalCluster(**options):  # type: ignore[arg-type]
            pass
    with ps.LocalCluster(2, workers=2) as local:
        for worker in (2, -1, True, "0", 0.0, None):
            with pytest.raises(ClusterError, match="worker"):
                client.connect(local.cluster, worker=worker)  # type: ignore[arg-type]
        with pytest.raises(ClusterError, match="ps 0 of 1"):
            client.connect({**local.cluster, "ps": local.cluster["ps"][:1]}, worker=0)
        with pytest.raises(ClusterError, match="ps 0 of 2"):
            client.connect({**local.cluster, "ps": local.cluster["ps"][::-1]}, worker=0)
        with pytest.raises(ClusterError, match="3 workers"):
            client.connect({**local.cluster, "worker": ["a:1", "b:1", "c:1"]}, worker=0)


def test_the_cluster_may_come_from_tf_config(monkeypatch: pytest.MonkeyPatch) -> None:
    import json

    with ps.LocalCluster(2, workers=2, rule="sgd") as local:
        config = {"cluster": local.cluster, "task": {"type": "worker", "index": 1}}
        monkeypatch.setenv("TF_CONFIG", json.dumps(config))
        with client.connect() as server:
            assert server.worker == 1
            server.init(W)
        with client.connect(config) as server:
            assert server.worker == 1
        monkeypatch.setenv("TF_CONFIG", json.dumps({**config, "task": {"type": "evaluator", "index": 0}}))
        with client.connect() as server:
            assert server.worker is None
            assert server.pull().step == 0
