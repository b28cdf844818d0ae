"""Who ends a call that nothing moves on any more? grpc's synchronous streams have no deadline that can move: a thread does it.

Next: client/transport.py, whose calls are watched.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

import grpc


class Watched:
    """One call under watch."""

    def __init__(self, call: grpc.Call, quiet_s: float) -> None:
        self.call = call
        self.quiet_s = quiet_s
        self.expired = False
        self._moved_s = time.monotonic()

    def moved(self) -> None:
        """Something was sent or received."""
        self._moved_s = time.monotonic()

    def late(self) -> bool:
        return time.monotonic() - self._moved_s > self.quiet_s


class Watchdog:
    """Cancels calls whose deadline has passed.

    `_lock` guards `_watched` and `_thread`; nothing of grpc is called under it.
    """

    PERIOD_S = 0.1

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watched: dict[int, Watched] = {}
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()

    @contextlib.contextmanager
    def watch(self, call: grpc.Call, quiet_s: float) -> Iterator[Watched]:
        """While in the block, `call` is cancelled once `quiet_s` have passed since the last `moved()`."""
        watched = Watched(call, quiet_s)
        with self._lock:
            self._watched[id(watched)] = watched
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="paramserver-watchdog", daemon=True)
                self._thread.start()
        try:
            yield watched
        finally:
            with self._lock:
                del self._watched[id(watched)]
            watched.call = None

    def _run(self) -> None:
        while not self._closed.wait(self.PERIOD_S):
            with self._lock:
                late = [watched for watched in self._watched.values() if watched.late()]
            for watched in late:
                watched.expired = True
                if (call := watched.call) is not None:
                    call.cancel()
                del call
            late.clear()

    def close(self) -> None:
        """Stop watching."""
        self._closed.set()
