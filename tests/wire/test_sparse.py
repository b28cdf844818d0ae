"""Some rows only: pull(rows=...) and IndexedSlices, over partitions, with everything that can be wrong about row numbers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import client
import ps
from protos.errors import DtypeMismatch, RowOutOfRange, ShapeMismatch, UnknownVariable
from tests.harness.state import refused

ROWS = 11
EMB = np.arange(ROWS * 3, dtype=np.float32).reshape(ROWS, 3)


@contextlib.contextmanager
def embedding(rule: str = "sgd:learning_rate=1", mode: str = "async") -> Iterator[tuple[client.Client, client.Client]]:
    """A worker and an observer of a model whose embedding is cut in 4 partitions on 3 ps."""
    with ps.LocalCluster(servers=3, mode=mode) as local, client.connect(local.cluster, worker=0) as server:
        start = {"emb": EMB, "bias": np.zeros(2, np.float32), "scalar": np.float32(0)}
        server.init(start, rule=rule, partitioner=client.FixedShardsPartitioner(4))
        with client.connect(local.cluster, observer=True) as observer:
            yield server, observer


def test_rows_come_in_the_order_asked_for() -> None:
    with embedding() as (server, _):
        for ids in ([10, 0, 5, 5, 2], [], list(range(ROWS)), [3], np.array([4, 1], np.uint8), np.array([7], ">i4")):
            values = server.pull(rows={"emb": ids})
            assert list(values) == ["emb"]
            np.testing.assert_array_equal(values["emb"], EMB[np.asarray(ids, np.int64)])
        both = server.pull(["bias"], rows={"emb": [1]})
        assert (both["bias"].shape, both["emb"].shape) == ((2,), (1, 3))
        assert server.pull([]) == {}
        assert list(server.pull("bias")) == ["bias"]


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_duplicates_are_summed_and_other_rows_left_alone(mode: str) -> None:
    with embedding(mode=mode) as (server, _):
        server.pull()
        ids = np.array([10, 0, 10, 3, 10])
        rows = np.arange(1, 16, dtype=np.float32).reshape(5, 3)
        values, result = server.push_pull({"emb": client.IndexedSlices(rows, ids)})
        expected = EMB.copy()
        np.subtract.at(expected, ids, rows)
        np.testing.assert_array_equal(values["emb"], expected)
        assert result.version == (1, 1, 1)


def test_a_sparse_gradient_leaves_the_slots_of_other_rows_alone() -> None:
    with embedding(rule="adam:learning_rate=1") as (server, _):
        ids = np.array([2, 9])
        server.push({"emb": client.IndexedSlices(np.ones((2, 3), np.float32), ids)})
        server.push({"emb": client.IndexedSlices(np.zeros((0, 3), np.float32), np.array([], np.int64))})  # names no row
        values = server.pull()
        others = np.setdiff1d(np.arange(ROWS), ids)
        np.testing.assert_array_equal(values["emb"][others], EMB[others])
        np.testing.assert_allclose(values["emb"][ids], EMB[ids] - 1, rtol=1e-5)
        assert values.step == 2


def test_sums_of_narrow_rows_are_made_wide() -> None:
    """2048 + 1 is 2048 in float16: 1,000 ones on one row are 1,000 only if they are summed in float32."""
    with ps.LocalCluster() as local, client.connect(local.cluster, worker=0) as server:
        server.init({"emb": np.zeros((2, 1), np.float16)}, rule="sgd:learning_rate=1")
        ids = np.zeros(3001, np.int64)
        server.push({"emb": client.IndexedSlices(np.ones((3001, 1), np.float16), ids)})
        np.testing.assert_array_equal(server.pull()["emb"], np.array([[-3001], [0]], np.float16))


def test_rows_longer_than_a_page_and_more_rows_than_a_message_holds() -> None:
    wide, tall = np.zeros((3, 400_000), np.float32), np.zeros((300_000, 4), np.float32)
    with ps.LocalCluster(servers=2) as local, client.connect(local.cluster, worker=0) as server:
        server.init({"wide": wide, "tall": tall}, rule="sgd:learning_rate=1")
        rng = np.random.default_rng(1)
        row = rng.standard_normal((2, 400_000)).astype(np.float32)
        ids = rng.permutation(300_000)[:200_000]
        many = rng.standard_normal((200_000, 4)).astype(np.float32)
        gradients: dict[str, Any] = {"wide": client.IndexedSlices(row, np.array([2, 0]))}
        gradients["tall"] = client.IndexedSlices(many, ids)
        server.push(gradients)
        values = server.pull(rows={"wide": [0, 2], "tall": ids})
        np.testing.assert_array_equal(values["wide"], -row[::-1])
        np.testing.assert_array_equal(values["tall"], -many)
        assert not server.pull(rows={"wide": [1]})["wide"].any()


@pytest.mark.parametrize("bad", [ROWS, -1, 1 << 40, -(1 << 62)])
def test_a_row_out_of_range_is_refused_and_changes_nothing(bad: int) -> None:
    # claim 11
    with embedding() as (server, observer):
        with refused(observer, RowOutOfRange, "emb", f"row {bad}", f"0 to {ROWS - 1}"):
            server.push({"emb": client.IndexedSlices(np.ones((2, 3), np.float32), np.array([0, bad]))})
        with refused(observer, RowOutOfRange, "emb", f"row {bad}"):
            server.pull(rows={"emb": [1, bad]})


def test_other_things_that_are_wrong_about_rows() -> None:
    # claim 11
    slices = client.IndexedSlices
    two = np.ones((2, 3), np.float32)
    with embedding() as (server, observer):
        wrong: list[tuple[type[Exception], dict[str, Any]]] = [
            (ShapeMismatch, {"scalar": slices(np.ones(1, np.float32), [0])}),
            (ShapeMismatch, {"emb": slices(two, [0])}),
            (ShapeMismatch, {"emb": slices(np.ones((2, 4), np.float32), [0, 1])}),
            (ShapeMismatch, {"emb": slices(np.ones(2, np.float32), [0, 1])}),
            (DtypeMismatch, {"emb": slices(two.astype(np.float64), [0, 1])}),
            (DtypeMismatch, {"emb": slices(two, [0.0, 1.0])}),
            (DtypeMismatch, {"emb": slices(two, [[0, 1]])}),
            (DtypeMismatch, {"emb": slices(two, [True, False])}),
            (UnknownVariable, {"nothing": slices(two, [0, 1])}),
        ]
        for kind, gradients in wrong:
            with refused(observer, kind, next(iter(gradients))):  # type: ignore[arg-type]
                server.push(gradients)
        for kind, rows in (
            (ShapeMismatch, {"scalar": [0]}),
            (DtypeMismatch, {"emb": 3}),
            (UnknownVariable, {"no": [0]}),
        ):
            with refused(observer, kind, next(iter(rows))):  # type: ignore[arg-type]
                server.pull(rows=rows)
        with refused(observer, DtypeMismatch, "emb"):
            server.assign({"emb": slices(two, [0, 1])})


def test_rows_that_are_accumulated_move_the_same_rows_however_the_variable_is_cut() -> None:
    # The mean of what was held back is dense: momentum goes on in every row, also in those that no push has named since.
    results = []
    for shards in (1, 2):
        with ps.LocalCluster(2) as local, client.connect(local.cluster, 0) as server:
            server.init(
                {"e": np.zeros((40, 3), np.float32)},
                rule="momentum:learning_rate=1,gradient_accumulation_steps=2",
                partitioner=client.FixedShardsPartitioner(shards),
            )
            for _ in range(2):
                server.push({"e": np.ones((40, 3), np.float32)})
            for _ in range(4):
                server.push({"e": client.IndexedSlices(np.ones((1, 3), np.float32), [0])})
            results.append(server.pull()["e"])
    np.testing.assert_array_equal(*results)
    assert results[0][39, 0] < -1
