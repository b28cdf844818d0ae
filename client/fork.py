"""How does a client survive a fork of its process, and its child too? By holding no grpc object at the moment of the fork.

grpc's core has threads and locks; a child that inherits them hangs or crashes sooner or later, whatever is done with them
there. So before a fork every client lets go of its channels, and core, left without any, ends its threads. After it, the
parent joins again under its session, and a call that was cut is sent again, which is safe: see claim 2. The child makes a
session of its own at its first call (client/session.py). subprocess does not come here: it never runs Python in the child.

`_registry` guards `_gates` and is held from before a fork until after it, so that forks happen one at a time.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

# Names of the threads of grpc's core, as Linux shows them. Another user of grpc in this process keeps them alive: then the
# fork goes on after SETTLE_S, with what protection core itself has.
CORE_THREADS = frozenset({"event_engine", "grpc_global_tim", "lifeguard", "grpc_shutdown"})
SETTLE_S = 0.5
LOOK_S = 0.001
CLOSE_S = 0.02
_TASKS = Path("/proc/self/task")


class CutByFork(Exception):
    """A call was cancelled because the process forks; make it again."""


class Gate:
    """Lets calls through, except while the process forks.

    suspend: cancels every call and lets go of every grpc object. resume: called in the parent afterwards.
    Guarded by `_condition`: `_inside`, the calls that hold grpc objects now; `_forking`; `_epoch`, the forks so far. Nothing
    of grpc is called under it.
    """

    def __init__(self, suspend: Callable[[], None], resume: Callable[[], None]) -> None:
        self.suspend, self.resume = suspend, resume
        self._condition = threading.Condition()
        self._inside: list[int] = []
        self._forking = False
        self._epoch = 0

    @contextlib.contextmanager
    def using_grpc(self) -> Iterator[None]:
        """A block that touches grpc objects. What it raises becomes CutByFork if a fork was the cause."""
        with self._condition:
            self._condition.wait_for(lambda: not self._forking)
            self._inside.append(threading.get_ident())
            epoch = self._epoch
        try:
            yield
        except Exception as error:
            if self._epoch != epoch and not isinstance(error, CutByFork):
                raise CutByFork from None
            raise
        finally:
            with self._condition:
                self._inside.remove(threading.get_ident())
                self._condition.notify_all()

    def close(self) -> None:
        """Let nobody in, and wait until nobody is inside."""
        with self._condition:
            self._forking = True
            self._epoch += 1
        me = threading.get_ident()
        empty = False
        while not empty:  # again and again: a call that was being made when the gate closed is there only afterwards
            self.suspend()
            with self._condition:
                # A signal handler that forks interrupts a call of its own thread, which nobody can wait for here.
                empty = self._condition.wait_for(lambda: set(self._inside) <= {me}, timeout=CLOSE_S)
        self.suspend()

    def open(self) -> None:
        with self._condition:
            self._forking = False
            self._condition.notify_all()
        self.resume()


_gates: weakref.WeakSet[Gate] = weakref.WeakSet()
_registry = threading.Lock()
_hooked = False


def register(gate: Gate) -> None:
    """Close this gate at every fork. To be called when a channel exists.

    Hooks run in reverse order, and grpc, where its own are enabled, registers them with the first channel: ours come first.
    """
    global _hooked
    with _registry:
        _gates.add(gate)
        if not _hooked:
            os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
            _hooked = True


def _before() -> None:
    _registry.acquire()
    gates = list(_gates)
    for gate in gates:
        gate.close()
    if gates:
        deadline_s = time.monotonic() + SETTLE_S
        while _core_is_alive() and time.monotonic() < deadline_s:
            time.sleep(LOOK_S)


def _core_is_alive() -> bool:
    if not _TASKS.is_dir():
        return False  # no Linux: no way to know
    for task in _TASKS.iterdir():
        try:
            if (task / "comm").read_text().strip() in CORE_THREADS:
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True  # a thread ended while we looked: it may have been core's, so look again
    return False


def _after_in_parent() -> None:
    gates = list(_gates)
    _registry.release()
    for gate in gates:
        gate.open()


def _after_in_child() -> None:
    global _registry, _gates
    _registry = threading.Lock()
    _gates = weakref.WeakSet()
