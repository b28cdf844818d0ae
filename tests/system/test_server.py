"""One ps, as a process: how it starts, what it says, what it never loads, and how it ends by itself."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

import client
from client import errors
from protos.service import OPTIONS, SERVICE
from ps.story import Event
from tests.harness.processes import Programs, assert_free, free_cluster, task

ZEROS = {"w": np.zeros(3, np.float32)}
ONES = {"w": np.ones(3, np.float32)}


def test_it_serves_and_ends_by_itself_when_every_worker_has_left(programs: Programs) -> None:  # claim 10
    cluster = free_cluster(ps=2, workers=2)
    servers = programs.servers(cluster)
    first, second = (client.connect(cluster, worker=index) for index in range(2))
    first.init(ZEROS, rule="sgd:learning_rate=1")
    first.leave()
    second.push(ONES)  # one worker is still there, and so is the ps
    second.leave()
    assert [server.wait(timeout_s=10) for server in servers] == [0, 0]
    assert "every worker has left" in servers[0].stderr
    assert_free(*cluster["ps"])
    programs.assert_none_left()


def test_the_line_on_stdout_is_all_that_stdout_gets(programs: Programs) -> None:
    cluster = free_cluster()
    (server,) = programs.servers(cluster)
    client.connect(cluster, worker=0).leave()
    assert server.wait() == 0
    assert server.stdout == f"ps 0 serving on {cluster['ps'][0]}"


def test_it_starts_in_about_a_second(programs: Programs) -> None:  # claim 10
    cluster = free_cluster()
    started_s = time.monotonic()
    programs.servers(cluster)
    print(f"a ps serves {time.monotonic() - started_s:.2f} s after its start")  # seen with pytest -s; machines differ
    client.connect(cluster, worker=0).leave()


def test_it_never_imports_tensorflow_nor_the_other_side(programs: Programs, tmp_path: Path) -> None:  # claim 10
    # Packages of these names come first on its path, and end whatever imports them.
    for name in ("tensorflow", "keras", "client", "worker"):
        (tmp_path / "poison" / name).mkdir(parents=True)
        (tmp_path / "poison" / name / "__init__.py").write_text(f"raise SystemExit('imported {name}')")
    cluster = free_cluster()
    path = os.pathsep.join((str(tmp_path / "poison"), str(Path(client.__file__).parents[1])))
    (server,) = programs.servers(cluster, "--rule", "adam", env={"PYTHONPATH": path})
    with client.connect(cluster, worker=0) as worker:
        worker.init(ZEROS)
        worker.push_pull(ONES)
        assert "tensorflow" not in Path(f"/proc/{server.pid}/maps").read_text()
    assert server.wait() == 0


def test_it_may_listen_elsewhere_than_where_the_others_find_it(programs: Programs) -> None:
    # As behind a forwarded port: the cluster names one address, the ps binds another.
    cluster = free_cluster(ps=2)
    advertised = cluster["ps"][0]
    listening = cluster["ps"][1].replace("127.0.0.1", "127.0.0.2")
    description = {"ps": [advertised], "worker": cluster["worker"]}
    server = programs.server("--bind", listening, env={"TF_CONFIG": task(description, "ps")})
    server.expect(f"^ps 0 serving on {re.escape(listening)}$")
    assert_free(advertised)
    with client.connect({"ps": [listening], "worker": cluster["worker"]}, worker=0) as worker:
        assert worker.status()["ps"][0]["ps_addresses"] == [advertised]
    assert server.wait() == 0


def test_port_0_binds_any_free_port_and_says_which(programs: Programs) -> None:
    server = programs.server("--bind", "127.0.0.1:0", env={"TF_CONFIG": task(free_cluster(), "ps")})
    port = server.expect(r"^ps 0 serving on 127\.0\.0\.1:(\d+)$").group(1)
    assert int(port) > 0
    client.connect({"ps": [f"127.0.0.1:{port}"], "worker": ["w:1"]}, worker=0).leave()
    assert server.wait() == 0


def test_the_standard_health_service_says_serving(programs: Programs) -> None:
    cluster = free_cluster()
    programs.servers(cluster)
    with grpc.insecure_channel(cluster["ps"][0], options=OPTIONS) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for service in ("", SERVICE.full_name):
            answer = health.Check(health_pb2.HealthCheckRequest(service=service), timeout=10)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_story_dir_gets_one_file_per_ps_that_tells_the_whole_run(programs: Programs, tmp_path: Path) -> None:
    cluster = free_cluster(ps=2)
    servers = programs.servers(cluster, "--story-dir", "stories")
    with client.connect(cluster, worker=0) as worker:
        worker.init(ZEROS, rule="sgd")
        for _ in range(3):
            worker.push_pull(ONES)
    assert [server.wait() for server in servers] == [0, 0]
    for index in range(2):
        lines = (tmp_path / "stories" / f"story-ps{index}.jsonl").read_text().splitlines()
        events = [Event.from_json(line) for line in lines]
        assert [event.kind for event in events] == ["join", "init", "push", "push", "push", "leave"]
        assert [event.version for event in events] == [0, 0, 1, 2, 3, 3]


def test_a_chief_is_worker_0_and_an_evaluator_only_reads(programs: Programs) -> None:
    cluster = free_cluster(workers=1, chief=1, evaluator=1)
    (server,) = programs.servers(cluster, "--rule", "sgd:learning_rate=1")

    def connect(kind: str) -> client.Client:
        return client.connect(json.loads(task(cluster, kind)))

    chief, worker, evaluator = connect("chief"), connect("worker"), connect("evaluator")
    assert (chief.worker, worker.worker, evaluator.worker) == (0, 1, None)
    assert chief.num_workers == 2
    chief.init(ZEROS)
    assert evaluator.pull()["w"].tolist() == [0, 0, 0]
    with pytest.raises(errors.ReadOnly, match="observer"):
        evaluator.push(ONES)
    chief.leave()
    worker.push(ONES)
    worker.leave()
    assert evaluator.pull()["w"].tolist() == [-1, -1, -1]  # it may still read what came of it …
    assert server.wait(timeout_s=10) == 0  # … but a job does not wait for an evaluator for long
    with pytest.raises(errors.ServerStopping, match="every worker has left"):
        evaluator.pull()


def test_a_flag_wins_over_the_environment_and_that_over_the_default(programs: Programs) -> None:
    cluster = free_cluster()
    environment = {"PARAMSERVER_MODE": "sync", "PARAMSERVER_LEASE": "3.5"}
    (server,) = programs.servers(cluster, "--mode", "ssp", env=environment)
    settings = server.expect("settings: (.*)").group(1)  # resolved once, and printed at start
    told, run_id = settings.rsplit(" ", 1)
    assert told.startswith(
        "ps 0 of 1, 1 worker, mode ssp, rule as the first init says, NaN and Inf accepted, lease 3.5 s, "
    )  # the mode by the flag, the lease by the environment, the rest by default
    assert told.endswith("run id")
    with client.connect(cluster, worker=0) as worker:
        assert worker.status()["mode"] == "ssp"
        assert worker.status()["run_id"] == run_id


@pytest.mark.parametrize("how", ["--cluster JSON", "--cluster @FILE", "TF_CONFIG and --index"])
def test_the_cluster_comes_from_a_flag_or_from_tf_config(programs: Programs, how: str) -> None:
    cluster = free_cluster(ps=2)
    text = json.dumps(cluster)
    if how == "--cluster JSON":
        server = programs.server("--cluster", text, "--index", "1")
    elif how == "--cluster @FILE":
        server = programs.server("--cluster", f"@{programs.file(text, 'cluster.json')}", "--index", "1")
    else:
        server = programs.server("--index", "1", env={"TF_CONFIG": task(cluster, "ps", 0)})
    server.expect(f"^ps 1 serving on {re.escape(cluster['ps'][1])}$")


def test_help_shows_an_example(programs: Programs) -> None:
    server = programs.server("--help")
    assert server.wait() == 0
    assert "ps-server --mode sync --rule adam:learning_rate=0.001" in server.stdout
