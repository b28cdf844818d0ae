"""How the programs start: what happens before they have loaded what they need."""

from __future__ import annotations

import signal

import pytest

from tests.harness.processes import Programs

PROGRAMS = ["client.run", "client.ctl", "ps", "worker"]
# In place of the first package from outside that each of them loads: it takes for ever.
SLOW = "import signal\nprint('loading', flush=True)\nwhile True: signal.pause()\n"


@pytest.mark.parametrize("program", PROGRAMS)
def test_ctrl_c_while_a_program_is_loading_ends_it_without_a_word(programs: Programs, program: str) -> None:
    programs.file(SLOW, "click.py")
    starting = programs.python("-m", program, "--help")
    starting.expect("^loading$")
    starting.signal(signal.SIGINT)
    assert starting.wait() == 128 + signal.SIGINT
    assert starting.popen.returncode == 130  # it ended itself, and was not killed
    assert starting.text() == "loading"


@pytest.mark.parametrize("command", [*PROGRAMS, "client.ctl status", "client.ctl stop"])
def test_h_is_short_for_help(programs: Programs, command: str) -> None:
    program, *subcommand = command.split()
    short, long = (programs.python("-m", program, *subcommand, flag) for flag in ("-h", "--help"))
    assert (short.wait(), long.wait()) == (0, 0)
    assert short.stdout == long.stdout
    assert "-h, --help" in short.stdout
    assert "Example" in short.stdout
