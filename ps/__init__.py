"""The parameter server: daemons that hold variables and apply update rules to them. Start reading at shard.py.

Core (numpy only, no threads, no clock, no grpc): rules/, variable, apply, tracing, fused, aggregation, consistency, membership,
story, configuration. Shell (threads, sockets, disk): shard, threads, initialization, intake, servicer, server, local, command,
__main__.
Laboratory (virtual workers and time on the same core): simulation/, simulate.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing itself takes a while to load
if TYPE_CHECKING:
    from typing import Any

    from ps.local import LocalCluster

__all__ = ["LocalCluster"]


def __getattr__(name: str) -> Any:
    """Loaded at first use, so that a program can start before anything heavy is there."""
    if name != "LocalCluster":
        raise AttributeError(f"module 'ps' has no attribute {name!r}")
    from ps.local import LocalCluster

    return LocalCluster
