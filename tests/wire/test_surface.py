"""Does the client do what the design says, word by word? The lesson to read first."""

from __future__ import annotations

import json

import numpy as np
import pytest

import client
import ps
from protos.errors import ConfigurationConflict, InitConflict, NotTrainable
from ps.rules import UpdateRule, register
from tests.harness.state import counters_add_up


@register("signum_of_the_design")
class Signum(UpdateRule):
    """Sign of an averaged gradient (Bernstein et al. 2018)."""

    learning_rate: float = 1e-3
    momentum: float = 0.9
    slots = ("velocity",)

    def update(self, ctx, value, grad, velocity):
        velocity = self.momentum * velocity + (1 - self.momentum) * grad
        return value - ctx.learning_rate * np.sign(velocity), velocity


@pytest.mark.parametrize("mode", ["async", "sync", "ssp"])
def test_the_snippet_of_the_design_runs(mode: str) -> None:
    w0, b0 = np.ones((3, 2), np.float32), np.zeros(2, np.float32)
    gw, gb = np.full((3, 2), 2, np.float32), np.full(2, -2, np.float32)
    with ps.LocalCluster(servers=2, mode=mode, workers=1) as local:
        cluster = local.cluster

        with client.connect(cluster, worker=0) as server:
            server.init({"w": w0, "b": b0}, rule={"name": "adam", "learning_rate": 1e-3})
            values = server.pull()
            assert (values.version, values.step) == ((0, 0), 0)
            np.testing.assert_array_equal(values["w"], w0)
            result = server.push({"w": gw, "b": gb})
            assert (result.outcome, result.staleness, result.version, result.step) == ("applied", 0, (1, 1), 1)

            # This gradient is of the version pulled before the push: one step old. Sync drops it and says so.
            values, result = server.push_pull({"w": gw, "b": gb})
            outcome, step = ("stale", 1) if mode == "sync" else ("applied", 2)
            assert (values.version, values.step) == ((step, step), step)
            assert (result.outcome, result.staleness, result.version) == (outcome, 1, (step, step))
            # A constant gradient makes Adam take steps of one learning rate.
            np.testing.assert_allclose(values["w"], w0 - step * 1e-3, rtol=1e-6)
            np.testing.assert_allclose(values["b"], b0 + step * 1e-3, rtol=1e-5)

            values, result = server.push_pull({"w": gw, "b": gb})  # of what the last push_pull brought
            assert (result.outcome, result.staleness, result.step) == ("applied", 0, step + 1)

            status = server.status()
            assert {"bytes", "version", "rule", "mode", "workers", "ps"} <= status.keys()
            for one in status["ps"]:
                assert {"bytes", "version", "rule", "mode", "workers", "counters"} <= one.keys()
            assert status["mode"] == mode
            assert status["rule"].startswith("adam:learning_rate=0.001")
            assert status["bytes"] == 3 * (w0.nbytes + b0.nbytes)  # values, m and v
            assert [worker["state"] for worker in status["workers"]] == ["active"]
            assert counters_add_up(status)  # claim 3
            json.dumps(status)  # plain numbers and text

        with client.connect(cluster, observer=True) as observer:  # the context manager has left
            assert [worker["state"] for worker in observer.status()["workers"]] == ["left"]


def test_more_of_the_same_object() -> None:
    start = {"w": np.ones(4, np.float32), "emb": np.zeros((5, 2), np.float32), "n": np.int64(0)}
    with (
        ps.LocalCluster(servers=2, mode="async", workers=1) as local,
        client.connect(local.cluster, worker=0) as server,
    ):
        assert server.init(start, rule="sgd:learning_rate=1") is True

        server.assign({"n": np.int64(7)})
        assert server.pull(["n"])["n"] == 7
        with pytest.raises(NotTrainable, match="n"):
            server.push({"n": np.int64(1)})

        assert list(server.pull(["w"])) == ["w"]
        server.push({"emb": client.IndexedSlices(np.array([[1, 1], [2, 2]], np.float32), np.array([4, 0]))})
        ids = np.array([0, 3, 4, 0])
        rows = server.pull(rows={"emb": ids})
        np.testing.assert_array_equal(rows["emb"], [[-2, -2], [0, 0], [-1, -1], [-2, -2]])

        server.leave()
        server.leave()  # once is enough, twice does no harm


def test_a_gradient_carries_the_version_pulled_last_unless_told_another() -> None:
    with (
        ps.LocalCluster(servers=2, mode="async", workers=1) as local,
        client.connect(local.cluster, worker=0) as server,
    ):
        server.init({"w": np.zeros(2, np.float32)}, rule="sgd")
        gradient = {"w": np.ones(2, np.float32)}
        assert [server.push(gradient).staleness for _ in range(3)] == [0, 1, 2]
        server.pull()
        assert server.push(gradient).staleness == 0
        assert server.push(gradient, version=(0, 0)).staleness == 4
    pushes = [[event.at_version for event in story if event.kind == "push"] for story in local.stories()]
    assert pushes == [[0, 0, 0, 3, 0]] * 2  # every push goes to every shard, with nothing in it if need be


def test_mode_and_rule_may_come_from_either_side_and_a_conflict_prints_both() -> None:
    start = {"w": np.zeros(2, np.float32)}
    with (
        ps.LocalCluster(mode="sync", rule="sgd:learning_rate=0.5") as local,
        client.connect(local.cluster, worker=0) as server,
    ):
        with pytest.raises(ConfigurationConflict, match=r"async.*sync"):
            server.init(start, mode="async")
        with pytest.raises(ConfigurationConflict, match=r"adam.*sgd:learning_rate=0.5"):
            server.init(start, rule="adam")
        server.init(start)
        assert server.mode == "sync"
        with pytest.raises(ConfigurationConflict, match=r"ssp.*sync"):
            server.init(start, mode="ssp")
    with ps.LocalCluster() as local, client.connect(local.cluster, worker=0) as server:
        server.init(start, rule={"name": "adam", "learning_rate": np.float64(0.5)}, mode="ssp", slack=2)
        status = server.status()
        assert (status["mode"], status["slack"]) == ("ssp", 2)
        assert status["rule"] == "adam:learning_rate=0.5,beta_1=0.9,beta_2=0.999,epsilon=1e-07"
        server.init(start, rule="adam:learning_rate=5e-1")  # says the same
        with pytest.raises(ConfigurationConflict, match=r"3.*2"):
            server.init(start, slack=3)


@pytest.mark.parametrize(
    ("option", "mode", "flag"), [({"slack": 2}, "ssp", "--slack"), ({"backup_workers": 1}, "sync", "--backup-workers")]
)
def test_an_option_of_one_mode_may_come_before_the_mode(option: dict[str, int], mode: str, flag: str) -> None:
    # The ps was told the option, and the first init says the mode; one that does not have it is refused by the flag's name.
    start = {"w": np.zeros(2, np.float32)}
    with ps.LocalCluster(rule="sgd", workers=2, **option) as local, client.connect(local.cluster, worker=0) as server:
        for other in ("async", None):
            with pytest.raises(ConfigurationConflict, match=f"with mode async, expected mode {mode}. {flag}, or "):
                server.init(start, mode=other)
        server.init(start, mode=mode)
        assert server.status()[next(iter(option))] == next(iter(option.values()))


def test_a_later_init_that_differs_is_refused_by_name() -> None:
    w, b = np.zeros((4, 2), np.float32), np.zeros(3, np.float32)
    with ps.LocalCluster(servers=2) as local, client.connect(local.cluster, worker=0) as server:
        assert server.init({"w": w, "b": b}, rule="sgd") is True
        assert server.init({"w": w + 1, "b": b}) is False  # other values: the first writer has won
        np.testing.assert_array_equal(server.pull()["w"], w)
        different = {
            "'w'": {"w": w.T.copy(), "b": b},
            "'b'": {"w": w, "b": b.astype(np.float64)},
            "'c'": {"w": w, "b": b, "c": b},
        }
        for name, values in different.items():
            with pytest.raises(InitConflict, match=name):
                server.init(values)
        with pytest.raises(InitConflict, match="'b'"):
            server.init({"w": w})
        with pytest.raises(InitConflict, match="not trainable"):
            server.init({"w": w, "b": b}, non_trainable=["b"])
        with pytest.raises(InitConflict, match="partitioner"):
            server.init({"w": w, "b": b}, partitioner=client.FixedShardsPartitioner(2))


def test_the_rule_of_the_design_runs_as_it_is_written() -> None:
    with ps.LocalCluster(mode="async") as local, client.connect(local.cluster, worker=0) as server:
        server.init({"w": np.zeros(3, np.float32)}, rule={"name": "signum_of_the_design", "learning_rate": 0.5})
        values, _ = server.push_pull({"w": np.array([3, 0, -0.1], np.float32)})
        np.testing.assert_array_equal(values["w"], np.array([-0.5, 0, 0.5], np.float32))
        assert "momentum=0.9" in server.status()["rule"]
