"""What happens when a worker leaves in a bad way: with an error whose text is odd, or when nobody answers."""

from __future__ import annotations

import numpy as np
import pytest

import client
import ps
from client import errors


def test_an_error_with_text_that_is_no_utf8_reaches_the_caller_and_the_worker_has_left() -> None:
    with ps.LocalCluster(mode="sync", workers=2, rule="sgd") as local:
        with pytest.raises(FileNotFoundError):
            with client.connect(local.cluster, worker=0) as server:
                server.init({"w": np.zeros(2, np.float32)})
                raise FileNotFoundError("caf\udce9\nand another line")
        with client.connect(local.cluster, worker=1) as other:
            assert other.status()["workers"][0]["state"] == "left"


def test_a_rule_that_calls_exit_ends_its_push_and_not_the_ps() -> None:
    from ps.rules import UpdateRule, register

    @register("leaver")
    class Leaver(UpdateRule):
        """Calls sys.exit, as a script may."""

        def update(self, ctx, value, grad, *slots):  # type: ignore[no-untyped-def]
            raise SystemExit(0)

    with ps.LocalCluster(rule="leaver") as local, client.connect(local.cluster, worker=0) as server:
        server.init({"w": np.zeros(2, np.float32)})
        with pytest.raises(errors.RuleFailed, match="SystemExit"):
            server.push({"w": np.ones(2, np.float32)})
        assert server.pull()["w"].tolist() == [0, 0]


def test_a_cluster_that_is_not_started_says_how_to_start_it() -> None:
    with pytest.raises(errors.ClusterError, match="with LocalCluster"):
        _ = ps.LocalCluster().cluster


@pytest.mark.parametrize("arguments", [{"servers": 0}, {"mode": "sink"}, {"mode": "async", "slack": 1}])
def test_a_cluster_that_cannot_be_is_refused_at_once(arguments: dict[str, object]) -> None:
    with pytest.raises((errors.ClusterError, errors.ConfigurationConflict)):
        ps.LocalCluster(**arguments)  # type: ignore[arg-type]
