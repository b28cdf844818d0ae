"""`ps-ctl`: what it shows of a job, for people and for programs, and how it stops one."""

from __future__ import annotations

import json
import re
import socket

import numpy as np
import pytest

import client
from client import ctl_command
from tests.harness.processes import Programs, assert_free, free_cluster
from tests.harness.threads import Task, until

WEIGHTS = {"w": np.zeros((1000, 100), np.float32), "n": np.int64(0)}
RULE = "momentum:learning_rate=0.5"


def test_status_shows_every_ps_of_the_cluster_and_every_worker(programs: Programs) -> None:
    cluster = free_cluster(ps=2, workers=3)
    programs.servers(cluster, "--mode", "sync", "--rule", RULE)
    with client.connect(cluster, worker=0) as first, client.connect(cluster, worker=1) as second:
        first.init(WEIGHTS)
        second.init(WEIGHTS)
        second.leave()
        waiting = Task(lambda: first.push_pull({"w": np.ones((1000, 100), np.float32)}))
        until(lambda: all(ps["workers"][0]["waiting_for"] for ps in first.status()["ps"]))
        control = programs.ctl("status", "--target", cluster["ps"][1])  # any of them knows the others
        assert control.wait() == 0
        heading, *tables = control.stdout.split("\n\n")
        assert f"run {first.status()['run_id']}: mode sync, rule momentum:learning_rate=0.5," in heading
        assert heading.endswith("step 0")
        holdings, counters, workers = (
            [re.split(" {2,}", row.rstrip()) for row in table.splitlines()] for table in tables
        )
        assert holdings[0] == ["ps", "version", "bytes", "of which slots", "address"]
        assert [[row[0], row[1], row[4]] for row in holdings[2:]] == [
            ["0", "0", cluster["ps"][0]],
            ["1", "0", cluster["ps"][1]],
        ]
        assert counters[0][:4] == ["ps", "sent", "applied", "buffered"]
        assert [row[:4] for row in counters[2:]] == [["0", "1", "0", "1"], ["1", "1", "0", "1"]]
        assert workers[2][:4] == ["0", "active", "1", "1"]  # generation, clock
        assert workers[2][5] == "worker 2 (never joined)"
        assert [row[1] for row in workers[2:]] == ["active", "left", "expected"]
        narrow = programs.ctl("status", "--target", cluster["ps"][1], env={"COLUMNS": "80"})
        assert narrow.wait() == 0
        assert max(map(len, narrow.stdout.splitlines())) <= 80
        assert "…" not in narrow.stdout
        assert waiting.running
        client.connect(cluster, worker=2).leave()
        waiting.result()


def test_large_numbers_and_long_names_are_whole_in_80_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    many = 123_456_789
    counters = dict.fromkeys(("sent", "applied", "buffered", "stale", "duplicate", "refused", "pulls"), many)
    origin, missing = (
        "a-host-with-a-long-name.example.com, pid 4194304",
        "worker 1 (never joined), worker 2 (never joined)",
    )
    row = {"state": "expected", "generation": many, "clock": many, "origin": origin, "waiting_for": missing}
    workers = [row | {"worker": 0}]
    one = {"version": many, "bytes": 7 * 10**11, "slot_bytes": 4 * 10**11, "counters": counters, "workers": workers}
    address = "a-ps-with-a-long-name.example.com:2222"
    job = {"run_id": "8" * 16, "mode": "ssp", "slack": 3, "backup_workers": None, "rule": "adam:" + "beta=0.9," * 20}
    monkeypatch.setenv("COLUMNS", "80")
    ctl_command._show(job | {"step": many, "workers": workers, "ps": [one | {"index": 0, "address": address}]})
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    assert shown.count(str(many)) == 11  # step, version, 7 counters, generation and clock
    assert all(word in shown for word in (address, "700.0 GB", "400.0 GB"))
    assert "…" not in shown  # what is too long is folded, not cut


def test_json_is_what_the_client_says(programs: Programs) -> None:
    cluster = free_cluster(ps=2)
    programs.servers(cluster)
    with client.connect(cluster, worker=0) as worker:
        worker.init(WEIGHTS, rule=RULE)
        worker.push_pull({"w": np.ones((1000, 100), np.float32)})
        control = programs.ctl("status", "--target", cluster["ps"][0], "--json")
        assert control.wait() == 0
        said, expected = json.loads(control.stdout), worker.status()
        assert said.pop("unreachable") == []
        for ps in (*said["ps"], *expected["ps"]):
            del ps["uptime_s"]
        assert said == json.loads(json.dumps(expected))
        assert said["step"] == 1
        assert said["bytes"] == 2 * WEIGHTS["w"].nbytes + 8  # values and velocity


def test_only_asks_the_target_alone(programs: Programs) -> None:
    cluster = free_cluster(ps=2)
    servers = programs.servers(cluster)
    shown = programs.ctl("status", "--target", cluster["ps"][1], "--only", "--json")
    assert shown.wait() == 0
    assert [ps["index"] for ps in json.loads(shown.stdout)["ps"]] == [1]
    stopped = programs.ctl("stop", "--target", cluster["ps"][1], "--only")
    assert stopped.wait() == 0
    assert stopped.stdout == f"ps 1 at {cluster['ps'][1]}: stopped"
    assert servers[1].wait() == 0
    assert servers[0].popen.poll() is None


def test_a_ps_that_is_gone_is_named_and_the_others_are_still_shown_and_stopped(programs: Programs) -> None:
    cluster = free_cluster(ps=3)
    servers = programs.servers(cluster)
    servers[1].popen.kill()
    servers[1].wait()
    shown = programs.ctl("status", "--target", cluster["ps"][0], "--json")
    assert shown.wait() == 4
    assert [ps["index"] for ps in json.loads(shown.stdout)["ps"]] == [0, 2]
    assert json.loads(shown.stdout)["unreachable"] == [cluster["ps"][1]]
    assert shown.stderr == f"ps-ctl: PeerUnavailable: no answer from {cluster['ps'][1]}"
    stopped = programs.ctl("stop", "--target", cluster["ps"][0], "--json")
    assert stopped.wait() == 4
    assert json.loads(stopped.stdout) == {
        "stopped": [cluster["ps"][0], cluster["ps"][2]],
        "still_there": [],
        "unreachable": [cluster["ps"][1]],
    }
    assert [servers[0].wait(), servers[2].wait()] == [0, 0]


def test_when_stop_returns_the_ports_are_free(programs: Programs) -> None:
    cluster = free_cluster(ps=2)
    programs.servers(cluster)
    assert programs.ctl("stop", "--target", cluster["ps"][0]).wait() == 0
    assert_free(*cluster["ps"])
    again = programs.ctl("stop", "--target", cluster["ps"][0])  # once more changes nothing, and says so
    assert again.wait() == 4
    assert f"PeerUnavailable: --target {cluster['ps'][0]}" in again.stderr


@pytest.mark.parametrize("command", ["status", "stop"])
def test_a_target_that_does_not_answer_costs_its_timeout_and_is_named(programs: Programs, command: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it accepts, and never answers  # claim 4
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        control = programs.ctl(command, "--target", address, "--timeout", "0.5")
        assert control.wait() == 4
        assert f"--target {address}" in control.stderr
        assert "no answer" in control.stderr
        assert control.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("status", "Missing option '--target'"),
        ("status --target localhost", "'--target': got 'localhost', expected \"host:port\""),
        ("stop --target 127.0.0.1:99999", 'expected "host:port" with a port from 1 to 65535'),
        ("restart --target 127.0.0.1:2222", "No such command 'restart'"),
    ],
)
def test_wrong_usage_is_named(programs: Programs, arguments: str, words: str) -> None:
    control = programs.ctl(*arguments.split())
    assert control.wait() == 2
    assert words in " ".join(control.stderr.split())


@pytest.mark.parametrize("command", [[], ["status"], ["stop"]])
def test_help_shows_an_example(programs: Programs, command: list[str]) -> None:
    control = programs.ctl(*command, "--help")
    assert control.wait() == 0
    assert "--target 127.0.0.1:2222" in control.stdout
