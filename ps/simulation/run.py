"""How does a run go? Virtual workers pull, compute and push on the daemons' own core, in virtual time.

    result = simulate(Plan(workers=100, steps=50, mode="ssp", slack=4, speeds=(LogNormal(1, 0.5), Straggler(0, 4))))

Every worker has random numbers of its own, for its batches and for its durations, so what one draws does not depend on when
the others come. Next: ps/simulation/cluster.py (what workers talk to), ps/simulation/virtual_time.py.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import numpy as np

from ps.simulation.cluster import Cluster
from ps.simulation.data import CLASSES, FEATURES, Examples, load
from ps.simulation.models import MODELS
from ps.simulation.plan import Plan
from ps.simulation.result import Look, Result, Told, WorkerTimes
from ps.simulation.speeds import duration_s
from ps.simulation.virtual_time import VirtualLoop
from ps.story import Event

# What random numbers are for: each use and each worker has a stream of its own.
DATA, FIRST_VALUES, BATCHES, DURATIONS = range(4)


def simulate(
    plan: Plan,
    progress: Callable[[int, float], None] | None = None,
    broken_off: Callable[[Result], None] | None = None,
) -> Result:
    """Carry out a plan. The same plan gives the same result.

    progress: called after each iteration of a worker, with their number so far and the virtual time. broken_off: called with
    what there is by then, if the run has begun and something is raised.
    Raises what the core raises: InvalidInput, ConfigurationConflict, RuleError, RuleFailed, WaitTimeout.
    """
    loop = VirtualLoop()  # type: ignore[abstract]
    run = _Run(plan, loop, progress)
    try:
        return loop.run(run.whole())
    except BaseException:
        if run.looks and broken_off is not None:
            broken_off(run.result())
        raise


class _Run:
    """What is known while it goes on."""

    def __init__(self, plan: Plan, loop: VirtualLoop, progress: Callable[[int, float], None] | None) -> None:
        self.plan, self.loop, self.progress = plan, loop, progress
        self.train, self.held = load(plan.data, self._rng(DATA))
        self.model = MODELS[plan.model](FEATURES, CLASSES)
        self.cluster = Cluster(plan.servers, plan.workers, loop.time, self._told)
        self.story: list[Told] = []
        self.looks: list[Look] = []
        self.iterations = 0
        self.times = [WorkerTimes(worker, 0, 0.0, 0.0) for worker in range(plan.workers)]

    def _rng(self, purpose: int, worker: int = 0) -> np.random.Generator:
        return np.random.default_rng([self.plan.seed, purpose, worker])

    async def whole(self) -> Result:
        """From the start until all have left."""
        plan, cluster = self.plan, self.cluster
        await cluster.start(self.model.first_values(self._rng(FIRST_VALUES)), plan.configuration)
        self._look()
        await asyncio.gather(*(self._work(worker) for worker in range(plan.workers)))
        return self.result()

    def result(self) -> Result:
        """What has come of it so far."""
        cluster = self.cluster
        if self.looks[-1].step != cluster.step:
            self._look()
        return Result(
            plan=self.plan,
            looks=self.looks,
            workers=self.times,
            staleness=_staleness(self.story),
            counters=[dict(vars(shard.counters)) for shard in cluster.shards],
            story=self.story,
            values=cluster.values(),
            duration_s=self.loop.time(),
        )

    async def _work(self, worker: int) -> None:
        """The life of a worker: pull, compute, push, until its iterations are done; then it leaves."""
        plan, cluster, loop = self.plan, self.cluster, self.loop
        batches, durations = self._rng(BATCHES, worker), self._rng(DURATIONS, worker)
        done, busy_s, idle_s = 0, 0.0, 0.0
        while plan.steps is None or done < plan.steps:
            asked_s = loop.time()
            values, versions = await cluster.pull(worker)
            idle_s += loop.time() - asked_s
            seconds = duration_s(plan.speeds, worker, loop.time(), durations)
            if plan.until_s is not None and loop.time() + seconds > plan.until_s:
                break  # it would not be done in time
            gradients = self.model.gradient(values, *self.train.batch(batches, plan.batch_size))
            await asyncio.sleep(seconds)
            busy_s += seconds
            asked_s = loop.time()
            await cluster.push(worker, versions, gradients)
            idle_s += loop.time() - asked_s
            done += 1
            self.iterations += 1
            self.times[worker] = WorkerTimes(worker, done, busy_s, idle_s)
            if self.progress is not None:
                self.progress(self.iterations, loop.time())
        self.times[worker] = WorkerTimes(worker, done, busy_s, idle_s)
        await cluster.leave(worker)

    # -- what is noted -----------------------------------------------------------------------------------------------

    def _told(self, ps: int, event: Event) -> None:
        self.story.append(Told(self.loop.time(), ps, event))
        if self.looks and self.cluster.step - self.looks[-1].step >= self.plan.evaluate_every:
            self._look()

    def _look(self) -> None:
        held: Examples = self.held
        loss, accuracy = self.model.evaluate(self.cluster.values(), held.inputs, held.labels)
        self.looks.append(Look(self.loop.time(), self.cluster.step, loss, accuracy))


def _staleness(story: list[Told]) -> dict[int, int]:
    """How many applied pushes had which staleness, on ps 0. Those that a step of sync mode is made of have none."""
    events = [told.event for told in story if told.ps == 0]
    counts = Counter({0: sum(len(event.contributors) for event in events if event.kind == "step")})
    if not counts[0]:
        counts = Counter(event.staleness or 0 for event in events if event.outcome == "applied")
    return dict(sorted(counts.items()))
