"""Who belongs to the job, who is alive, and what has each already been answered? A pure state machine.

A worker index is `expected` until a process joins under it, `active` while one does, `left` once it said so, and `lost`
when its connection has been gone for longer than the lease. Expected and active workers count; the others do not. Each
process that joins opens a session; a session remembers the answers to its last pushes, which is what makes a push sent
twice an update applied once.

`now` comes in as an argument, in seconds of any monotonic clock. It must not know modes, variables or grpc.
Next: ps/consistency.py (what follows from who counts).
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from protos.errors import ClusterError, NotJoined, ProtocolMismatch, WorkerIndexTaken, WrongRun

# Answers kept per session. A client has at most one push under way per thread, so this is far more than can be asked for.
REMEMBERED_PUSHES = 1024
# States of a worker that others wait for.
COUNTED = ("expected", "active")

T = TypeVar("T")


@dataclass
class Session(Generic[T]):
    """One client in one process. worker is None for an observer.

    forked: a child of the worker's process, which shares its index and comes and goes without the worker doing so.
    disconnected_at_s: of a forked one, since when it has no connection.
    """

    id: str
    worker: int | None
    generation: int
    origin: str
    forked: bool = False
    disconnected_at_s: float | None = None
    connections: int = 1
    answers: OrderedDict[int, T] = field(default_factory=OrderedDict)
    forgotten_through: int = 0

    def remember(self, sequence: int, answer: T) -> None:
        self.answers[sequence] = answer
        while len(self.answers) > REMEMBERED_PUSHES:
            oldest, _ = self.answers.popitem(last=False)
            self.forgotten_through = max(self.forgotten_through, oldest)


@dataclass
class Member:
    """One worker index."""

    state: str = "expected"
    generation: int = 0
    origin: str = ""
    reason: str = ""
    disconnected_at_s: float | None = None


@dataclass(frozen=True)
class JoinFacts:
    """What a client says of itself when it joins."""

    session: str
    worker: int | None
    run_id: str = ""
    parent_session: str = ""
    origin: str = ""
    protocol_version: int = 0
    num_ps: int = 0
    num_workers: int = 0
    ps_index: int = 0


class Membership(Generic[T]):
    """Sessions and members of one ps.

    Invariants: a worker has sessions only while it is `active`; all but one of them are forked from that one. The
    generation of an index never falls. `run_id` is set once. A session id never begins anew, without the answers it was
    given: that of a lost worker may come back with them until another process takes the index; one that left or was
    replaced may not come back.
    """

    def __init__(
        self, num_workers: int, *, run_id: str = "", ps_index: int = 0, num_ps: int = 1, protocol_version: int = 0
    ) -> None:
        self.num_workers = num_workers
        self.run_id = run_id
        self.ps_index, self.num_ps, self.protocol_version = ps_index, num_ps, protocol_version
        self.members = {index: Member() for index in range(num_workers)}
        self.sessions: dict[str, Session[T]] = {}
        self._lost: dict[str, Session[T]] = {}
        self._ended: set[str] = set()
        self._counted: frozenset[int] | None = None

    def __repr__(self) -> str:
        states = ", ".join(f"{index}: {member.state}" for index, member in self.members.items())
        return f"Membership(run {self.run_id!r}; {states}; {len(self.sessions)} sessions)"

    # -- questions ---------------------------------------------------------------------------------------------------

    def counted(self) -> frozenset[int]:
        """Workers that a barrier waits for: those that are here and those still to come. The same object until it changes."""
        if self._counted is None:
            self._counted = frozenset(index for index, member in self.members.items() if member.state in COUNTED)
        return self._counted

    def done(self) -> bool:
        """Whether every worker has come and gone."""
        return bool(self.members) and all(member.state in ("left", "lost") for member in self.members.values())

    def observed(self) -> bool:
        """Whether an observer is connected."""
        return any(session.worker is None for session in self.sessions.values())

    def session(self, session_id: str) -> Session[T]:
        """The live session of this id; NotJoined if there is none."""
        try:
            return self.sessions[session_id]
        except KeyError:
            raise _not_joined(session_id) from None

    def describe(self, worker: int) -> str:
        """The worker for an error message: 'worker 2 (never joined)'."""
        member = self.members[worker]
        if member.state == "expected":
            return f"worker {worker} (never joined)"
        if member.disconnected_at_s is not None:
            return f"worker {worker} ({member.origin}, connection lost)"
        return f"worker {worker} ({member.origin})"

    # -- events ------------------------------------------------------------------------------------------------------

    def join(self, facts: JoinFacts) -> Session[T]:
        """A client wants in. The session that it gets, or a typed error and no change."""
        self._check(facts)
        known = self.sessions.get(facts.session) or self._found_again(facts.session)
        if known is not None:  # the same process again, after its connection broke
            known.connections += 1
            known.disconnected_at_s = None
            if known.worker is not None and not known.forked:
                self._activate(known.worker, known.origin)
            return known
        session: Session[T] = Session(facts.session, facts.worker, 1, facts.origin)
        if facts.worker is not None:
            member = self.members[facts.worker]
            forked = (
                facts.parent_session in self.sessions and self.sessions[facts.parent_session].worker == facts.worker
            )
            if not forked:
                self._replace_dead_sessions(facts.worker, facts.origin)
                self._activate(facts.worker, facts.origin)
            session.forked = forked
            session.generation = member.generation = member.generation + 1
        self.sessions[facts.session] = session
        self.run_id = self.run_id or facts.run_id
        return session

    def _activate(self, worker: int, origin: str) -> None:
        member = self.members[worker]
        if member.state not in COUNTED:
            self._counted = None
        member.origin, member.state, member.reason, member.disconnected_at_s = origin, "active", "", None

    def _found_again(self, session_id: str) -> Session[T] | None:
        """The session of a worker that was lost and is not, its forked children's with it; None if it is a new one."""
        found = self._lost.get(session_id)
        if session_id in self._ended or (found is not None and found.forked):
            raise _not_joined(session_id)
        if found is not None:
            for session in [session for session in self._lost.values() if session.worker == found.worker]:
                self.sessions[session.id] = self._lost.pop(session.id)
        return found

    def _check(self, facts: JoinFacts) -> None:
        if facts.protocol_version != self.protocol_version:
            older = "client" if facts.protocol_version < self.protocol_version else "ps"
            raise ProtocolMismatch(
                field="protocol_version",
                got=f"client {facts.protocol_version}",
                expected=f"{self.protocol_version}, which this ps speaks",
                hint=f"Upgrade the {older}.",
            )
        if facts.run_id and self.run_id and facts.run_id != self.run_id:
            raise WrongRun(
                field="run_id",
                got=repr(facts.run_id),
                expected=repr(self.run_id),
                hint="Another job runs at this address, or the ps was restarted and has lost this job's state.",
            )
        if facts.num_ps and (facts.ps_index, facts.num_ps) != (self.ps_index, self.num_ps):
            raise ClusterError(
                field="cluster.ps",
                got=f"ps {facts.ps_index} of {facts.num_ps}",
                expected=f"ps {self.ps_index} of {self.num_ps}, as this ps was started",
                hint="Give every process the same cluster description.",
            )
        if facts.worker is not None and facts.num_workers != self.num_workers:
            raise ClusterError(
                field="cluster.worker",
                got=f"{facts.num_workers} workers",
                expected=f"{self.num_workers}, as this ps was started",
                hint="Give every process the same cluster description.",
            )
        if facts.worker is not None and facts.worker not in self.members:
            raise ClusterError(field="worker", got=facts.worker, expected=f"0 to {self.num_workers - 1}")

    def _replace_dead_sessions(self, worker: int, origin: str) -> None:
        mine = self._of(worker)
        live = [session for session in mine if session.connections > 0 and not session.forked]
        if live:
            raise WorkerIndexTaken(
                field=f"worker {worker}",
                got=f"a second process ({origin})",
                expected=f"only {live[0].origin}, which is connected",
                hint="Give each worker its own index in TF_CONFIG.",
            )
        for session in [*mine, *(session for session in self._lost.values() if session.worker == worker)]:
            self._end(session)

    def _end(self, session: Session[T]) -> None:
        """It may not come back: what it was answered is forgotten."""
        self.sessions.pop(session.id, None)
        self._lost.pop(session.id, None)
        if session.worker is not None:
            self._ended.add(session.id)

    def disconnected(self, session_id: str, now_s: float) -> None:
        """A connection of the session broke without Leave. The lease starts when its worker has none left."""
        session = self.sessions.get(session_id)
        if session is None:
            return
        session.connections -= 1
        if session.connections > 0:
            return
        if session.worker is None:
            self._end(session)
        elif session.forked:
            session.disconnected_at_s = now_s
        else:
            self.members[session.worker].disconnected_at_s = now_s

    def leave(self, session_id: str, reason: str) -> int | None:
        """The session says goodbye. The worker that no longer counts, unless it was an observer or a forked child."""
        session = self.session(session_id)
        self._end(session)
        if session.worker is None or session.forked:
            return None
        for child in self._of(session.worker):
            self._end(child)
        self._count_out(session.worker, "left", reason)
        return session.worker

    def expire(self, now_s: float, lease_s: float) -> list[int]:
        """Workers whose connection has been gone for longer than the lease: they are lost now and no longer count."""
        lost = [
            index
            for index, member in self.members.items()
            if member.disconnected_at_s is not None and now_s - member.disconnected_at_s > lease_s
        ]
        for index in lost:
            for session in self._of(index):
                self._lost[session.id] = self.sessions.pop(session.id)
            self._count_out(index, "lost", "its connection was gone")
        gone = [session for session in self.sessions.values() if session.disconnected_at_s is not None]
        for child in gone:
            if child.disconnected_at_s is not None and now_s - child.disconnected_at_s > lease_s:
                self._end(child)  # it ended without a word, as forked children do
        return lost

    def _of(self, worker: int) -> list[Session[T]]:
        return [session for session in self.sessions.values() if session.worker == worker]

    def _count_out(self, worker: int, state: str, reason: str) -> None:
        member = self.members[worker]
        member.state, member.reason, member.disconnected_at_s = state, reason, None
        self._counted = None


def _not_joined(session_id: str) -> NotJoined:
    return NotJoined(
        field="session",
        got=repr(session_id),
        expected="a session that joined and has not left, been lost or been replaced",
        hint="Connect again.",
    )
