"""The parameter server: daemons that hold variables and apply update rules to them. Start reading at shard.py.

Core (numpy only, no threads, no clock, no grpc): rules/, variable, apply, aggregation, consistency, membership, story,
configuration. Shell (threads, sockets, disk): shard, initialization, intake, servicer, server, local, __main__.
"""

from ps.local import LocalCluster

__all__ = ["LocalCluster"]
