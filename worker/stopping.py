"""How does a worker end at once and in order when it is told to? SIGTERM and Ctrl-C become an exception in the main thread.

The exception unwinds through the client's `with` block, which tells the ps that this worker leaves and why. A second signal,
or a ps that does not answer the goodbye, ends the process on the spot. It must not know what is under way.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

# How long saying goodbye to the ps may take.
GOODBYE_S = 3.0


class Stopped(BaseException):
    """A signal arrived. Not an Exception: nothing on the way up may take it for a failure of its own. code: 128 + n."""

    def __init__(self, signum: int) -> None:
        self.code = 128 + signum
        super().__init__(f"stopped by {signal.Signals(signum).name}")


def raise_on_signals() -> None:
    """From now on SIGTERM and SIGINT raise Stopped in the main thread."""
    for signum in (signal.SIGTERM, signal.SIGINT):
        if signal.getsignal(signum) is not signal.SIG_IGN:  # a background job of a shell ignores Ctrl-C
            signal.signal(signum, _on_first)


def _on_first(signum: int, frame: FrameType | None) -> None:
    def end_now(another: int, frame: FrameType | None) -> None:
        why = f"no goodbye in {GOODBYE_S:g} s" if another == signal.SIGALRM else signal.Signals(another).name
        os.write(sys.stderr.fileno(), f"ps-worker: {why} after {signal.Signals(signum).name}: ended at once\n".encode())
        os._exit(128 + signum)

    for other in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM):
        signal.signal(other, end_now)
    signal.setitimer(signal.ITIMER_REAL, GOODBYE_S)
    raise Stopped(signum)
