"""What has the job come to? Watching it as an observer, and the values that every worker's work went into.

A worker that is done leaves, or a barrier would wait for it. So whoever evaluates is an observer, which counts nowhere: connect
it before leaving, and the ps are there until it has pulled. It must not know models. Next: program.py, which evaluates.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from client import Client, Values
from protos.errors import NotJoined, Unavailable, WaitTimeout

POLL_S = 0.05
# How long the ps may be silent before they count as gone: a broken connection is made anew in less.
SILENCE_S = 2.0
# How a ps that ends answers: not at all, that it is stopping, or that it has closed the session.
GONE = (Unavailable, NotJoined)


class Watch:
    """Asks for the job's status again and again, and says what it sees.

    state: "waiting" (no model yet), "running", "ended" (every worker has left) or "gone" (so have the ps).
    timeout_s: how long nothing may happen, no update and no worker coming or going, before WaitTimeout names the workers.
    """

    def __init__(self, observer: Client, timeout_s: float) -> None:
        self.state = "waiting"
        self.step = 0
        self._observer, self._timeout_s = observer, timeout_s
        self._seen: Any = None
        self._changed_s = self._heard_s = time.monotonic()

    def look(self) -> str:
        """The state now."""
        try:
            status = self._observer.status()
        except GONE:
            if self.state == "waiting":
                raise
            if time.monotonic() - self._heard_s > SILENCE_S:
                self.state = "gone"
            return self.state
        self._heard_s = time.monotonic()
        self.step = status["step"]
        workers = status["workers"]
        present = [worker for worker in workers if worker["state"] not in ("left", "lost")]
        if not all(ps["initialized"] for ps in status["ps"]):
            self.state = "waiting"
        else:
            self.state = "running" if present else "ended"
        seen = (status["version"], [(worker["state"], worker["clock"]) for worker in workers])
        if seen != self._seen:
            self._seen, self._changed_s = seen, time.monotonic()
        elif self.state != "ended" and time.monotonic() - self._changed_s > self._timeout_s:
            names = ", ".join(f"worker {worker['worker']} ({worker['state']})" for worker in present)
            raise WaitTimeout(
                field="evaluation",
                got=f"{self._timeout_s:g} s without an update, and still here: {names}",
                expected="every worker to leave",
                hint="See whether they are stuck; the wait is set with wait_timeout_s.",
            )
        return self.state


def final_values(observer: Client, *, fallback: Values | None = None, wait_timeout_s: float = 300.0) -> Values:
    """The values once every worker has left. observer: client.connect(observer=True), made before this worker left.

    Raises WaitTimeout if nothing happens for wait_timeout_s. If the ps end before they were asked, `fallback`, or, without
    one, the error that says so.
    """
    watch = Watch(observer, wait_timeout_s)
    try:
        while watch.look() in ("waiting", "running"):
            time.sleep(POLL_S)
        return observer.pull()
    except GONE:
        if fallback is None:
            raise
        return fallback


def follow(observer: Client, evaluate: Callable[[Values], None], *, period_s: float, wait_timeout_s: float) -> bool:
    """Call evaluate(values) on the newest values, at most every period_s, until every worker has left; then a last time.

    Returns whether there was a last time: False if the ps ended before.
    """
    watch = Watch(observer, wait_timeout_s)
    evaluated: int | None = None
    due_s = time.monotonic()
    while (state := watch.look()) != "gone":
        due = state == "running" and watch.step != evaluated and time.monotonic() >= due_s
        if due or state == "ended":  # in the end always: worker 0 may have put its statistics there since
            try:
                values = observer.pull()
            except GONE:
                return False
            evaluate(values)
            evaluated, due_s = values.step, time.monotonic() + period_s
        if state == "ended":
            return True
        time.sleep(POLL_S)
    return False
