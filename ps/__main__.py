"""The program `ps-server`. Example: ps-server --mode sync.

Next: command.py, which is loaded once Ctrl-C is safe.
"""

from __future__ import annotations

import os

from protos.starting import start


def main(prog_name: str | None = None) -> None:
    """Run it with the arguments of this process."""
    start()
    # What grpc would print about a port that it cannot have is said by us, with what to do. Whoever asks for more gets it.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from ps.command import main as command

    command(prog_name=prog_name)


if __name__ == "__main__":
    main("ps-server")
