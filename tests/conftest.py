"""What every test may count on: the processes it starts can be interrupted, however the tests themselves were started.

A shell that runs a command in the background has it ignore Ctrl-C, and so does all that the command starts. Our programs
respect that, as nohup wants it; the tests that interrupt them must not be subject to it.
"""

from __future__ import annotations

import signal

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
