"""Which process is this client, and what does it hold open? Joining every ps, and starting anew in a forked child.

A grpc channel does not survive a fork, and neither do locks that another thread held (client/fork.py). So everything that
belongs to one process lives in a Session, and a child makes its own at first use: of the same worker, with its own sequence.

Next: client/transport.py (one ps), client/client.py (what is done with all of them).
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import secrets
import socket
import threading
import time
from dataclasses import dataclass, replace
from typing import Any

from client import at_exit, compression
from client.compression import Compressor
from client.fork import Gate, register
from client.retry import Retry
from client.settings import Settings
from client.transport import Identity, Peer
from client.watchdog import Watchdog
from protos import parameter_server_pb2 as pb
from protos.cluster import Cluster
from protos.codec import PROTOCOL_VERSION
from protos.errors import InvalidInput, ParameterServerError, PeerUnavailable

log = logging.getLogger("paramserver.client")

# How long one attempt in the background may take: a call that finds the connection broken waits for it to end.
REJOIN_S = 1.0

_rng = random.Random()  # one for all: seeding is slow


@dataclass(frozen=True)
class Who:
    """Whose client this is: worker index, or None for an observer."""

    cluster: Cluster
    worker: int | None


class Session:
    """The open connections of one client in one process.

    `versions_lock` guards `Client._versions`, `_sequence_lock` guards `_newest_sequence`; nothing is called under either.
    `init_lock` is held while this client initialises the model: a ps would take a second thread for a second attempt.
    """

    def __init__(self, who: Who, settings: Settings, parent: Session | None = None) -> None:
        self.pid = os.getpid()
        self.id = secrets.token_hex(16)
        self.init_lock = threading.Lock()
        self.versions_lock = threading.Lock()
        self._sequence_lock = threading.Lock()
        self._newest_sequence = 0
        self.left = False
        # Of this process: what a parent has not sent yet is the parent's to send.
        self.compressor = Compressor(compression.parse(settings.compression))
        self._retry = Retry(budget_s=settings.retry_budget_s)
        self._wait_timeout_s = settings.wait_timeout_s
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
        self._connect_timeout_s = settings.connect_timeout_s
        self.watchdog = Watchdog()
        self.gate = Gate(self._suspend, self._resume)
        self.peers = [
            Peer(index, address, self.watchdog, settings.connect_timeout_s, self.gate, self._join_again_soon)
            for index, address in enumerate(who.cluster.ps)
        ]

    def join(self) -> None:
        """Join every ps, ps 0 first: whose run it is, is what ps 0 says."""
        for peer in self.peers:
            self.rejoin(peer)
        register(self.gate)
        if self._identity.role == pb.ROLE_WORKER and not self._parent_id:
            at_exit.register(self)

    def rejoin(self, peer: Peer, within_s: float | None = None) -> pb.JoinReply:
        """Join one ps, or find that the session there is alive. within_s: by default, as long as a connection may take."""
        reply = peer.join(self._identity, self._run_id, within_s)
        self._run_id = self._run_id or reply.run_id
        return reply

    def call(
        self, peer: Peer, name: str, request: Any, timeout_s: float | None = None, budget_s: float | None = None
    ) -> Any:
        """A unary call, tried again where the connection breaks: every one of them may be made twice."""
        retry = self._retry if budget_s is None else replace(self._retry, budget_s=min(budget_s, self._retry.budget_s))
        delays = retry.delays(_rng)
        gives_up_s = 0.0
        while True:
            try:
                return peer.call(name, request, timeout_s or self._wait_timeout_s)
            except PeerUnavailable as broken:
                gives_up_s = gives_up_s or time.monotonic() + retry.budget_s
                delay_s = next(delays, None)
                if delay_s is None or time.monotonic() + delay_s >= gives_up_s:
                    broken.hint = f"Gave up after trying again for {retry.budget_s:g} s."
                    raise
                time.sleep(delay_s)
                with contextlib.suppress(PeerUnavailable):  # the next round sees the same, until the budget is spent
                    self.rejoin(peer, gives_up_s - time.monotonic())

    def sequence(self, again: int | None = None) -> int:
        """The number of the next push, from 1; or `again`, if that is the number of one before."""
        with self._sequence_lock:
            if again is None:
                self._newest_sequence += 1
                return self._newest_sequence
            newest = self._newest_sequence
        if isinstance(again, bool) or not isinstance(again, int) or not 1 <= again <= newest:
            raise InvalidInput(
                field="sequence",
                got=repr(again),
                expected=f"that of a push of this client that failed, from 1 to {newest}",
                hint="Leave it out for a new push.",
            )
        return again

    @property
    def guard_nonfinite(self) -> bool:
        """Whether any ps refuses NaN and Inf: then the client refuses them before anything is sent."""
        return any(peer.reply.guard_nonfinite for peer in self.peers)

    @property
    def generation(self) -> int:
        return self.peers[0].reply.generation

    def say_goodbye(self, reason: str, gives_up_s: float) -> None:
        """Leave at the end of the process: nothing is tried twice, and who is not connected is not told."""
        self.left = True
        request = pb.LeaveRequest(session=self.id, reason=reason)
        for peer in self.peers:
            if peer.joined and (left_s := gives_up_s - time.monotonic()) > 0:
                peer.call("Leave", request, left_s)

    def _suspend(self) -> None:
        """The process forks: hold no grpc object."""
        for peer in self.peers:
            peer.close()

    def _resume(self) -> None:
        """The fork is over."""
        self._join_again_soon(*self.peers)

    def _join_again_soon(self, *peers: Peer) -> None:
        """The connection was given up, or broke: join again, also if no call comes for long, or the lease would end."""
        if not self.left:
            with contextlib.suppress(RuntimeError):  # the interpreter is ending, and starts no thread any more
                threading.Thread(target=self._join_again, args=peers, name="paramserver-rejoin", daemon=True).start()

    def _join_again(self, *peers: Peer) -> None:
        gives_up_s = time.monotonic() + self._connect_timeout_s
        for peer in peers:
            while not self.left:
                try:
                    self.rejoin(peer, REJOIN_S)
                    break
                except ParameterServerError as error:
                    if not isinstance(error, PeerUnavailable) or time.monotonic() > gives_up_s:
                        log.info("joining again: %s; the next call will see", error)
                        break

    def close(self) -> None:
        """End all connections."""
        at_exit.unregister(self)
        self.watchdog.close()
        for peer in self.peers:
            peer.close()
