"""Who gives the model its first values? The first that comes, whole: never a mixture of two.

The values name their initialiser, so that a mixture would show.
"""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import numpy as np
import pytest

import client
import ps
from protos import parameter_server_pb2 as pb
from protos.errors import InitConflict, ParameterServerError
from tests.harness.proxy import Proxy
from tests.harness.raw import RawPeer
from tests.harness.threads import Task, together, until

NAMES = "abcdefgh"


def values_of(worker: int) -> dict[str, Any]:
    return {name: np.full((30, 7), worker, np.float32) for name in NAMES}


def initialiser(values: client.Values) -> int:
    """Whose values these are; they must be one worker's."""
    found = {int(number) for value in values.values() for number in value.reshape(-1)}
    assert len(found) == 1, f"a mixture of {found}"
    return found.pop()


@pytest.mark.parametrize("round_", range(5))
def test_the_first_writer_wins_whole(round_: int) -> None:
    workers = 6
    with ps.LocalCluster(3, "async", workers, rule="sgd") as local, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(client.connect(local.cluster, worker=worker)) for worker in range(workers)]

        def start(server: client.Client) -> tuple[bool, int]:
            assert server.worker is not None
            won = server.init(values_of(server.worker), partitioner=client.FixedShardsPartitioner(3))
            return won, initialiser(server.pull())

        results = together([lambda s=s: start(s) for s in clients])
        (winner,) = [worker for worker, (won, _) in enumerate(results) if won]
        assert [seen for _, seen in results] == [winner] * workers


def test_different_models_at_once_one_wins_and_the_others_are_refused_by_name() -> None:
    workers = 6
    with ps.LocalCluster(3, "async", workers, rule="sgd") as local, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(client.connect(local.cluster, worker=worker)) for worker in range(workers)]

        def start(server: client.Client) -> str:
            try:
                server.init({**values_of(0), "h": np.zeros(server.worker)})
            except InitConflict as error:
                return str(error)
            return "won"

        results = together([lambda s=s: start(s) for s in clients])
        assert results.count("won") == 1
        shape = f"({results.index('won')},)"
        assert all("'h'" in result and shape in result for result in results if result != "won")
        assert clients[0].pull()["h"].shape == (results.index("won"),)


def test_one_client_may_init_from_many_threads() -> None:
    with ps.LocalCluster(3, "async", rule="sgd") as local, client.connect(local.cluster, worker=0) as server:
        results = together([lambda n=n: server.init(values_of(n)) for n in range(8)])
        assert results.count(True) == 1
        initialiser(server.pull())


def test_the_winner_dies_half_way() -> None:
    """It was granted, has sent its part to ps 1 and 2, and is gone: the next one's values are everywhere."""
    with ps.LocalCluster(3, "async", 2, rule="sgd", lease_s=1.0) as local, contextlib.ExitStack() as stack:
        dying = [
            stack.enter_context(RawPeer(address, ps=index, num_ps=3, num_workers=2))
            for index, address in enumerate(local.cluster["ps"])
        ]
        session = dying[0].session
        specs = [pb.VariableSpec(name=n, dtype="float32", shape=[30, 7], trainable=True) for n in NAMES]
        request = pb.BeginInitRequest(
            session=session, variables=specs, partitioner=repr(client.MinSizePartitioner(max_shards=None))
        )
        grant = dying[0].call("BeginInit", request)
        assert grant.granted
        for peer in dying[1:]:
            table = [pb.PartitionSpec(variable=specs[0], start=0, stop=30)]
            block = pb.Block(data=np.full((30, 7), 99, np.float32).tobytes())
            peer.operation(pb.OPERATION_INIT, [block], table=table, grant=grant.grant)
        with client.connect(local.cluster, worker=1) as server:
            with pytest.raises(ParameterServerError, match="init"):
                server.pull()  # half a model is none
            init = Task(lambda: server.init(values_of(1)))
            assert init.running
            for peer in dying:
                peer.__exit__(None, None, None)
            assert init.result() is True
            assert initialiser(server.pull()) == 1
            with pytest.raises(ParameterServerError):
                dying_again(local, grant)


def dying_again(local: ps.LocalCluster, grant: Any) -> None:
    """It was not dead, only slow: what it sends now is of a grant that is over."""
    with RawPeer(local.cluster["ps"][0], num_ps=3, num_workers=2) as peer:
        table = [pb.PartitionSpec(variable=pb.VariableSpec(name="a", dtype="float32", shape=[1]), start=0, stop=1)]
        peer.operation(pb.OPERATION_INIT, [pb.Block(data=bytes(4))], table=table, grant=grant.grant)


@pytest.mark.parametrize("after_bytes", [1, 100_000, 3_000_000])
def test_the_winners_connection_breaks_at_any_point_and_comes_back(after_bytes: int) -> None:
    """Whoever is granted in the meantime, the model is of one of them, and both know whose."""
    big = {name: np.zeros((250, 1000), np.float32) for name in "abcd"}
    with ps.LocalCluster(3, "async", 2, rule="sgd") as local, Proxy(local.cluster["ps"][0]) as proxy:
        through = {**local.cluster, "ps": [proxy.address, *local.cluster["ps"][1:]]}
        with client.connect(through, worker=0) as zero, client.connect(local.cluster, worker=1) as one:
            proxy.cut_after("up", after_bytes)
            first = Task(lambda: zero.init({name: value + 0 for name, value in big.items()}))
            second = Task(lambda: one.init({name: value + 1 for name, value in big.items()}))
            won = []
            for task in (first, second):
                with contextlib.suppress(ParameterServerError):
                    won.append(task.result())
            assert won
            values = [until(lambda s=s: initialised(s)) for s in (zero, one)]
            assert initialiser(values[0]) == initialiser(values[1])


def initialised(server: client.Client) -> client.Values | None:
    with contextlib.suppress(client.errors.NotInitialized):
        return server.pull()
    return None


@pytest.mark.parametrize("mode", ["sync", "ssp", "async"])
def test_those_who_come_late_find_the_model_as_it_is_now(mode: str) -> None:
    with (
        ps.LocalCluster(2, mode, 2, rule="sgd:learning_rate=1") as local,
        client.connect(local.cluster, worker=0) as zero,
    ):
        zero.init(values_of(5))
        zero.push({name: np.ones((30, 7), np.float32) for name in NAMES})
        with client.connect(local.cluster, worker=1) as one:
            assert one.init(values_of(7)) is False
            assert initialiser(one.pull()) == (5 if mode == "sync" else 4)


def test_a_user_may_init_without_telling_the_rest_of_the_job_anything() -> None:
    """Mode, slack and rule said once, by anyone, hold for all; what is not said takes its default."""
    said: list[dict[str, Any]] = [{"mode": "ssp"}, {"slack": 2}, {"rule": "sgd"}]
    for order in itertools.permutations(said):
        with (
            ps.LocalCluster(1, workers=1, **{**order[0], **order[1]}) as local,
            client.connect(local.cluster, worker=0) as server,
        ):
            server.init({"w": np.zeros(1)}, **order[2])
            status = server.status()
            assert (status["mode"], status["slack"], status["rule"]) == ("ssp", 2, "sgd:learning_rate=0.01")
