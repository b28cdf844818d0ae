"""When is a gradient applied, and when may a worker read? One pure state machine for each mode.

Events in (a push arrived, a worker wants to pull, a step was applied, a worker left), decisions with a reason out. The
machines hold versions, clocks and who has contributed; never gradients, never a clock of the wall, never a lock.

    async   apply every push on arrival; a pull never waits
    sync    hold pushes of the present version until everyone who counts has pushed; apply their mean once
    ssp     apply on arrival; a pull waits while its worker leads the slowest by more than the slack

References: bulk-synchronous (Valiant 1990), backup workers (Chen et al. 2016), stale-synchronous-parallel (Ho et al. 2013).
Next: ps/membership.py (who counts), ps/shard.py (who performs the decisions).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any, Union

from protos.errors import AlreadyPushed, ConfigurationConflict, InvalidVersion, ParameterServerError
from ps.membership import Membership

MODES = ("async", "sync", "ssp")


@dataclass(frozen=True)
class Apply:
    """Apply this gradient now."""

    staleness: int


@dataclass(frozen=True)
class Buffer:
    """Hold this gradient; `missing` says who the step still waits for."""

    missing: tuple[int, ...]


@dataclass(frozen=True)
class Complete:
    """Hold this gradient, and the step is full: apply the mean of what `contributors` pushed."""

    contributors: tuple[int, ...]


@dataclass(frozen=True)
class Stale:
    """Drop this gradient: the step it belongs to is over, or was filled by others."""

    staleness: int


@dataclass(frozen=True)
class Refuse:
    """This push makes no sense; nothing changes."""

    error: ParameterServerError


@dataclass(frozen=True)
class Wait:
    """This pull must wait, for these workers."""

    missing: tuple[int, ...]
    reason: str


Decision = Union[Apply, Buffer, Complete, Stale, Refuse]


class Seat(enum.Enum):
    """In sync mode with backup workers ps 0 decides who counts, and the other ps are told."""

    UNDECIDED = 0
    COUNTED = 1
    PASSED_OVER = 2


@dataclass
class Consistency:
    """The state that all modes share, and mode `async`, which needs nothing more.

    version: updates applied. clocks: iterations that each worker has finished, whatever became of them.
    """

    membership: Membership[Any]
    version: int = 0
    clocks: dict[int, int] = field(default_factory=dict)

    def push(self, worker: int, version: int, seat: Seat = Seat.UNDECIDED) -> Decision:
        """A gradient of `worker`, computed at `version`, has arrived."""
        if version > self.version:
            return Refuse(
                InvalidVersion(field="version", got=version, expected=f"at most {self.version}, the present one")
            )
        decision = self._decide(worker, version, seat)
        if isinstance(decision, (Buffer, Complete, Stale)):
            self._finished(worker)
        return decision

    def _decide(self, worker: int, version: int, seat: Seat) -> Decision:
        return Apply(self.version - version)

    def applied(self, worker: int | None = None) -> None:
        """The update that was decided is in the values now. worker: whose it was; None for the mean of a step.

        Only now has the worker finished its iteration: whoever waits for its clock must see its update.
        """
        self.version += 1
        if worker is not None:
            self._finished(worker)

    def _finished(self, worker: int) -> None:
        self.clocks[worker] = self.clocks.get(worker, 0) + 1

    def failed(self) -> None:
        """The update that was decided could not be made; the version stays."""

    def pull(self, worker: int | None) -> Wait | None:
        """May `worker` read now? None means yes; observers (None) always may."""
        return None

    def horizon(self) -> int:
        """Rises when a pull that had to wait may have become possible: nobody need look again before."""
        return 0

    def joined(self, worker: int) -> None:
        """A process has taken this index: a newcomer starts level with the slowest, or it would hold everyone up."""
        others = [self.clocks.get(other, 0) for other in self.membership.counted() if other != worker]
        self.clocks[worker] = max(self.clocks.get(worker, 0), min(others, default=0))

    def due(self) -> Complete | None:
        """Somebody left, was lost, or was passed over, so that nobody waits for them: is a step full now?"""
        return None


class Async(Consistency):
    """Apply on arrival; nobody waits."""


@dataclass
class Sync(Consistency):
    """Step t is the mean of exactly the gradients of version t of the workers that count.

    contributors: who has pushed for the present version. passed_over: whom ps 0 has not counted in it. A step is full when
    every counted worker has pushed or been passed over, or, with backup workers, when N - K have pushed. Invariants: both
    are of `version`; both are empty right after a step.
    """

    backup_workers: int = 0
    contributors: set[int] = field(default_factory=set)
    passed_over: set[int] = field(default_factory=set)

    def _decide(self, worker: int, version: int, seat: Seat) -> Decision:
        if version < self.version:
            return Stale(self.version - version)
        if seat is Seat.PASSED_OVER:
            self.passed_over.add(worker)
            return Stale(0)
        if worker in self.contributors:
            return Refuse(
                AlreadyPushed(
                    field=f"worker {worker}",
                    got=f"a second gradient for version {version}",
                    expected="one for each version",
                    hint="Pull first: that waits for the step and gives the next version.",
                )
            )
        self.contributors.add(worker)
        return Complete(tuple(sorted(self.contributors))) if self._full() else Buffer(self.missing())

    def missing(self) -> tuple[int, ...]:
        """The workers that count and whose gradient for the present version may still come."""
        return tuple(sorted(self.membership.counted() - self.contributors - self.passed_over))

    def _full(self) -> bool:
        if not self.contributors:
            return False
        enough = self.membership.num_workers - self.backup_workers
        if len(self.contributors) >= max(1, enough):
            return True
        counted, come = self.membership.counted(), len(self.contributors) + len(self.passed_over)
        return come >= len(counted) and counted <= self.contributors | self.passed_over

    def applied(self, worker: int | None = None) -> None:
        super().applied(worker)
        self._begin_step()

    def failed(self) -> None:
        for worker in self.contributors:
            self.clocks[worker] -= 1  # its iteration came to nothing, and it may do it again
        self._begin_step()

    def pass_over(self, worker: int) -> None:
        """Its gradient for the present version cannot come any more: ask `due` whether that completes the step."""
        if worker not in self.contributors:
            self.passed_over.add(worker)

    def horizon(self) -> int:
        return self.version

    def _begin_step(self) -> None:
        self.contributors.clear()
        self.passed_over.clear()

    def pull(self, worker: int | None) -> Wait | None:
        if worker not in self.contributors:
            return None
        return Wait(self.missing(), f"step {self.version} to be complete")

    def due(self) -> Complete | None:
        return Complete(tuple(sorted(self.contributors))) if self._full() else None


@dataclass
class Ssp(Consistency):
    """Apply on arrival, but no worker reads while its clock leads the slowest by more than `slack`.

    The clock of the slowest is asked for at every push, so it is not looked for among all workers each time. Invariant:
    `_at[clock]` are those of the workers `_of` that have this clock, and none has one below `_slowest`.
    """

    slack: int = 0
    _of: frozenset[int] | None = None
    _at: dict[int, set[int]] = field(default_factory=dict)
    _slowest: int = 0

    def horizon(self) -> int:
        if self._of is not self.membership.counted():
            self._of = self.membership.counted()
            self._at = {}
            for worker in self._of:
                self._at.setdefault(self.clocks.get(worker, 0), set()).add(worker)
            self._slowest = min(self._at, default=0)
        return self._slowest

    def _finished(self, worker: int) -> None:
        super()._finished(worker)
        if self._of is not None and worker in self._of:
            clock = self.clocks[worker]
            self._at.setdefault(clock, set()).add(worker)
            self._at[clock - 1].discard(worker)
            while not self._at.get(self._slowest):
                self._at.pop(self._slowest, None)
                self._slowest += 1

    def joined(self, worker: int) -> None:
        super().joined(worker)
        self._of = None

    def pull(self, worker: int | None) -> Wait | None:
        if worker is None:
            return None
        clock = self.clocks.get(worker, 0)
        if clock - self.horizon() <= self.slack:
            return None
        behind = tuple(sorted(set().union(*(self._at[at] for at in self._at if clock - at > self.slack))))
        return Wait(behind, f"clock {clock - self.slack} of the slowest (slack {self.slack})") if behind else None


def make_consistency(
    mode: str, membership: Membership[Any], *, slack: int | None = None, backup_workers: int | None = None
) -> Consistency:
    """The machine for `mode`.

    Raises ConfigurationConflict for an unknown mode, and for an option that the mode does not have.
    """
    if mode not in MODES:
        raise ConfigurationConflict(field="mode", got=repr(mode), expected=", ".join(MODES))
    if slack is not None and mode != "ssp":
        raise ConfigurationConflict(
            field="slack",
            got=f"slack {slack} with mode {mode}",
            expected="mode ssp",
            hint="--slack, or slack= of init, is for mode ssp only.",
        )
    if backup_workers and mode != "sync":
        raise ConfigurationConflict(
            field="backup_workers",
            got=f"{backup_workers} with mode {mode}",
            expected="mode sync",
            hint="--backup-workers, or backup_workers= of init, is for mode sync only.",
        )
    if backup_workers and backup_workers >= membership.num_workers:
        raise ConfigurationConflict(
            field="backup_workers", got=backup_workers, expected=f"fewer than the {membership.num_workers} workers"
        )
    if mode == "sync":
        return Sync(membership, backup_workers=backup_workers or 0)
    if mode == "ssp":
        return Ssp(membership, slack=slack or 0)
    return Async(membership)
