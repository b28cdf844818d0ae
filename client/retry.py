"""How often, and for how long, is a broken call tried again? A frozen value; sleeping is done by whoever uses it.

Reference: exponential backoff with equal jitter (Brooker 2015). A push may be tried again safely because it carries a
sequence number: see claim 2 in docs/protocol.md.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Retry:
    """budget_s: how long a call may go on being retried after its first failure."""

    budget_s: float = 10.0
    first_s: float = 0.02
    factor: float = 2.0
    most_s: float = 1.0

    def delays(self, rng: random.Random) -> Iterator[float]:
        """Seconds to sleep before each retry, until their sum would pass the budget."""
        spent_s, bound_s = 0.0, self.first_s
        while True:
            delay_s = bound_s * (0.5 + rng.random() / 2)
            spent_s += delay_s
            if spent_s > self.budget_s:
                return
            yield delay_s
            bound_s = min(self.most_s, bound_s * self.factor)
