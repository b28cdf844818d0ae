"""Has a refused input changed anything? Everything that a job holds, taken before and after, and compared.

What must stay: versions, values bit for bit, slots' bytes, every counter but `refused` and `pulls`, and the clocks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import client
from protos.errors import NotInitialized, ParameterServerError


def everything(observer: client.Client) -> dict[str, Any]:
    """What the ps hold, as an observer sees it; comparable with ==."""
    status = observer.status()
    each = status["ps"]
    try:
        values = {name: (value.dtype.name, value.shape, value.tobytes()) for name, value in observer.pull().items()}
    except NotInitialized:
        values = {}
    kept = ("sent", "applied", "buffered", "stale", "duplicate")
    return {
        "values": values,
        "version": status["version"],
        "bytes": [ps["bytes"] for ps in each],
        "initialized": [ps["initialized"] for ps in each],
        "counters": [{name: ps["counters"][name] for name in kept} for ps in each],
        "clocks": [[worker["clock"] for worker in ps["workers"]] for ps in each],
    }


class Refusal:
    """The error that was raised, once the block has ended."""

    error: Any = None


@contextlib.contextmanager
def refused(observer: client.Client, kind: type[ParameterServerError], *mentions: str) -> Iterator[Refusal]:
    """The block must raise exactly `kind`, with these texts in its message, and change nothing at all."""
    before = everything(observer)
    refusal = Refusal()
    try:
        yield refusal
    except ParameterServerError as error:
        refusal.error = error
    assert type(refusal.error) is kind, f"{refusal.error!r} instead of {kind.__name__}"
    for text in mentions:
        assert text in str(refusal.error), f"{text!r} is not in {refusal.error}"
    assert everything(observer) == before


def counters_add_up(status: dict[str, Any]) -> bool:
    """sent = applied + stale + duplicate + buffered now, on every ps."""
    counted = ("applied", "stale", "duplicate", "buffered")
    return all(ps["counters"]["sent"] == sum(ps["counters"][name] for name in counted) for ps in status["ps"])
