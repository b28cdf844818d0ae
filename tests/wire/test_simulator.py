"""Are the daemons what the simulator says they are? The arrivals of a simulated run, played to real ps by real clients.

One client after the other does what the story of the simulation says, in its order: each reads at the version that it read
at there, computes its gradient anew, and pushes. In the end the weights are the same, bit for bit.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace

import numpy as np
import pytest

import client
import ps
from client import Client
from client.partitioner import WholeVariables
from ps.simulation import LogNormal, Plan, Result, Straggler, simulate
from ps.simulation.data import CLASSES, FEATURES, load
from ps.simulation.models import MODELS
from ps.simulation.run import BATCHES, DATA, FIRST_VALUES
from ps.story import Event

PLAN = Plan(
    workers=3, steps=8, data="synthetic", model="mlp", batch_size=8, speeds=(LogNormal(1, 0.7), Straggler(0, 3))
)
MODES = [
    {"mode": "async"},
    {"mode": "ssp", "slack": 1},
    {"mode": "sync"},
    {"mode": "sync", "backup_workers": 1, "servers": 1},
]


class Replay:
    """Real clients in the place of virtual workers."""

    def __init__(self, simulated: Result, clients: list[Client]) -> None:
        self.plan, self.clients = simulated.plan, clients
        self.train, _ = load(self.plan.data, self._rng(DATA))
        self.model = MODELS[self.plan.model](FEATURES, CLASSES)
        self.batches = [self._rng(BATCHES, worker) for worker in range(self.plan.workers)]
        self.read: dict[int, dict[str, np.ndarray]] = {}
        self.events = [told.event for told in simulated.story if told.ps == 0 and told.event.kind in ("push", "leave")]
        # Of each worker, the versions that its pushes were computed at, in order: it reads when the ps is there.
        self.to_read = [
            [e.at_version for e in self.events if e.worker == worker and e.kind == "push"] for worker in range(3)
        ]

    def _rng(self, purpose: int, worker: int = 0) -> np.random.Generator:
        return np.random.default_rng([self.plan.seed, purpose, worker])

    def run(self) -> None:
        first = self.model.first_values(self._rng(FIRST_VALUES))
        options = {"mode": self.plan.mode, "slack": self.plan.slack, "backup_workers": self.plan.backup_workers}
        for each in self.clients:
            each.init(first, self.plan.rule, partitioner=WholeVariables(), **options)  # type: ignore[arg-type]
        version = 0
        for event in self.events:
            if event.kind == "push":
                self._pull_at(version)
                version = self._push(event)
            elif event.worker is not None:
                self.clients[event.worker].leave()

    def _pull_at(self, version: int) -> None:
        """Everybody whose next gradient was computed at this version reads it now."""
        for worker, versions in enumerate(self.to_read):
            if worker not in self.read and versions and versions[0] == version:
                values = self.clients[worker].pull()
                assert set(values.version) == {version}
                self.read[worker] = dict(values)

    def _push(self, event: Event) -> int:
        worker = event.worker or 0
        self.to_read[worker].pop(0)
        gradients = self.model.gradient(
            self.read.pop(worker), *self.train.batch(self.batches[worker], self.plan.batch_size)
        )
        result = self.clients[worker].push(gradients)
        assert (result.outcome, result.staleness) == (event.outcome, event.staleness)
        return event.version


@pytest.mark.parametrize("rule", ["momentum:learning_rate=0.05", "adam:learning_rate=0.01"])
@pytest.mark.parametrize("how", MODES, ids=lambda how: "-".join(str(value) for value in how.values()))
def test_real_daemons_do_the_same_with_the_same_arrivals(how: dict[str, object], rule: str) -> None:
    plan = replace(PLAN, rule=rule, **{"servers": 2, **how})  # type: ignore[arg-type]
    simulated = simulate(plan)
    with contextlib.ExitStack() as stack:
        local = stack.enter_context(ps.LocalCluster(servers=plan.servers, workers=plan.workers))
        observer = stack.enter_context(client.connect(local.cluster, observer=True))
        clients = [stack.enter_context(client.connect(local.cluster, worker=worker)) for worker in range(3)]
        Replay(simulated, clients).run()
        values = observer.pull()
        told = local.stories()
    assert set(values.version) == {simulated.final.step}
    for name, value in simulated.values.items():
        np.testing.assert_array_equal(values[name], value)
    for index, story in enumerate(told):
        assert _pushes(story) == _pushes([each.event for each in simulated.story if each.ps == index])


def _pushes(story: list[Event]) -> list[tuple[object, ...]]:
    """What was pushed, in order, and what became of it; generations and sequences are of each process."""
    return [(e.worker, e.at_version, e.outcome, e.staleness, e.version) for e in story if e.kind == "push"]
