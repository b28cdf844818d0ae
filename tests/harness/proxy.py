"""What does a network do to a connection? A TCP proxy that a test can make cut, hold and refuse.

It stands between a client and one ps and forwards bytes. `up` is from client to ps, `down` from ps to client. It knows
nothing of grpc. Used by tests/wire/test_exactly_once.py and its neighbours.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from types import TracebackType

CHUNK_BYTES = 1 << 16


class Proxy:
    """A proxy in front of `target` ("host:port"), listening at `address` while in the block.

    `connections` counts those that were ever accepted; `forwarded` the bytes passed on, by direction.
    """

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = host, int(port)
        self.connections = 0
        self.forwarded = {"up": 0, "down": 0}
        self._changed = threading.Condition()  # guards all fields below and the counts above
        self._held: set[str] = set()
        self._cut_at: dict[str, int] = {}
        self._hold_at: dict[str, tuple[int, str]] = {}
        self._refusing = False
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Proxy:
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.resume()
        self.cut()

    # -- what a test says --------------------------------------------------------------------------------------------

    def cut(self) -> None:
        """Break every connection now, with a reset; what was held is lost."""
        with self._changed:
            broken, self._open = self._open, []
        for end in broken:
            _reset(end)

    def cut_after(self, direction: str, more_bytes: int) -> None:
        """Break every connection once, when this many more bytes have gone in this direction."""
        with self._changed:
            self._cut_at[direction] = self.forwarded[direction] + more_bytes

    def hold(self, *directions: str) -> None:
        """Forward nothing in these directions until resume(); connections stay open, and new ones are accepted."""
        with self._changed:
            self._held |= set(directions or ("up", "down"))

    def hold_after(self, direction: str, more_bytes: int, held: str) -> None:
        """hold(held), once this many more bytes have gone in `direction`."""
        with self._changed:
            self._hold_at[direction] = (self.forwarded[direction] + more_bytes, held)

    def refuse(self) -> None:
        """Break every connection, and each new one at once, until resume(): the ps cannot be reached."""
        with self._changed:
            self._refusing = True
        self.cut()

    def resume(self) -> None:
        """Forward again."""
        with self._changed:
            self._held.clear()
            self._refusing = False
            self._changed.notify_all()

    def wait_until_cut(self, direction: str, timeout_s: float = 30.0) -> None:
        """Wait until a cut that was asked for has happened."""
        with self._changed:
            assert self._changed.wait_for(lambda: direction not in self._cut_at, timeout_s), "nothing was cut"

    # -- threads -----------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return  # closed: the block has ended
            try:
                far = socket.create_connection(self._target)
            except OSError:
                _reset(near)
                continue
            with self._changed:
                self.connections += 1
                if not self._refusing:
                    self._open += [near, far]
                    near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    for source, sink, direction in ((near, far, "up"), (far, near, "down")):
                        threading.Thread(target=self._pump, args=(source, sink, direction), daemon=True).start()
                    continue
            _reset(near)
            _reset(far)

    def _pump(self, source: socket.socket, sink: socket.socket, direction: str) -> None:
        while True:
            try:
                data = source.recv(CHUNK_BYTES)
            except OSError:
                data = b""
            cut = False
            with self._changed:
                self._changed.wait_for(lambda: direction not in self._held)
                at = self._cut_at.get(direction)
                if at is not None and self.forwarded[direction] + len(data) >= at:
                    data, cut = data[: at - self.forwarded[direction]], True
                self.forwarded[direction] += len(data)
                hold_at, held = self._hold_at.get(direction, (None, ""))
                if hold_at is not None and self.forwarded[direction] >= hold_at:
                    self._held.add(held)
                    del self._hold_at[direction]
            try:
                sink.sendall(data)
                if not data and not cut:
                    sink.shutdown(socket.SHUT_WR)
            except OSError:
                data = b""
            if cut:
                self.cut()
                with self._changed:
                    self._cut_at.pop(direction, None)
                    self._changed.notify_all()
                return
            if not data:
                return


def _reset(end: socket.socket) -> None:
    """Close at once, so that the other side sees a reset and no clean end."""
    with contextlib.suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RD)  # wakes the thread that receives from it
    with contextlib.suppress(OSError):
        end.close()
