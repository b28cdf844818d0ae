"""Which addresses do the tasks of a job on this machine get?

Free loopback ports below the ephemeral range: the kernel hands out ports of that range to outgoing connections, so
one that is free there now may be taken the moment after. This file must not know about processes. Read next:
`run_job.py`, which asks again when a ps finds its port taken after all.
"""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

_HOST = "127.0.0.1"
_FIRST_PORT = 10_000
_EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_USUAL_EPHEMERAL_START = 32_768


def _port_range() -> range:
    try:
        start = int(_EPHEMERAL_RANGE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        start = _USUAL_EPHEMERAL_START
    # A host that gave nearly all ports to the ephemeral range leaves no room below it: then the usual range is as
    # good as any.
    return range(_FIRST_PORT, start if start > _FIRST_PORT + 1_000 else _USUAL_EPHEMERAL_START)


def choose_addresses(count: int) -> list[str]:
    """Returns `count` distinct `host:port` addresses, free at this moment.

    Raises:
        OSError: fewer than `count` ports of the range are free.
    """
    held: list[socket.socket] = []
    candidates = _port_range()
    try:
        for port in random.sample(candidates, len(candidates)):
            if len(held) == count:
                break
            # Without SO_REUSEADDR and SO_REUSEPORT: with them the bind would succeed beside another listener.
            probe = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            try:
                probe.bind((_HOST, port))
            except OSError:
                probe.close()
            else:
                held.append(probe)
        if len(held) < count:
            where = f"{candidates[0]}-{candidates[-1]} of {_HOST}"
            raise OSError(f"got {len(held)} free ports in {where}, expected {count}")
        return [f"{_HOST}:{probe.getsockname()[1]}" for probe in held]
    finally:
        for probe in held:  # all were held until now: that is what makes them distinct
            probe.close()


def tf_config(cluster: Mapping[str, Sequence[str]], task_type: str, index: int) -> str:
    """Returns the value of TF_CONFIG for one task."""
    return json.dumps({"cluster": cluster, "task": {"type": task_type, "index": index}})
