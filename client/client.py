"""What can be done with the ps: init, pull, push, push_pull, assign, status, leave; on all of them, or with an error.

Every call goes to every ps, and speaks for all: it returns when all have answered, and raises if any has refused. Input is
checked against the model before anything is sent, so that what one ps would refuse reaches none.

All methods may be called from several threads; a forked child goes on with connections of its own.
Next: client/fanout.py (one operation on every ps), client/model.py (arrays to blocks), client/initialize.py.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any

import numpy.typing as npt

from client import arguments, initialize
from client.compression import Traffic
from client.fanout import MARGIN_S, Fanout
from client.headers import checked_version, milliseconds, positive, pull_headers, push_headers
from client.model import Model
from client.norm import global_norm
from client.outgoing import MakeBlocks
from client.partitioner import DEFAULT, Partitioner
from client.receiver import Receiver
from client.results import PushResult, Values, push_result
from client.session import Session, Who
from client.settings import Settings, seconds
from client.status import Status, job_status
from protos import parameter_server_pb2 as pb
from protos.codec import Array, wire_text
from protos.errors import (
    InitConflict,
    InvalidInput,
    NotInitialized,
    NotJoined,
    ParameterServerError,
    ReadOnly,
    ServerStopping,
)

# How long leaving may take, all ps together; and what each is given at least.
LEAVE_S, LEAST_S = 30.0, 1.0


class Client:
    """A connected client; `client.connect` makes it. As a context manager it leaves at the end of the block."""

    def __init__(self, who: Who, settings: Settings) -> None:
        self._who = who
        self._settings = settings
        self._model: Model | None = None
        self._configuration = pb.Configuration()
        self._versions: tuple[int, ...] = ()
        self._forked_lock = threading.Lock()  # guards the replacement of `_process`, in a forked child only
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
        specs = initialize.variable_specs(arrays, arguments.names("non_trainable", non_trainable))
        partitioner = DEFAULT if partitioner is None else arguments.partitioner("partitioner", partitioner)
        begin = pb.BeginInitRequest(
            session=session.id,
            variables=specs,
            configuration=initialize.configuration(rule, mode, slack, backup_workers),
            partitioner=repr(partitioner),
            after_chief=bool(self._who.cluster.chief),
            wait_ms=int(self._settings.wait_timeout_s * 1000),
        )
        num_ps = len(session.peers)
        # Only to see that it can be cut: what cannot is refused here, while nobody waits for this worker.
        initialize.tables(specs, arrays, partitioner, num_ps, elementwise=True)
        with session.init_lock:
            session.rejoin(session.peers[0])
            for last_attempt in (False, True):
                grant = session.call(session.peers[0], "BeginInit", begin, self._settings.wait_timeout_s + MARGIN_S)
                if not grant.granted:
                    break
                tables = initialize.tables(
                    specs, arrays, partitioner, num_ps, elementwise=grant.elementwise, packed=grant.packed
                )
                try:
                    self._send_model(session, grant, tables, arrays)
                    break
                except InitConflict:  # the right to send passed to another while this connection was gone: ask again
                    if last_attempt:
                        raise
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
        headers = [
            pb.Header(operation=pb.OPERATION_INIT, table=table, grant=grant.grant, configuration=grant.configuration)
            for table in tables
        ]
        makers = [_table_blocks(table, arrays) for table in tables]
        fanout = self._fanout(session)
        fanout.on_all(headers, makers, only=range(1, len(headers)))
        fanout.on_all(headers, makers, only=[0])  # ps 0 last: once it holds values, every ps does

    def _describe(self, session: Session) -> Model:
        request = pb.DescribeRequest(session=session.id)
        descriptions = [session.call(peer, "Describe", request) for peer in session.peers]
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
        averages: bool = False,
        wait_timeout_s: float | None = None,
    ) -> Values:
        """The present values: all, those of `names`, or only some rows of some: {name: row numbers}.

        averages: the moving averages that a rule with use_ema=true keeps, instead of the values; state without a rule as it is.

        In sync mode waits for the step that this worker pushed for, and all shards are of one version (for an observer they
        may differ while training goes on: see `.version`); in ssp waits while this worker leads by more than the slack.
        WaitTimeout names the workers that were missing.
        """
        session = self._session()
        model = self._known_model(session)
        everything = names is None and rows is None
        wanted = list(model.variables) if everything else arguments.names("names", () if names is None else names)
        row_makers, row_ids = model.row_blocks({} if rows is None else rows)
        receiver = Receiver(model, [name for name in wanted if name not in row_ids], row_ids)
        wait_s = self._wait_s(wait_timeout_s)
        whole = None if everything else [name for name in wanted if name not in row_ids]
        headers = pull_headers(model, whole, wait_s, averages=arguments.flag("averages", averages))
        versions = self._fanout(session).pull(headers, row_makers, receiver, wait_s, one_version=self._one_version)
        return self._pulled(session, receiver, versions)

    def _pulled(self, session: Session, receiver: Receiver, versions: tuple[int, ...]) -> Values:
        with session.versions_lock:
            self._versions = versions
        return Values(receiver.values, versions)

    # -- writing -----------------------------------------------------------------------------------------------------

    def push(
        self,
        gradients: Mapping[str, Any],
        *,
        version: Sequence[int] | None = None,
        sequence: int | None = None,
        weight: float = 1.0,
        scale: float = 1.0,
    ) -> PushResult:
        """Send gradients: arrays or IndexedSlices by name; variables left out get none.

        version: what they were computed at, one number per ps; by default what this client pulled last. sequence: only to
        send a push again that failed, as its PushFailed says. weight: what this push counts for where the aggregation weighs,
        such as its batch size. scale: what the gradients were multiplied by; the ps divides in float32 or wider.
        Returns at once when it must wait for others (`buffered`).
        """
        session = self._session()
        headers, makers, _ = self._push_headers(session, gradients, pb.OPERATION_PUSH, version, sequence, weight, scale)
        answers = self._fanout(session).push(headers, makers, None, None, leader_first=self._leader_first)
        return push_result(answers, headers[0].sequence)

    def push_pull(
        self,
        gradients: Mapping[str, Any],
        *,
        version: Sequence[int] | None = None,
        sequence: int | None = None,
        weight: float = 1.0,
        scale: float = 1.0,
        wait_timeout_s: float | None = None,
    ) -> tuple[Values, PushResult]:
        """Push, then pull everything, in one call. In sync mode returns when the step is complete, with `applied`."""
        session = self._session()
        model = self._known_model(session)
        wait_s = self._wait_s(wait_timeout_s)
        operation = pb.OPERATION_PUSH_PULL
        headers, makers, at = self._push_headers(session, gradients, operation, version, sequence, weight, scale)
        for header in headers:
            header.wait_ms = milliseconds(wait_s)
        receiver = Receiver(model, list(model.variables), {})
        fanout = self._fanout(session)
        answers = fanout.push(headers, makers, receiver, wait_s, leader_first=self._leader_first)
        versions = tuple(answer.version for answer in answers)
        if self._one_version and len(set(versions)) > 1:  # some shards lag behind: ask them again
            nothing: list[MakeBlocks] = [lambda: iter(())] * model.num_ps
            again = pull_headers(model, None, wait_s)
            versions = fanout.pull(again, nothing, receiver, wait_s, first=answers, one_version=True)
        values = self._pulled(session, receiver, versions)
        result = push_result(answers, headers[0].sequence)
        if result.outcome == "buffered" and min(versions) > min(at):
            result = replace(result, outcome="applied")
        return values, result if result.version == versions else replace(result, version=versions)

    @property
    def _one_version(self) -> bool:
        """In sync mode all shards are read at one version; an observer, for which nobody waits, takes what is there."""
        return self.mode == "sync" and self.worker is not None

    @property
    def _leader_first(self) -> bool:
        return self._configuration.backup_workers > 0

    def _push_headers(
        self,
        session: Session,
        gradients: Mapping[str, Any],
        operation: pb.Operation,
        version: Sequence[int] | None,
        sequence: int | None,
        weight: float,
        scale: float,
    ) -> tuple[list[pb.Header], list[MakeBlocks], tuple[int, ...]]:
        """Everything checked, nothing sent: headers and blocks for each ps, and the versions the gradients are of."""
        self._require_worker("push")
        model = self._known_model(session)
        makers = model.gradient_blocks(gradients, guard_nonfinite=session.guard_nonfinite)
        at = self._versions if version is None else checked_version(version, model.num_ps)
        if self._configuration.mode == "sync":
            at = (min(at),) * model.num_ps  # a mixture of versions is as old as its oldest part
        weight, scale = positive(weight, "weight"), positive(scale, "scale")
        norm = global_norm(gradients) if model.wants_norm else None
        headers = push_headers(operation, session.sequence(sequence), at, weight, scale, norm)
        if session.compressor:
            if norm is not None:
                raise InvalidInput(
                    field="compression",
                    got=f"{self._settings.compression}, and a rule that clips by the norm of the whole gradient",
                    expected="sync mode for both, where the ps compute the norm of what arrives",
                )
            makers = session.compressor.push(model, makers, headers[0].sequence, scale)
        return headers, makers, at

    def assign(self, values: Mapping[str, npt.ArrayLike]) -> None:
        """Set values without a rule: integer and boolean state, statistics, weights by hand. Versions and slots stay."""
        session = self._session()
        self._require_worker("assign")
        makers = self._known_model(session).value_blocks(values)
        headers = [pb.Header(operation=pb.OPERATION_ASSIGN) for _ in makers]
        self._fanout(session).on_all(headers, makers)

    # -- the rest ----------------------------------------------------------------------------------------------------

    def status(self) -> Status:
        """What every ps says of itself: bytes, versions, rule, mode, workers, counters; and the job's step."""
        session = self._session()
        request = pb.StatusRequest()
        return job_status([(peer, session.call(peer, "Status", request)) for peer in session.peers])

    def traffic(self) -> Traffic:
        """Bytes of gradients since this process connected, as they are and as they were sent; (0, 0) without compression."""
        return self._session().compressor.traffic

    def leave(self, reason: str = "") -> None:
        """This worker is done: barriers and clocks go on without it. Says so to every ps, then closes; once is enough."""
        session = self._process
        if session.left or session.pid != os.getpid():
            return
        said = wire_text(" ".join(arguments.text("reason", reason).split()))
        session.left = True
        failures: list[ParameterServerError] = []
        request = pb.LeaveRequest(session=session.id, reason=said)
        gives_up_s = time.monotonic() + LEAVE_S
        try:
            for peer in session.peers:
                left_s = min(self._settings.wait_timeout_s, max(LEAST_S, gives_up_s - time.monotonic()))
                try:
                    session.call(peer, "Leave", request, timeout_s=left_s, budget_s=left_s)
                except (ServerStopping, NotJoined):
                    continue  # it is going down, or has counted this client out already: there is nothing to leave
                except ParameterServerError as error:
                    failures.append(error)
        finally:
            session.close()  # also when interrupted: then the lease ends what could not be said
        if failures:
            raise failures[0]

    # -- inside ------------------------------------------------------------------------------------------------------

    def _session(self) -> Session:
        """The connections of this process; a forked child makes its own at first use."""
        if self._process.pid != os.getpid():
            with self._forked_lock:
                if self._process.pid != os.getpid():
                    session = Session(self._who, self._settings, parent=self._process)
                    session.join()
                    self._process = session
        session = self._process
        if session.left:
            raise NotJoined(field="client", got="a client that has left", expected="a new one", hint="Connect again.")
        return session

    def _require_worker(self, doing: str) -> None:
        if self.worker is None:
            raise ReadOnly(field=doing, got="an observer", expected="a worker")

    def _wait_s(self, wait_timeout_s: float | None) -> float:
        return self._settings.wait_timeout_s if wait_timeout_s is None else seconds("wait_timeout_s", wait_timeout_s)

    def _fanout(self, session: Session) -> Fanout:
        return Fanout(session, self._settings, self._model.shard_bytes if self._model is not None else ())


def _table_blocks(table: list[pb.PartitionSpec], arrays: Mapping[str, Array]) -> MakeBlocks:
    return lambda: initialize.table_blocks(table, arrays)
