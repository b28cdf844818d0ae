"""What happened on this shard, in order? The event log that tests, lessons and replays read.

One line of JSON an event. A push says who pushed what, computed at which version, and what became of it; a step (sync
mode) says whose gradients it is the mean of, and comes just before the push that completed it. `version` is always the
version after the event. It holds no values: those follow from the gradients and this order.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

# Events kept in memory; a file or another sink gets all of them.
KEPT_EVENTS = 100_000


@dataclass(frozen=True)
class Event:
    """kind: init, push, step, assign, join, leave or lost. Fields that do not apply are None or empty.

    contributors (of a step): (worker, generation, sequence) of each gradient in the mean.
    """

    kind: str
    version: int
    worker: int | None = None
    generation: int | None = None
    sequence: int | None = None
    at_version: int | None = None
    outcome: str = ""
    staleness: int | None = None
    contributors: tuple[tuple[int, int, int], ...] = ()
    names: tuple[str, ...] = ()
    reason: str = ""

    def to_json(self) -> str:
        """The event as one line, fields that do not apply left out."""
        return json.dumps({key: value for key, value in asdict(self).items() if value not in (None, "", ())})

    @staticmethod
    def from_json(line: str) -> Event:
        fields: dict[str, Any] = json.loads(line)
        fields["contributors"] = tuple(tuple(item) for item in fields.get("contributors", ()))
        fields["names"] = tuple(fields.get("names", ()))
        return Event(**fields)


class Story:
    """The events of one shard, the newest KEPT_EVENTS of them in memory, all of them to `sink`."""

    def __init__(self, sink: Callable[[Event], None] | None = None) -> None:
        self.events: deque[Event] = deque(maxlen=KEPT_EVENTS)
        self._sink = sink

    def tell(self, event: Event) -> None:
        self.events.append(event)
        if self._sink is not None:
            self._sink(event)
