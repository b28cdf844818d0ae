"""On one host values and gradients go through shared memory. Does anybody notice, but for the time it takes?

Every lesson of this folder runs over it already; here: that it is used, that it can be switched off, what fits and what does
not, what a peer can do wrong with it, and that a gradient that is held for a step is not overwritten.
"""

from __future__ import annotations

import contextlib
import gc
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import client
import ps
from client import sharing
from protos import parameter_server_pb2 as pb
from protos.errors import InvalidInput, InvalidVersion
from protos.segment import START, Segment
from protos.wire import Block
from ps.rules import UpdateRule, register
from tests.harness.proxy import Proxy
from tests.harness.raw import RawPeer
from tests.harness.state import everything, refused
from tests.harness.threads import until

rng = np.random.default_rng(9)
VALUES = {"w": rng.normal(size=(700, 900)).astype("f"), "b": rng.normal(size=900).astype("f"), "n": np.arange(5)}


def transports(server: client.Client) -> list[str]:
    return [each["workers"][0]["transport"] for each in server.status()["ps"]]


def train(server: client.Client, steps: int = 3) -> dict[str, Any]:
    server.init(VALUES, rule="adam:learning_rate=0.1")
    values = server.pull()
    for step in range(steps):
        gradients = {name: np.sin(values[name] + step) for name in ("w", "b")}
        values, _ = server.push_pull(gradients)
        server.assign({"n": np.arange(5) + step})
    server.push({"w": client.IndexedSlices(np.ones((2, 900), np.float32), [3, 5])})
    return {**server.pull(), "rows": server.pull(rows={"w": [5, 3, 3]})["w"]}


@pytest.mark.parametrize("servers", [1, 2])
def test_it_is_used_and_gives_the_same_bits_as_the_connection(servers: int) -> None:
    results = []
    for shared in (True, False):
        with ps.LocalCluster(servers) as local, client.connect(local.cluster, 0, shared_memory=shared) as server:
            results.append(train(server))
            assert transports(server) == ["shared memory" if shared else "connection"] * servers
    for name, value in results[0].items():
        assert value.tobytes() == results[1][name].tobytes(), name


def test_a_ps_can_refuse_it_and_the_environment_can_switch_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    with ps.LocalCluster(1, shared_memory=False) as local, client.connect(local.cluster, 0) as server:
        train(server)
        assert transports(server) == ["connection"]
    monkeypatch.setenv("PARAMSERVER_SHARED_MEMORY", "off")
    with ps.LocalCluster(1) as local, client.connect(local.cluster, 0) as server:
        train(server)
        assert transports(server) == ["connection"]
    monkeypatch.setenv("PARAMSERVER_SHARED_MEMORY", "perhaps")
    with pytest.raises(InvalidInput, match="PARAMSERVER_SHARED_MEMORY"):
        client.connect({"ps": ["127.0.0.1:1"], "worker": ["127.0.0.1:2"]}, worker=0)


def test_what_does_not_fit_goes_through_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    # claim 7: it is bounded, and no model needs a setting.
    monkeypatch.setattr(sharing, "MOST_BYTES", 1 << 20)  # one page of three
    with ps.LocalCluster(1) as local, client.connect(local.cluster, 0) as server:
        partly = train(server)
        assert transports(server) == ["shared memory"]
    with ps.LocalCluster(1) as local, client.connect(local.cluster, 0, shared_memory=False) as server:
        without = train(server)
    for name, value in partly.items():
        assert value.tobytes() == without[name].tobytes(), name


def test_a_gradient_that_is_held_for_a_step_is_not_overwritten_by_the_next_call() -> None:
    # claim 5: the memory is the worker's to use again as soon as its push is answered.
    zeros = {"w": np.zeros(5000, np.float32)}
    with (
        ps.LocalCluster(1, "sync", workers=2, rule="sgd:learning_rate=1") as local,
        client.connect(local.cluster, 0) as zero,
        client.connect(local.cluster, 1) as one,
    ):
        for server in (zero, one):
            server.init(zeros)
            server.pull()
        zero.assign({"w": zeros["w"]})  # the memory is offered and taken
        assert zero.push({"w": np.full(5000, 2, np.float32)}).outcome == "buffered"
        zero.assign({"w": np.full(5000, 7, np.float32)})  # fills the same memory with other numbers
        one.push({"w": np.full(5000, 4, np.float32)})
        np.testing.assert_array_equal(one.pull()["w"], 7 - 3)


@register("keeps_the_gradient")
class KeepsTheGradient(UpdateRule):
    """w ← w - η of the gradient before, which is kept as it came."""

    slots = ("last",)

    def update(self, ctx: Any, value: Any, grad: Any, *slots: Any) -> Any:
        return value - ctx.learning_rate * slots[0], grad


def test_a_gradient_that_a_rule_keeps_is_not_overwritten_by_the_next_one() -> None:
    # State changes by updates alone.
    with (
        ps.LocalCluster(1, rule="keeps_the_gradient:learning_rate=1") as local,
        client.connect(local.cluster, 0) as server,
    ):
        server.init({"w": np.zeros(5000, np.float32)})
        server.pull()
        for number in (1, 2, 4, 8):
            server.push({"w": np.full(5000, number, np.float32)})
        np.testing.assert_array_equal(server.pull()["w"], -1 - 2 - 4)
        assert transports(server) == ["shared memory"]


def test_a_first_operation_that_is_refused_does_not_switch_it_off() -> None:
    with ps.LocalCluster(1, rule="sgd:learning_rate=1") as local, client.connect(local.cluster, 0) as server:
        server.init({"w": np.zeros(5000, np.float32)})
        with pytest.raises(InvalidVersion):
            server.push({"w": np.ones(5000, np.float32)}, version=(99,))
        server.push({"w": np.ones(5000, np.float32)})
        server.pull()
        assert transports(server) == ["shared memory"]


def test_values_that_were_assigned_or_initialised_through_it_stay() -> None:
    with ps.LocalCluster(1, rule="sgd:learning_rate=0") as local, client.connect(local.cluster, 0) as server:
        server.init({"w": np.zeros(5000, np.float32)})
        server.pull()
        server.assign({"w": np.full(5000, 3, np.float32)})
        server.push({"w": np.full(5000, 9, np.float32)})
        np.testing.assert_array_equal(server.pull()["w"], 3)


def test_a_connection_that_breaks_takes_its_memory_with_it() -> None:
    with ps.LocalCluster(1, rule="sgd:learning_rate=1") as local, Proxy(local.cluster["ps"][0]) as proxy:
        cluster = {**local.cluster, "ps": [proxy.address]}
        with client.connect(cluster, 0) as server:
            server.init({"w": np.zeros(5000, np.float32)})
            for _ in range(3):
                server.push({"w": np.ones(5000, np.float32)})
            proxy.cut()
            for _ in range(3):
                server.push({"w": np.ones(5000, np.float32)})
            np.testing.assert_array_equal(server.pull()["w"], -6)
            assert transports(server) == ["shared memory"]
    until(lambda: (gc.collect(), mapped() == 0)[-1])


@pytest.mark.parametrize("version", [None, (99,)], ids=["taken", "refused"])
def test_an_operation_that_is_over_keeps_nothing_also_without_collecting_garbage(version: Any) -> None:
    # claim 7: what clients have shared goes when they go.
    gc.collect()
    before = mapped()
    gc.disable()
    try:
        with ps.LocalCluster(1, rule="sgd:learning_rate=1") as local, client.connect(local.cluster, 0) as server:
            server.init({"w": np.zeros(5000, np.float32)})
            server.pull()
            server.push_pull({"w": np.ones(5000, np.float32)})
            with contextlib.suppress(InvalidVersion):
                server.push({"w": np.ones(5000, np.float32)}, version=version)
            assert transports(server) == ["shared memory"]
        until(lambda: mapped() == before)
    finally:
        gc.enable()


def mapped() -> int:
    return Path("/proc/self/maps").read_text(encoding="utf-8").count("memfd:paramserver")


def test_what_a_peer_can_do_wrong_with_it_changes_nothing() -> None:
    # claim 11
    values = {"w": np.zeros(5000, np.float32)}
    with (
        ps.LocalCluster(1, workers=2, rule="sgd:learning_rate=1") as local,
        client.connect(local.cluster, worker=1) as other,
        client.connect(local.cluster, observer=True) as observer,
    ):
        other.init(values)
        with RawPeer(local.cluster["ps"][0], worker=0, num_workers=2) as peer:

            def push(offset: int, nbytes: int, **header: Any) -> Any:
                block = Block(0, 0, b"", b"", offset, nbytes)
                return peer.operation(pb.OPERATION_PUSH, [block], sequence=1, **header)

            with refused(observer, InvalidInput, "shared memory"):
                push(START, 20_000)  # none was offered
            with refused(observer, InvalidInput, "shared memory"):
                peer.operation(pb.OPERATION_PULL, reply_offset=START, reply_bytes=100)
            segment, address, fd = Segment.create(30_000)
            wrong = pb.Segment(pid=address.pid, fd=address.fd, nbytes=1, nonce=address.nonce, host=address.host)
            (reply,) = peer.operation(pb.OPERATION_PUSH, sequence=2, segment=wrong)
            assert not reply.answer.segment_mapped
            right = pb.Segment(
                pid=address.pid, fd=address.fd, nbytes=address.nbytes, nonce=address.nonce, host=address.host
            )
            (reply,) = peer.operation(pb.OPERATION_PUSH, sequence=3, segment=right)
            assert reply.answer.segment_mapped
            os.close(fd)
            for offset, nbytes in ((0, 20_000), (START + 20_000, 20_000), (2**63, 20_000), (2**64 - 1, 20_000)):
                with refused(observer, InvalidInput, "shared memory"):
                    push(offset, nbytes)
            with refused(observer, InvalidInput, "shared memory"):
                peer.operation(pb.OPERATION_PULL, reply_offset=2**63, reply_bytes=2**63)
            segment.write(START, np.ones(5000, np.float32).tobytes())
            before = everything(observer)
            (reply,) = push(START, 20_000)
            assert reply.answer.outcome == pb.OUTCOME_APPLIED
            assert everything(observer) != before
            np.testing.assert_array_equal(observer.pull()["w"], -1)
