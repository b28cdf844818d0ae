"""Who may import whom? protos ← client ← worker, protos ← ps; the core knows no grpc, no threads and no time. (claim 10)"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.repo.sources import PACKAGES, ROOT, imports, name, python_files, tree

# What each package may import of ours.
ALLOWED = {
    "protos": {"protos"},
    "ps": {"protos", "ps"},
    "client": {"protos", "client"},
    "worker": {"protos", "client", "worker"},
}
# The pure part of ps: state machines and maths. Time and chance come in as arguments.
CORE = [
    *python_files("ps/rules"),
    *(
        ROOT / "ps" / f"{module}.py"
        for module in (
            "variable",
            "apply",
            "tracing",
            "fused",
            "aggregation",
            "consistency",
            "membership",
            "story",
            "configuration",
        )
    ),
]
NOT_IN_THE_CORE = {"grpc", "grpc_health", "google", "threading", "asyncio", "concurrent", "multiprocessing"}
NOT_IN_THE_CORE |= {"time", "datetime", "random", "secrets", "socket", "subprocess", "signal"}
# Nothing that is executed when it is read, anywhere. (claim 9)
EXECUTABLE = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}


def test_a_package_imports_only_what_it_may() -> None:
    wrong = []
    for path in python_files(*PACKAGES):
        package = path.relative_to(ROOT).parts[0]
        forbidden = set(PACKAGES) - ALLOWED[package] | EXECUTABLE | {"tests", "examples", "benchmarks"}
        forbidden |= set() if package == "worker" else {"tensorflow", "keras"}
        wrong += breaches(path, forbidden)
    assert wrong == []


def test_the_core_knows_no_grpc_no_threads_no_time_and_no_shell() -> None:
    shell = {
        f"ps.{module}" for module in ("shard", "servicer", "server", "local", "initialization", "intake", "waiting")
    }
    wrong = [breach for path in CORE for breach in breaches(path, NOT_IN_THE_CORE | shell)]
    assert wrong == []
    messages = [name(path) for path in CORE for module in imports(path) if "parameter_server_pb2" in module]
    assert messages == [], "messages are for the shell"


def breaches(path: Path, forbidden: set[str]) -> list[str]:
    """Imports of a file that begin with one of these names."""
    return [
        f"{name(path)}:{line} imports {module}"
        for module, line in imports(path).items()
        if any(f"{module}.".startswith(f"{each}.") for each in forbidden)
    ]


def test_the_docstring_of_ps_names_all_of_its_core() -> None:
    import ps

    (_, text) = (ps.__doc__ or "").split("Core (", 1)
    core = text.partition("Shell (")[0]
    for path in CORE:
        assert ("rules/" if path.parent.name == "rules" else path.stem) in core


def test_nothing_evaluates_text() -> None:
    # claim 9: a worker runs its user's model file; what comes over the wire or from disk is never run by anybody.
    calls = [
        f"{name(path)}:{node.lineno} calls {node.func.id}"
        for path in python_files("protos", "ps", "client")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        if node.func.id in ("eval", "exec", "compile", "__import__")
    ]
    assert calls == []


def fresh_interpreter(program: str) -> str:
    """What a new process prints. One thread for maths is enough, and nothing of this process is inherited."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment, timeout=120
    )
    return run.stdout.strip()


SHOW = "import sys; print(*sorted({name.partition('.')[0] for name in sys.modules}))"


@pytest.mark.parametrize(
    ("program", "absent"),
    [
        # Before they can be interrupted in order, the programs load next to nothing.
        (
            "import client.run, client.ctl, ps.__main__, worker.__main__",
            ["numpy", "grpc", "google", "click", "rich", "asyncio", "logging", "json", "socket"],
        ),
        ("import ps.command, ps.local", ["tensorflow", "keras", "client", "worker", "jax", "torch"]),
        ("import client; client.connect", ["tensorflow", "keras", "ps", "worker", "rich", "click"]),
        ("import client.run_command, client.ctl_command", ["tensorflow", "keras", "worker"]),
        (
            "import ps.simulate, ps.simulation.plot",
            ["tensorflow", "keras", "client", "worker", "matplotlib", "sklearn"],
        ),
    ],
)
def test_a_fresh_interpreter_loads_no_more_than_it_needs(program: str, absent: list[str]) -> None:
    # claim 10: a ps host has no TensorFlow, and starts in about a second because it loads none.
    loaded = fresh_interpreter(f"{program}; {SHOW}").split()
    assert [module for module in absent if module in loaded] == []


def test_a_ps_works_where_there_is_no_tensorflow() -> None:
    # claim 10: not even behind a try.
    said = fresh_interpreter(
        "import sys; sys.modules['tensorflow'] = sys.modules['keras'] = None\n"
        "import ps.command, ps.local, client\n"
        "from ps.rules import registered; print(*registered())"
    )
    assert {"adam", "momentum", "sgd"} <= set(said.split())
