"""How does what the ps say of themselves become one status of the job, for people and for machines?

Plain dicts of numbers and text, so that `--json` and a notebook show them as they are. Next: client/ctl_command.py (prints it).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from client.transport import Peer
from client.watchdog import Watchdog
from protos import parameter_server_pb2 as pb
from protos.errors import ParameterServerError

# step, mode, rule, slack, backup_workers, run_id, and "ps": a list with one entry per ps.
Status = dict[str, Any]


Answer = tuple[Peer, pb.StatusReply]


def ask(address: str, timeout_s: float) -> Answer:
    """The status of one ps, without being a client of it. A refused connection is an answer: nothing is tried twice."""
    peer = Peer(0, address, Watchdog(), timeout_s)
    try:
        reply: pb.StatusReply = peer.call("Status", pb.StatusRequest(), timeout_s)
    except ParameterServerError as error:
        peer.close()
        error.ps = None  # which one it is, is what we wanted to know
        raise
    peer.index = reply.ps_index
    return peer, reply


def ps_status(peer: Peer, reply: pb.StatusReply) -> dict[str, Any]:
    """One ps: where it is, what it holds, who works with it, what it has counted."""
    counters = {field.name: getattr(reply.counters, field.name) for field in reply.counters.DESCRIPTOR.fields}
    return {
        "index": reply.ps_index,
        "address": peer.address,
        "pid": reply.pid,
        "uptime_s": round(reply.uptime_s, 3),
        "run_id": reply.run_id,
        "protocol_version": reply.protocol_version,
        "initialized": reply.initialized,
        "mode": reply.configuration.mode,
        "slack": reply.configuration.slack if reply.configuration.HasField("slack") else None,
        "backup_workers": reply.configuration.backup_workers
        if reply.configuration.HasField("backup_workers")
        else None,
        "rule": reply.configuration.rule,
        "guard_nonfinite": reply.guard_nonfinite,
        "version": reply.version,
        "learning_rate": reply.learning_rate,
        "partitions": reply.partitions,
        "value_bytes": reply.value_bytes,
        "slot_bytes": reply.slot_bytes,
        "bytes": reply.value_bytes + reply.slot_bytes,
        "counters": counters,
        "workers": [
            {
                "worker": worker.worker,
                "state": worker.state,
                "generation": worker.generation,
                "clock": worker.clock,
                "origin": worker.origin,
                "waiting_for": worker.waiting_for,
                "transport": "shared memory" if worker.shared_memory else "connection",
            }
            for worker in reply.workers
        ],
        "ps_addresses": list(reply.ps_addresses),
    }


def job_status(replies: Sequence[tuple[Peer, pb.StatusReply]]) -> Status:
    """All ps together. step and version as in a pull; mode, rule and workers as ps 0 has them."""
    each = [ps_status(peer, reply) for peer, reply in replies]
    first = each[0]
    shared = ("run_id", "mode", "slack", "backup_workers", "rule", "guard_nonfinite", "workers")
    return {
        "step": min(entry["version"] for entry in each),
        "version": [entry["version"] for entry in each],
        "bytes": sum(entry["bytes"] for entry in each),
        **{key: first[key] for key in shared},
        "ps": each,
    }
