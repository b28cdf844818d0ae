"""What can be done with the ps: init, pull, push, push_pull, assign, status, leave; on all of them, or with an error.

Every call goes to every ps, and speaks for all: it returns when all have answered, and raises if any has refused. Input is
checked against the model before anything is sent, so that what one ps would refuse reaches none.

All methods may be called from several threads; a forked child goes on with connections of its own.
Next: client/exchange.py (one operation on one ps), client/model.py (arrays to blocks), client/initialize.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from client import initialize
from client.exchange import Exchange
from client.model import MakeBlocks, Model, Receiver
from client.partitioner import DEFAULT, Partitioner
from client.retry import Retry
from client.session import Session, Who
from client.settings import Settings
from client.status import Status, job_status
from client.transport import Peer
from protos import parameter_server_pb2 as pb
from protos.codec import Array
from protos.errors import (
    InvalidVersion,
    NotInitialized,
    NotJoined,
    ParameterServerError,
    PeerUnavailable,
    PushFailed,
    ReadOnly,
    ServerStopping,
)

# Beyond the wait that a ps grants: for the way there and back.
MARGIN_S = 10.0
# From least to most: what a push is told when the ps say different things.
OUTCOMES = {pb.OUTCOME_APPLIED: "applied", pb.OUTCOME_BUFFERED: "buffered", pb.OUTCOME_STALE: "stale"}


class Values(dict[str, Array]):
    """What a pull returns: arrays by name, which are the caller's own.

    version: one number per ps, the updates applied to its shard. step: the smallest, the updates applied to the whole.
    """

    def __init__(self, values: Mapping[str, Array], version: tuple[int, ...]) -> None:
        super().__init__(values)
        self.version = version
        self.step = min(version, default=0)


@dataclass(frozen=True)
class PushResult:
    """What became of a push.

    outcome: applied, buffered or stale; when a push was sent twice, what became of it the first time, with `duplicate` set.
    staleness: the largest over the ps. version: one number per ps, after the push. sequence: which push of this client.
    """

    outcome: str
    staleness: int
    version: tuple[int, ...]
    sequence: int
    duplicate: bool = False

    @property
    def step(self) -> int:
        return min(self.version, default=0)


class Client:
    """A connected client; `client.connect` makes it. As a context manager it leaves at the end of the block."""

    def __init__(self, who: Who, settings: Settings) -> None:
        self._who = who
        self._settings = settings
        self._retry = Retry(budget_s=settings.retry_budget_s)
        self._model: Model | None = None
        self._configuration = pb.Configuration()
        self._versions: tuple[int, ...] = ()
        self._process = Session(who, settings)
        try:
            self._process.join()
        except BaseException:
            self._process.close()
            raise

    def __repr__(self) -> str:
        name = "observer" if self.worker is None else f"worker {self.worker}"
        return f"Client({name}, {len(self._who.cluster.ps)} ps, version {self._versions or 'not known'})"

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.leave()
            return
        try:
            self.leave(reason=f"failed: {type(error).__name__}: {error}")
        except ParameterServerError as second:
            if hasattr(error, "add_note"):
                error.add_note(f"While leaving: {second}")

    @property
    def worker(self) -> int | None:
        """This client's worker index; None for an observer."""
        return self._who.worker

    @property
    def num_workers(self) -> int:
        return self._who.cluster.num_workers

    @property
    def mode(self) -> str:
        """async, sync or ssp; empty before the model is initialised."""
        return self._configuration.mode

    # -- the model ---------------------------------------------------------------------------------------------------

    def init(
        self,
        values: Mapping[str, npt.ArrayLike],
        rule: str | Mapping[str, Any] | None = None,
        *,
        mode: str | None = None,
        slack: int | None = None,
        backup_workers: int | None = None,
        partitioner: Partitioner | None = None,
        non_trainable: Collection[str] = (),
    ) -> bool:
        """Give the model its first values. The first worker to do so wins; the others wait for it.

        values: arrays by name. Floats are trainable unless named in `non_trainable`; integers and booleans never are.
        rule: NAME:key=value,… or {"name": NAME, key: value, …}; None if the ps was told.
        Returns whether these values were taken. Raises InitConflict for a model that differs in names, shapes, dtypes or
        partitioner, ConfigurationConflict for a mode or rule that does, RuleError for a rule that is none.
        """
        session = self._session()
        self._require_worker("init")
        arrays = initialize.checked_values(values)
        specs = initialize.variable_specs(arrays, non_trainable)
        partitioner = partitioner or DEFAULT
        begin = pb.BeginInitRequest(
            session=session.id,
            variables=specs,
            configuration=initialize.configuration(rule, mode, slack, backup_workers),
            partitioner=repr(partitioner),
            after_chief=bool(self._who.cluster.chief),
            wait_ms=int(self._settings.wait_timeout_s * 1000),
        )
        session.rejoin(session.peers[0])
        grant = session.peers[0].call("BeginInit", begin, self._settings.wait_timeout_s + MARGIN_S)
        if grant.granted:
            tables = initialize.tables(specs, arrays, partitioner, len(session.peers), elementwise=grant.elementwise)
            self._send_model(session, grant, tables, arrays)
        self._describe(session)
        with session.versions_lock:
            self._versions = tuple(0 for _ in session.peers)  # these values are version 0, whoever sent them
        return bool(grant.granted)

    def _send_model(
        self,
        session: Session,
        grant: pb.BeginInitReply,
        tables: Sequence[list[pb.PartitionSpec]],
        arrays: Mapping[str, Array],
    ) -> None:
        exchanges = []
        for peer, table in zip(session.peers, tables):
            header = pb.Header(
                operation=pb.OPERATION_INIT, table=table, grant=grant.grant, configuration=grant.configuration
            )
            exchanges.append(self._exchange(session, peer, header, _table_blocks(table, arrays)))
        _all_or_raise(exchanges[1:], self._retry)
        _all_or_raise(exchanges[:1], self._retry)  # ps 0 last: once it holds values, every ps does

    def _describe(self, session: Session) -> Model:
        request = pb.DescribeRequest(session=session.id)
        descriptions = [peer.call("Describe", request, self._settings.wait_timeout_s) for peer in session.peers]
        for peer, description in zip(session.peers, descriptions):
            if not description.initialized:
                raise NotInitialized(
                    field="model", got="no variables", expected="an init", hint="Call init first, on any worker."
                ).at(peer.index, peer.address)
        self._configuration = descriptions[0].configuration
        with session.versions_lock:
            self._versions = self._versions or tuple(description.version for description in descriptions)
        self._model = Model(descriptions)
        return self._model

    def _known_model(self, session: Session) -> Model:
        return self._model if self._model is not None else self._describe(session)

    # -- reading -----------------------------------------------------------------------------------------------------

    def pull(
        self,
        names: Sequence[str] | None = None,
        *,
        rows: Mapping[str, npt.ArrayLike] | None = None,
        wait_timeout_s: float | None = None,
    ) -> Values:
        """The present values: all, those of `names`, or only some rows of some: {name: row numbers}.

        In sync mode waits for the step that this worker pushed for, and all shards are of one version; in ssp waits while
        this worker leads by more than the slack. WaitTimeout names the workers that were missing.
        """
        session = self._session()
        model = self._known_model(session)
        asked = [names] if isinstance(names, str) else names
        if asked is None:
            asked = [] if rows is not None else list(model.variables)
        wanted = list(dict.fromkeys(asked))
        row_makers, row_ids = model.row_blocks(rows or {})
        receiver = model.receiver([name for name in wanted if name not in row_ids], row_ids)
        wait_s = self._settings.wait_timeout_s if wait_timeout_s is None else wait_timeout_s
        headers = self._pull_headers(model, wanted, names is None and rows is None, row_ids, wait_s)
        answers = self._on_all(session, headers, row_makers, receiver, wait_s)
        return self._received(session, headers, row_makers, receiver, answers, wait_s)

    def _pull_headers(
        self, model: Model, wanted: Sequence[str], everything: bool, row_ids: Mapping[str, object], wait_s: float
    ) -> list[pb.Header]:
        whole = [name for name in wanted if name not in row_ids]
        partitions: list[list[int]] = [[] for _ in range(model.num_ps)] if everything else model.partitions(whole)
        return [
            pb.Header(
                operation=pb.OPERATION_PULL, partitions=mine, by_rows=not everything, wait_ms=_milliseconds(wait_s)
            )
            for mine in partitions
        ]

    def _received(
        self,
        session: Session,
        headers: list[pb.Header],
        makers: Sequence[MakeBlocks],
        receiver: Receiver,
        answers: Sequence[pb.Answer],
        wait_s: float,
    ) -> Values:
        """The values, once all shards are of one version if the mode is sync."""
        versions = [answer.version for answer in answers]
        while self._configuration.mode == "sync" and len(set(versions)) > 1:
            newest = max(versions)
            behind = [index for index, version in enumerate(versions) if version < newest]
            exchanges = []
            for index in behind:
                headers[index].at_least = newest
                exchanges.append(
                    self._exchange(
                        session, session.peers[index], headers[index], makers[index], receiver, wait_s
                    ).begin()
                )
            for index, answer in zip(behind, _all_or_raise(exchanges, self._retry)):
                versions[index] = answer.version
        with session.versions_lock:
            self._versions = tuple(versions)
        return Values(receiver.values, tuple(versions))

    # -- writing -----------------------------------------------------------------------------------------------------

    def push(
        self, gradients: Mapping[str, Any], *, version: Sequence[int] | None = None, sequence: int | None = None
    ) -> PushResult:
        """Send gradients: arrays or IndexedSlices by name; variables left out get none.

        version: what they were computed at, one number per ps; by default what this client pulled last. sequence: only to
        send a push again that failed, as its PushFailed says. Returns at once when it must wait for others (`buffered`).
        """
        session = self._session()
        headers, makers, number, at = self._push_headers(session, gradients, pb.OPERATION_PUSH, version, sequence)
        return self._push_result(self._push_to_all(session, headers, makers, None, number), number, at)

    def push_pull(
        self,
        gradients: Mapping[str, Any],
        *,
        version: Sequence[int] | None = None,
        sequence: int | None = None,
        wait_timeout_s: float | None = None,
    ) -> tuple[Values, PushResult]:
        """Push, then pull everything, in one call. In sync mode returns when the step is complete, with `applied`."""
        session = self._session()
        model = self._known_model(session)
        wait_s = self._settings.wait_timeout_s if wait_timeout_s is None else wait_timeout_s
        headers, makers, number, at = self._push_headers(session, gradients, pb.OPERATION_PUSH_PULL, version, sequence)
        for header in headers:
            header.wait_ms = _milliseconds(wait_s)
        receiver = model.receiver(list(model.variables), {})
        answers = self._push_to_all(session, headers, makers, receiver, number, wait_s)
        pulls = self._pull_headers(model, list(model.variables), True, {}, wait_s)
        nothing: list[MakeBlocks] = [lambda: iter(())] * model.num_ps
        values = self._received(session, pulls, nothing, receiver, answers, wait_s)
        result = self._push_result(answers, number, at)
        if result.outcome == "buffered" and min(values.version) > min(at):
            result = PushResult("applied", result.staleness, values.version, number, result.duplicate)
        return values, PushResult(result.outcome, result.staleness, values.version, number, result.duplicate)

    def _push_headers(
        self,
        session: Session,
        gradients: Mapping[str, Any],
        operation: pb.Operation,
        version: Sequence[int] | None,
        sequence: int | None,
    ) -> tuple[list[pb.Header], list[MakeBlocks], int, tuple[int, ...]]:
        """Everything checked, nothing sent: headers and blocks for each ps, the sequence, the versions."""
        self._require_worker("push")
        model = self._known_model(session)
        makers = model.gradient_blocks(gradients, guard_nonfinite=session.guard_nonfinite)
        at = self._versions if version is None else tuple(int(number) for number in version)
        if len(at) != model.num_ps or any(number < 0 for number in at):
            raise InvalidVersion(field="version", got=at, expected=f"{model.num_ps} numbers, one per ps")
        if self._configuration.mode == "sync":
            at = (min(at),) * model.num_ps  # a mixture of versions is as old as its oldest part
        number = next(session.sequences) if sequence is None else sequence
        headers = [pb.Header(operation=operation, sequence=number, version=mine) for mine in at]
        return headers, makers, number, at

    def _push_to_all(
        self,
        session: Session,
        headers: Sequence[pb.Header],
        makers: Sequence[MakeBlocks],
        receiver: Receiver | None,
        sequence: int,
        wait_s: float = 0.0,
    ) -> list[pb.Answer]:
        """Every ps's answer, or PushFailed with those that refused."""

        def send(indices: Sequence[int]) -> list[pb.Answer | ParameterServerError]:
            exchanges = [
                self._exchange(session, session.peers[index], headers[index], makers[index], receiver, wait_s).begin()
                for index in indices
            ]
            return _collect(exchanges, self._retry)

        everyone = range(len(headers))
        if self._configuration.backup_workers and len(headers) > 1:
            answers = self._push_leader_first(session, headers, makers, send)
        else:
            answers = send(everyone)
        refused = {index: answer for index, answer in enumerate(answers) if isinstance(answer, ParameterServerError)}
        if not refused:
            return [answer for answer in answers if isinstance(answer, pb.Answer)]
        first = next(iter(refused.values()))
        if len(refused) == len(headers) or isinstance(first, (ServerStopping, PeerUnavailable)):
            raise first
        raise PushFailed(
            refused=refused,
            sequence=sequence,
            field="push",
            got="; ".join(str(error) for error in refused.values()),
            expected="every ps to take it",
            hint=f"Push again with sequence={sequence}: what was applied is not applied twice.",
        )

    def _push_leader_first(
        self,
        session: Session,
        headers: Sequence[pb.Header],
        makers: Sequence[MakeBlocks],
        send: Callable[[Sequence[int]], list[pb.Answer | ParameterServerError]],
    ) -> list[pb.Answer | ParameterServerError]:
        """With backup workers ps 0 decides who counts; the others are told, so that all shards take the same workers."""
        pulling = headers[0].operation == pb.OPERATION_PUSH_PULL
        if pulling:  # the pull half would wait for the step, and the step for what the other ps have not been sent yet
            headers[0].operation = pb.OPERATION_PUSH
        (decision,) = send([0])
        if isinstance(decision, ParameterServerError):
            return [decision] * len(headers)
        stale = _first_outcome(decision) == "stale"
        for header in headers[1:]:
            header.seat = pb.SEAT_PASSED_OVER if stale else pb.SEAT_COUNTED
        if not pulling:
            return [decision, *send(range(1, len(headers)))]
        headers[
            0
        ].operation = pb.OPERATION_PUSH_PULL  # the same sequence: its push half is a duplicate, its pull half is not
        return send(range(len(headers)))

    def _push_result(self, answers: Sequence[pb.Answer], sequence: int, at: tuple[int, ...]) -> PushResult:
        outcomes = [_first_outcome(answer) for answer in answers]
        worst = next((outcome for outcome in ("stale", "buffered") if outcome in outcomes), "applied")
        duplicate = all(answer.outcome == pb.OUTCOME_DUPLICATE for answer in answers)
        staleness = max((answer.staleness for answer in answers), default=0)
        return PushResult(worst, staleness, tuple(answer.version for answer in answers), sequence, duplicate)

    def assign(self, values: Mapping[str, npt.ArrayLike]) -> None:
        """Set values without a rule: integer and boolean state, statistics, weights by hand. Versions and slots stay."""
        session = self._session()
        self._require_worker("assign")
        makers = self._known_model(session).value_blocks(values)
        headers = [pb.Header(operation=pb.OPERATION_ASSIGN) for _ in makers]
        self._on_all(session, headers, makers, None, 0.0)

    # -- the rest ----------------------------------------------------------------------------------------------------

    def status(self) -> Status:
        """What every ps says of itself: bytes, versions, rule, mode, workers, counters; and the job's step."""
        session = self._session()
        request = pb.StatusRequest()
        return job_status(
            [(peer, peer.call("Status", request, self._settings.wait_timeout_s)) for peer in session.peers]
        )

    def leave(self, reason: str = "") -> None:
        """This worker is done: barriers and clocks go on without it. Says so to every ps, then closes; once is enough."""
        session = self._process
        if session.left or session.pid != os.getpid():
            return
        session.left = True
        failures: list[ParameterServerError] = []
        for peer in session.peers:
            try:
                peer.call("Leave", pb.LeaveRequest(session=session.id, reason=reason), self._settings.wait_timeout_s)
            except (ServerStopping, NotJoined):
                continue  # it is going down, or has counted this worker out already: there is nothing to leave
            except ParameterServerError as error:
                failures.append(error)
        session.close()
        if failures:
            raise failures[0]

    # -- inside ------------------------------------------------------------------------------------------------------

    def _session(self) -> Session:
        """The connections of this process; a forked child makes its own at first use."""
        session = self._process
        if session.pid != os.getpid():
            session = Session(self._who, self._settings, parent=session)
            session.join()
            self._process = session
        if session.left:
            raise NotJoined(field="client", got="a client that has left", expected="a new one", hint="Connect again.")
        return session

    def _require_worker(self, doing: str) -> None:
        if self.worker is None:
            raise ReadOnly(field=doing, got="an observer", expected="a worker")

    def _exchange(
        self,
        session: Session,
        peer: Peer,
        header: pb.Header,
        blocks: MakeBlocks,
        receiver: Receiver | None = None,
        wait_s: float = 0.0,
    ) -> Exchange:
        quiet_s = max(wait_s, self._settings.wait_timeout_s if wait_s == 0 else 0) + MARGIN_S
        return Exchange(peer, header, session.id, blocks, receiver, quiet_s=quiet_s, rejoin=session.rejoin)

    def _on_all(
        self,
        session: Session,
        headers: Sequence[pb.Header],
        makers: Sequence[MakeBlocks],
        receiver: Receiver | None,
        wait_s: float,
    ) -> list[pb.Answer]:
        exchanges = [
            self._exchange(session, peer, header, maker, receiver, wait_s).begin()
            for peer, header, maker in zip(session.peers, headers, makers)
        ]
        return _all_or_raise(exchanges, self._retry)


def _collect(exchanges: Sequence[Exchange], retry: Retry) -> list[pb.Answer | ParameterServerError]:
    """Each exchange's answer or error; nothing is left under way."""
    results: list[pb.Answer | ParameterServerError] = []
    try:
        for exchange in exchanges:
            try:
                results.append(exchange.finish(retry))
            except ParameterServerError as error:
                results.append(error)
    finally:
        for exchange in exchanges[len(results) :]:
            exchange.abandon()
    return results


def _all_or_raise(exchanges: Sequence[Exchange], retry: Retry) -> list[pb.Answer]:
    """Every answer, or the first error."""
    try:
        return [exchange.finish(retry) for exchange in exchanges]
    finally:
        for exchange in exchanges:
            exchange.abandon()  # nothing is left of those that finished


def _table_blocks(table: list[pb.PartitionSpec], arrays: Mapping[str, Array]) -> MakeBlocks:
    return lambda: initialize.table_blocks(table, arrays)


def _first_outcome(answer: pb.Answer) -> str:
    return OUTCOMES[answer.first if answer.outcome == pb.OUTCOME_DUPLICATE else answer.outcome]


def _milliseconds(seconds: float) -> int:
    return int(np.ceil(seconds * 1000))
