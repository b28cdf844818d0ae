"""Does a job train with gradients that are made smaller for the way? Against ps in this process, each lesson in numpy."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import client
import ps
from protos.errors import InvalidInput, PushFailed
from tests.harness.threads import together

METHODS = ["float16", "bfloat16", "int8", "sign", "top_k:0.1"]
# Of more than one page, of one, and a few small ones in a pack.
SHAPES = {"big": (700, 500), "middle": (300,), "a": (3,), "b": (2, 2), "c": ()}


@contextlib.contextmanager
def one_worker(rule: str = "sgd:learning_rate=1", **options: Any) -> Iterator[client.Client]:
    with (
        ps.LocalCluster(servers=2, mode=options.pop("mode", "async"), rule=rule) as local,
        client.connect(local.cluster, worker=0, **options) as server,
    ):
        server.init({name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()})
        yield server


def gradients(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: (rng.integers(-40, 40, shape) * 0.125).astype(np.float32) for name, shape in SHAPES.items()}


@pytest.mark.parametrize("shared_memory", [True, False])
@pytest.mark.parametrize("said", METHODS)
def test_what_the_ps_lacks_of_the_sum_of_the_gradients_is_what_the_worker_keeps(said: str, shared_memory: bool) -> None:
    with one_worker(compression=said, shared_memory=shared_memory) as server:
        for step in range(4):
            server.push_pull(gradients(step))
        values = server.pull()
        traffic = server.traffic()
        compressor = server._process.compressor
        kept = sum(float(residual.sum(dtype=np.float64)) for residual in compressor._residuals.values())
    total = sum(float(each.sum(dtype=np.float64)) for step in range(4) for each in gradients(step).values())
    arrived = -sum(float(value.sum(dtype=np.float64)) for value in values.values())
    assert arrived + kept == pytest.approx(total, abs=1.0 if said == "sign" else 0)
    assert traffic.sent_bytes <= 0.51 * traffic.raw_bytes
    assert traffic.raw_bytes == 4 * sum(each.nbytes for each in gradients(0).values())


@pytest.mark.parametrize("said", METHODS)
def test_descent_comes_to_the_minimum_all_the_same(said: str) -> None:
    # ½ |w - 1|², whose gradient is w - 1: what top_k and the signs leave out comes later.
    target = 1.0
    with one_worker("sgd:learning_rate=0.05", compression=said) as server:
        values = server.pull()
        for _ in range(300):
            values, _ = server.push_pull({name: value - np.float32(target) for name, value in values.items()})
    assert max(float(np.abs(value - target).max()) for value in values.values()) < 0.05


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_workers_of_one_job_may_differ(mode: str) -> None:
    def work(index: int) -> None:
        with client.connect(local.cluster, worker=index, compression=["int8", "none", "sign"][index]) as server:
            server.init({"w": np.zeros(600, np.float32)})
            values = server.pull()
            for _ in range(60):
                values, _ = server.push_pull({"w": values["w"] - np.float32(1)})

    with ps.LocalCluster(servers=2, mode=mode, workers=3, rule="sgd:learning_rate=0.1") as local:
        together([functools.partial(work, index) for index in range(3)])
        with client.connect(local.cluster, observer=True) as observer:
            np.testing.assert_allclose(observer.pull()["w"], 1, atol=0.05)


def test_off_by_default_and_by_the_environment_on(monkeypatch: pytest.MonkeyPatch) -> None:
    with one_worker() as server:
        server.push(gradients(0))
        assert server.traffic() == (0, 0)
    monkeypatch.setenv("PARAMSERVER_COMPRESSION", "int8")
    with one_worker() as server:
        server.push(gradients(0))
        assert server.traffic().sent_bytes < 0.3 * server.traffic().raw_bytes
    with one_worker(compression="none") as server:  # an argument comes first
        server.push(gradients(0))
        assert server.traffic() == (0, 0)


def test_what_is_no_compression_is_refused_before_anything_is_joined() -> None:
    for odd in ("int9", 8):
        with pytest.raises(InvalidInput, match="compression"):
            client.connect({"ps": ["127.0.0.1:1"], "worker": ["127.0.0.1:2"]}, worker=0, compression=odd)  # type: ignore[arg-type]


def test_a_rule_that_clips_by_the_norm_of_the_whole_is_refused_in_async_and_works_in_sync() -> None:
    rule = "sgd:learning_rate=1,global_clipnorm=1"
    with one_worker(rule, compression="int8") as server, pytest.raises(InvalidInput, match=r"compression.*int8.*sync"):
        server.push(gradients(0))
    with one_worker(rule, compression="int8", mode="sync") as server:
        values, _ = server.push_pull(gradients(0))
    assert sum(float((value**2).sum()) for value in values.values()) == pytest.approx(1, rel=1e-3)


def test_a_push_that_one_ps_refused_is_sent_again_with_another_gradient_and_nothing_is_lost_or_twice() -> None:
    # claim 12
    start = {name: np.zeros(300) for name in "ab"}  # one on each ps
    with (
        ps.LocalCluster(servers=2, rule="sgd:learning_rate=1") as local,
        client.connect(local.cluster, worker=0, compression="int8") as server,
    ):
        server.init(start)
        rng = np.random.default_rng(0)
        first, second = ({name: rng.integers(-400, 400, 300) * 0.125 for name in "ab"} for _ in range(2))
        server.push(first)
        local._servers[1].shard.guard_nonfinite = True  # after the join, so that the client does not know
        with pytest.raises(PushFailed) as caught:
            server.push({"a": second["a"], "b": np.full(300, np.nan)})
        result = server.push(second, sequence=caught.value.sequence)
        assert result.version == (2, 2)
        values, compressor = server.pull(), server._process.compressor
        for index, name in enumerate("ab"):
            residual = compressor.residual(index, 0, 0)
            assert residual is not None
            assert residual.any()
            np.testing.assert_array_equal(residual - values[name], first[name] + second[name])
