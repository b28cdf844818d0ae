"""Many workers push large gradients at once: is what a ps holds of them bounded, and does everybody come through?"""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest

import client
import ps
from protos import parameter_server_pb2 as pb
from ps.admission import LEAST_PUSHES, Admission
from tests.harness.raw import RawPeer
from tests.harness.threads import together

WORKERS, PUSHES = 16, 4
SIZE = 700_000  # float32: three pages, so three messages


@pytest.mark.parametrize(
    ("compression", "shared_memory"),
    [("none", False), ("sign", False), ("sign", True)],  # signs: a page of gradient in a few bytes, and one message
)
def test_a_ps_reads_a_few_of_many_pushes_at_a_time_and_all_come_through(
    monkeypatch: pytest.MonkeyPatch, compression: str, shared_memory: bool
) -> None:
    admissions: list[Admission] = []
    most: list[int] = []
    enter = Admission.enter

    async def watched(self: Admission, nbytes: int, shard_bytes: int) -> None:
        admissions.append(self)
        self._least_bytes = 1
        await enter(self, nbytes, shard_bytes)
        most.append(self.admitted_bytes)

    monkeypatch.setattr(Admission, "enter", watched)
    with (
        ps.LocalCluster(1, "async", WORKERS, rule="sgd:learning_rate=1", shared_memory=shared_memory) as local,
        client.connect(local.cluster, observer=True) as observer,
    ):
        workers = [client.connect(local.cluster, worker=index, compression=compression) for index in range(WORKERS)]
        for worker in workers:
            worker.init({"w": np.zeros(SIZE, np.float32)})

        def push(worker: Any) -> list[str]:
            return [worker.push({"w": np.ones(SIZE, np.float32)}).outcome for _ in range(PUSHES)]

        outcomes = together([lambda worker=worker: push(worker) for worker in workers])  # type: ignore[misc]
        assert outcomes == [["applied"] * PUSHES] * WORKERS
        np.testing.assert_array_equal(observer.pull()["w"], -WORKERS * PUSHES)
        for worker in workers:
            worker.leave()
    assert len(most) == WORKERS * PUSHES
    assert max(most) == LEAST_PUSHES * SIZE * 4  # as many as there is room for, and no more
    assert admissions[0].admitted_bytes == 0


def test_workers_that_stop_in_the_middle_of_a_push_do_not_hold_up_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    # claim 4: their connections stand, so nothing else tells the ps.
    monkeypatch.setattr("ps.exchange.Admission", lambda: Admission(least_bytes=1))
    with (
        ps.LocalCluster(1, "async", LEAST_PUSHES + 1, rule="sgd:learning_rate=1", shared_memory=False) as local,
        client.connect(local.cluster, worker=0) as worker,
        contextlib.ExitStack() as stack,
    ):
        worker.init({"w": np.zeros(SIZE, np.float32)})
        for index in range(1, LEAST_PUSHES + 1):
            peer = stack.enter_context(RawPeer(local.cluster["ps"][0], worker=index, num_workers=LEAST_PUSHES + 1))
            header = pb.Header(operation=pb.OPERATION_PUSH, session=peer.session, sequence=1)
            peer.begin(pb.Request(header=header))
        assert worker.push({"w": np.ones(SIZE, np.float32)}).outcome == "applied"
