"""Which process is this client, and what does it hold open? Joining every ps, and starting anew in a forked child.

A grpc channel does not survive a fork, and neither do locks that another thread held. So everything that belongs to one
process lives in a Session, and the child makes its own at first use: a session of the same worker, with its own sequence.

Next: client/transport.py (one ps), client/client.py (what is done with all of them).
"""

from __future__ import annotations

import itertools
import os
import secrets
import socket
import threading
from dataclasses import dataclass

from client.settings import Settings
from client.transport import Identity, Peer, Watchdog
from protos import parameter_server_pb2 as pb
from protos.cluster import Cluster
from protos.codec import PROTOCOL_VERSION


@dataclass(frozen=True)
class Who:
    """Whose client this is: worker index, or None for an observer."""

    cluster: Cluster
    worker: int | None


class Session:
    """The open connections of one client in one process.

    sequences: numbers of this session's pushes, from 1. `versions_lock` guards `Client._versions` and nothing else.
    """

    def __init__(self, who: Who, settings: Settings, parent: Session | None = None) -> None:
        self.pid = os.getpid()
        self.id = secrets.token_hex(16)
        self.sequences = itertools.count(1)
        self.versions_lock = threading.Lock()
        self.left = False
        self._parent_id = parent.id if parent is not None else ""
        self._run_id: str = parent._run_id if parent is not None else settings.run_id
        self._identity = Identity(
            session=self.id,
            role=pb.ROLE_OBSERVER if who.worker is None else pb.ROLE_WORKER,
            worker=who.worker or 0,
            num_ps=len(who.cluster.ps),
            num_workers=who.cluster.num_workers,
            origin=f"{socket.gethostname()}, pid {self.pid}",
            protocol_version=PROTOCOL_VERSION,
            parent_session=self._parent_id,
        )
        self.watchdog = Watchdog()
        self.peers = [
            Peer(index, address, self.watchdog, settings.connect_timeout_s)
            for index, address in enumerate(who.cluster.ps)
        ]

    def join(self) -> None:
        """Join every ps, ps 0 first: whose run it is, is what ps 0 says."""
        for peer in self.peers:
            self.rejoin(peer)

    def rejoin(self, peer: Peer) -> pb.JoinReply:
        """Join one ps, or find that the session there is alive."""
        reply = peer.join(self._identity, self._run_id)
        self._run_id = self._run_id or reply.run_id
        return reply

    @property
    def guard_nonfinite(self) -> bool:
        """Whether any ps refuses NaN and Inf: then the client refuses them before anything is sent."""
        return any(peer.reply.guard_nonfinite for peer in self.peers)

    @property
    def generation(self) -> int:
        return self.peers[0].reply.generation

    def close(self) -> None:
        """End all connections."""
        self.watchdog.close()
        for peer in self.peers:
            peer.close()
