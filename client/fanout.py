"""How does one operation go to every ps and come back as one answer, or one error?

Requests are sent to all ps before any reply is read. What some ps refuse is refused for all: see claim 12 in
docs/protocol.md. It must not know arrays. Next: client/exchange.py (one ps), client/client.py (who calls).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from client.exchange import Exchange
from client.outgoing import MakeBlocks
from client.receiver import Receiver
from client.results import first_outcome
from client.retry import Retry
from client.session import Session
from client.settings import Settings
from protos import parameter_server_pb2 as pb
from protos.errors import InvalidInput, ParameterServerError, PushFailed, WaitTimeout

# Beyond the wait that a ps grants: for the way there and back.
MARGIN_S = 10.0


class Fanout:
    """Operations on all ps of a session.

    shard_bytes: how many each ps holds, once the model is known. wait_s: how long a ps may let the call wait; receiver: takes
    what they send.
    """

    def __init__(self, session: Session, settings: Settings, shard_bytes: Sequence[int] = ()) -> None:
        self._session = session
        self._settings = settings
        self._shard_bytes = shard_bytes if settings.shared_memory else ()
        self._retry = Retry(budget_s=settings.retry_budget_s)

    def on_all(
        self,
        headers: Sequence[pb.Header],
        makers: Sequence[MakeBlocks],
        receiver: Receiver | None = None,
        wait_s: float | None = None,
        only: Sequence[int] | None = None,
    ) -> list[pb.Answer]:
        """The answers, in the order of `only` (all ps by default); the first error, if there is any."""
        exchanges = self._begin(headers, makers, receiver, wait_s, range(len(headers)) if only is None else only)
        try:
            return [exchange.finish(self._retry) for exchange in exchanges]
        finally:
            for exchange in exchanges:
                exchange.abandon()  # nothing is left of those that finished

    def pull(
        self,
        headers: Sequence[pb.Header],
        makers: Sequence[MakeBlocks],
        receiver: Receiver,
        wait_s: float,
        *,
        first: Sequence[pb.Answer] | None = None,
        one_version: bool,
    ) -> tuple[int, ...]:
        """Fill the receiver and return the version of each shard. first: answers already here, of a push_pull.

        one_version: ask shards that lag again until all are of one version, as sync mode promises; WaitTimeout if they are not
        within wait_s. False accepts what is there. `headers` are this call's own: they are told what to wait for.
        """
        gives_up_s = time.monotonic() + wait_s
        answers = self.on_all(headers, makers, receiver, wait_s) if first is None else first
        versions = [answer.version for answer in answers]
        while one_version and len(set(versions)) > 1:
            if time.monotonic() > gives_up_s:
                raise WaitTimeout(
                    field="pull",
                    got=f"versions {tuple(versions)} after {wait_s:g} s",
                    expected="one version of all shards",
                    hint="The others step faster than this pull reads; the wait is set with wait_timeout_s.",
                )
            newest = max(versions)
            behind = [index for index, version in enumerate(versions) if version < newest]
            for index in behind:
                headers[index].at_least = newest
            for index, answer in zip(behind, self.on_all(headers, makers, receiver, wait_s, behind)):
                versions[index] = answer.version
        return tuple(versions)

    def push(
        self,
        headers: Sequence[pb.Header],
        makers: Sequence[MakeBlocks],
        receiver: Receiver | None,
        wait_s: float | None,
        *,
        leader_first: bool,
    ) -> list[pb.Answer]:
        """Every ps's answer to a push. PushFailed if some refused; the error itself, with the sequence, if all did."""
        if leader_first and len(headers) > 1:
            answers = self._push_leader_first(headers, makers, receiver, wait_s)
        else:
            answers = self._collect(headers, makers, receiver, wait_s, range(len(headers)))
        refused = {index: answer for index, answer in enumerate(answers) if isinstance(answer, ParameterServerError)}
        sequence = headers[0].sequence
        if not refused:
            self._session.compressor.answered(sequence)
            return [answer for answer in answers if isinstance(answer, pb.Answer)]
        not_taken = [index for index, error in refused.items() if isinstance(error, InvalidInput)]
        self._session.compressor.refused(sequence, not_taken)
        if len(refused) == len(headers):
            refused[0].sequence = sequence  # a push_pull may have been applied before its pull half was refused
            raise refused[0]
        raise _push_failed(refused, answers, sequence)

    def _push_leader_first(
        self,
        headers: Sequence[pb.Header],
        makers: Sequence[MakeBlocks],
        receiver: Receiver | None,
        wait_s: float | None,
    ) -> list[pb.Answer | ParameterServerError]:
        """With backup workers ps 0 decides who counts; the others are told, so that all shards take the same workers."""
        operation = headers[0].operation
        headers[0].operation = pb.OPERATION_PUSH  # a pull would wait here for the step, and the step for the other ps
        (decision,) = self._collect(headers, makers, None, wait_s, [0])
        if isinstance(decision, ParameterServerError):
            return [decision] * len(headers)
        seat = pb.SEAT_PASSED_OVER if first_outcome(decision) == "stale" else pb.SEAT_COUNTED
        for header in headers[1:]:
            header.seat = seat
        if operation == pb.OPERATION_PUSH_PULL:
            headers[0].operation = pb.OPERATION_PULL
        rest = range(1, len(headers)) if operation == pb.OPERATION_PUSH else range(len(headers))
        nothing: MakeBlocks = lambda: iter(())  # noqa: E731
        answers = self._collect(headers, [nothing, *makers[1:]], receiver, wait_s, rest)
        if operation == pb.OPERATION_PUSH:
            return [decision, *answers]
        if isinstance(answers[0], pb.Answer):
            decision.version = answers[0].version
            answers[0] = decision
        return answers

    def _begin(
        self,
        headers: Sequence[pb.Header],
        makers: Sequence[MakeBlocks],
        receiver: Receiver | None,
        wait_s: float | None,
        indices: Sequence[int],
    ) -> list[Exchange]:
        quiet_s = (self._settings.wait_timeout_s if wait_s is None else wait_s) + MARGIN_S
        session = self._session
        return [
            Exchange(
                session.peers[index],
                headers[index],
                session.id,
                makers[index],
                receiver,
                quiet_s=quiet_s,
                rejoin=session.rejoin,
                shard_bytes=self._shard_bytes[index] if self._shard_bytes else 0,
            ).begin()
            for index in indices
        ]

    def _collect(
        self,
        headers: Sequence[pb.Header],
        makers: Sequence[MakeBlocks],
        receiver: Receiver | None,
        wait_s: float | None,
        indices: Sequence[int],
    ) -> list[pb.Answer | ParameterServerError]:
        """Each ps's answer or error; nothing is left under way."""
        exchanges = self._begin(headers, makers, receiver, wait_s, indices)
        results: list[pb.Answer | ParameterServerError] = []
        try:
            for exchange in exchanges:
                try:
                    results.append(exchange.finish(self._retry))
                except ParameterServerError as error:
                    results.append(error)
        finally:
            for exchange in exchanges[len(results) :]:
                exchange.abandon()
        return results


def _push_failed(
    refused: dict[int, ParameterServerError], answers: Sequence[pb.Answer | ParameterServerError], sequence: int
) -> PushFailed:
    took = {index: first_outcome(answer) for index, answer in enumerate(answers) if isinstance(answer, pb.Answer)}
    done = "applied" if set(took.values()) == {"applied"} else "taken"  # in sync mode it may wait for the others
    others = f"{_ps(took)} {'has' if len(took) == 1 else 'have'} {done} {'its' if len(took) == 1 else 'their'} part"
    reasons = " ".join(f"{str(error).rstrip('.')}." for error in refused.values()).rstrip(".")
    return PushFailed(
        refused=refused,
        sequence=sequence,
        field="push",
        got=f"{_ps(refused)} did not take it, while {others}. {reasons}",
        hint=f"Once the cause is gone, push again with sequence={sequence}: what was applied is not applied twice.",
    )


def _ps(indices: Iterable[int]) -> str:
    """ "ps 0, ps 1 and ps 3"."""
    *most, last = (f"ps {index}" for index in indices)
    return f"{', '.join(most)} and {last}" if most else last
