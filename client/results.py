"""What do a pull and a push return?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from protos import parameter_server_pb2 as pb
from protos.codec import Array

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


def first_outcome(answer: pb.Answer) -> str:
    """The outcome, or for a duplicate the one of its first arrival."""
    return OUTCOMES[answer.first if answer.outcome == pb.OUTCOME_DUPLICATE else answer.outcome]


def push_result(answers: Sequence[pb.Answer], sequence: int) -> PushResult:
    """One result for what all ps answered: stale if any says so, else buffered if any does."""
    outcomes = [first_outcome(answer) for answer in answers]
    return PushResult(
        outcome=next((outcome for outcome in ("stale", "buffered") if outcome in outcomes), "applied"),
        staleness=max((answer.staleness for answer in answers), default=0),
        version=tuple(answer.version for answer in answers),
        sequence=sequence,
        duplicate=all(answer.outcome == pb.OUTCOME_DUPLICATE for answer in answers),
    )
