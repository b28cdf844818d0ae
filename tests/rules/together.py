"""How do several ps do together what one of them alone cannot? Their parts of each sum are added up and sent back to all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ps.apply import Exchange


def together(exchanges: Sequence[Exchange[Any]]) -> list[Any]:
    """What each exchange returns, one a ps. All ask for the same sums at the same time, as they must."""
    total = None
    while True:
        answers: list[Any] = []
        results: list[Any] = []
        for exchange in exchanges:
            try:
                answers.append(exchange.send(total))
            except StopIteration as done:
                results.append(done.value)
        if results:
            assert not answers, "some ps are done while others still ask"
            return results
        total = sum(answers)
