"""What has become of the pushes? One result each, and counters that add up.

Next: ps/shard.py, which decides and counts.
"""

from __future__ import annotations

from dataclasses import dataclass

from ps.membership import Session


@dataclass(frozen=True)
class PushResult:
    """What became of a push. first: for a duplicate, what became of it when it first came."""

    outcome: str
    staleness: int
    version: int
    first: str = ""


@dataclass
class Counters:
    """Since the start of this ps. sent = applied + stale + duplicate + buffered (now); what was refused is not among sent.

    refused: pushes that this ps refused, whatever for. What a client refuses before it sends anything reaches no ps.
    """

    sent: int = 0
    applied: int = 0
    buffered: int = 0
    stale: int = 0
    duplicate: int = 0
    refused: int = 0
    pulls: int = 0

    def count(self, session: Session[PushResult], sequence: int, result: PushResult) -> PushResult:
        """A push has come and was answered so. The answer is remembered, for the case that it is sent again."""
        self.sent += 1
        setattr(self, result.outcome, getattr(self, result.outcome) + 1)
        session.remember(sequence, result)
        return result

    def count_again(self, first: PushResult) -> PushResult:
        """A push has come again: the answer is what it was answered first."""
        self.sent += 1
        self.duplicate += 1
        return PushResult("duplicate", first.staleness, first.version, first=first.outcome)

    def step_applied(self) -> None:
        """What was buffered is applied now."""
        self.applied += self.buffered
        self.buffered = 0

    def step_failed(self) -> None:
        """What was buffered came to nothing, and may be sent again."""
        self.sent -= self.buffered
        self.refused += self.buffered
        self.buffered = 0
