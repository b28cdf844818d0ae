"""Which processes make up the job, and which of them am I? TF_CONFIG, read and checked.

    {"cluster": {"ps": ["h:p", …], "worker": ["h:p", …], "chief": ["h:p"], "evaluator": ["h:p"]},
     "task": {"type": "ps" | "worker" | "chief" | "evaluator", "index": 0}}

A chief is worker 0, and the workers come after it. Everything wrong here is a ClusterError that names the field.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from protos.errors import ClusterError

TASK_TYPES = ("chief", "worker", "ps", "evaluator")
EXAMPLE = (
    '{"cluster": {"ps": ["127.0.0.1:2222"], "worker": ["127.0.0.1:2223"]}, "task": {"type": "worker", "index": 0}}'
)


@dataclass(frozen=True)
class Cluster:
    """Addresses (host:port) by kind of task."""

    ps: tuple[str, ...]
    worker: tuple[str, ...] = ()
    chief: tuple[str, ...] = ()
    evaluator: tuple[str, ...] = ()

    @property
    def num_workers(self) -> int:
        return len(self.chief) + len(self.worker)

    def worker_index(self, task: Task) -> int:
        """The index among all workers, the chief first."""
        return task.index + (len(self.chief) if task.type == "worker" else 0)

    def to_dict(self) -> dict[str, list[str]]:
        """As under "cluster" in TF_CONFIG."""
        kinds = {kind: list(getattr(self, kind)) for kind in ("chief", "worker", "ps", "evaluator")}
        return {kind: addresses for kind, addresses in kinds.items() if addresses}


@dataclass(frozen=True)
class Task:
    """One process of the cluster."""

    type: str
    index: int


def parse_cluster(description: Mapping[str, Any]) -> Cluster:
    """The cluster of a dict, which may be a whole TF_CONFIG or what stands under its "cluster"."""
    if not isinstance(description, Mapping):
        raise ClusterError(field="cluster", got=repr(description), expected="a mapping", hint=f"Such as {EXAMPLE}.")
    inner = description.get("cluster", description)
    if not isinstance(inner, Mapping):
        raise ClusterError(field="cluster", got=repr(inner), expected='a mapping such as {"ps": […], "worker": […]}')
    for kind in inner:
        if kind not in TASK_TYPES:
            raise ClusterError(field="cluster", got=f"unknown task type {kind!r}", expected=", ".join(TASK_TYPES))
    addresses = {kind: _addresses(kind, inner.get(kind, ())) for kind in TASK_TYPES}
    if not addresses["ps"]:
        raise ClusterError(
            field="cluster.ps", got="no ps", expected="the address of at least one", hint=f"Such as {EXAMPLE}."
        )
    if len(addresses["chief"]) > 1:
        raise ClusterError(field="cluster.chief", got=f"{len(addresses['chief'])} chiefs", expected="one at most")
    seen: dict[str, str] = {}
    for kind, listed in addresses.items():
        for index, address in enumerate(listed):
            if address in seen:
                raise ClusterError(
                    field=f"cluster.{kind}[{index}]",
                    got=f"{address}, which is {seen[address]} too",
                    expected="each address once",
                )
            seen[address] = f"{kind}[{index}]"
    return Cluster(**addresses)


def _addresses(kind: str, listed: Any) -> tuple[str, ...]:
    if isinstance(listed, str) or not isinstance(listed, (list, tuple)):
        raise ClusterError(field=f"cluster.{kind}", got=repr(listed), expected='a list of "host:port"')
    return tuple(check_address(f"cluster.{kind}[{index}]", address) for index, address in enumerate(listed))


def check_address(field: str, address: Any, lowest_port: int = 1) -> str:
    """The address, if it is host:port ([host]:port for IPv6)."""
    host, _, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
    bare_ipv6 = ":" in host and not (host.startswith("[") and host.endswith("]"))
    if (
        not host
        or bare_ipv6
        or not re.fullmatch(r"[0-9]{1,5}", port)
        or not host.isprintable()
        or not lowest_port <= int(port) <= 65535
    ):
        raise ClusterError(
            field=field, got=repr(address), expected=f'"host:port" with a port from {lowest_port} to 65535'
        )
    return str(address)


def parse_task(cluster: Cluster, task: Any) -> Task:
    """The "task" of a TF_CONFIG, checked against its cluster."""
    if not isinstance(task, Mapping) or "type" not in task:
        raise ClusterError(field="task", got=repr(task), expected='{"type": …, "index": …}', hint=f"Such as {EXAMPLE}.")
    kind = task["type"]
    if kind not in TASK_TYPES:
        raise ClusterError(field="task.type", got=repr(kind), expected=", ".join(TASK_TYPES))
    number = task.get("index", 0)
    if isinstance(number, bool) or not isinstance(number, (int, str)) or not re.fullmatch(r"-?\d{1,9}", str(number)):
        raise ClusterError(field="task.index", got=repr(number), expected="an integer")
    index = int(number)
    count = len(getattr(cluster, kind))
    if kind == "evaluator":
        count = max(count, 1)  # TensorFlow lets an evaluator be outside the cluster
    if not 0 <= index < count:
        expected = f"0 to {count - 1}, as cluster.{kind} has {count}" if count else f"a cluster with a {kind}"
        raise ClusterError(field="task.index", got=f"{kind} {index}", expected=expected)
    return Task(kind, index)


def parse_tf_config(text: str | None) -> tuple[Cluster, Task]:
    """Cluster and task of the text of TF_CONFIG; None or "" means that it is not set."""
    if not text or not text.strip():
        raise ClusterError(
            field="TF_CONFIG",
            got="nothing",
            expected="a cluster description",
            hint=f"Set TF_CONFIG='{EXAMPLE}', or use ps-run.",
        )
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ClusterError(field="TF_CONFIG", got=f"{text[:80]!r} ({error})", expected="JSON") from None
    if not isinstance(config, dict) or "cluster" not in config:
        raise ClusterError(
            field="TF_CONFIG", got=text[:80], expected='"cluster" and "task"', hint=f"Such as {EXAMPLE}."
        )
    cluster = parse_cluster(config)
    return cluster, parse_task(cluster, config.get("task"))
