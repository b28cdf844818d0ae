"""What no ps knows alone: norms and distances over the whole model, in every mode, whatever the number of ps.

Each lesson compares several ps with the same arithmetic in one numpy process.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import client
import ps
from protos.errors import ConfigurationConflict, InvalidInput, ParameterServerError, RuleFailed
from ps.membership import Membership
from ps.rules import Transform, configured, register
from ps.sums import Key, Totals
from tests.harness.state import refused
from tests.harness.threads import Task

rng = np.random.default_rng(5)
SHAPES = {"w": (7, 3), "b": (3,), "v": (40, 2)}
CLIP = "sgd:learning_rate=1,global_clipnorm=2"


def zeros() -> dict[str, Any]:
    return {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}


def random() -> dict[str, Any]:
    return {name: rng.normal(size=shape).astype("f") for name, shape in SHAPES.items()}


def clipped(gradients: dict[str, Any], limit: float) -> dict[str, Any]:
    """In one process, in float64."""
    norm = np.sqrt(sum((gradient.astype("d") ** 2).sum() for gradient in gradients.values()))
    return {name: gradient * min(1.0, limit / norm) for name, gradient in gradients.items()}


def assert_close(values: Any, expected: dict[str, Any]) -> None:
    for name, value in expected.items():
        np.testing.assert_allclose(values[name], value, rtol=1e-6, atol=1e-7, err_msg=name)


def step_of_all(workers: list[Any], gradients: list[Any], **more: Any) -> Any:
    """Every worker pushes for one step of sync mode; the values after it."""
    tasks = [Task(lambda w=worker, g=gradient: w.push_pull(g, **more)) for worker, gradient in zip(workers, gradients)]
    results = [task.result() for task in tasks]
    return results[0][0]


@pytest.mark.parametrize("servers", [1, 3])
@pytest.mark.parametrize("mode", ["async", "ssp"])
def test_a_push_is_clipped_by_the_norm_of_all_its_gradients(mode: str, servers: int) -> None:
    gradients = random()
    with ps.LocalCluster(servers, mode) as local, client.connect(local.cluster, worker=0) as server:
        server.init(zeros(), rule=CLIP, partitioner=client.FixedShardsPartitioner(servers))
        values, _ = server.push_pull(gradients)
    assert_close(values, {name: -gradient for name, gradient in clipped(gradients, 2.0).items()})


@pytest.mark.parametrize("servers", [1, 3])
def test_a_step_is_clipped_by_the_norm_of_the_mean(servers: int) -> None:
    # claim 5: the union batch in one process clips what it has, the mean.
    gradients = [random(), random()]
    with (
        ps.LocalCluster(servers, "sync", workers=2) as local,
        client.connect(local.cluster, worker=0) as zero,
        client.connect(local.cluster, worker=1) as one,
    ):
        for server in (zero, one):
            server.init(zeros(), rule=CLIP, partitioner=client.FixedShardsPartitioner(servers))
        values = step_of_all([zero, one], gradients)
        again = step_of_all([zero, one], gradients)
    mean = {name: (gradients[0][name] + gradients[1][name]) / 2 for name in SHAPES}
    assert_close(values, {name: -gradient for name, gradient in clipped(mean, 2.0).items()})
    assert_close(again, {name: -2 * gradient for name, gradient in clipped(mean, 2.0).items()})


@pytest.mark.parametrize("servers", [1, 2])
def test_a_gradient_whose_squares_are_beyond_float32_is_clipped_too(servers: int) -> None:
    with ps.LocalCluster(servers) as local, client.connect(local.cluster, worker=0) as server:
        server.init({name: np.zeros(2, np.float32) for name in "ab"}, rule="sgd:learning_rate=1,global_clipnorm=1")
        values, _ = server.push_pull({name: np.full(2, 1e25, np.float32) for name in "ab"})
    assert values["a"].tolist() == values["b"].tolist() == pytest.approx([-0.5, -0.5])


def test_a_worker_that_leaves_does_not_wait_for_the_step_that_the_others_make_without_it() -> None:
    # claim 4: ps 0 hears of it first, and needs the others, who hear of it next, for the norm.
    with ps.LocalCluster(2, "sync", workers=2) as local, client.connect(local.cluster, worker=0) as stays:
        with client.connect(local.cluster, worker=1) as goes:
            stays.init(zeros(), rule=CLIP, partitioner=client.FixedShardsPartitioner(2))
            goes.pull()
            gradients = random()
            assert stays.push(gradients).outcome == "buffered"
        values = stays.pull()
    assert values.version == (1, 1)
    assert_close(values, {name: -gradient for name, gradient in clipped(gradients, 2.0).items()})


def test_rows_count_in_the_norm_as_their_sums() -> None:
    rows = client.IndexedSlices(np.array([[3, 0], [1, 0], [0, 3]], np.float32), [5, 5, 30])
    with ps.LocalCluster(2) as local, client.connect(local.cluster, worker=0) as server:
        server.init({"v": np.zeros((40, 2), np.float32)}, rule="sgd:learning_rate=1,global_clipnorm=1")
        values, _ = server.push_pull({"v": rows})
    assert values["v"][5].tolist() == pytest.approx([-4 / 5, 0])
    assert values["v"][30].tolist() == pytest.approx([0, -3 / 5])


def test_a_scaled_push_is_clipped_by_its_norm_without_the_scale() -> None:
    gradients = random()
    with ps.LocalCluster(2) as local, client.connect(local.cluster, worker=0) as server:
        server.init(zeros(), rule=CLIP)
        values, _ = server.push_pull({name: 1024 * gradient for name, gradient in gradients.items()}, scale=1024.0)
    assert_close(values, {name: -gradient for name, gradient in clipped(gradients, 2.0).items()})


def test_krum_takes_the_same_worker_on_every_ps() -> None:
    # On its own part of the model, each ps would take another: the liar is closest to the others in one variable.
    honest = [random() for _ in range(4)]
    for gradients in honest[1:]:
        for name in SHAPES:
            gradients[name][...] = honest[0][name] + 0.01 * gradients[name]
    liar = {**honest[0], "v": honest[0]["v"] + 1000}
    pushed = [liar, *honest]
    with ps.LocalCluster(3, "sync", workers=5) as local:
        workers = [client.connect(local.cluster, worker=index) for index in range(5)]
        for worker in workers:
            worker.init(zeros(), rule="sgd:learning_rate=1,aggregation=krum(byzantine=1)")
        values = step_of_all(workers, pushed)
        for worker in workers:
            worker.leave()
    taken = [at for at, each in enumerate(honest) if all(np.array_equal(values[name], -each[name]) for name in SHAPES)]
    assert len(taken) == 1


def test_batches_of_different_size_count_by_their_size() -> None:
    with (
        ps.LocalCluster(2, "sync", workers=2, rule="sgd:learning_rate=1,aggregation=weighted_mean") as local,
        client.connect(local.cluster, worker=0) as zero,
        client.connect(local.cluster, worker=1) as one,
    ):
        for server in (zero, one):
            server.init({"w": np.zeros(2, np.float32)})
        small = Task(lambda: zero.push_pull({"w": np.array([4, 0], np.float32)}, weight=1))
        one.push_pull({"w": np.array([0, 4], np.float32)}, weight=3)
        values, _ = small.result()
    assert values["w"].tolist() == [-1, -3]


def test_what_the_modes_cannot_do_is_refused_at_init() -> None:
    accumulated = "sgd:gradient_accumulation_steps=2,global_clipnorm=1"
    with ps.LocalCluster(2) as local, client.connect(local.cluster, worker=0) as server:
        with refused(server, ConfigurationConflict, "krum", "mode sync"):
            server.init(zeros(), rule="sgd:aggregation=krum(byzantine=1)")
        with refused(server, ConfigurationConflict, "global norm", "2 ps"):
            server.init(zeros(), rule=accumulated)
        with refused(server, ConfigurationConflict, "Krum", "5 workers"):
            server.init(zeros(), rule="sgd:aggregation=krum(byzantine=1)", mode="sync")
        server.init(zeros(), rule=accumulated, mode="sync")
    for rule in (CLIP, "sgd:aggregation=krum(byzantine=1)"):
        # ps 0 tells whose gradients count when its step is made, and its step would wait for the other ps.
        with (
            ps.LocalCluster(2, "sync", 6, backup_workers=1) as local,
            client.connect(local.cluster, worker=0) as server,
        ):
            with refused(server, ConfigurationConflict, "backup_workers", "one ps"):
                server.init(zeros(), rule=rule)
    with ps.LocalCluster(1) as local, client.connect(local.cluster, worker=0) as server:
        server.init(zeros(), rule=accumulated)


@pytest.fixture
def fails_if_large() -> Iterator[None]:
    """A transform that fails on the ps that holds the large gradient."""

    @register("fails_if_large")
    class FailsIfLarge(Transform):
        limit: float = 1.0

        def transform(self, ctx: Any, value: Any, grad: Any) -> Any:
            if np.abs(grad).max() > self.limit:
                raise OverflowError("too large")
            return grad

    yield
    del configured._REGISTRY["transform"]["fails_if_large"]


def test_a_step_that_fails_on_one_ps_fails_on_all_at_once_and_can_be_made_again(fails_if_large: None) -> None:
    # claim 12: the other ps wait for a part of the norm that never comes; they are told, and do not wait in vain.
    huge = {"a": np.full(4, 1e30, np.float32), "b": np.ones(4, np.float32)}
    rule = "sgd:learning_rate=1,transforms=[fails_if_large(1e20),clip_by_global_norm(2)]"
    with ps.LocalCluster(2, "sync") as local, client.connect(local.cluster, worker=0) as server:
        server.init({name: np.zeros(4, np.float32) for name in huge}, rule=rule)
        with pytest.raises(ParameterServerError, match="too large"):
            server.push_pull(huge)
        assert server.status()["version"] == [0, 0]
        values, result = server.push_pull({"a": np.ones(4, np.float32), "b": np.zeros(4, np.float32)})
    assert result.outcome == "applied"
    assert values["a"].tolist() == [-1, -1, -1, -1]


@pytest.mark.parametrize("bad", ["a", "b"])
def test_a_step_that_fails_on_one_ps_after_the_sum_fails_on_all_and_can_be_made_again(
    bad: str, fails_if_large: None
) -> None:
    # claim 12: every ps has the norm, and one of them, ps 0 or ps 1, cannot use it. The others do not go on without it.
    first: dict[str, Any] = {"a": np.zeros(4, np.float32), "b": np.zeros(4, np.float32)}
    rule = "sgd:learning_rate=1,transforms=[clip_by_global_norm(2),fails_if_large(1.5)]"
    with ps.LocalCluster(2, "sync") as local, client.connect(local.cluster, worker=0) as server:
        server.init(first, rule=rule)
        for _ in range(2):
            with pytest.raises(RuleFailed, match="too large"):
                server.push_pull({**first, bad: np.array([9, 0, 0, 0], np.float32)})
            assert server.status()["version"] == [0, 0]
        values, result = server.push_pull({name: np.ones(4, np.float32) for name in first})
    assert (result.outcome, result.version) == ("applied", (1, 1))
    assert values["a"].tolist() == values["b"].tolist() == pytest.approx([-(0.5**0.5)] * 4)


@pytest.mark.parametrize("field", ["weight", "scale"])
@pytest.mark.parametrize("number", [0, -1.0, float("nan"), float("inf"), "1", True])
def test_a_weight_or_a_scale_that_is_none_is_refused(field: str, number: Any) -> None:
    with ps.LocalCluster(1) as local, client.connect(local.cluster, worker=0) as server:
        server.init({"w": np.zeros(2, np.float32)}, rule="sgd")
        with refused(server, InvalidInput, field):
            server.push({"w": np.ones(2, np.float32)}, **{field: number})


def test_moving_averages_can_be_pulled() -> None:
    rule = "sgd:learning_rate=1,use_ema=true,ema_momentum=0.5"
    with ps.LocalCluster(2) as local, client.connect(local.cluster, worker=0) as server:
        values = {"w": np.zeros((4, 2), np.float32), "h": np.zeros(3, np.float16), "n": np.arange(3)}
        server.init(values, rule=rule, partitioner=client.FixedShardsPartitioner(2))
        assert server.pull(averages=True)["w"].tolist() == values["w"].tolist()
        for _ in range(2):
            server.push({"w": np.full((4, 2), -1, np.float32), "h": np.full(3, -1, np.float16)})
        averages = server.pull(averages=True)
        assert server.pull()["w"][0].tolist() == [2, 2]
        some = server.pull(rows={"w": [3]}, averages=True)
    # 1 after the first step, then (1 + 2) / 2.
    assert averages["w"].tolist() == [[1.5, 1.5]] * 4
    assert averages["h"].tolist() == [1.5] * 3
    assert averages["h"].dtype == np.float16
    assert averages["n"].tolist() == [0, 1, 2]
    assert some["w"].tolist() == [[1.5, 1.5]]


def test_averages_that_nobody_keeps_are_refused() -> None:
    with ps.LocalCluster(1) as local, client.connect(local.cluster, worker=0) as server:
        server.init({"w": np.zeros(2, np.float32)}, rule="sgd")
        with refused(server, InvalidInput, "averages", "use_ema"):
            server.pull(averages=True)
        assert server.pull()["w"].tolist() == [0, 0]


def test_every_ps_reports_the_same_rate_at_the_same_step_also_when_pushes_touch_one_of_them() -> None:
    # claim 6
    rule = "sgd:learning_rate=exponential_decay(1,decay_steps=1,decay_rate=0.5)"
    with ps.LocalCluster(2) as local, client.connect(local.cluster, worker=0) as server:
        server.init({"a": np.zeros(1, np.float32), "b": np.zeros(1, np.float32)}, rule=rule)
        seen = [[one["learning_rate"] for one in server.status()["ps"]]]
        for _ in range(3):
            server.push({"a": np.ones(1, np.float32)})
            seen.append([one["learning_rate"] for one in server.status()["ps"]])
        values, _ = server.push_pull({"b": np.ones(1, np.float32)})
    assert seen == [[1.0, 1.0], [0.5, 0.5], [0.25, 0.25], [0.125, 0.125]]
    assert values["a"].tolist() == [-1.75]
    assert values["b"].tolist() == [-0.125]


def test_a_scaled_gradient_is_divided_in_float32_and_reaches_a_narrow_variable_through_its_master() -> None:
    # 2^-26 is nothing in float16; scaled by 2^20 it crosses the wire, and 2^13 of them move the value by 2^-13.
    tiny, scale, count = 2.0**-26, 2.0**20, 64
    with ps.LocalCluster(1) as local, client.connect(local.cluster, worker=0) as server:
        server.init({"h": np.zeros(2, np.float16)}, rule="sgd:learning_rate=128")
        assert np.float16(tiny) == 0
        for _ in range(count):
            server.push({"h": np.full(2, tiny * scale, np.float16)}, scale=scale)
        values = server.pull()
    assert values["h"].tolist() == [-(2.0**-26) * 128 * count] * 2


def test_a_failure_that_ps_0_cannot_be_told_does_not_hide_what_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    # claim 4: where ps 0 is gone, saying so to it takes little time.
    monkeypatch.setattr("ps.sums.FAILURE_S", 0.1)

    async def lesson() -> None:
        with socket.socket() as nobody:
            nobody.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{nobody.getsockname()[1]}"
            totals = Totals(1, [address, "127.0.0.1:1"], Membership(1, run_id="a run"))
            await totals.failed(Key(0, 0, 0), "ZeroDivisionError")
            await totals.close()

    asyncio.run(lesson())
