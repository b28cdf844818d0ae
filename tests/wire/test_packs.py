"""Small variables travel and are updated together, in packs. Can anybody tell? Every kind of call, packed and not, bit for bit.

A twin job holds each variable in a partition of its own; both get the same calls.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import ml_dtypes
import numpy as np
import pytest

import client
import ps
from client import partitioner
from protos.errors import NonFiniteGradient, RowOutOfRange
from ps.rules import Transform, UpdateRule, register
from tests.harness.state import refused

rng = np.random.default_rng(3)
VALUES: dict[str, Any] = {
    "a/kernel": rng.normal(size=(4, 3)).astype("f"),
    "a/bias": rng.normal(size=3).astype("f"),
    "b/kernel": rng.normal(size=(13, 2)).astype("f"),
    "b/scale": np.float32(2.0),
    "empty": np.zeros((0, 3), np.float32),
    "half": rng.normal(size=(5,)).astype(np.float16),
    "half too": rng.normal(size=(9,)).astype(np.float16),
    "brain": rng.normal(size=(2, 2)).astype(ml_dtypes.bfloat16),
    "double": rng.normal(size=(3,)),
    "large": rng.normal(size=(200, 100)).astype("f"),
    "count": np.arange(3),
}
NAMES: list[str] = []


@register("spares_biases")
class SparesBiases(UpdateRule):
    """w ← w (1 - η) - η g, biases not decayed. Keeps the names it was told."""

    needs_variable = True

    def init_slot_of(self, variable: str, name: str, value: Any) -> Any:
        return np.full_like(value, len(variable))

    slots = ("letters",)

    def update(self, ctx: Any, value: Any, grad: Any, letters: Any) -> Any:
        assert (letters == len(ctx.variable)).all()
        NAMES.append(ctx.variable)
        decay = 0 if "bias" in ctx.variable else ctx.learning_rate
        return value - decay * value - ctx.learning_rate * grad, letters


@register("remembers_names")
class RemembersNames(Transform):
    """g ← g, and the name is kept."""

    needs_variable = True

    def transform(self, ctx: Any, value: Any, grad: Any, *slots: Any) -> Any:
        NAMES.append(ctx.variable)
        return grad


TRAINABLE = [name for name in VALUES if name != "count"]


@contextlib.contextmanager
def twins(servers: int, rule: str, mode: str = "async", **more: Any) -> Iterator[tuple[client.Client, client.Client]]:
    """The same model packed, and with each variable in a partition of its own."""
    cuts = client.FixedShardsPartitioner(2)
    with (
        ps.LocalCluster(servers, mode, rule=rule, **more) as one,
        ps.LocalCluster(servers, mode, rule=rule, **more) as other,
        client.connect(one.cluster, worker=0) as packed,
        client.connect(other.cluster, worker=0) as plain,
    ):
        packed.init(VALUES, partitioner=cuts)
        with mock.patch.object(partitioner, "SMALL_BYTES", 0):
            plain.init(VALUES, partitioner=cuts)
        assert sum(len(each._model._at) for each in (packed,)) < sum(len(each._model._at) for each in (plain,))
        yield packed, plain


def assert_same(one: Any, other: Any) -> None:
    assert list(one) == list(other)
    for name, value in other.items():
        assert (one[name].dtype, one[name].shape) == (value.dtype, value.shape), name
        assert one[name].tobytes() == value.tobytes(), name


def gradient(name: str) -> Any:
    value = np.asarray(VALUES[name])
    return rng.normal(size=value.shape).astype(value.dtype)


RULES = ["adam:learning_rate=0.1", "momentum:learning_rate=0.1,weight_decay=0.1,use_ema=true", "dc_asgd"]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("servers", [1, 3])
def test_pushes_of_all_of_some_and_of_rows_do_the_same(servers: int, rule: str) -> None:
    # claim 1: what gets no gradient does not change, slots included, though it lies in the same array.
    with twins(servers, rule) as (packed, plain):
        assert_same(packed.pull(), plain.pull())
        for step in range(6):
            pushed: dict[str, Any] = {name: gradient(name) for name in TRAINABLE}
            if step % 3 == 1:
                for name in ("a/bias", "half", "double"):
                    del pushed[name]
            if step % 3 == 2:
                ids = np.array([12, 0, 7, 12])
                rows = client.IndexedSlices(rng.normal(size=(4, 2)).astype("f"), ids)
                pushed = {"b/kernel": rows, "a/bias": gradient("a/bias")}
            results = [server.push(pushed) for server in (packed, plain)]
            assert results[0].version == results[1].version
            assert_same(packed.pull(), plain.pull())
        if "ema" in rule:
            assert_same(packed.pull(averages=True), plain.pull(averages=True))


@pytest.mark.parametrize("servers", [1, 2, 5])
def test_some_variables_and_rows_of_them_are_read_from_a_pack(servers: int) -> None:
    rows = {"b/kernel": [3, 3, 12, 0], "large": [199, 1], "a/kernel": [2], "half": [4, 0]}
    with twins(servers, "sgd") as (packed, plain):
        assert_same(packed.pull(["a/bias", "b/scale", "empty"]), plain.pull(["a/bias", "b/scale", "empty"]))
        assert_same(packed.pull(rows=rows), plain.pull(rows=rows))
        mixed = packed.pull(["a/bias", "b/kernel"], rows={"a/kernel": [1]})
        assert_same(mixed, plain.pull(["a/bias", "b/kernel"], rows={"a/kernel": [1]}))
        mixed["a/bias"][...] = 7  # the caller's own
        np.testing.assert_array_equal(packed.pull()["a/bias"], VALUES["a/bias"])


def test_values_by_hand_reach_their_variable_and_no_other() -> None:
    # Not the digits that the master copies of its 16-bit neighbours hold, either.
    with twins(2, "momentum:learning_rate=0.003") as (packed, plain):
        for _ in range(3):
            for server in (packed, plain):
                server.push({name: np.ones_like(VALUES[name]) for name in TRAINABLE})
                server.assign({"a/bias": np.full(3, 9, np.float32), "half": np.arange(5).astype(np.float16)})
                server.push({name: np.ones_like(VALUES[name]) for name in TRAINABLE})
        assert_same(packed.pull(), plain.pull())


def test_sync_steps_of_several_workers_do_the_same() -> None:
    pushed = [{name: gradient(name) for name in TRAINABLE}, {"a/bias": gradient("a/bias")}]
    results = []
    for small in (partitioner.SMALL_BYTES, 0):
        with (
            ps.LocalCluster(2, "sync", 2, rule="adam:learning_rate=0.1,global_clipnorm=1") as local,
            client.connect(local.cluster, worker=0) as zero,
            client.connect(local.cluster, worker=1) as one,
        ):
            with mock.patch.object(partitioner, "SMALL_BYTES", small):
                zero.init(VALUES)
            one.init(VALUES)
            for _ in range(3):
                for server, gradients in zip((zero, one), pushed):
                    server.push(gradients)
                results.append(dict(zero.pull()))
                one.pull()
    for packed, plain in zip(results[:3], results[3:]):
        for name, value in plain.items():
            np.testing.assert_allclose(
                np.asarray(packed[name], "d"), np.asarray(value, "d"), rtol=1e-5, atol=1e-6, err_msg=name
            )  # the norm is summed in another order


def test_what_is_wrong_with_one_member_is_told_by_its_name() -> None:
    with twins(2, "sgd", guard_nonfinite=True) as (packed, _):
        bad = gradient("a/bias")
        bad[1] = np.nan
        with refused(packed, NonFiniteGradient, "a/bias"):
            packed.push({"a/kernel": gradient("a/kernel"), "a/bias": bad})
        with refused(packed, RowOutOfRange, "b/kernel"):
            packed.push({"b/kernel": client.IndexedSlices(np.ones((1, 2), np.float32), [13])})


def test_a_rule_that_needs_whole_variables_gets_no_packs() -> None:
    for rule in ("lamb", "sgd:clipnorm=1", "sgd:transforms=[centralise]"):
        with ps.LocalCluster(1, rule=rule) as local, client.connect(local.cluster, worker=0) as server:
            server.init(VALUES)
            assert all(place.offset is None for each in server._model.variables.values() for place in each.places)


@pytest.mark.parametrize(
    "rule", ["adam:learning_rate=0.1,gradient_accumulation_steps=2", "sgd:transforms=[accumulate(3)]"]
)
def test_a_push_for_one_variable_lets_its_neighbours_be_though_gradients_are_held_back(rule: str) -> None:
    # What was held back for the others has gone, momentum has not: zeros would move them.
    with ps.LocalCluster(1, rule=f"{rule},weight_decay=0.1") as local, client.connect(local.cluster, 0) as server:
        server.init(VALUES)
        for _ in range(6):
            server.push({name: np.ones_like(VALUES[name]) for name in TRAINABLE})
        before = server.pull()
        for _ in range(6):
            after, _ = server.push_pull({"a/bias": np.ones(3, np.float32)})
    assert (after.pop("a/bias") != before.pop("a/bias")).all()
    assert_same(after, before)


@register("anchored")
class Anchored(UpdateRule):
    """w ← w - η (g + w - a), a what it was when this worker pushed for it first."""

    worker_slots = ("anchor",)

    def init_slot(self, name: str, value: Any) -> Any:
        return value.copy()

    def update(self, ctx: Any, value: Any, grad: Any, *slots: Any) -> Any:
        return value - ctx.learning_rate * (grad + value - slots[0]), slots[0]


def test_what_a_worker_slot_begins_with_is_of_the_first_push_for_its_variable() -> None:
    with (
        ps.LocalCluster(1, "async", 2, rule="anchored:learning_rate=0.5") as local,
        client.connect(local.cluster, worker=0) as zero,
        client.connect(local.cluster, worker=1) as one,
    ):
        zero.init({"x": np.zeros(4, np.float32), "y": np.zeros(4, np.float32)})
        zero.push({"x": np.ones(4, np.float32)})
        one.push({"y": np.ones(4, np.float32)})
        zero.push({"y": np.ones(4, np.float32)})
        np.testing.assert_array_equal(zero.pull()["y"], -1.0)


def test_the_status_and_the_story_speak_of_variables() -> None:
    with ps.LocalCluster(1, rule="sgd") as local, client.connect(local.cluster, worker=0) as server:
        server.init(VALUES)
        assert server.status()["ps"][0]["partitions"] == len(VALUES)
        (event,) = [event for event in local.stories()[0] if event.kind == "init"]
        assert sorted(event.names) == sorted(VALUES)


@pytest.mark.parametrize("rule", ["spares_biases:learning_rate=0.5", "sgd:transforms=[remembers_names]"])
def test_a_rule_or_a_transform_that_asks_for_the_variable_gets_each_by_its_name(rule: str) -> None:
    NAMES.clear()
    with ps.LocalCluster(2, rule=rule) as local, client.connect(local.cluster, worker=0) as server:
        server.init(VALUES, partitioner=client.FixedShardsPartitioner(2))
        values, _ = server.push_pull({name: np.zeros_like(VALUES[name]) for name in TRAINABLE})
    assert set(NAMES) == set(TRAINABLE) - {"empty"}
    if rule.startswith("spares"):
        np.testing.assert_array_equal(values["a/bias"], VALUES["a/bias"])
        np.testing.assert_array_equal(values["a/kernel"], VALUES["a/kernel"] / 2)
