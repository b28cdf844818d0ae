"""Which arrays travel, and do they come back as they went? Dtypes, shapes, memory layouts and names."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import client
import ps
from protos.codec import DTYPES, STATE_DTYPES, TRAINABLE_DTYPES
from protos.errors import DtypeMismatch, InitConflict, InvalidInput, NotTrainable, ParameterServerError, UnknownVariable

RULES = ["sgd:learning_rate=0.5", "momentum:learning_rate=0.5", "momentum:learning_rate=0.5,nesterov=true", "adam"]


def bits(array: Any) -> tuple[str, tuple[int, ...], bytes]:
    return array.dtype.name, array.shape, np.ascontiguousarray(array).tobytes()


def samples(dtype: np.dtype[Any], shape: tuple[int, ...]) -> Any:
    rng = np.random.default_rng(3)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(dtype)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, shape, dtype, endpoint=True)
    return rng.standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("rule", RULES)
def test_floats_of_every_width_are_trained(rule: str) -> None:
    start = {name: samples(DTYPES[name], (7, 3)) for name in TRAINABLE_DTYPES}
    assert list(start) == ["float16", "bfloat16", "float32", "float64"]
    gradients = {name: np.full((7, 3), 0.25, DTYPES[name]) for name in start}
    with ps.LocalCluster(servers=2, mode="sync") as local, client.connect(local.cluster, worker=0) as server:
        server.init(start, rule=rule)
        values = server.pull()
        assert {name: bits(value) for name, value in values.items()} == {n: bits(v) for n, v in start.items()}
        for _ in range(3):
            values, _ = server.push_pull(gradients)
    wide = np.finfo(np.float64).eps
    for name, value in values.items():
        assert value.dtype == DTYPES[name]
        # The same three steps in float64: what differs is the rounding of the narrow type, once a step.
        exact = start[name].astype(np.float64) - values_moved(rule)
        eps = max(wide, float(ml_dtypes.finfo(DTYPES[name]).eps), 1e-6 if rule == "adam" else 0)  # its epsilon
        np.testing.assert_allclose(value.astype(np.float64), exact, rtol=3 * eps, atol=6 * eps)


def values_moved(rule: str) -> float:
    """How far three steps with gradient 0.25 move a weight down."""
    if rule == "adam":
        return 3 * 0.001  # a constant gradient: one learning rate a step (but for epsilon)
    velocities = {"sgd": [1, 1, 1], "momentum": [1, 1.9, 2.71]}[rule.split(":")[0]]
    if "nesterov" in rule:
        velocities = [0.9 * velocity + 1 for velocity in velocities]
    return sum(velocities) * 0.5 * 0.25


@pytest.mark.parametrize("name", STATE_DTYPES)
def test_state_of_every_dtype_is_assigned_and_takes_no_gradient(name: str) -> None:
    first, second = samples(DTYPES[name], (3, 2)), samples(DTYPES[name], (4, 2))[1:]
    with ps.LocalCluster(servers=2) as local, client.connect(local.cluster, worker=0) as server:
        server.init({"n": first, "w": np.zeros(2, np.float32)}, rule="sgd")
        assert bits(server.pull()["n"]) == bits(first)
        server.assign({"n": second})
        assert bits(server.pull()["n"]) == bits(second)
        with pytest.raises(NotTrainable, match="n"):
            server.push({"n": second})
        with pytest.raises(NotTrainable, match="n"):
            server.push({"n": client.IndexedSlices(second[:1], np.array([0]))})
        server.push({"w": np.ones(2, np.float32)})
        assert bits(server.pull()["n"]) == bits(second)


def test_floats_may_be_state_too() -> None:
    with ps.LocalCluster() as local, client.connect(local.cluster, worker=0) as server:
        server.init({"mean": np.zeros(2, np.float32), "w": np.zeros(2)}, rule="sgd", non_trainable=["mean"])
        with pytest.raises(NotTrainable, match="mean"):
            server.push({"mean": np.ones(2, np.float32)})
        server.assign({"mean": np.ones(2, np.float32)})
        np.testing.assert_array_equal(server.pull(["mean"])["mean"], [1, 1])
        with pytest.raises(UnknownVariable, match="nothing"):
            server.init({"w": np.zeros(2)}, non_trainable=["nothing"])


SHAPES: list[tuple[int, ...]] = [(), (1,), (0,), (0, 3), (3, 0), (2, 0, 4), (1, 1, 1, 1), (5, 2, 3)]


@pytest.mark.parametrize("servers", [1, 3])
def test_shapes_from_nothing_to_four_dimensions(servers: int) -> None:
    start = {f"shape {shape}": samples(np.dtype(np.float32), shape) for shape in SHAPES}
    with ps.LocalCluster(servers=servers, mode="sync") as local, client.connect(local.cluster, worker=0) as server:
        server.init(start, rule="adam", partitioner=client.FixedShardsPartitioner(4))
        assert {name: bits(value) for name, value in server.pull().items()} == {n: bits(v) for n, v in start.items()}
        moved, result = server.push_pull({name: np.ones_like(value) for name, value in start.items()})
        assert result.outcome == "applied"
        for name, value in start.items():
            np.testing.assert_allclose(moved[name], value - np.float32(0.001), rtol=1e-6, atol=1e-7)
        server.assign(start)
        assert {name: bits(value) for name, value in server.pull().items()} == {n: bits(v) for n, v in start.items()}


def test_memory_layout_does_not_matter() -> None:
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    read_only = base.copy()
    read_only.setflags(write=False)
    views = {
        "fortran": np.asfortranarray(base),
        "transposed": base.T,
        "every other": base[::2, ::3],
        "backwards": base[::-1, ::-1],
        "big-endian": base.astype(">f4"),
        "broadcast": np.broadcast_to(np.float32(3), (4, 2)),
        "read-only": read_only,
        "unaligned": np.frombuffer(b"x" + base.tobytes(), np.uint8)[1:].view(np.float32).reshape(4, 6),
        "big-endian scalar": np.array(2.5, ">f4"),
        "python scalar": np.float32(1.5),
    }
    native = {name: np.array(view, dtype=np.float32, order="C") for name, view in views.items()}
    with ps.LocalCluster(servers=2, mode="sync") as local, client.connect(local.cluster, worker=0) as server:
        server.init(views, rule="sgd:learning_rate=1")
        assert {name: bits(value) for name, value in server.pull().items()} == {n: bits(v) for n, v in native.items()}
        values, _ = server.push_pull(views)  # w - w
        assert all(not value.any() for value in values.values())
        server.assign(views)
        values = server.pull()
        assert {name: bits(value) for name, value in values.items()} == {n: bits(v) for n, v in native.items()}
        values["fortran"][0, 0] = 99  # what a pull returns is the caller's own
        assert server.pull()["fortran"][0, 0] == 0


NAMES = ["dense/kernel:0", "слой/вес", "層", "with space", "emoji 🙂", "a" * 1000, ".", "../up", "w[0:2]", "%s{}"]


def test_names_are_any_printable_text() -> None:
    start = {name: np.full(3, index, np.float32) for index, name in enumerate(NAMES)}
    with ps.LocalCluster(servers=3, mode="sync") as local, client.connect(local.cluster, worker=0) as server:
        server.init(start, rule="sgd:learning_rate=1", partitioner=client.FixedShardsPartitioner(2))
        assert sorted(server.pull()) == sorted(NAMES)
        values, _ = server.push_pull({name: np.ones(3, np.float32) for name in NAMES})
        for index, name in enumerate(NAMES):
            np.testing.assert_array_equal(values[name], np.full(3, index - 1, np.float32))
        for bad in ("", "new\nline", "\ud800", 7):
            with pytest.raises(InvalidInput, match="variable name"):
                server.init({bad: np.zeros(1)})  # type: ignore[dict-item]


def test_what_is_no_array_of_the_right_dtype_is_refused_clearly() -> None:
    """Lists are read as numpy reads them; then they have the dtype that numpy gave them, which must be the right one."""
    with ps.LocalCluster() as local, client.connect(local.cluster, worker=0) as server:
        refused: list[Any] = ["text", ["a"], None, 1 + 2j, [None], np.array(["x"]), np.zeros(2, "M8[s]"), object()]
        for bad in refused:
            with pytest.raises(DtypeMismatch, match="w"):
                server.init({"w": bad}, rule="sgd")
        with pytest.raises(InvalidInput, match="w"):
            server.init({"w": [[1.0, 2.0], [3.0]]}, rule="sgd")  # ragged
        with pytest.raises(InvalidInput, match="values"):
            server.init([np.zeros(2)], rule="sgd")  # type: ignore[arg-type]
        server.init({"w": np.zeros(2, np.float32), "d": [0.0, 0.0]}, rule="sgd:learning_rate=1")
        for push in (server.push, server.push_pull, server.assign):
            with pytest.raises(DtypeMismatch, match=r"w.*float64.*float32"):
                push({"w": [1.0, 2.0]})
            with pytest.raises(InvalidInput, match="w"):
                push({"w": [[1.0, 2.0], [3.0]]})
            with pytest.raises(ParameterServerError, match="mapping"):
                push([np.zeros(2, np.float32)])  # type: ignore[arg-type]
        server.push({"d": [1.0, 2.0]})
        np.testing.assert_array_equal(server.pull()["d"], [-1, -2])
        assert server.status()["step"] == 1


@pytest.mark.parametrize("mode", ["async", "sync", "ssp"])
def test_a_model_without_variables_still_counts_steps(mode: str) -> None:
    with ps.LocalCluster(servers=2, mode=mode) as local, client.connect(local.cluster, worker=0) as server:
        server.init({})
        values = server.pull()
        assert (values, values.version) == ({}, (0, 0))
        values, result = server.push_pull({})
        assert (values, result.outcome, result.version) == ({}, "applied", (1, 1))
        assert server.push({}, version=(1, 1)).step == 2


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_a_model_of_state_alone_needs_no_rule(mode: str) -> None:
    with ps.LocalCluster(servers=2, mode=mode) as local, client.connect(local.cluster, worker=0) as server:
        server.init({"n": np.arange(3), "flag": np.bool_(True)})
        server.assign({"n": np.arange(3) * 2})
        np.testing.assert_array_equal(server.pull()["n"], [0, 2, 4])
        _, result = server.push_pull({})
        assert (result.outcome, result.step) == ("applied", 1)


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_more_ps_than_variables_leaves_some_empty_and_all_in_step(mode: str) -> None:
    with ps.LocalCluster(servers=5, mode=mode) as local, client.connect(local.cluster, worker=0) as server:
        server.init({"w": np.zeros((2, 2)), "b": np.zeros(())}, rule="adam")
        assert sorted(each["partitions"] for each in server.status()["ps"]) == [0, 0, 0, 1, 1]
        for step in range(1, 4):
            values, result = server.push_pull({"w": np.ones((2, 2)), "b": np.float64(1)})
            assert values.version == result.version == (step,) * 5
        np.testing.assert_allclose(values["w"], -3e-3, rtol=1e-5)


@pytest.mark.parametrize(
    "partitioner",
    [
        client.WholeVariables(),
        client.FixedShardsPartitioner(3),
        client.FixedShardsPartitioner(100),
        client.MinSizePartitioner(min_shard_bytes=16, max_shards=4),
        client.MaxSizePartitioner(max_shard_bytes=20),
    ],
    ids=repr,
)
def test_partitioners_change_nothing_but_where_rows_are(partitioner: client.Partitioner) -> None:
    start = {"w": np.arange(26, dtype=np.float32).reshape(13, 2), "b": np.zeros(1, np.float32)}
    with ps.LocalCluster(servers=3, mode="sync") as local, client.connect(local.cluster, worker=0) as server:
        server.init(start, rule="sgd:learning_rate=1", partitioner=partitioner)
        np.testing.assert_array_equal(server.pull(["w"])["w"], start["w"])
        sparse = client.IndexedSlices(np.ones((4, 2), np.float32), np.array([12, 0, 12, 5]))
        values, _ = server.push_pull({"w": sparse})
        expected = start["w"].copy()
        expected[[0, 5]] -= 1
        expected[12] -= 2
        np.testing.assert_array_equal(values["w"], expected)
        with pytest.raises(InitConflict, match="partitioner"):
            server.init(start, partitioner=client.FixedShardsPartitioner(7))
