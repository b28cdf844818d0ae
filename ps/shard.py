"""Who changes a shard, and in which order? The one place where state, modes, membership and waiting meet.

The core decides (consistency, membership), the engine computes (apply, aggregation), this class performs: it lets one
update happen at a time, publishes the new state, and wakes those who wait. All of it runs on one event loop; only the maths
of a large update leaves it, on a state that nobody can change.

It must not know messages or sockets. Next: ps/servicer.py (RPC in, RPC out).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from protos.errors import (
    InitConflict,
    InvalidInput,
    NotInitialized,
    ParameterServerError,
    ReadOnly,
    RuleError,
    RuleFailed,
    ServerStopping,
    WaitTimeout,
)
from ps.accounting import Counters, PushResult
from ps.aggregation import Contribution
from ps.apply import with_slots
from ps.configuration import Configuration, consistency_of, settle
from ps.consistency import Apply, Buffer, Complete, Consistency, Refuse, Seat, Stale, Sync, Wait
from ps.initialization import Declaration, Initialization
from ps.membership import JoinFacts, Membership, Session
from ps.read_states import ReadStates
from ps.record import Recorder
from ps.rules import UpdateRule, make_rule
from ps.rules.options import may_be_cut, needs_sums, uses_norm
from ps.story import Event, Story
from ps.updates import Updates, is_small
from ps.variable import Gradients, Paged, Partition, ShardState, SparseGradient
from ps.waiting import Waiters

T = TypeVar("T")


@dataclass(frozen=True)
class _Pending:
    session: Session[PushResult]
    sequence: int
    contribution: Contribution


@dataclass
class Shard:
    """One shard, live. Every method is called on the event loop it was first used on.

    Locking: `_turn` lets one change of the state (update, init, assign) happen at a time, in order of arrival. It guards
    `state`, `pending` and the order of the story. It is held while an update is computed; never while a message is sent or
    received, and never while waiting for another worker. Pulls do not take it: they read `state`, which is immutable.
    """

    membership: Membership[PushResult]
    configuration: Configuration
    story: Story = field(default_factory=Story)
    guard_nonfinite: bool = False
    clock: Callable[[], float] = time.monotonic
    updates: Updates = field(default_factory=Updates)
    recorder: Recorder = field(default_factory=Recorder)

    def __post_init__(self) -> None:
        self.state: ShardState | None = None
        self.rule: UpdateRule | None = make_rule(self.configuration.rule) if self.configuration.rule else None
        self.consistency: Consistency | None = None
        self.initialization = Initialization()
        self.counters = Counters()
        self.pending: dict[int, _Pending] = {}
        self.stopping: str = ""
        self.observers_reading = 0
        self._turn = asyncio.Lock()
        self._waiters = Waiters()
        self._read_states = ReadStates()
        self._failed_steps: dict[str, RuleFailed] = {}
        self._joined_at: dict[str, int] = {}
        self._steps: set[asyncio.Future[None]] = set()  # that nobody awaits
        if self.configuration.mode:  # what cannot be is refused at start, not at the first init
            consistency_of(self.configuration, self.membership)

    def __repr__(self) -> str:
        version = self.state.version if self.state else None
        return (
            f"Shard(version {version}, {self.configuration}, {self.membership!r}, pending from {sorted(self.pending)}, "
            f"{len(self._waiters)} waiting, {self.counters})"
        )

    # -- membership --------------------------------------------------------------------------------------------------

    def join(self, facts: JoinFacts) -> Session[PushResult]:
        """Open a session, or take a broken connection up again."""
        self._check_running()
        returning = facts.session in self.membership.sessions
        session = self.membership.join(facts)
        self._drop_what_is_nobodys()
        if session.worker is not None and not returning:
            if self.consistency is not None and not session.forked:
                self.consistency.joined(session.worker)
                self._waiters.wake()  # a newcomer starts level with the slowest: who waited for its index may go on
            self._tell("join", worker=session.worker, generation=session.generation)
            self._joined_at[session.id] = self.state.version if self.state is not None else 0
        return session

    async def leave(self, session_id: str, reason: str) -> None:
        """The session is done; if it was a worker's, those who wait for it go on without. Runs to its end once begun."""
        worker = self.membership.leave(session_id, reason)
        self._drop_what_is_nobodys()
        if worker is not None:
            self._tell("leave", worker=worker, reason=reason)
        step = asyncio.ensure_future(self._step_if_due())
        if self.rule is not None and self.membership.num_ps > 1 and needs_sums(self.rule):
            self._steps.add(
                step
            )  # the other ps have a part in it, and hear only after this answer that the worker leaves
            step.add_done_callback(self._steps.discard)
        else:
            await asyncio.shield(step)

    def disconnected(self, session_id: str) -> None:
        """A connection broke. The lease decides later whether the worker is lost."""
        self.membership.disconnected(session_id, self.clock())
        self._drop_what_is_nobodys()

    async def expire(self, lease_s: float) -> list[int]:
        """Count out the workers whose connection has been gone for longer than the lease, and return them."""
        lost = self.membership.expire(self.clock(), lease_s)
        self._drop_what_is_nobodys()
        for worker in lost:
            self._tell("lost", worker=worker, reason=self.membership.members[worker].reason)
        if lost:
            await self._step_if_due()
        return lost

    def _drop_what_is_nobodys(self) -> None:
        """Sessions may have ended: what was kept for them, the right to initialise included, is free."""
        self._read_states.keep_only(self.membership.sessions)
        for kept in (self._failed_steps, self._joined_at):
            for session_id in kept.keys() - self.membership.sessions.keys():
                del kept[session_id]
        if self.initialization.granted_to not in self.membership.sessions:
            self.initialization.abandoned(self.initialization.granted_to)
        self.initialization.wake()
        self._waiters.wake()

    async def _step_if_due(self) -> None:
        async with self._turn:
            await self._due_step()
        self._waiters.wake()

    async def _due_step(self) -> None:
        """Complete the step if nobody is missing any more. Its failure is told to those whose gradients it was made of."""
        if self.consistency is not None and self.consistency.due() is not None:
            with contextlib.suppress(RuleFailed):
                await self._step()

    # -- initialisation ----------------------------------------------------------------------------------------------

    async def begin_init(
        self, session_id: str, wanted: Configuration, declaration: Declaration, after_chief: bool, wait_s: float
    ) -> tuple[int, Configuration, bool]:
        """May this session initialise the model? (grant or 0, the configuration in force, whether variables may be cut)."""
        self._check_running()
        session = self._worker_session(session_id, "init")
        configuration = settle(self.configuration, wanted, self.membership)
        rule = make_rule(configuration.rule) if configuration.rule else None
        if rule is None and any(trainable for *_, trainable in declaration.variables):
            raise _no_rule()

        def in_turn() -> bool:
            chief = self.membership.members[0].state
            return not after_chief or session.worker == 0 or chief in ("left", "lost")

        def missing(granted_to: str) -> str:
            session = self.membership.sessions.get(granted_to)
            return self.membership.describe((session.worker if session else 0) or 0)  # the chief, where nobody holds it

        ask = self.initialization.ask
        grant = await ask(session_id, declaration, self._check_running, wait_s, in_turn=in_turn, missing=missing)
        # Again: who initialised meanwhile may have said otherwise.
        configuration = settle(self.configuration, wanted, self.membership)
        return grant, configuration, rule is None or may_be_cut(rule)

    async def initialize(
        self, session_id: str, grant: int, wanted: Configuration, partitions: Sequence[Partition]
    ) -> int:
        """Take the first values. A later grant replaces what a dead initialiser left, as long as nothing was applied."""
        session = self._worker_session(session_id, "init")
        async with self._turn:
            if self.state is not None and self.initialization.has(grant, session_id):
                return self.state.version
            if self.initialization.outdated(grant) or (self.state is not None and self.state.version > 0):
                raise InitConflict(
                    field="init", got=f"grant {grant}", expected="one initialiser", hint="Pull the values."
                )
            configuration = settle(self.configuration, wanted, self.membership)
            rule = make_rule(configuration.rule) if configuration.rule else None
            if rule is None and any(partition.key.trainable for partition in partitions):
                raise _no_rule()
            if rule is not None:
                partitions = [with_slots(partition, rule) for partition in partitions]
            self.recorder.init(configuration, partitions, rule)
            self.state = ShardState(0, tuple(partitions))
            self.configuration, self.rule = configuration, rule
            self.consistency = consistency_of(configuration, self.membership)
            self.initialization.accept(grant, session_id)
            self._tell(
                "init", worker=session.worker, names=tuple(str(part) for each in partitions for part in each.key.parts)
            )
            self._waiters.wake()
            return self.state.version

    # -- reading -----------------------------------------------------------------------------------------------------

    def wants_norm(self) -> bool:
        """Whether a push must say the norm of its gradient: no ps knows all of it, and there is no step to ask others in."""
        alone = self.membership.num_ps == 1 or self.configuration.mode == "sync"
        return self.rule is not None and not alone and uses_norm(self.rule)

    def ready_state(self) -> ShardState:
        """The present state; NotInitialized before there is one."""
        if self.state is None:
            raise NotInitialized(
                field="model", got="no variables", expected="an init", hint="Call init first, on any worker."
            )
        return self.state

    async def pull(self, session: Session[PushResult], at_least: int, wait_s: float) -> ShardState:
        """The state this worker may read now, once the mode lets it."""
        self._check_running()
        state = self.ready_state()
        if at_least > state.version and self._came_too_late(session):
            await _to_its_end(self._pass_over(session))
        if self.consistency is not None and (at_least > state.version or self.consistency.pull(session.worker)):
            left = await self._waiters.until(session.worker, lambda: self._must_wait(session, at_least), wait_s)
            if left is not None:
                raise self._timeout(session, left, wait_s)
            state = self.ready_state()
        if (failure := self._failed_steps.pop(session.id, None)) is not None:
            raise failure
        self.counters.pulls += 1
        if self.rule is not None and self.rule.needs_read_value and session.worker is not None:
            self._read_states.remember(session.id, state)
            self.recorder.read(session, state.version)
        return state

    def _came_too_late(self, session: Session[PushResult]) -> bool:
        """Whether another process had this index when the present step began: it may have pushed to other ps only.

        They have completed the step then, and this one must not wait for a gradient that can no longer come.
        """
        joined_at = self._joined_at.get(session.id)
        return session.generation > 1 and not session.forked and joined_at == self.ready_state().version

    async def _pass_over(self, session: Session[PushResult]) -> None:
        async with self._turn:
            if isinstance(self.consistency, Sync) and session.worker is not None and self._came_too_late(session):
                self.consistency.pass_over(session.worker)
                await self._due_step()
        self._waiters.wake()

    def _must_wait(self, session: Session[PushResult], at_least: int) -> Wait | None:
        assert self.consistency is not None
        self._check_running()
        self.membership.session(session.id)  # replaced or lost while it waited: it is told
        wait = self.consistency.pull(session.worker)
        if wait is None and at_least > self.ready_state().version:
            missing = self.consistency.missing() if isinstance(self.consistency, Sync) else ()
            wait = Wait(missing, f"version {at_least}, which another ps has reached")
        return wait

    def _timeout(self, session: Session[PushResult], wait: Wait, wait_s: float) -> WaitTimeout:
        return WaitTimeout(
            field="pull" if session.worker is None else f"worker {session.worker}",
            got=f"{wait_s:g} s without {self._describe(wait)}",
            expected=wait.reason,
            hint="See whether that worker is up; the wait is set with wait_timeout_s.",
        )

    def _describe(self, wait: Wait) -> str:
        return ", ".join(self.membership.describe(worker) for worker in wait.missing) or wait.reason

    def waiting(self) -> dict[int, str]:
        """What each waiting worker waits for, for the status."""
        return {worker: self._describe(wait) for worker, wait in self._waiters.by_worker().items()}

    @contextlib.contextmanager
    def reading(self, session: Session[PushResult] | None) -> Iterator[None]:
        """While values are on their way. A ps whose work is done stays for observers that read."""
        observer = session is not None and session.worker is None
        self.observers_reading += observer
        try:
            yield
        finally:
            self.observers_reading -= observer

    # -- changing ----------------------------------------------------------------------------------------------------

    async def push(
        self,
        session: Session[PushResult],
        sequence: int,
        version: int,
        pushed: Gradients | Contribution,
        seat: Seat = Seat.UNDECIDED,
    ) -> PushResult:
        """Take one gradient. Runs to its end once begun: a caller that goes away cannot leave a step half made."""
        contribution = pushed if isinstance(pushed, Contribution) else Contribution(pushed)
        push = self._push(session, sequence, version, contribution, seat)
        if self._is_done_at_once(contribution):  # nobody can cancel it on its way, and a task would cost more than it
            return await push
        return await _to_its_end(push)

    def _is_done_at_once(self, contribution: Contribution) -> bool:
        alone = self.configuration.mode != "sync" and not self._turn.locked()
        return alone and self.state is not None and is_small(self.state, self.rule, [contribution])

    async def _push(
        self, session: Session[PushResult], sequence: int, version: int, contribution: Contribution, seat: Seat
    ) -> PushResult:
        async with self._turn:
            try:
                self._check_running()
                self._worker_session(session.id, "push")
                self.ready_state()
                if (first := session.answers.get(sequence)) is not None:
                    return self.counters.count_again(first)
                if sequence <= session.forgotten_through:
                    raise InvalidInput(
                        field="sequence",
                        got=sequence,
                        expected=f"more than {session.forgotten_through}, whose answers are forgotten",
                    )
                return await self._perform(session, sequence, version, contribution, seat)
            except ParameterServerError:
                self.counters.refused += 1
                raise

    async def _perform(
        self, session: Session[PushResult], sequence: int, version: int, contribution: Contribution, seat: Seat
    ) -> PushResult:
        assert self.consistency is not None
        assert self.state is not None
        assert session.worker is not None
        if self.wants_norm() and contribution.norm is None:
            raise InvalidInput(
                field="gradient_norm",
                got="none",
                expected="the norm of the gradient over the whole model",
                hint="The rule clips by it, and each ps holds a part only.",
            )
        before = self.consistency.horizon()
        decision = self.consistency.push(session.worker, version, seat)
        if isinstance(decision, Refuse):
            raise decision.error
        if not isinstance(decision, Stale):
            self.recorder.gradient(session, sequence, contribution)
        if isinstance(decision, Stale):
            await self._due_step()
            result = PushResult("stale", decision.staleness, self.state.version)
        elif isinstance(decision, Buffer):
            self.pending[session.worker] = _Pending(session, sequence, contribution)
            result = PushResult("buffered", 0, self.state.version)
        elif isinstance(decision, Complete):
            self.pending[session.worker] = _Pending(session, sequence, contribution)
            await self._step(completed_by=session.id)
            result = PushResult("applied", 0, self.state.version)
        else:
            assert isinstance(decision, Apply)
            read_state = None
            if self.rule is not None and self.rule.needs_read_value:
                read_state = self._read_states.of(session.id, version, self.state, self.rule)
            self.state = await self.updates.compute(
                self.state,
                self.rule,
                {session.worker: contribution},
                staleness=decision.staleness,
                worker=session.worker,
                read_state=read_state,
            )
            self.consistency.applied(session.worker)
            result = PushResult("applied", decision.staleness, self.state.version)
        self.counters.count(session, sequence, result)
        self._tell(
            "push",
            worker=session.worker,
            generation=session.generation,
            sequence=sequence,
            at_version=version,
            outcome=result.outcome,
            staleness=result.staleness,
        )
        if self.consistency.horizon() != before:
            self._waiters.wake()
        return result

    async def _step(self, completed_by: str = "") -> None:
        """Apply what the pending gradients become: the step is full. If the rule fails, it is undone and may be tried again.

        completed_by: the session whose push made it full, which hears of a failure at once; the others at their next pull.
        """
        assert self.consistency is not None
        assert self.state is not None
        pending, self.pending = self.pending, {}
        try:
            contributions = {worker: item.contribution for worker, item in pending.items()}
            self.state = await self.updates.compute(self.state, self.rule, contributions, read_state=self.state)
        except Exception as error:
            failure = error if isinstance(error, RuleFailed) else _step_failed(error)
            self.counters.step_failed()
            self.consistency.failed()
            for item in pending.values():  # it came to nothing: sent again, it is no duplicate
                item.session.answers.pop(item.sequence, None)
            buffered = [item.session.id for item in pending.values() if item.session.id != completed_by]
            self._failed_steps.update(dict.fromkeys(buffered, failure))
            self._drop_what_is_nobodys()
            raise failure from error
        self.consistency.applied()
        self.counters.step_applied()
        order = sorted(pending)
        self._tell(
            "step",
            contributors=tuple(
                (worker, pending[worker].session.generation, pending[worker].sequence) for worker in order
            ),
        )
        self._waiters.wake()

    async def assign(self, session: Session[PushResult], values: Mapping[int, Paged | SparseGradient]) -> int:
        """Set values without a rule; version and slots stay."""
        async with self._turn:
            self._check_running()
            self._worker_session(session.id, "assign")
            state = self.ready_state()
            self.state = state.with_values(values)
            self.recorder.values(values)
            names = tuple(str(part) for index in values for part in state.partitions[index].key.parts)
            if names:
                self._tell("assign", worker=session.worker, generation=session.generation, names=names)
            return self.state.version

    # -- the end -----------------------------------------------------------------------------------------------------

    def stop(self, reason: str) -> None:
        """Refuse everything from now on, and tell those who wait."""
        self.stopping = reason
        self.initialization.wake()
        self._waiters.wake()

    def _check_running(self) -> None:
        if self.stopping:
            raise ServerStopping(got=self.stopping)

    def _worker_session(self, session_id: str, doing: str) -> Session[PushResult]:
        session = self.membership.session(session_id)
        if session.worker is None:
            raise ReadOnly(field=doing, got="an observer", expected="a worker")
        return session

    # -- small things ------------------------------------------------------------------------------------------------

    def _tell(self, kind: str, **fields: object) -> None:
        version = self.state.version if self.state is not None else 0
        self.story.tell(Event(kind, version, **fields))  # type: ignore[arg-type]


async def _to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Await `work`; if the caller goes away meanwhile, it runs on: nothing is left half done."""
    return await asyncio.shield(asyncio.ensure_future(work))


def _step_failed(error: Exception) -> RuleFailed:
    got = f"{type(error).__name__}: {error}"
    return RuleFailed(field="step", got=got, expected="the mean of its gradients", hint="Push again.")


def _no_rule() -> RuleError:
    return RuleError(
        field="rule", got="none", expected="a rule for the trainable variables", hint="Give init(rule=…) or --rule."
    )
