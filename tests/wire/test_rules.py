"""What does a rule of one's own see? The context, the value that was read, whole variables or blocks; and one schedule.

Rules are registered here as in a notebook; the ps run in this process.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pytest

import client
import ps
from protos.codec import PAGE_BYTES
from protos.errors import RuleError, RuleFailed, ShapeMismatch
from ps.rules import UpdateRule, register
from tests.harness.state import refused

SEEN: list[tuple[Any, ...]] = []


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    SEEN.clear()
    yield
    SEEN.clear()


@register("recorder")
class Recorder(UpdateRule):
    """Plain descent that keeps what it was given."""

    learning_rate: float = 0.5

    def update(self, ctx: Any, value: Any, grad: Any) -> Any:
        SEEN.append((ctx.step, ctx.learning_rate, ctx.staleness, ctx.worker, value.shape, ctx.read_value))
        return value - ctx.learning_rate * grad


@register("delay_compensated")
class DelayCompensated(UpdateRule):
    """DC-ASGD (Zheng et al. 2017): g + λ g² (w - w_read). Records what it calls w_read."""

    learning_rate: float = 1.0
    strength: float = 2.0
    needs_read_value = True

    def update(self, ctx: Any, value: Any, grad: Any) -> Any:
        SEEN.append((ctx.worker, ctx.staleness, np.array(ctx.read_value)))
        return value - ctx.learning_rate * (grad + self.strength * grad * grad * (value - ctx.read_value))


def test_every_shard_uses_the_same_rate_at_the_same_step() -> None:
    # claim 6
    with (
        ps.LocalCluster(3, "async", 2, rule="recorder:learning_rate=0.25") as local,
        client.connect(local.cluster, worker=0) as zero,
        client.connect(local.cluster, worker=1) as one,
    ):
        zero.init({name: np.zeros(2) for name in "abc"})
        one.pull()
        for _ in range(2):
            for server in (zero, one):
                server.push({name: np.ones(2) for name in "abc"})
    by_step: dict[int, set[Any]] = {}
    for step, rate, staleness, worker, _, _ in SEEN:
        by_step.setdefault(step, set()).add((rate, staleness, worker))
    assert by_step == {0: {(0.25, 0, 0)}, 1: {(0.25, 1, 1)}, 2: {(0.25, 2, 0)}, 3: {(0.25, 3, 1)}}
    assert len(SEEN) == 3 * 4


def test_in_sync_mode_the_mean_of_several_is_nobodys() -> None:
    with (
        ps.LocalCluster(2, "sync", 2, rule="recorder") as local,
        client.connect(local.cluster, worker=0) as zero,
        client.connect(local.cluster, worker=1) as one,
    ):
        zero.init({"a": np.zeros(2)})
        one.pull()
        zero.push({"a": np.ones(2)})
        one.push({"a": np.ones(2)})
    assert [seen[:4] for seen in SEEN] == [(0, 0.5, 0, None)]


def test_a_rule_that_asks_for_it_gets_exactly_the_value_that_was_read() -> None:
    with (
        ps.LocalCluster(2, "async", 2, rule="delay_compensated") as local,
        client.connect(local.cluster, worker=0) as zero,
        client.connect(local.cluster, worker=1) as one,
    ):
        rng = np.random.default_rng(2)
        start = {"w": rng.standard_normal((6, 3)), "b": rng.standard_normal(4)}
        zero.init(start, partitioner=client.FixedShardsPartitioner(2))
        read = {0: zero.pull(), 1: one.pull()}
        weights = dict(start)
        for number in range(12):
            worker = int(rng.integers(2))
            server = (zero, one)[worker]
            grads = {name: rng.standard_normal(value.shape) for name, value in start.items()}
            SEEN.clear()
            result = server.push(grads)
            assert {seen[:2] for seen in SEEN} == {(worker, number - read[worker].step)}
            assert result.staleness == number - read[worker].step
            for name, grad in grads.items():
                was = read[worker][name]
                weights[name] = weights[name] - (grad + 2.0 * grad * grad * (weights[name] - was))
            given = np.sort(np.concatenate([seen[2].reshape(-1) for seen in SEEN]))
            asked = np.sort(np.concatenate([read[worker][name].reshape(-1) for name in start]))
            np.testing.assert_array_equal(given, asked)
            if rng.random() < 0.7 or number - read[worker].step > 3:
                read[worker] = server.pull()
        values = zero.pull()
        for name, weight in weights.items():
            np.testing.assert_array_equal(values[name], weight)


def test_the_value_read_of_rows() -> None:
    with (
        ps.LocalCluster(1, "async", rule="delay_compensated") as local,
        client.connect(local.cluster, worker=0) as server,
    ):
        server.init({"emb": np.arange(8.0).reshape(4, 2)})
        server.pull(rows={"emb": [3, 1]})
        server.assign({"emb": np.zeros((4, 2))})
        server.push({"emb": client.IndexedSlices(np.ones((2, 2)), np.array([3, 1]))})
        ((_, _, given),) = SEEN
        np.testing.assert_array_equal(given, [[2, 3], [6, 7]])  # not the zeros that were assigned since


def test_a_version_that_was_not_pulled_last_has_no_value_to_give() -> None:
    # claim 11
    with (
        ps.LocalCluster(2, "async", rule="delay_compensated") as local,
        client.connect(local.cluster, worker=0) as server,
        client.connect(local.cluster, observer=True) as observer,
    ):
        server.init({"w": np.zeros(2)})
        server.push({"w": np.ones(2)})
        server.pull()
        with refused(observer, RuleError, "version 0", "last pull"):
            server.push({"w": np.ones(2)}, version=(0, 0))
        assert server.push({"w": np.ones(2)}).step == 2


@register("centered_by_the_whole")
class Centered(UpdateRule):
    """Gradient centralization (Yong et al. 2020) over the whole variable: not elementwise."""

    learning_rate: float = 1.0
    elementwise: ClassVar[bool] = False
    slots: ClassVar[tuple[str, ...]] = ("total",)

    def update(self, ctx: Any, value: Any, grad: Any, total: Any) -> Any:
        SEEN.append((value.shape, grad.shape, total.shape))
        return value - ctx.learning_rate * (grad - grad.mean()), total + grad


def test_a_rule_over_whole_variables_is_never_cut() -> None:
    shape = (3, PAGE_BYTES // 8 + 3)  # several pages; the partitioner would cut it, too
    with (
        ps.LocalCluster(3, "async", rule="centered_by_the_whole") as local,
        client.connect(local.cluster, worker=0) as server,
    ):
        server.init({"w": np.zeros(shape), "s": np.zeros(())}, partitioner=client.FixedShardsPartitioner(3))
        assert sum(each["partitions"] for each in server.status()["ps"]) == 2
        grad = np.random.default_rng(1).standard_normal(shape)
        server.push({"w": grad, "s": np.float64(2)})
        np.testing.assert_array_equal(server.pull()["w"], -(grad - grad.mean()))
        server.push({"w": client.IndexedSlices(grad[:1], np.array([2]))})  # is made dense
    assert [(shape,) * 3, ((),) * 3, (shape,) * 3] == SEEN or [((),) * 3, (shape,) * 3, (shape,) * 3] == SEEN


@register("rude")
class Rude(UpdateRule):
    """Does what a rule must not, as its field says."""

    learning_rate: float = 1.0
    how: str = ""
    slots: ClassVar[tuple[str, ...]] = ("kept",)

    def update(self, ctx: Any, value: Any, grad: Any, kept: Any) -> Any:
        if self.how == "writes":
            value -= grad
        if self.how == "gradient":
            grad *= 2
        if self.how == "short":
            return value
        if self.how == "shape":
            return value[:1], kept
        if self.how == "text":
            return np.full(value.shape, "x"), kept
        if self.how == "raises":
            raise KeyError("no such thing")
        return value - grad, kept


@pytest.mark.parametrize("how", ["writes", "gradient", "short", "shape", "text", "raises"])
@pytest.mark.parametrize("mode", ["async", "sync"])
def test_a_rule_that_misbehaves_changes_nothing(mode: str, how: str) -> None:
    # claim 11
    with ps.LocalCluster(2, mode, rule=f"rude:how={how}") as local, client.connect(local.cluster, worker=0) as server:
        server.init({"a": np.ones(2), "b": np.ones(2)})
        with client.connect(local.cluster, observer=True) as observer:
            for _ in range(2):
                with refused(observer, RuleFailed, "rude"):
                    server.push({"a": np.ones(2), "b": np.ones(2)})
            assert server.pull().step == 0
            with refused(observer, ShapeMismatch):
                server.push({"a": np.ones(3)})
