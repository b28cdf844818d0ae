"""What if somebody calls a public method with something odd? A typed error names the argument, and nothing has changed.

Every argument of every method of a client has its row here, except what only the model can answer: test_refusals.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import client
import ps
from protos.errors import (
    ClusterError,
    ConfigurationConflict,
    DtypeMismatch,
    InvalidInput,
    InvalidVersion,
    ShapeMismatch,
    UnknownVariable,
)
from tests.harness.state import refused

START = {"w": np.ones((4, 2), np.float32), "b": np.zeros(3)}
GOOD = {"b": np.ones(3)}

Pair = tuple[client.Client, client.Client]


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    """A worker and an observer for all: what is refused changes nothing."""
    with (
        ps.LocalCluster(servers=2, rule="sgd") as local,
        client.connect(local.cluster, worker=0) as server,
        client.connect(local.cluster, observer=True) as observer,
    ):
        server.init(START)
        server.push_pull(GOOD)
        yield server, observer


class Pretends:
    """An object that says it is an array, and is none: such as a symbolic tensor, or one with a gradient to keep."""

    def __array__(self, *arguments: Any, **options: Any) -> Any:
        raise NotImplementedError("no value yet")


class Odd(client.Partitioner):
    """Cuts in half a piece."""

    def shards(self, shape: Sequence[int], itemsize: int, num_ps: int) -> int:
        return 0.5  # type: ignore[return-value]


# (method, arguments, error, what its message has: the argument's name, and what was got)
ODD: list[tuple[str, dict[str, Any], type[Any], tuple[str, ...]]] = [
    ("init", {"values": 5}, InvalidInput, ("values", "int", "a mapping of names to arrays")),
    ("init", {"values": [1]}, InvalidInput, ("values", "list")),
    ("init", {"values": {5: GOOD["b"]}}, InvalidInput, ("variable name", "5")),
    ("init", {"values": {"b": None}}, DtypeMismatch, ("b", "object")),
    ("init", {"values": {"b": Pretends()}}, InvalidInput, ("b", "Pretends (no value yet)", "an array")),
    ("init", {"values": START, "rule": 5}, InvalidInput, ("rule", "5")),
    (
        "init",
        {"values": START, "rule": {"name": "sgd", "learning_rate": np.ones(2)}},
        DtypeMismatch,
        ("learning_rate",),
    ),
    ("init", {"values": START, "rule": {"name": "sgd", 5: 1}}, InvalidInput, ("rule sgd", "argument 5")),
    ("init", {"values": START, "rule": {"name": "sgd", "learning_rate": "1,momentum=1"}}, InvalidInput, ("commas",)),
    ("init", {"values": START, "mode": 5}, ConfigurationConflict, ("mode", "5")),
    ("init", {"values": START, "slack": "2"}, ConfigurationConflict, ("slack", "'2'")),
    ("init", {"values": START, "backup_workers": 0.5}, ConfigurationConflict, ("backup_workers", "0.5")),
    ("init", {"values": START, "partitioner": 5}, InvalidInput, ("partitioner", "5", "a Partitioner")),
    ("init", {"values": START, "partitioner": Odd}, InvalidInput, ("partitioner", "Odd", "a Partitioner")),
    ("init", {"values": START, "partitioner": Odd()}, InvalidInput, ("Odd.shards of b", "0.5", "at least 1")),
    ("init", {"values": START, "non_trainable": 5}, InvalidInput, ("non_trainable", "5", "a list of names")),
    ("init", {"values": START, "non_trainable": [["w"]]}, InvalidInput, ("non_trainable", "['w']")),
    ("init", {"values": START, "non_trainable": "v"}, UnknownVariable, ("non_trainable", "'v'")),
    ("pull", {"names": 5}, InvalidInput, ("names", "5", "a list of names")),
    ("pull", {"names": [5]}, InvalidInput, ("names", "5", "text")),
    ("pull", {"names": [["w"]]}, InvalidInput, ("names", "['w']", "text")),
    ("pull", {"names": b"w"}, InvalidInput, ("names", "b'w'")),
    ("pull", {"names": ["v"]}, UnknownVariable, ("v",)),
    ("pull", {"rows": 5}, InvalidInput, ("rows", "int", "a mapping")),
    ("pull", {"rows": []}, InvalidInput, ("rows", "list", "a mapping")),
    ("pull", {"rows": {5: [0]}}, UnknownVariable, ("5",)),
    ("pull", {"rows": {"w": None}}, DtypeMismatch, ("rows of w", "object")),
    ("pull", {"rows": {"w": [[0], [1, 2]]}}, ShapeMismatch, ("rows of w",)),
    ("pull", {"rows": {"w": Pretends()}}, InvalidInput, ("rows of w", "Pretends (no value yet)")),
    ("pull", {"averages": "yes"}, InvalidInput, ("averages", "'yes'", "True or False")),
    ("pull", {"wait_timeout_s": "soon"}, InvalidInput, ("wait_timeout_s", "'soon'")),
    ("pull", {"wait_timeout_s": 10**400}, InvalidInput, ("wait_timeout_s", "a positive number of seconds")),
    *(
        (method, arguments, error, mentions)
        for method in ("push", "push_pull")
        for arguments, error, mentions in [
            ({"gradients": 5}, InvalidInput, ("gradients", "int", "a mapping")),
            ({"gradients": [1]}, InvalidInput, ("gradients", "list", "a mapping")),
            ({"gradients": {5: GOOD["b"]}}, UnknownVariable, ("5",)),
            ({"gradients": {"b": None}}, DtypeMismatch, ("gradient of b", "object")),
            ({"gradients": {"b": Pretends()}}, InvalidInput, ("gradient of b", "Pretends (no value yet)")),
            ({"gradients": {"w": client.IndexedSlices(None, None)}}, DtypeMismatch, ("gradient of w, indices",)),
            ({"gradients": {"w": client.IndexedSlices(5, [0])}}, DtypeMismatch, ("gradient of w", "int64")),
            ({"gradients": GOOD, "version": 5}, InvalidVersion, ("version", "5")),
            ({"gradients": GOOD, "weight": "2"}, InvalidInput, ("weight", "'2'")),
            ({"gradients": GOOD, "scale": 1e39}, InvalidInput, ("scale", "in float32")),
            ({"gradients": GOOD, "scale": 5e-324}, InvalidInput, ("scale", "in float32")),
            ({"gradients": GOOD, "weight": 10**400}, InvalidInput, ("weight", "a finite number above 0")),
            ({"gradients": GOOD, "weight": np.complex64(1)}, InvalidInput, ("weight", "a finite number above 0")),
            ({"gradients": GOOD, "scale": None}, InvalidInput, ("scale", "None")),
            ({"gradients": GOOD, "sequence": "1"}, InvalidInput, ("sequence", "'1'")),
        ]
    ),
    ("push_pull", {"gradients": GOOD, "wait_timeout_s": []}, InvalidInput, ("wait_timeout_s", "[]")),
    ("assign", {"values": 5}, InvalidInput, ("values", "int", "a mapping")),
    ("assign", {"values": {5: GOOD["b"]}}, UnknownVariable, ("5",)),
    ("assign", {"values": {"b": Pretends()}}, InvalidInput, ("b", "Pretends (no value yet)")),
    ("leave", {"reason": 5}, InvalidInput, ("reason", "5", "text")),
]


@pytest.mark.parametrize(("method", "arguments", "error", "mentions"), ODD, ids=lambda value: str(value)[:60])
def test_an_odd_argument_is_refused_by_its_name(
    pair: Pair, method: str, arguments: dict[str, Any], error: type[Any], mentions: tuple[str, ...]
) -> None:
    # claim 11
    server, observer = pair
    with refused(observer, error, *mentions):
        getattr(server, method)(**arguments)
    assert server.push_pull(GOOD)[1].outcome == "applied"  # it has not left, and its streams are usable


CLUSTER = {"ps": ["127.0.0.1:1"], "worker": ["127.0.0.1:2"]}


@pytest.mark.parametrize(
    ("arguments", "error", "mentions"),
    [
        ({"cluster": 5}, ClusterError, ("cluster", "5", "a mapping")),
        ({"cluster": {5: ["127.0.0.1:1"]}}, ClusterError, ("cluster", "5")),
        ({"cluster": CLUSTER | {"ps": [5]}}, ClusterError, ("cluster.ps[0]", "5")),
        ({"worker": "0"}, ClusterError, ("worker", "'0'")),
        ({"observer": "no"}, InvalidInput, ("observer", "'no'", "True or False")),
        ({"run_id": 5}, InvalidInput, ("run_id", "5", "printable text")),
        ({"run_id": "caf\udce9"}, InvalidInput, ("run_id", "printable text")),
        ({"connect_timeout_s": "soon"}, InvalidInput, ("connect_timeout_s", "'soon'")),
        ({"wait_timeout_s": [1]}, InvalidInput, ("wait_timeout_s", "[1]")),
        ({"retry_budget_s": 10**400}, InvalidInput, ("retry_budget_s",)),
    ],
    ids=lambda value: str(value)[:60],
)
def test_an_odd_argument_of_connect_is_refused_before_anything_is_tried(
    arguments: dict[str, Any], error: type[Any], mentions: tuple[str, ...]
) -> None:
    with pytest.raises(error) as caught:
        client.connect(**({"cluster": CLUSTER, "worker": 0} | arguments))
    assert type(caught.value) is error
    for text in mentions:
        assert text in str(caught.value)


@pytest.mark.parametrize(
    ("make", "arguments"),
    [
        (client.FixedShardsPartitioner, ("2",)),
        (client.FixedShardsPartitioner, (None,)),
        (client.MinSizePartitioner, (0.5,)),
        (client.MinSizePartitioner, (1024, "all")),
        (client.MaxSizePartitioner, (None,)),
        (client.MaxSizePartitioner, (1024, True)),
    ],
)
def test_a_partitioner_of_odd_numbers_is_refused_when_it_is_made(make: Any, arguments: tuple[Any, ...]) -> None:
    with pytest.raises(InvalidInput, match=f"{make.__name__}.*got {arguments[-1]!r}, expected a whole number"):
        make(*arguments)


def test_one_name_may_come_alone_and_names_may_come_twice(pair: Pair) -> None:
    server, _ = pair
    assert list(server.pull("w")) == ["w"]
    assert list(server.pull(name for name in ["w", "b", "w"])) == ["w", "b"]  # type: ignore[arg-type]
    assert not server.init(START, non_trainable=[])
