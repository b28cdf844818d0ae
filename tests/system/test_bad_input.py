"""What is refused, in which words, and that the ps lives on with its state unchanged.

An error names the field, what was got and what was expected. A ps that cannot start exits 2, or 3 if its port is taken.
"""

from __future__ import annotations

import contextlib
import json
import random
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

import client
import client.session
from client import errors
from protos.codec import PROTOCOL_VERSION
from protos.service import METHODS, OPTIONS
from tests.harness.processes import Program, Programs, free_cluster, task

ZEROS = {"w": np.zeros(3, np.float32)}
ONES = {"w": np.ones(3, np.float32)}
CONNECT = "import client\nwith client.connect():\n    print('joined')\n"
# Joins, says so, and stays until a line comes on stdin.
STAY = """
import sys, client
with client.connect() as server:
    print("generation", server.status()["workers"][server.worker]["generation"])
    sys.stdin.readline()
    print("version", server.status()["version"])
"""


def state(server: client.Client) -> dict[str, Any]:
    """All that a ps says of itself and may not change by a refusal, and the values that it holds."""
    (ps,) = server.status()["ps"]
    kept = {key: value for key, value in ps.items() if key != "uptime_s"}
    kept["counters"] = {key: value for key, value in ps["counters"].items() if key != "pulls"}
    return kept | {"w": server.pull()["w"].tolist()}


def refusal(program: Program, code: int, *words: str) -> str:
    """The words in which a program that ended with `code` says why, without a traceback of ours to wade through."""
    assert program.wait() == code, program.text()
    for word in words:
        assert word in program.stderr
    return program.stderr


# ---- TF_CONFIG -----------------------------------------------------------------------------------------------------

PS, WORKER = "127.0.0.1:2222", "127.0.0.1:2223"


def config(kind: str, index: int = 0, **cluster: list[str]) -> str:
    return task(cluster, kind, index)


# What is wrong: (TF_CONFIG for a task of this kind, what the error names).
BAD_TF_CONFIG: dict[str, tuple[Callable[[str], str], list[str]]] = {
    "missing": (lambda kind: "", ["TF_CONFIG", "got nothing", "expected a cluster description", "Set TF_CONFIG="]),
    "not JSON": (lambda kind: "{ps: 1}", ["TF_CONFIG", "got '{ps: 1}'", "expected JSON"]),
    "no cluster": (lambda kind: "{}", ["TF_CONFIG", "got {}", '"cluster"']),
    "no ps": (lambda kind: config(kind, worker=[WORKER]), ["cluster.ps", "got no ps", "at least one"]),
    "index out of range": (
        lambda kind: config(kind, 5, ps=[PS], worker=[WORKER]),
        ["task.index", "5", "expected 0 to 0"],
    ),
    "duplicate address": (
        lambda kind: config(kind, ps=[PS], worker=[PS]),
        [f"got {PS}, which is ", "expected each address once"],
    ),
    "unknown task type": (
        lambda kind: config("master", ps=[PS], worker=[WORKER]),
        ["task.type", "got 'master'", "expected chief, worker, ps, evaluator"],
    ),
    "unknown kind of task in the cluster": (
        lambda kind: config(kind, ps=[PS], worker=[WORKER], master=["127.0.0.1:1"]),
        ["cluster", "got unknown task type 'master'", "expected chief, worker, ps, evaluator"],
    ),
    "address without a port": (
        lambda kind: config(kind, ps=["localhost"], worker=[WORKER]),
        ["cluster.ps[0]", "got 'localhost'", "host:port"],
    ),
}


@pytest.mark.parametrize("wrong", BAD_TF_CONFIG)
def test_a_wrong_tf_config_is_refused_by_name(programs: Programs, wrong: str) -> None:
    make, words = BAD_TF_CONFIG[wrong]
    server = programs.server(env={"TF_CONFIG": make("ps")})
    worker = programs.script(CONNECT, env={"TF_CONFIG": make("worker")})
    assert "Traceback" not in refusal(server, 2, "ps-server: ClusterError: ", *words)
    refusal(worker, 1, "ClusterError: ", *words)


def test_each_program_refuses_a_task_that_is_not_its_own(programs: Programs) -> None:
    cluster = free_cluster()
    server = programs.server(env={"TF_CONFIG": task(cluster, "worker")})
    worker = programs.script(CONNECT, env={"TF_CONFIG": task(cluster, "ps")})
    refusal(server, 2, "task.type", "got 'worker'", "expected 'ps'")
    refusal(worker, 1, "task.type", "got 'ps'", "expected 'worker', 'chief' or 'evaluator'")


def test_processes_with_different_clusters_do_not_work_together(programs: Programs) -> None:
    cluster = free_cluster(ps=1, workers=2)
    programs.servers(cluster)
    with pytest.raises(errors.ClusterError, match=r"cluster\.worker: .*got 1 workers, expected 2"):
        client.connect(cluster | {"worker": cluster["worker"][:1]}, worker=0)


# ---- what a ps is told at its start --------------------------------------------------------------------------------

BAD_FLAGS = {
    "--cluster {": ["--cluster", "got '{", "expected JSON"],
    "--cluster @nowhere.json": ["nowhere.json"],
    "--bind 2222": ["--bind", "got '2222'", "host:port"],
    "--mode bsp": ["--mode", "'bsp'", "'async', 'sync', 'ssp'"],
    "--mode async --slack 3": ["slack", "got slack 3 with mode async", "expected mode ssp", "--slack"],
    "--mode ssp --backup-workers 1": [
        "backup_workers",
        "got 1 with mode ssp",
        "expected mode sync",
        "--backup-workers",
    ],
    "--mode sync --backup-workers 1": ["backup_workers", "got 1", "expected fewer than the 1 workers"],
    "--lease 0": ["--lease", "0.0 is not in the range x>=0.1"],
    "--lease nan": ["--lease", "got nan", "expected a number of seconds"],
    "--rule adamx": ["RuleError", "rule", "got 'adamx'", "expected one of adadelta, ", " adam, ", " sgd, "],
    "--rule sgd:speed=1": ["RuleError", "rule sgd", "got argument 'speed'", "expected one of learning_rate"],
    "--rule sgd:learning_rate=fast": ["rule sgd, argument learning_rate", "got 'fast'", "expected a finite number"],
    "--rules nowhere.py": ["RuleError", "--rules", "got nowhere.py", "expected a Python file"],
    "--rules broken.py": ["RuleError", "broken.py", "got SyntaxError", "expected a file that imports"],
    "--rules empty.py": ["RuleError", "empty.py", "got no rule", "expected @register(name)"],
    "--story-dir broken.py": ["--story-dir", "broken.py"],
}


@pytest.mark.parametrize("flags", BAD_FLAGS)
def test_a_ps_that_is_told_nonsense_does_not_start(programs: Programs, flags: str) -> None:
    programs.file("def rule(:", "broken.py")
    programs.file("import ps.rules", "empty.py")
    server = programs.server(*flags.split(), env={"TF_CONFIG": task(free_cluster(), "ps")})
    said = refusal(server, 2, *BAD_FLAGS[flags])
    assert "Traceback" not in said
    assert server.stdout == ""


# ---- a port in use -------------------------------------------------------------------------------------------------


def test_a_second_ps_on_one_port_exits_3_and_names_it(programs: Programs) -> None:
    cluster = free_cluster()
    programs.servers(cluster)
    second = programs.server(env={"TF_CONFIG": task(cluster, "ps")})
    refusal(second, 3, "AddressInUse: ps 0: ", f"got {cluster['ps'][0]}", "Address already in use", "a free port")
    client.connect(cluster, worker=0).leave()  # the first one serves on


def test_a_port_that_is_taken_at_the_last_moment_is_named_once(programs: Programs) -> None:
    # As by a ps that starts at the same time: our own look at the port finds it free, and grpc cannot have it.
    blind = "import socket; socket.socket.bind = lambda *_: None; from ps.__main__ import main; main('ps-server')"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        server = programs.python("-c", blind, env={"TF_CONFIG": config("ps", ps=[address], worker=[WORKER])})
        said = refusal(server, 3, "AddressInUse: ps 0: ", f"got {address}", "a free port")
    assert len(said.splitlines()) == 1


def test_a_name_with_two_addresses_is_in_use_if_one_of_them_is(programs: Programs) -> None:
    # localhost is ::1 and 127.0.0.1: grpc by itself would serve on the half that is free, and clients find the other.
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"localhost:{taken.getsockname()[1]}"
        server = programs.server(env={"TF_CONFIG": config("ps", ps=[address], worker=[WORKER])})
        refusal(server, 3, "AddressInUse", f"got {address}", "Address already in use")


def test_an_address_of_another_machine_is_no_taken_port_and_names_bind(programs: Programs) -> None:
    address = "192.0.2.1:2222"  # kept for documentation: nobody's
    server = programs.server(env={"TF_CONFIG": config("ps", ps=[address], worker=[WORKER])})
    said = refusal(server, 2, f"got {address}", "an address of this machine", "--bind 0.0.0.0:PORT")
    assert "AddressInUse" not in said


def test_a_ps_that_cannot_start_leaves_the_story_of_the_running_one_alone(programs: Programs, tmp_path: Path) -> None:
    cluster = free_cluster()
    (first,) = programs.servers(cluster, "--story-dir", "stories")
    story = tmp_path / "stories" / "story-ps0.jsonl"
    with client.connect(cluster, worker=0) as worker:
        worker.init(ZEROS, rule="sgd")
        second = programs.server("--story-dir", "stories", env={"TF_CONFIG": task(cluster, "ps")})
        assert second.wait() == 3
    assert first.wait() == 0
    assert [json.loads(line)["kind"] for line in story.read_text().splitlines()] == ["join", "init", "leave"]


# ---- conflicts -----------------------------------------------------------------------------------------------------


def test_a_mode_or_rule_other_than_the_ps_was_told_is_a_conflict_that_says_both(programs: Programs) -> None:
    cluster = free_cluster()
    programs.servers(cluster, "--mode", "sync", "--rule", "sgd")
    with client.connect(cluster, worker=0) as worker:
        before = worker.status()["ps"][0]["counters"]
        with pytest.raises(errors.ConfigurationConflict, match=r"mode: .*got 'async', expected 'sync'"):
            worker.init(ZEROS, mode="async")
        with pytest.raises(errors.ConfigurationConflict, match=r"rule: .*got 'adam:.*', expected 'sgd:.*'"):
            worker.init(ZEROS, rule="adam")
        with pytest.raises(errors.RuleError, match=r"rule: .*got 'adamx', expected one of .* adam, .*sgd"):
            worker.init(ZEROS, rule="adamx")
        after = worker.status()["ps"][0]
        assert not after["initialized"]
        assert after["counters"] == before
        worker.init(ZEROS, mode="sync")  # what agrees is welcome  # claim 11


def test_a_process_of_another_run_is_refused(programs: Programs) -> None:  # claim 11
    cluster = free_cluster(workers=2)
    programs.servers(cluster, "--run-id", "monday", "--rule", "sgd")
    with client.connect(cluster, worker=0) as worker:
        worker.init(ZEROS)
        before = state(worker)
        with pytest.raises(errors.WrongRun, match=r"run_id: .*got 'tuesday', expected 'monday'"):
            client.connect(cluster, worker=1, run_id="tuesday")
        assert state(worker) == before
        client.connect(cluster, worker=1, run_id="monday").leave()


@pytest.mark.parametrize(("difference", "older"), [(-1, "client"), (+1, "ps")])
def test_a_client_of_another_protocol_version_is_refused(
    programs: Programs, monkeypatch: pytest.MonkeyPatch, difference: int, older: str
) -> None:
    cluster = free_cluster()
    programs.servers(cluster)
    with monkeypatch.context() as patch:
        patch.setattr(client.session, "PROTOCOL_VERSION", PROTOCOL_VERSION + difference)
        with pytest.raises(errors.ProtocolMismatch) as refused:
            client.connect(cluster, worker=0)
    assert f"got client {PROTOCOL_VERSION + difference}, expected {PROTOCOL_VERSION}" in str(refused.value)
    assert refused.value.hint == f"Upgrade the {older}."
    assert refused.value.address == cluster["ps"][0]
    client.connect(cluster, worker=0).leave()


def test_a_worker_index_is_for_one_live_process(programs: Programs) -> None:
    cluster = free_cluster()
    programs.servers(cluster)
    first = programs.script(STAY, env={"TF_CONFIG": task(cluster, "worker")})
    first.expect("generation 1")
    with pytest.raises(errors.WorkerIndexTaken, match=rf"worker 0: .*expected only .*pid {first.pid}\b"):
        client.connect(cluster, worker=0)
    first.say("go on")
    first.expect(r"version \[0\]")  # the first one did not notice
    assert first.wait() == 0


def test_the_index_of_a_killed_process_is_free_at_once_and_its_generation_rises(programs: Programs) -> None:
    cluster = free_cluster()
    programs.servers(cluster, "--lease", "3600")
    for generation in (1, 2, 3):
        worker = programs.script(STAY, env={"TF_CONFIG": task(cluster, "worker")})
        worker.expect(rf"^generation {generation}$")
        worker.signal(signal.SIGKILL)
        assert worker.wait() == 128 + signal.SIGKILL


# ---- peers that are not there, or not what they should be ------------------------------------------------------------


@pytest.mark.parametrize("missing", [0, 1])
def test_the_wait_for_a_ps_that_is_not_up_is_bounded_and_names_it(programs: Programs, missing: int) -> None:  # claim 4
    cluster = free_cluster(ps=2)
    up = 1 - missing
    programs.server(env={"TF_CONFIG": task(cluster, "ps", up)}).expect("serving")
    environment = {"TF_CONFIG": task(cluster, "worker"), "PARAMSERVER_CONNECT_TIMEOUT_S": "1.5"}
    worker = programs.script(CONNECT, env=environment)
    address = cluster["ps"][missing]
    refusal(worker, 1, f"PeerUnavailable: ps {missing} ({address})", f"no answer from {address} in 1.5 s")
    with pytest.raises(errors.PeerUnavailable, match=r"in 0\.2 s"):  # an argument wins over the environment
        client.connect(cluster, worker=0, connect_timeout_s=0.2)


def test_a_timeout_that_is_no_number_is_refused_by_name(programs: Programs) -> None:
    environment = {"TF_CONFIG": task(free_cluster(), "worker"), "PARAMSERVER_CONNECT_TIMEOUT_S": "soon"}
    refusal(
        programs.script(CONNECT, env=environment),
        1,
        "PARAMSERVER_CONNECT_TIMEOUT_S",
        "got 'soon'",
        "expected a positive number of seconds",
    )


def test_http_proxy_in_the_environment_changes_nothing(programs: Programs) -> None:
    cluster = free_cluster()
    with socket.create_server(("127.0.0.1", 0)) as nobody:  # it accepts, and never answers
        proxy = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        names = ("http_proxy", "https_proxy", "grpc_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
        proxies = dict.fromkeys(names, proxy) | {"no_proxy": "", "no_grpc_proxy": ""}
        (server,) = programs.servers(cluster, env=proxies)
        environment = proxies | {"TF_CONFIG": task(cluster, "worker"), "PARAMSERVER_CONNECT_TIMEOUT_S": "20"}
        control = programs.python("-m", "client.ctl", "status", "--target", cluster["ps"][0], env=proxies)
        assert control.wait() == 0
        assert programs.script(CONNECT, env=environment).wait() == 0
        assert server.wait() == 0


def garbage() -> list[bytes]:
    noise = random.Random(0)
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    return [
        b"",
        noise.randbytes(100_000),
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        bytes.fromhex("16030100c8010000c40303") + noise.randbytes(32),  # half a TLS hello
        preface + noise.randbytes(10_000),
        preface + bytes.fromhex("ffffff000000000001"),  # a frame of the largest length, without its content
    ]


def test_garbage_on_the_port_changes_nothing(programs: Programs) -> None:  # claim 11
    cluster = free_cluster()
    (server,) = programs.servers(cluster, "--rule", "sgd:learning_rate=1")
    host, port = cluster["ps"][0].split(":")
    with client.connect(cluster, worker=0) as worker:
        worker.init(ZEROS)
        before = state(worker)
        kinds = garbage()
        for data in kinds:
            # It may be thrown out in the middle of it.
            with socket.create_connection((host, int(port))) as rude, contextlib.suppress(OSError):
                rude.sendall(data)
                rude.shutdown(socket.SHUT_WR)
                while rude.recv(1 << 16):
                    pass
        assert state(worker) == before
        crowd = [socket.create_connection((host, int(port))) for _ in range(300)]
        try:
            for index, rude in enumerate(crowd):
                with contextlib.suppress(OSError):
                    rude.sendall(kinds[index % len(kinds)][:1000])
            assert state(worker) == before  # while they are all connected
        finally:
            for rude in crowd:
                rude.close()
        _, result = worker.push_pull(ONES)
        assert (result.outcome, result.version) == ("applied", (1,))
    assert server.wait() == 0


@pytest.mark.parametrize("method", METHODS)
def test_bytes_that_are_no_message_are_refused(programs: Programs, method: str) -> None:  # claim 9, claim 11
    cluster = free_cluster()
    (server,) = programs.servers(cluster, "--rule", "sgd")
    with client.connect(cluster, worker=0) as worker, grpc.insecure_channel(cluster["ps"][0], options=OPTIONS) as raw:
        worker.init(ZEROS)
        before = state(worker)
        call = raw.stream_stream(METHODS[method].path)(iter([b"\xff" * 100]), timeout=30)
        with pytest.raises(grpc.RpcError) as refused:
            next(call)
        typed = grpc.StatusCode.INVALID_ARGUMENT if method == "Exchange" else grpc.StatusCode.INTERNAL
        assert refused.value.code() in (typed, grpc.StatusCode.UNKNOWN)
        assert state(worker) == before
    assert server.wait() == 0
