"""Which processes make up the job, and which of them am I? TF_CONFIG, read, and everything that can be wrong with it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from protos.cluster import EXAMPLE, Cluster, Task, check_address, parse_cluster, parse_task, parse_tf_config
from protos.errors import ClusterError

PS, WORKERS = ["10.0.0.1:2222", "10.0.0.2:2222"], ["10.0.0.3:1", "10.0.0.4:1"]
FULL = {"ps": PS, "worker": WORKERS, "chief": ["10.0.0.5:1"], "evaluator": ["10.0.0.6:1"]}


def test_a_tf_config_says_who_is_there_and_which_one_this_is() -> None:
    text = json.dumps({"cluster": {"ps": PS, "worker": WORKERS}, "task": {"type": "worker", "index": 1}})
    assert parse_tf_config(text) == (Cluster(tuple(PS), tuple(WORKERS)), Task("worker", 1))


def test_the_example_in_every_hint_is_right() -> None:
    cluster, task = parse_tf_config(EXAMPLE)
    assert (cluster.num_workers, task) == (1, Task("worker", 0))


def test_the_chief_is_worker_0_and_the_workers_come_after_it() -> None:
    cluster = parse_cluster(FULL)
    assert cluster.num_workers == 3
    assert cluster.worker_index(Task("chief", 0)) == 0
    assert [cluster.worker_index(Task("worker", index)) for index in (0, 1)] == [1, 2]
    alone = parse_cluster({"ps": PS, "worker": WORKERS})
    assert [alone.worker_index(Task("worker", index)) for index in (0, 1)] == [0, 1]


def test_a_cluster_is_read_with_or_without_what_stands_around_it() -> None:
    assert parse_cluster(FULL) == parse_cluster({"cluster": FULL, "task": {"type": "ps", "index": 0}})
    assert parse_cluster(parse_cluster(FULL).to_dict()) == parse_cluster(FULL)


def test_an_evaluator_may_stand_outside_the_cluster() -> None:
    assert parse_task(parse_cluster({"ps": PS}), {"type": "evaluator"}) == Task("evaluator", 0)


def test_an_index_may_be_text_as_tensorflow_takes_it() -> None:
    assert parse_task(parse_cluster(FULL), {"type": "ps", "index": "1"}) == Task("ps", 1)


@pytest.mark.parametrize("address", ["localhost:1", "127.0.0.1:65535", "[::1]:2222", "ps-0.job.svc:2222"])
def test_addresses_that_can_be(address: str) -> None:
    assert check_address("ps", address) == address


@pytest.mark.parametrize(
    "address",
    [
        "",
        ":2222",
        "host",
        "host:",
        "host:0",
        "host:65536",
        "host:-1",
        "host:x",
        "host:２",
        "::1:2222",
        "http://h:1",
        2222,
        None,
    ],
)
def test_addresses_that_cannot_be(address: Any) -> None:
    with pytest.raises(ClusterError) as caught:
        check_address("cluster.ps[0]", address)
    assert (caught.value.field, caught.value.got) == ("cluster.ps[0]", repr(address))
    assert caught.value.expected == '"host:port" with a port from 1 to 65535'


def test_port_0_is_for_binding_only() -> None:
    assert check_address("--bind", "0.0.0.0:0", lowest_port=0) == "0.0.0.0:0"


# What TF_CONFIG says, and the field, what was got and what was expected (parts of) in the error.
BAD: list[tuple[Any, str, str, str]] = [
    (None, "TF_CONFIG", "nothing", "a cluster description"),
    ("", "TF_CONFIG", "nothing", "a cluster description"),
    ("  ", "TF_CONFIG", "nothing", "a cluster description"),
    ("{'cluster': 1}", "TF_CONFIG", "{'cluster': 1}", "JSON"),
    ("[]", "TF_CONFIG", "[]", '"cluster" and "task"'),
    ("{}", "TF_CONFIG", "{}", '"cluster" and "task"'),
    ({"cluster": 5}, "cluster", "5", "a mapping"),
    ({"cluster": None}, "cluster", "None", "a mapping"),
    ({"cluster": {}}, "cluster.ps", "no ps", "at least one"),
    ({"cluster": {"ps": [], "worker": WORKERS}}, "cluster.ps", "no ps", "at least one"),
    (
        {"cluster": {"ps": PS, "master": ["h:1"]}},
        "cluster",
        "unknown task type 'master'",
        "chief, worker, ps, evaluator",
    ),
    ({"cluster": {"ps": "h:1"}}, "cluster.ps", "'h:1'", "a list"),
    ({"cluster": {"ps": PS, "worker": {"0": "h:1"}}}, "cluster.worker", "{'0': 'h:1'}", "a list"),
    ({"cluster": {"ps": ["h:1", "h"]}}, "cluster.ps[1]", "'h'", "host:port"),
    ({"cluster": {"ps": ["h:1", 5]}}, "cluster.ps[1]", "5", "host:port"),
    ({"cluster": {"ps": ["h:1", "h:1"]}}, "cluster.ps[1]", "h:1, which is ps[0] too", "each address once"),
    (
        {"cluster": {"ps": ["h:1"], "worker": ["h:1"]}},
        "cluster.ps[0]",
        "h:1, which is worker[0] too",
        "each address once",
    ),
    ({"cluster": {"ps": PS, "chief": ["h:1", "h:2"]}}, "cluster.chief", "2 chiefs", "one at most"),
    ({"cluster": {"ps": PS}}, "task", "None", '{"type": …, "index": …}'),
    ({"cluster": {"ps": PS}, "task": "ps"}, "task", "'ps'", '{"type": …, "index": …}'),
    ({"cluster": {"ps": PS}, "task": {"index": 0}}, "task", "{'index': 0}", '{"type": …, "index": …}'),
    ({"cluster": {"ps": PS}, "task": {"type": "master"}}, "task.type", "'master'", "chief, worker, ps, evaluator"),
    ({"cluster": {"ps": PS}, "task": {"type": "ps", "index": 2}}, "task.index", "ps 2", "0 to 1, as cluster.ps has 2"),
    ({"cluster": {"ps": PS}, "task": {"type": "ps", "index": -1}}, "task.index", "ps -1", "0 to 1"),
    ({"cluster": {"ps": PS}, "task": {"type": "ps", "index": "x"}}, "task.index", "'x'", "an integer"),
    ({"cluster": {"ps": PS}, "task": {"type": "ps", "index": None}}, "task.index", "None", "an integer"),
    ({"cluster": {"ps": PS}, "task": {"type": "ps", "index": 1.9}}, "task.index", "1.9", "an integer"),
    ({"cluster": {"ps": PS}, "task": {"type": "ps", "index": True}}, "task.index", "True", "an integer"),
    (
        {"cluster": {"ps": PS}, "task": {"type": "worker", "index": 0}},
        "task.index",
        "worker 0",
        "a cluster with a worker",
    ),
    ({"cluster": {"ps": PS}, "task": {"type": "evaluator", "index": 1}}, "task.index", "evaluator 1", "0 to 0"),
]


@pytest.mark.parametrize(("config", "field", "got", "expected"), BAD)
def test_a_wrong_tf_config_is_told_by_field(config: Any, field: str, got: str, expected: str) -> None:
    text = config if config is None or isinstance(config, str) else json.dumps(config)
    with pytest.raises(ClusterError) as caught:
        parse_tf_config(text)
    assert caught.value.field == field
    assert got in caught.value.got
    assert expected in caught.value.expected
    assert isinstance(caught.value, ValueError)


def test_a_cluster_that_is_no_mapping_is_refused_with_an_example() -> None:
    with pytest.raises(ClusterError) as caught:
        parse_cluster("10.0.0.1:2222")  # type: ignore[arg-type]
    assert EXAMPLE in caught.value.hint


@pytest.mark.parametrize("index", ["--5", "9" * 5000, "1e3", 1.0])
def test_an_index_that_is_no_number_is_refused_by_name(index: object) -> None:
    cluster = parse_cluster({"ps": ["a:1"], "worker": ["b:1"]})
    with pytest.raises(ClusterError, match=r"task\.index"):
        parse_task(cluster, {"type": "worker", "index": index})


@pytest.mark.parametrize("address", ["a:" + "9" * 5000, "\udcff:80", "a\x00b:80"])
def test_an_address_of_odd_characters_is_refused_by_name(address: str) -> None:
    with pytest.raises(ClusterError, match=r"cluster\.ps"):
        parse_cluster({"ps": [address]})


def test_json_that_is_too_deep_is_refused() -> None:
    with pytest.raises(ClusterError, match="TF_CONFIG"):
        parse_tf_config("[" * 100_000)
