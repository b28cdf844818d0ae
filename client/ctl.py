"""The program `ps-ctl`. Example: ps-ctl status --target 127.0.0.1:2222.

Next: ctl_command.py, which is loaded once Ctrl-C is safe.
"""

from __future__ import annotations

from protos.starting import start


def main(prog_name: str | None = None) -> None:
    """Run it with the arguments of this process."""
    start()
    from client.ctl_command import main as command

    command(prog_name=prog_name)


if __name__ == "__main__":
    main("ps-ctl")
