"""How does a worker end at once and in order when it is told to? A thread hears SIGTERM, SIGHUP and Ctrl-C, and says goodbye.

An exception raised by a signal handler would not do: it can surface anywhere, in TensorFlow's tracing or under a lock, be
swallowed there or leave the lock held; and it waits while the main thread is inside a long operation. So the signal's number
goes into a pipe (signal.set_wakeup_fd), a thread reads it, tells the ps that this worker leaves and why, and ends the process.
It must not know what is under way.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
from collections.abc import Callable

from protos.errors import ParameterServerError

# How long saying goodbye to the ps may take.
GOODBYE_S = 3.0
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Stopping:
    """Make one in the main thread. leave: what tells the ps, given the reason; None while there is nobody to tell.

    A second signal, or a goodbye that takes longer than GOODBYE_S, ends the process on the spot.
    """

    def __init__(self) -> None:
        self.leave: Callable[[str], None] | None = None
        self._begun = threading.Event()
        self._pipe, write = os.pipe()
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        for signum in SIGNALS:
            if signal.getsignal(signum) is not signal.SIG_IGN:  # a background job of a shell ignores Ctrl-C
                signal.signal(signum, lambda signum, frame: None)
        os.register_at_fork(after_in_child=_as_before)  # a child that is told to stop must not stop us
        threading.Thread(target=self._listen, name="paramserver-signals", daemon=True).start()

    def hold(self) -> None:
        """To be called before saying that something has failed: if we are stopping that is why, and this is the end."""
        if self._begun.is_set():
            threading.Event().wait()

    def _listen(self) -> None:
        signum = self._next()
        reason = f"stopped by {signum.name}"
        self._begun.set()
        threading.Thread(
            target=self._say_goodbye, args=(signum, reason), name="paramserver-goodbye", daemon=True
        ).start()
        again = select.select([self._pipe], [], [], GOODBYE_S)[0]
        _end(signum, f"{reason}, then at once by {self._next().name}" if again else f"{reason}; the ps did not answer")

    def _next(self) -> signal.Signals:
        while (number := os.read(self._pipe, 1)[0]) not in SIGNALS:
            continue
        return signal.Signals(number)

    def _say_goodbye(self, signum: signal.Signals, reason: str) -> None:
        if self.leave is not None:
            try:
                self.leave(reason)
            except ParameterServerError as error:
                reason = f"{reason}; while leaving: {error}"
        _end(signum, reason)


def _end(signum: signal.Signals, message: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
        if sys.stdout.isatty():
            print("\x1b[?25h", end="")  # a progress bar hides the cursor
        sys.stdout.flush()
    with contextlib.suppress(OSError):
        os.write(2, f"ps-worker: {message}\n".encode())
    os._exit(128 + signum)


def _as_before() -> None:
    signal.set_wakeup_fd(-1)
    for signum in SIGNALS:
        if signal.getsignal(signum) is not signal.SIG_IGN:
            signal.signal(signum, signal.default_int_handler if signum == signal.SIGINT else signal.SIG_DFL)
