"""How does a test run several things at once, and find out that one of them hangs?

Daemon threads, so that a hang fails a test and does not stop the run. No sleeping: a thread is waited for, an event is
waited for, or a question is asked again and again until its answer is yes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

T = TypeVar("T")

# Far longer than anything here takes: reached only if something hangs.
HANGS_S = 60.0


class Task(Generic[T]):
    """A call in a thread of its own."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._value: list[T] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._value.append(self._call())
        except BaseException as error:  # noqa: BLE001 - it is raised again by result()
            self._error = error

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def result(self, timeout_s: float = HANGS_S) -> T:
        """What the call returned, or raise what it raised."""
        self._thread.join(timeout_s)
        assert not self._thread.is_alive(), f"still running after {timeout_s:g} s"
        if self._error is not None:
            raise self._error
        return self._value[0]

    def error(self, kind: type[BaseException], timeout_s: float = HANGS_S) -> Any:
        """What the call raised, which must be of this kind."""
        try:
            value = self.result(timeout_s)
        except kind as error:
            return error
        raise AssertionError(f"returned {value!r} instead of raising {kind.__name__}")


def together(calls: Sequence[Callable[[], T]], timeout_s: float = HANGS_S) -> list[T]:
    """All calls at once, each in its thread, let go at the same moment; their results in order."""
    start = threading.Barrier(len(calls))

    def after_start(call: Callable[[], T]) -> Callable[[], T]:
        def run() -> T:
            start.wait(timeout_s)
            return call()

        return run

    tasks = [Task(after_start(call)) for call in calls]
    return [task.result(timeout_s) for task in tasks]


def until(question: Callable[[], Any], timeout_s: float = HANGS_S) -> Any:
    """Ask until the answer is true, and return it. The question should be a call that takes a while, such as a status."""
    deadline_s = time.monotonic() + timeout_s
    while not (answer := question()):
        assert time.monotonic() < deadline_s, "it never came true"
    return answer
