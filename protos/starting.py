"""How does a program start, before it has loaded anything that takes time?

Loading grpc or numpy takes most of a second. A Ctrl-C in it would print where the interpreter was, which is nobody's
business; and a standard stream that is closed would give its number to a socket, which then gets the output. So the entry
module of each program (client/run.py, client/ctl.py, ps/__main__.py, worker/__main__.py) is light and calls `start` first.
It must not import anything but the standard library's small change.
"""

from __future__ import annotations

import os
import signal
import sys


def start() -> None:
    """To be called before anything is there to clean up.

    Ctrl-C ends the process with code 130 and without a word, until the program handles it otherwise. A standard stream that is
    closed leads to /dev/null.
    """
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # a background job of a shell ignores it
        signal.signal(signal.SIGINT, lambda signum, frame: os._exit(128 + signum))
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free, which is this one
            setattr(sys, name, open(fd, "w" if fd else "r", closefd=False))  # noqa: SIM115 - for the life of the process
