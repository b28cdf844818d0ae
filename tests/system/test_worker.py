"""`ps-worker` and the examples, as real processes: what people run, what they see, and with which code it ends.

What the loop computes is in tests/worker/; here TensorFlow is started once or twice a test, which is most of its time.
"""

from __future__ import annotations

import re
import signal
import sys

import pytest

from tests.harness.processes import ROOT, Program, Programs, assert_free, free_cluster, task

# Several TensorFlow processes on a busy machine take their time to start.
LONG_S = 300.0
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2"}
LINE = """
import keras, numpy as np, tensorflow as tf

def build_model():
    return keras.Sequential([keras.Input((3,)), keras.layers.BatchNormalization(), keras.layers.Dense(1)])

def make_dataset(worker_index, num_workers):
    x = np.random.default_rng(worker_index).normal(size=(60, 3)).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices((x, x.sum(axis=1)))

def loss(labels, outputs):
    return (outputs[:, 0] - labels) ** 2

def rule():
    return {"name": "sgd", "learning_rate": 0.1}

def evaluate(model):
    x = np.ones((1, 3), np.float32)
    return {"output": model(x)[0, 0], "size": 3}
"""


def worker(
    programs: Programs, cluster: dict[str, list[str]], *argv: str, kind: str = "worker", index: int = 0, **env: str
) -> Program:
    """ps-worker as one task of the cluster."""
    environment = {"TF_CONFIG": task(cluster, kind, index)} | env
    return programs.python("-m", "worker", *argv, name=f"{kind} {index}", env=environment)


@pytest.fixture
def without_tensorflow(programs: Programs) -> None:
    """In this directory an import of TensorFlow fails: so a test that passes has not imported it."""
    programs.file("raise RuntimeError('TensorFlow was imported')", "tensorflow.py")
    programs.file("raise RuntimeError('Keras was imported')", "keras.py")


# -- training --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["async", "sync", "ssp"])
def test_the_digits_are_learnt_in_every_mode(programs: Programs, mode: str) -> None:
    command = [sys.executable, "-m", "worker", str(ROOT / "examples" / "digits.py")]
    options = ["--epochs", "8", "--batch-size", "32", "--require", "accuracy=0.95"]
    job = programs.run("-n", "2", "-s", "2", "--mode", mode, "--", *command, *options)
    assert job.wait(LONG_S) == 0
    accuracy = float(job.expect(r"^\[worker 0\] accuracy (0\.\d+) \(loss 0\.\d+\)$").group(1))
    assert accuracy >= 0.95
    job.expect(rf"training 29066 parameters in 6 variables, mode {mode}, rule adam:learning_rate=0.003")
    for index in (0, 1):
        job.expect(rf"\[worker {index}\] step 184/184  loss \d\.\d+  staleness \d+$")
        job.expect(
            rf"\[worker {index}\] worker {index}: 184 steps in .* examples/s; applied 184, stale 0; staleness mean "
        )
    programs.assert_none_left()


def test_the_digits_are_learnt_by_local_steps_too(programs: Programs) -> None:
    command = [sys.executable, "-m", "worker", str(ROOT / "examples" / "digits.py"), "--epochs", "8"]
    options = ["--local-steps", "10", "--require", "accuracy=0.9"]
    job = programs.run("-n", "2", "-s", "2", "--mode", "sync", "--rule", "diloco", "--", *command, *options)
    assert job.wait(LONG_S) == 0
    job.expect(
        r"training 29066 parameters in 6 variables, mode sync, rule diloco:.*; 10 local steps a push, with Adam$"
    )


def test_chief_worker_and_evaluator_with_uneven_data_all_end_by_themselves(programs: Programs) -> None:
    cluster = free_cluster(ps=2, workers=1, chief=1, evaluator=1)
    model = str(programs.file(LINE, "line.py"))
    servers = programs.servers(cluster, "--mode", "sync")
    evaluator = worker(programs, cluster, model, "--evaluate-every", "0", kind="evaluator")
    chief = worker(programs, cluster, model, "--steps", "3", kind="chief")
    other = worker(programs, cluster, model, "--epochs", "4", "--batch-size", "10")
    assert [program.wait(LONG_S) for program in (chief, other, evaluator, *servers)] == [0, 0, 0, 0, 0]
    chief.expect(r"^worker 0: 3 steps in .* applied 3, stale 0")
    other.expect(r"^worker 1: 24 steps in .* applied 24, stale 0")
    result = chief.expect(r"^output -?\d.* \(size 3\)$").group()
    assert evaluator.stdout.splitlines()[-1] == f"step 24: {result}"
    for program in (chief, other, evaluator):
        assert program.stderr == ""  # nor has TensorFlow anything to say
    assert_free(*cluster["ps"])


def test_workers_push_every_few_steps_and_what_is_left_of_uneven_data(programs: Programs) -> None:
    inner = "def inner_optimizer():\n    return keras.optimizers.AdamW(0.01)\n"
    model = str(programs.file(LINE.replace("(60, 3)", "(60 + 20 * worker_index, 3)") + inner, "line.py"))
    command = [sys.executable, "-m", "worker", model, "--batch-size", "10", "--local-steps", "4", "--log-every", "3"]
    job = programs.run("-n", "2", "-s", "2", "--mode", "sync", "--rule", "diloco", "--", *command)
    assert job.wait(LONG_S) == 0
    job.expect(r"^\[worker 0\] ps-worker: .* local steps 4,")
    job.expect(r"mode sync, rule diloco:learning_rate=0.7,momentum=0.9,nesterov=True")
    job.expect(r"^\[worker 0\] step 6/6 ")
    job.expect(r"^\[worker 0\] worker 0: 6 steps and 2 pushes in .* applied 2, stale 0")
    job.expect(r"^\[worker 1\] worker 1: 8 steps and 2 pushes in .* applied 2, stale 0")
    job.expect(r"^\[worker 0\] output -?\d")
    programs.assert_none_left()


def test_with_prefetch_the_digits_are_learnt_too_and_the_staleness_it_adds_is_told(programs: Programs) -> None:
    command = [sys.executable, "-m", "worker", str(ROOT / "examples" / "digits.py"), "--prefetch"]
    job = programs.run("-n", "1", "-s", "2", "--", *command, "--epochs", "4", "--require", "accuracy=0.95")
    assert job.wait(LONG_S) == 0
    job.expect(r"^\[worker 0\] ps-worker: .*, prefetch, ")
    told = job.expect(r"worker 0: (\d+) steps in .* staleness mean (\d\.\d\d), max 1$")
    assert float(told[2]) == round((int(told[1]) - 1) / int(told[1]), 2)  # all but the first by one push
    programs.assert_none_left()


def test_with_compressed_gradients_the_digits_are_learnt_too_and_the_bytes_are_told(programs: Programs) -> None:
    command = [sys.executable, "-m", "worker", str(ROOT / "examples" / "digits.py"), "--epochs", "6"]
    job = programs.run("-n", "1", "-s", "2", "--compression", "sign", "--", *command, "--require", "accuracy=0.95")
    assert job.wait(LONG_S) == 0
    told = job.expect(r"worker 0: gradients of ([\d,]+) bytes sent in ([\d,]+)$")
    raw_bytes, sent_bytes = (int(told[number].replace(",", "")) for number in (1, 2))
    assert sent_bytes < 0.05 * raw_bytes
    programs.assert_none_left()


def test_a_flag_comes_before_the_environment_and_what_is_in_force_is_printed(programs: Programs) -> None:
    cluster = free_cluster()
    (server,) = programs.servers(cluster)
    env = {"PARAMSERVER_STEPS": "2", "PARAMSERVER_BATCH_SIZE": "7", "PARAMSERVER_WAIT_TIMEOUT_S": "30"}
    arguments = [str(programs.file(LINE, "line.py")), "--batch-size", "5", "--log-every", "1", "--require", "size=4"]
    arguments += ["--rule", "momentum:learning_rate=0.01", "--seed", "3", "--loss-scale", "dynamic"]
    one = worker(programs, cluster, *arguments, **env)
    assert one.wait(LONG_S) == 1
    said = one.expect(r"^ps-worker: worker 0 of 1, 1 ps; (.*)").group(1)
    for part in (
        "steps 2",
        "batch size 5",
        "loss scale dynamic",
        "rule momentum:learning_rate=0.01",
        "seed 3",
        "wait timeout 30 s",
    ):
        assert part in said
    one.expect(r"mode async, rule momentum:learning_rate=0.01,momentum=0.9")
    one.expect(r"worker 0: 2 steps")
    assert "size: the result is not good enough: got 3, expected at least 4" in one.stderr
    assert server.wait() == 0


@pytest.mark.parametrize(
    "launcher", [[], ["-m", "client.run", "-n", "2", "-s", "2", "--mode", "sync", "--", sys.executable]]
)
def test_a_script_of_your_own_runs_with_and_without_the_launcher(programs: Programs, launcher: list[str]) -> None:
    script = programs.python(*launcher, str(ROOT / "examples" / "train.py"), name="train.py", env=QUIET)
    assert script.wait(LONG_S) == 0
    accuracy = float(script.expect(r"worker 0: accuracy (0\.\d+) at step 200$").group(1))
    assert accuracy >= 0.9
    programs.assert_none_left()


# -- stopping --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_at_the_barrier_ends_a_worker_which_leaves_and_says_why(programs: Programs, signum: int) -> None:
    cluster = free_cluster(workers=2)
    (server,) = programs.servers(cluster, "--mode", "sync")
    one = worker(programs, cluster, str(programs.file(LINE, "line.py")))
    one.expect(r"^training ", LONG_S)  # and then it waits for worker 1, which never comes
    one.signal(signum)
    assert one.wait(LONG_S) == 128 + signum
    name = signal.Signals(signum).name
    assert one.stderr == f"ps-worker: stopped by {name}"
    server.expect(f"stopped by {name}")


def test_ctrl_c_while_a_pull_is_under_way_lets_the_push_before_it_through(programs: Programs) -> None:
    cluster = free_cluster()
    (server,) = programs.servers(cluster)
    one = worker(
        programs, cluster, str(programs.file(LINE, "line.py")), "--prefetch", "--steps", "1000000", "--log-every", "1"
    )
    one.expect(r"^step 20/1000000 .* staleness 1$", LONG_S)
    one.signal(signal.SIGINT)
    assert one.wait(LONG_S) == 130
    assert one.stderr == "ps-worker: stopped by SIGINT"
    assert server.wait() == 0
    ended = server.expect(r"sent (\d+), applied (\d+), .* refused 0")
    server.expect("stopped by SIGINT")
    told = int(re.findall(r"^step (\d+)/", one.stdout, re.MULTILINE)[-1])
    assert ended[1] == ended[2]
    assert int(ended[1]) >= told  # what it computed last may be there without being told


def test_a_signal_ends_a_worker_whose_main_thread_is_stuck_in_the_users_code(programs: Programs) -> None:
    cluster = free_cluster()
    (server,) = programs.servers(cluster)
    stuck = "import time\nprint('stuck', flush=True)\ntime.sleep(1000)"
    one = worker(programs, cluster, str(programs.file(stuck, "stuck.py")))
    one.expect("^stuck$")
    one.signal(signal.SIGTERM)
    assert one.wait(LONG_S) == 143
    assert server.wait() == 0
    server.expect("stopped by SIGTERM")


# -- what is wrong ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("without_tensorflow")
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["missing.py"], "File 'missing.py' does not exist"),
        (["line.py", "--steps", "0"], "'--steps': 0 is not in the range"),
        (["line.py", "--steps", "1", "--epochs", "2"], "got --steps 1 and --epochs 2, expected one of them"),
        (["line.py", "--batch-size", "many"], "'--batch-size': 'many' is not a valid integer"),
        (["line.py", "--require", "accuracy"], "got 'accuracy', expected NAME=NUMBER"),
        (["line.py", "--wait-timeout", "-1"], "wait_timeout_s: invalid input: got -1.0, expected a positive number"),
        (["line.txt"], "MODEL.py: invalid input: got line.txt, expected a file whose name ends in .py"),
    ],
)
def test_a_bad_argument_is_named_before_anything_is_imported(
    programs: Programs, arguments: list[str], says: str
) -> None:
    programs.file(LINE, "line.py")
    programs.file(LINE, "line.txt")
    one = worker(programs, free_cluster(), *arguments)
    assert one.wait(LONG_S) == 2
    assert says in one.stderr


@pytest.mark.usefixtures("without_tensorflow")
@pytest.mark.parametrize(
    ("config", "says"),
    [
        ("", "TF_CONFIG: the cluster description is wrong: got nothing"),
        (task({"ps": ["a:1"], "worker": ["b:1"]}, "worker", 1), "got worker 1, expected 0 to 0"),
        (task({"ps": ["a:1"], "worker": ["b:1"]}, "ps"), "got 'ps', expected 'worker', 'chief' or 'evaluator'"),
    ],
)
def test_a_bad_tf_config_is_named_too(programs: Programs, config: str, says: str) -> None:
    one = worker(programs, free_cluster(), str(programs.file(LINE, "line.py")), TF_CONFIG=config)
    assert one.wait(LONG_S) == 2
    assert says in one.stderr


@pytest.mark.usefixtures("without_tensorflow")
def test_a_ps_that_is_not_up_is_named_with_its_address(programs: Programs) -> None:
    cluster = free_cluster()
    one = worker(programs, cluster, str(programs.file(LINE, "line.py")), "--connect-timeout", "0.5")
    assert one.wait(LONG_S) == 4
    assert f"PeerUnavailable: ps 0 ({cluster['ps'][0]})" in one.stderr


@pytest.mark.usefixtures("without_tensorflow")
def test_functions_that_are_missing_are_named(programs: Programs) -> None:
    cluster = free_cluster()
    programs.servers(cluster)
    one = worker(programs, cluster, str(programs.file("def build_model(): pass", "half.py")))
    assert one.wait(LONG_S) == 2
    assert (
        "half.py: invalid input: got no make_dataset(worker_index, num_workers) and no loss(labels, outputs)"
        in one.stderr
    )


def test_an_error_in_the_file_shows_its_traceback_and_the_ps_is_told(programs: Programs) -> None:
    cluster = free_cluster()
    (server,) = programs.servers(cluster)
    broken = LINE.replace("(outputs[:, 0] - labels) ** 2", "outputs[:, 0] / (1 // 0)")
    one = worker(programs, cluster, str(programs.file(broken, "broken.py")))
    assert one.wait(LONG_S) == 1
    assert 'broken.py", line 12' in one.stderr
    assert "ZeroDivisionError" in one.stderr
    assert server.wait() == 0
    server.expect("ZeroDivisionError")


def test_the_rule_of_the_file_is_a_default_that_the_ps_may_be_told_otherwise(programs: Programs) -> None:
    cluster = free_cluster()
    programs.servers(cluster, "--rule", "adam")
    one = worker(programs, cluster, str(programs.file(LINE, "line.py")))
    assert one.wait(LONG_S) == 0, one.stderr
    assert "rule adam:learning_rate=0.001" in one.stdout


def test_a_rule_by_flag_other_than_that_of_the_ps_is_refused_with_both(programs: Programs) -> None:
    cluster = free_cluster()
    programs.servers(cluster, "--rule", "adam")
    one = worker(programs, cluster, str(programs.file(LINE, "line.py")), "--rule", "sgd:learning_rate=0.1")
    assert one.wait(LONG_S) == 2
    assert "ConfigurationConflict" in one.stderr
    assert "sgd:learning_rate=0.1" in one.stderr
    assert "adam:learning_rate=0.001" in one.stderr
