"""A refused input changes nothing: versions, values, counters and clocks of every shard are as they were before.

The same over raw messages that no client of ours would send: test_raw.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import client
import ps
from protos.errors import (
    ConfigurationConflict,
    DtypeMismatch,
    InvalidInput,
    InvalidVersion,
    NonFiniteGradient,
    NotInitialized,
    NotJoined,
    NotTrainable,
    ReadOnly,
    RuleError,
    ShapeMismatch,
    UnknownVariable,
    WorkerIndexTaken,
    WrongRun,
)
from tests.harness.state import everything, refused

START = {"w": np.ones((4, 2), np.float32), "b": np.zeros(3, np.float64), "n": np.arange(3)}
GOOD = {"w": np.ones((4, 2), np.float32), "b": np.ones(3)}

Pair = tuple[client.Client, client.Client]


@contextlib.contextmanager
def pair(mode: str = "async", guard: bool = False, init: bool = True) -> Iterator[Pair]:
    """A worker and an observer of two ps; one push has been applied, so that there is something to lose."""
    with (
        ps.LocalCluster(servers=2, mode=mode, rule="momentum:learning_rate=1", guard_nonfinite=guard) as local,
        client.connect(local.cluster, worker=0) as server,
        client.connect(local.cluster, observer=True) as observer,
    ):
        if init:
            server.init(START, partitioner=client.FixedShardsPartitioner(2))
            server.push_pull(GOOD)
        yield server, observer


WRONG: list[tuple[str, type[Any], dict[str, Any], tuple[str, ...]]] = [
    ("unknown variable", UnknownVariable, {"x": np.ones(3)}, ("x", "b, n, w")),
    ("one good, one unknown", UnknownVariable, {**GOOD, "x": np.ones(3)}, ("x",)),
    ("wrong shape", ShapeMismatch, {"w": np.ones((2, 4), np.float32)}, ("w", "(2, 4)", "(4, 2)")),
    ("too long", ShapeMismatch, {**GOOD, "b": np.ones(4)}, ("b", "(4,)", "(3,)")),
    ("wrong rank", ShapeMismatch, {"w": np.ones(8, np.float32)}, ("w", "(8,)", "(4, 2)")),
    ("a scalar", ShapeMismatch, {"b": np.float64(1)}, ("b", "()", "(3,)")),
    ("wrong float", DtypeMismatch, {"w": np.ones((4, 2))}, ("w", "float64", "float32")),
    ("an integer", DtypeMismatch, {"b": np.ones(3, np.int64)}, ("b", "int64", "float64")),
    ("no number", DtypeMismatch, {"b": np.array(["a", "b", "c"])}, ("b",)),
]


@pytest.mark.parametrize("mode", ["async", "sync", "ssp"])
@pytest.mark.parametrize(("kind", "values", "mentions"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG])
def test_wrong_gradients_and_values(mode: str, kind: Any, values: Any, mentions: tuple[str, ...]) -> None:
    # claim 11
    with pair(mode) as (server, observer):
        for call in (server.push, server.push_pull, server.assign):
            with refused(observer, kind, *mentions):
                call(values)
        assert server.push_pull(GOOD)[1].outcome == "applied"  # the streams are usable, the session is alive


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("mode", ["async", "sync"])
def test_nan_and_inf_when_guarded(mode: str, bad: float) -> None:
    # claim 11
    gradients = {"w": GOOD["w"].copy(), "b": GOOD["b"].copy()}
    gradients["b"][1] = bad
    with pair(mode, guard=True) as (server, observer):
        for call in (server.push, server.push_pull):
            with refused(observer, NonFiniteGradient, "b", "1 of 3"):
                call(gradients)
        with refused(observer, NonFiniteGradient, "w", "2 of 2"):
            server.push({"w": client.IndexedSlices(np.full((1, 2), bad, np.float32), np.array([3]))})
        server.assign({"b": gradients["b"]})  # what is set by hand is not guarded
    with pair(mode, guard=False) as (server, _):
        assert server.push_pull(gradients)[1].outcome == "applied"  # as it would be in TensorFlow


@pytest.mark.parametrize(("name", "most"), [("w", np.finfo(np.float32).max), ("b", np.finfo(np.float64).max)])
def test_rows_that_overflow_only_together_reach_no_ps_that_guards(name: str, most: float) -> None:
    # claim 11, claim 12: one ps alone would have refused it, when the other had applied its part.
    rows = np.full((2, *START[name].shape[1:]), most, START[name].dtype)
    gradients = {**GOOD, name: client.IndexedSlices(rows, [0, 0])}
    with pair(guard=True) as (server, observer):
        for call in (server.push, server.push_pull):
            with refused(observer, NonFiniteGradient, name, "sums of repeated rows"):
                call(gradients)
        halves = client.IndexedSlices(rows / 2, [0, 0])
        assert server.push_pull({name: halves})[1].outcome == "applied"


def test_state_takes_no_gradient() -> None:
    # claim 11
    with pair() as (server, observer), refused(observer, NotTrainable, "n", "assign"):
        server.push({**GOOD, "n": np.arange(3)})


@pytest.mark.parametrize("mode", ["async", "sync", "ssp"])
def test_versions_that_cannot_be(mode: str) -> None:
    # claim 11
    with pair(mode) as (server, observer):
        for future in ((2, 2), (99, 99), (2**63, 2**63)):
            with refused(observer, InvalidVersion, str(future[0]), "at most 1"):
                server.push(GOOD, version=future)
        wrong: list[Any] = [(), (1,), (1, 1, 1), (-1, 1), (0.5, 1), 1, "11", ("1", "1"), (None, 1)]
        for version in wrong:
            with refused(observer, InvalidVersion, "one per ps"):
                server.push(GOOD, version=version)
        assert server.push_pull(GOOD, version=(1, 1))[1].outcome == "applied"


@pytest.mark.parametrize("bad", [-1, 0, 1.5, "1", 2**64])
def test_sequences_that_cannot_be(bad: Any) -> None:
    # claim 11
    with pair() as (server, observer), refused(observer, InvalidInput, "sequence"):
        server.push(GOOD, sequence=bad)


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf"), "soon"])
def test_waits_that_cannot_be(bad: Any) -> None:
    # claim 11
    with pair() as (server, observer):
        with refused(observer, InvalidInput, "wait_timeout_s"):
            server.pull(wait_timeout_s=bad)
        with refused(observer, InvalidInput, "wait_timeout_s"):
            server.push_pull(GOOD, wait_timeout_s=bad)


def test_before_init() -> None:
    # claim 11
    with pair(init=False) as (server, observer):
        calls = [
            server.pull,
            observer.pull,
            lambda: server.push(GOOD),
            lambda: server.push_pull(GOOD),
            lambda: server.assign(START),
            lambda: server.pull(["w"]),
            lambda: server.pull(rows={"w": [0]}),
        ]
        for call in calls:
            with refused(observer, NotInitialized, "ps 0", "init"):
                call()
        assert server.init(START) is True


def test_an_observer_only_reads() -> None:
    # claim 11
    with pair() as (_, observer):
        for name, call in {
            "push": lambda: observer.push(GOOD),
            "push_pull": lambda: observer.push_pull(GOOD),
            "assign": lambda: observer.assign(START),
            "init": lambda: observer.init(START),
        }.items():
            with refused(observer, ReadOnly, name.partition("_")[0]):
                call()
        assert observer.pull().step == 1
        assert observer.worker is None


def test_init_that_cannot_be_leaves_the_way_free() -> None:
    # claim 11
    with (
        ps.LocalCluster(servers=2, workers=1) as local,
        client.connect(local.cluster, worker=0) as server,
        client.connect(local.cluster, observer=True) as observer,
    ):
        wrong: list[tuple[type[Any], dict[str, Any], str]] = [
            (RuleError, {}, "a rule for the trainable variables"),
            (RuleError, {"rule": "unheard_of"}, "unheard_of"),
            (RuleError, {"rule": "sgd:speed=3"}, "speed"),
            (RuleError, {"rule": "sgd:learning_rate=fast"}, "fast"),
            (RuleError, {"rule": {"name": "sgd", "learning_rate": float("nan")}}, "nan"),
            (RuleError, {"rule": "__import__('os').system('true')"}, "__import__"),
            (ConfigurationConflict, {"rule": "sgd", "mode": "eventual"}, "eventual"),
            (ConfigurationConflict, {"rule": "sgd", "mode": "async", "slack": 1}, "slack"),
            (ConfigurationConflict, {"rule": "sgd", "mode": "ssp", "slack": -1}, "slack"),
            (ConfigurationConflict, {"rule": "sgd", "mode": "sync", "backup_workers": 1}, "backup_workers"),
            (ConfigurationConflict, {"rule": "sgd", "mode": "ssp", "backup_workers": 1}, "backup_workers"),
        ]
        for kind, options, mention in wrong:
            with refused(observer, kind, mention):
                server.init(START, **options)
        with refused(observer, InvalidInput, "rule"):
            server.init(START, rule={"learning_rate": 1})
        assert server.init(START, rule="sgd", mode="ssp", slack=1) is True


def test_the_wrong_people() -> None:
    # claim 11
    with (
        ps.LocalCluster(servers=2, workers=2, rule="sgd", run_id="monday") as local,
        client.connect(local.cluster, worker=0) as server,
        client.connect(local.cluster, observer=True) as observer,
    ):
        server.init(START)
        with refused(observer, WrongRun, "tuesday", "monday"):
            client.connect(local.cluster, worker=1, run_id="tuesday")
        with refused(observer, WorkerIndexTaken, "worker 0"):
            client.connect(local.cluster, worker=0)
        before = everything(observer)
        server.leave()
        for call in (server.pull, server.status, lambda: server.push(GOOD)):
            with pytest.raises(NotJoined, match="left"):
                call()
        assert everything(observer) == before
