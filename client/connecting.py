"""Where does a client come from? A cluster description, or TF_CONFIG, and this process's place in it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from client.arguments import flag
from client.client import Client
from client.session import Who
from client.settings import resolve
from protos.cluster import Cluster, Task, parse_cluster, parse_task, parse_tf_config
from protos.errors import ClusterError


def connect(
    cluster: Mapping[str, Any] | None = None,
    worker: int | None = None,
    *,
    observer: bool = False,
    run_id: str | None = None,
    connect_timeout_s: float | None = None,
    wait_timeout_s: float | None = None,
    retry_budget_s: float | None = None,
    shared_memory: bool | None = None,
    compression: str | None = None,
) -> Client:
    """Join every ps of a cluster and return a Client.

    cluster: as in TF_CONFIG, with or without its "task"; None to read TF_CONFIG. worker: index among the workers, the chief
    first; by default the task's. observer: read only, counted nowhere (an evaluator task is one by itself).
    Waits up to connect_timeout_s (60) for each ps. Raises InvalidInput, ClusterError, PeerUnavailable, WrongRun,
    WorkerIndexTaken, ProtocolMismatch. compression: float16, bfloat16, int8, sign, top_k or top_k:RATIO makes gradients
    smaller for the way, and keeps what is lost for the next; none by default. The other settings: client/settings.py.
    """
    flag("observer", observer)
    settings = resolve(
        run_id=run_id,
        connect_timeout_s=connect_timeout_s,
        wait_timeout_s=wait_timeout_s,
        retry_budget_s=retry_budget_s,
        shared_memory=shared_memory,
        compression=compression,
    )
    task: Task | None = None
    if cluster is None:
        description, task = parse_tf_config(os.environ.get("TF_CONFIG"))
    else:
        description = parse_cluster(cluster)
        if "task" in cluster:
            task = parse_task(description, cluster["task"])
    return Client(Who(description, _place(description, task, worker, observer)), settings)


def _place(cluster: Cluster, task: Task | None, worker: int | None, observer: bool) -> int | None:
    """The worker index of this process, or None for an observer."""
    if observer or (worker is None and task is not None and task.type == "evaluator"):
        return None
    if worker is None and task is not None:
        if task.type == "ps":
            raise ClusterError(
                field="task.type",
                got="'ps'",
                expected="'worker', 'chief' or 'evaluator'",
                hint="A ps is ps-server's to run.",
            )
        worker = cluster.worker_index(task)
    count = cluster.num_workers
    if worker is None or isinstance(worker, bool) or not isinstance(worker, int) or not 0 <= worker < count:
        expected = f"0 to {count - 1}, as the cluster has {count} workers" if count else "a cluster with workers"
        raise ClusterError(field="worker", got=repr(worker), expected=expected)
    return worker
