"""What if a worker's script ends without leave()? It has done its part, so at a normal exit of the interpreter we say so.

Not when an exception ended it: then the ps are to count it as lost, after its lease. Not in a forked child, whose parent goes
on. And not for long: only a ps whose connection stands is told, once. Next: client/session.py, which registers here.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import time
from typing import Protocol

from protos.errors import ParameterServerError

log = logging.getLogger("paramserver.client")

# All ps of all clients together.
WITHIN_S = 2.0


class Leaver(Protocol):
    """Who says goodbye. pid: of the process that joined."""

    pid: int

    def say_goodbye(self, reason: str, gives_up_s: float) -> None:
        """Tell every ps that is connected; give up at this time of the monotonic clock."""


_joined: dict[int, Leaver] = {}


def register(leaver: Leaver) -> None:
    """To be called when a worker has joined."""
    if not _joined:  # hooks run in reverse order: ours is to come before those that end what it needs
        atexit.unregister(_leave_all)
        atexit.register(_leave_all)
    _joined[id(leaver)] = leaver


def unregister(leaver: Leaver) -> None:
    """To be called when it has left, or closes its connections for good."""
    _joined.pop(id(leaver), None)


def _leave_all() -> None:
    if _died():
        return
    gives_up_s = time.monotonic() + WITHIN_S
    for leaver in list(_joined.values()):
        if leaver.pid == os.getpid():
            try:
                leaver.say_goodbye("its program ended without leave()", gives_up_s)
            except (ParameterServerError, RuntimeError) as error:  # Python 3.12 starts no thread any more
                log.info("leaving at exit: %s", error)


def _died() -> bool:
    """Whether an exception that nobody caught ended the program, which Python notes before it shows it.

    In a child of multiprocessing nobody can tell: it catches everything, and exits as if nothing had been.
    """
    if getattr(sys, "last_value", None) is not None:
        return True
    multiprocessing = sys.modules.get("multiprocessing")
    return multiprocessing is not None and multiprocessing.parent_process() is not None
