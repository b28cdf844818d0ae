"""The program `ps-server`. Example: ps-server --mode sync.

Next: command.py, which is loaded once Ctrl-C is safe.
"""

from __future__ import annotations

from protos.starting import start


def main(prog_name: str | None = None) -> None:
    """Run it with the arguments of this process."""
    start()
    from ps.command import main as command

    command(prog_name=prog_name)


if __name__ == "__main__":
    main("ps-server")
