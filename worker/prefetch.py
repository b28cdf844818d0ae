"""What if the next pull need not be waited for? While a batch is computed, the push before it and its pull are under way.

    the thread      push g₀, pull θ₁     push g₁, pull θ₂     push g₂, pull θ₃
    the loop        g₁ at θ₀             g₂ at θ₁             g₃ at θ₂

One set of gradients is under way and one may be ready behind it, never more: a gradient is one push of this worker older than
in loop.py. That is the staleness that the ps counts and reports, for each push says the version it was computed at.

In sync mode there is nothing to gain: a gradient computed while a step is under way is of the version before it, and stale.
The same is true of ssp without slack. Next: loop.py (the same, one thing after the other).
"""

from __future__ import annotations

import functools
import queue
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import Any, NamedTuple

from client import Client, PushResult, Values
from protos.errors import InvalidInput, NotJoined
from worker.loop import Event, Replica, Summary, begin, end, trainable, weight
from worker.loss_scale import LossScale

Answered = Future[tuple[Values, PushResult]]
# For the exchanges under way, when a worker is told to stop: what is left of its three seconds is for its goodbye.
SETTLE_S = 2.0


class Ahead:
    """A thread that makes one push_pull after the other. As a context manager it settles at the end of the block."""

    def __init__(self, server: Client) -> None:
        self._server = server
        self._exchanges: queue.SimpleQueue[tuple[Answered, Callable[[], tuple[Values, PushResult]]] | None]
        self._exchanges = queue.SimpleQueue()
        self._lock = threading.Lock()  # guards the two below: a worker may be told to stop at any time
        self._thread: threading.Thread | None = None
        self._settled = False
        self._left: threading.Event | None = None  # there as soon as somebody says `leave`
        self._error: BaseException | None = None

    def push_pull(self, gradients: Mapping[str, Any], **options: Any) -> Answered:
        """Client.push_pull, once those before it are done; if one of them failed, this fails by the same error, unsent."""
        answered: Answered = Future()
        with self._lock:
            if not self._settled:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="paramserver-prefetch", daemon=True)
                    self._thread.start()
                self._exchanges.put((answered, functools.partial(self._server.push_pull, gradients, **options)))
                return answered
        if self._left is not None:
            self._left.wait()  # what is raised now makes the loop's caller leave too: not before the reason is said
        raise NotJoined(field="worker", got="one that is leaving", expected="one that goes on")

    def _run(self) -> None:
        while (exchange := self._exchanges.get()) is not None:
            answered, make = exchange
            if self._error is None:
                try:
                    answered.set_result(make())
                    continue
                except BaseException as error:  # noqa: BLE001 - it is raised in the loop, which asks for every answer
                    self._error = error
            answered.set_exception(self._error)

    def check(self) -> None:
        """Raise what an exchange has failed by."""
        if self._error is not None:
            raise self._error

    def settle(self, timeout_s: float | None = None) -> None:
        """Take no more, and wait until what was taken is done."""
        with self._lock:
            self._settled = True
            thread = self._thread
        self._exchanges.put(None)
        if thread is not None:
            thread.join(timeout_s)

    def leave(self, reason: str = "") -> None:
        """Leave the job, after what is under way; for a worker that is told to stop."""
        self._left = threading.Event()
        try:
            self.settle(SETTLE_S)
            self._server.leave(reason)
        finally:
            self._left.set()

    def __enter__(self) -> Ahead:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.settle()
        if error is not None and self._error not in (None, error) and hasattr(error, "add_note"):
            error.add_note(f"Also, a push that was under way failed: {self._error}")


class _Computed(NamedTuple):
    """A batch whose gradients are handed over."""

    loss: float
    examples: int
    total: int | None
    answered: Answered


def run(
    ahead: Ahead,
    server: Client,
    replica: Replica,
    batches: Iterable[tuple[Any, int | None]],
    rule: str | Mapping[str, Any] | None,
    report: Callable[[Event], None],
    started: Callable[[], None] = lambda: None,
    *,
    loss_scale: LossScale | None = None,
) -> Summary:
    """Train on every batch, as loop.run, with each pull under way while the next batch is computed.

    A batch is done, and reported, when its push is answered. However the loop ends, by the end of the data, an error of its
    own or Ctrl-C, what was computed is pushed first. The replica holds what was pulled last in the end.
    Raises what loop.run raises, and InvalidInput in sync mode and for ssp without slack.
    """
    loss_scale = loss_scale or LossScale.parse(None)

    def allowed() -> None:
        check_mode(server)
        started()

    summary = begin(server, replica, rule, allowed)

    def done(batch: _Computed) -> None:
        values, result = batch.answered.result()
        summary.trained(batch.loss, batch.examples)
        summary.pushed(values, result)
        replica.assign(trainable(replica, values))
        report(summary.event(batch.total))

    before: _Computed | None = None
    with ahead:
        for batch, total in batches:
            ahead.check()
            loss, gradients, scale = loss_scale.gradients(functools.partial(replica.gradients, batch))
            examples = replica.examples(batch)
            at = summary.values.version  # what the replica holds; the client has pulled another by now
            answered = ahead.push_pull(gradients, version=at, scale=scale, weight=weight(examples))
            if before is not None:
                done(before)
            before = _Computed(loss, examples, total, answered)
        if before is not None:
            done(before)
    end(server, replica, summary)
    return summary


def check_mode(server: Client) -> None:
    """InvalidInput in a mode that waits for each step, where prefetching would make every gradient one step too old."""
    status = server.status()
    if status["mode"] == "sync":
        got, why = "a job in sync mode", "There a gradient computed while a step is under way is stale, and is dropped."
    elif status["mode"] == "ssp" and not status["slack"]:
        got, why = "ssp with a slack of 0", "There nobody is to be ahead, and a pull waits for every worker's push."
    else:
        return
    raise InvalidInput(field="prefetch", got=got, expected="async, or ssp with a slack of 1 or more", hint=why)
