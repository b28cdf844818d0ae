"""`ps-run`: one command starts a whole job on this machine, shows it, and returns one exit code.

What ends a job from outside is in test_stopping.py.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from tests.harness.processes import ROOT, Programs, assert_free

PYTHON = sys.executable
TRAIN = """
import os, client, numpy as np
with client.connect() as server:
    server.init({"w": np.zeros(3, np.float32)})
    for _ in range(3):
        values, result = server.push_pull({"w": np.ones(3, np.float32)})
    print(f"worker {server.worker} of {server.num_workers}: {result.outcome}, w = {values['w'].tolist()}")
"""
# Its own code for each worker: worker 0 waits at a barrier that can never be full, worker 1 fails.
FAIL = """
import sys, client, numpy as np
with client.connect() as server:
    server.init({"w": np.zeros(3, np.float32)})
    if server.worker == 1:
        print("no such file", file=sys.stderr)
        sys.exit(7)
    server.push_pull({"w": np.ones(3, np.float32)})
"""
SIGNUM = """
import numpy as np
from ps.rules import UpdateRule, register

@register("signum")
class Signum(UpdateRule):
    learning_rate: float = 1.0
    momentum: float = 0.5
    slots = ("velocity",)

    def update(self, ctx, value, grad, velocity):
        velocity = self.momentum * velocity + (1 - self.momentum) * grad
        return value - ctx.learning_rate * np.sign(velocity), velocity
"""


def test_a_job_trains_and_leaves_nothing_behind(programs: Programs) -> None:
    flags = ("--mode", "sync", "--rule", "sgd:learning_rate=1", "--run-id", "monday")
    job = programs.run("-n", "2", "-s", "2", *flags, "--", PYTHON, programs.file(TRAIN))
    assert job.wait() == 0
    lines = job.stdout.splitlines()
    assert lines[0].startswith("ps-run: 2 workers, 2 ps, mode sync, rule sgd:learning_rate=1, ")  # what is in force
    assert lines[0].endswith("run id monday")
    for index in range(2):
        assert f"[worker {index}] worker {index} of 2: applied, w = [-3.0, -3.0, -3.0]" in lines
    assert re.fullmatch(r"done: 2 workers, 2 ps, \d+\.\d s", lines[-1])
    programs.assert_none_left()
    assert_free(*(job.expect(rf"\[ps {index}\] ps {index} serving on (\S+)").group(1) for index in range(2)))


def test_each_process_is_told_its_task_and_the_run(programs: Programs) -> None:
    script = programs.file("import os\nprint(os.environ['TF_CONFIG'], os.environ['PARAMSERVER_RUN_ID'])\n")
    # Of one process, and not of all that a job starts: it must not reach them.
    environment = {"PARAMSERVER_BIND": "127.0.0.1:1", "PARAMSERVER_INDEX": "5", "PARAMSERVER_WORKERS": "9"}
    job = programs.run("-n", "3", "-s", "2", "--", PYTHON, script, env=environment)
    for index in range(3):
        text, run_id = job.expect(rf"\[worker {index}\] (\{{.*\}}) (\w+)").groups()
        config = json.loads(text)
        assert config["task"] == {"type": "worker", "index": index}
        assert (len(config["cluster"]["ps"]), len(config["cluster"]["worker"])) == (2, 3)
        assert f"run id {run_id}" in job.stdout
    job.signal(signal.SIGTERM)
    job.wait()


def test_a_flag_wins_over_the_environment_and_that_over_the_default(programs: Programs) -> None:
    environment = {"PARAMSERVER_WORKERS": "2", "PARAMSERVER_MODE": "async", "PARAMSERVER_LEASE": "2.5"}
    environment["PARAMSERVER_RUN_ID"] = "monday"
    job = programs.run("--mode", "sync", "--rule", "sgd", "--", PYTHON, programs.file(TRAIN), env=environment)
    assert job.wait() == 0
    said = job.expect("ps-run: (.*)").group(1).split(", ")
    assert {"2 workers", "1 ps", "mode sync", "rule sgd", "lease 2.5 s", "grace 5 s", "run id monday"} <= set(said)
    settings = job.expect("settings: .*").group()
    assert "mode sync" in settings
    assert "lease 2.5 s" in settings


def test_a_rule_of_the_users_own_works_by_file_and_name(programs: Programs) -> None:
    programs.file(SIGNUM, "my_rules.py")
    flags = ("--rules", "my_rules.py", "--rule", "signum:learning_rate=2")
    job = programs.run("-n", "1", *flags, "--", PYTHON, programs.file(TRAIN))
    assert job.wait() == 0
    job.expect(r"\[worker 0\] worker 0 of 1: applied, w = \[-6.0, -6.0, -6.0\]")


def test_a_worker_that_fails_ends_the_job_with_its_code(programs: Programs) -> None:
    job = programs.run("-n", "2", "--mode", "sync", "--rule", "sgd", "--", PYTHON, programs.file(FAIL))
    assert job.wait() == 7
    lines = job.stderr.splitlines()
    said, comment = (
        lines.index("[worker 1] no such file"),
        lines.index("ps-run: worker 1 exited with code 7; stopping the job"),
    )
    assert said < comment  # its own words come first
    programs.assert_none_left()


def test_a_worker_that_ends_without_leaving_is_lost_and_the_job_has_failed(programs: Programs) -> None:
    script = programs.file("import client, os\nclient.connect()\nprint('gone', flush=True)\nos._exit(0)\n")
    job = programs.run("-n", "1", "--lease", "0.5", "--", PYTHON, script)
    assert job.wait() == 1
    assert "lost without leaving: worker 0" in job.stderr
    assert re.search(r"ps-run: ps 0 at \S+ exited with code 1", job.stderr)
    programs.assert_none_left()


def test_a_command_that_never_joins_does_not_keep_the_ps(programs: Programs) -> None:
    job = programs.run("-n", "1", "--", PYTHON, "-c", "print('hello')")
    assert job.wait() == 0
    assert "[worker 0] hello" in job.stdout
    assert "ps-run: the command ended without ever connecting to the ps" in job.stderr
    programs.assert_none_left()


def test_a_worker_that_never_joins_is_named_and_the_others_do_not_wait_for_it(programs: Programs) -> None:
    script = programs.file(
        "import client, json, os\n"
        "index = json.loads(os.environ['TF_CONFIG'])['task']['index']\n"
        "if index != 1:\n"
        "    client.connect().leave()\n"
    )
    job = programs.run("-n", "3", "-s", "2", "--lease", "3600", "--", PYTHON, script)
    assert job.wait() == 0
    assert "ps-run: worker 1 ended without ever connecting to the ps" in job.stderr
    programs.assert_none_left()


def test_a_lost_worker_is_not_forgotten_over_one_that_never_joined(programs: Programs) -> None:
    script = programs.file(
        "import client, json, os\n"
        "if json.loads(os.environ['TF_CONFIG'])['task']['index'] == 0:\n"
        "    client.connect()\n"
        "    os._exit(0)\n"
    )
    job = programs.run("-n", "2", "--lease", "0.5", "--", PYTHON, script)
    assert job.wait() == 1
    assert "ps-run: worker 1 ended without ever connecting to the ps" in job.stderr
    assert "ps-run: lost without leaving: worker 0" in job.stderr


def test_what_a_worker_started_ends_with_the_job(programs: Programs) -> None:
    script = programs.file(
        "import subprocess, sys\n"
        "subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'])\n"
        "sys.exit(5)\n"
    )
    job = programs.run("-n", "1", "--", PYTHON, script)
    assert job.wait() == 5
    programs.assert_none_left()


# ---- output --------------------------------------------------------------------------------------------------------


def test_no_line_is_lost_or_torn(programs: Programs) -> None:
    count = 20_000
    script = programs.file(
        "import json, os, sys\n"
        "index = json.loads(os.environ['TF_CONFIG'])['task']['index']\n"
        f"for number in range({count}): print(index, number, 'x' * 50)\n"
        "sys.stdout.write('the end, without a line end')\n"
        "sys.stdout.flush()\n"
        "sys.exit(3)\n"
    )
    job = programs.run("-n", "1", "--", PYTHON, script)
    assert job.wait() == 3
    lines = [line for line in job.stdout.splitlines() if line.startswith("[worker 0]")]
    assert lines[:-1] == [f"[worker 0] 0 {number} {'x' * 50}" for number in range(count)]
    assert lines[-1] == "[worker 0] the end, without a line end"


def test_a_reader_that_goes_away_ends_the_job(programs: Programs) -> None:  # such as ps-run … | head -1
    script = programs.file("while True: print('more')\n")
    read_end, write_end = os.pipe()
    job = programs.run("-n", "1", "--", PYTHON, script, stdout=write_end)
    os.close(write_end)
    os.read(read_end, 1)
    os.close(read_end)
    assert job.wait() == 128 + signal.SIGPIPE
    assert "the output cannot be written any more" in job.stderr
    programs.assert_none_left()


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_job_whose_output_is_closed_goes_on_without_it(programs: Programs, closed: str) -> None:
    flags = ["-n", "1", "-s", "2", "--rule", "sgd:learning_rate=1", "--"]
    argv = ["sh", "-c", f'exec "$@" {closed}', "sh", PYTHON, "-m", "client.run", *flags, PYTHON, programs.file(TRAIN)]
    job = programs.start("ps-run", argv)
    assert job.wait() == 0
    if closed == "2>&-":
        job.expect(r"^\[worker 0\] worker 0 of 1: applied, w = \[-3.0, -3.0, -3.0\]$")
    assert (job.stdout == "") == (">&-" in closed.split())
    assert job.stderr == "" or "2>&-" not in closed
    programs.assert_none_left()


def test_a_full_disk_costs_the_output_and_not_the_job(programs: Programs) -> None:
    with open("/dev/full", "wb") as full:
        job = programs.run("-n", "1", "--rule", "sgd", "--", PYTHON, programs.file(TRAIN), stdout=full)
        assert job.wait() == 0
    job.expect(r"^ps-run: output is lost from here on \(No space left on device\); the job goes on$")


def test_on_a_terminal_each_worker_gets_a_bar(programs: Programs) -> None:
    script = programs.file(
        "import json, os, sys\n"
        "out = os.fdopen(int(os.environ['PARAMSERVER_PROGRESS_FD']), 'w')\n"
        "for step in range(1, 8):\n"
        "    event = {'step': step, 'total': 7, 'loss': 1 / step, 'staleness': 2, 'outcome': 'applied'}\n"
        "    print(json.dumps(event), file=out, flush=True)\n"
        "print('a line above the bars', flush=True)\n"
        "sys.exit(1)\n"
    )
    ours, theirs = os.openpty()
    environment = {"TERM": "xterm-256color", "COLUMNS": "150", "LINES": "40"}
    job = programs.run("-n", "1", "--", PYTHON, script, env=environment, stdout=theirs)
    os.close(theirs)
    screen = b""
    while chunk := read_terminal(ours):
        screen += chunk
    os.close(ours)
    assert job.wait() == 1
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.decode())
    assert re.search(r"worker 0 .* 7/7 loss 0\.1429 staleness 2", text), text
    assert "[worker 0] a line above the bars" in text


def read_terminal(fd: int) -> bytes:
    """What comes next, nothing at the end: Linux says EIO when the last process has closed the other side."""
    try:
        return os.read(fd, 1 << 16)
    except OSError:
        return b""


# ---- what cannot work is refused before anything is started ----------------------------------------------------------

REFUSED = {
    "": (2, ["COMMAND is missing"]),
    "-n 0 -- python": (2, ["--workers", "0 is not in the range x>=1"]),
    "--mode bsp -- python": (2, ["--mode", "'bsp' is not one of 'async', 'sync', 'ssp'"]),
    "--slack 3 -- python": (2, ["got --slack 3 without --mode", "expected --mode ssp"]),
    "--mode sync --slack 0 -- python": (2, ["got --slack 0 with --mode sync", "expected --mode ssp"]),
    "--backup-workers 1 -- python": (2, ["got --backup-workers 1 without --mode", "expected --mode sync"]),
    "--mode ssp --backup-workers 1 -- python": (2, ["got --backup-workers 1 with --mode ssp", "expected --mode sync"]),
    "--rules nowhere.py -- python": (2, ["--rules", "File 'nowhere.py' does not exist"]),
    "--lease inf -- python": (2, ["--lease", "got inf, expected a finite number of seconds"]),
    "--speed 3 -- python": (2, ["No such option", "--speed"]),
    "-- no-such-program": (127, ["cannot execute 'no-such-program'", "not found on PATH", "Nothing was started"]),
    "-- ./readme.txt": (127, ["cannot execute './readme.txt'", "no executable file", "Nothing was started"]),
}


@pytest.mark.parametrize("arguments", REFUSED)
def test_what_cannot_work_is_refused_before_anything_starts(programs: Programs, arguments: str) -> None:
    programs.file("read me", "readme.txt")
    code, words = REFUSED[arguments]
    job = programs.run(*arguments.split())
    assert job.wait() == code
    said = " ".join(job.stderr.split())
    assert [word for word in words if word not in said] == [], said
    assert job.stdout == ""


def test_what_a_ps_refuses_ends_the_job_with_its_code_and_words(programs: Programs) -> None:
    job = programs.run("-s", "2", "--rule", "adamx", "--", PYTHON, programs.file(TRAIN))
    assert job.wait() == 2
    job.expect(r"^\[ps \d\] ps-server: RuleError: rule: .*got 'adamx', expected one of .* adam, .*sgd")
    job.expect(r"^ps-run: ps \d at \S+ exited with code 2 before all ps served; its own lines above say why$")
    assert "[worker" not in job.stdout
    programs.assert_none_left()


def test_a_ps_that_does_not_serve_in_time_is_named(programs: Programs) -> None:  # claim 4
    job = programs.run("--connect-timeout", "0.01", "--", PYTHON, programs.file(TRAIN))
    assert job.wait() == 4
    job.expect(r"^ps-run: not serving within 0\.01 s \(--connect-timeout\): ps 0 at 127\.0\.0\.1:\d+$")
    programs.assert_none_left()


def test_help_shows_an_example(programs: Programs) -> None:
    job = programs.run("--help")
    assert job.wait() == 0
    assert "ps-run -n 4 -s 2 --mode sync --rule adam:learning_rate=0.001 -- python train.py" in job.stdout


# ---- which program is a ps -----------------------------------------------------------------------------------------

INSTALLED = "import sys\nfrom ps.__main__ import main\nprint('by the script', file=sys.stderr)\nmain()\n"
ALWAYS_TAKEN = "import sys\nsys.exit(3)\n"


def python_with(directory: Path, ps_server: str | None) -> Path:
    """A Python that finds this project and what it needs, with or without a script `ps-server` beside it."""
    venv.create(directory, symlinks=True)
    python = directory / "bin" / "python"
    (site,) = directory.glob("lib/python*/site-packages")
    paths = dict.fromkeys([str(ROOT), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
    (site / "paths.pth").write_text("\n".join(paths), encoding="utf-8")
    if ps_server is not None:
        script = directory / "bin" / "ps-server"
        script.write_text(f"#!{python}\n{ps_server}", encoding="utf-8")
        script.chmod(0o755)
    return python


@pytest.mark.parametrize("ps_server", [INSTALLED, None], ids=["script", "no script"])
def test_a_ps_py_of_the_user_is_not_taken_for_ours(programs: Programs, tmp_path: Path, ps_server: str | None) -> None:
    programs.file("raise SystemExit('the ps.py of the user')", "ps.py")
    python = python_with(tmp_path / "venv", ps_server)
    flags = ("-n", "1", "--rule", "sgd:learning_rate=1")
    command: list[str | Path] = [python, "-m", "client.run", *flags, "--", python, programs.file(TRAIN)]
    job = programs.start("ps-run", command, env={"PYTHONPATH": ""})  # in the directory where ps.py is
    assert job.wait() == 0
    job.expect(r"\[worker 0\] worker 0 of 1: applied, w = \[-3.0, -3.0, -3.0\]")
    assert ("by the script" in job.stderr) == (ps_server is not None)


def test_a_port_that_is_taken_meanwhile_costs_a_few_tries_with_others(programs: Programs, tmp_path: Path) -> None:
    python = python_with(tmp_path / "venv", ALWAYS_TAKEN)
    job = programs.start("ps-run", [python, "-m", "client.run", "--", python, "-V"], env={"PYTHONPATH": ""})
    assert job.wait() == 3
    tried = re.findall(r"a port was taken before ps 0 at (\S+) could use it", job.stderr)
    assert len(set(tried)) == 4
    programs.assert_none_left()
