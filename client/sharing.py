"""Which part of the traffic of one stream goes through shared memory? The client's side: offer, fill, read.

A stream offers memory for one push and one reply with an operation, and uses it from the next one on, if the ps has taken it.
What does not fit goes through the connection, so that no model needs a setting. Next: protos/segment.py (the memory itself),
client/exchange.py (who asks), ps/exchange.py (the other side).
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

from protos import parameter_server_pb2 as pb
from protos import segment as shared
from protos.errors import InternalError
from protos.segment import START, Region, Segment, placed
from protos.wire import Block

# What one stream takes at most for a push, and again for a reply. A thread that trains has one stream to each ps.
MOST_BYTES = 256 << 20
# Below this, memory of its own is not worth the offer.
LEAST_BYTES = 4 << 10


class Sharing:
    """The shared memory of one stream: none, offered, or in use."""

    def __init__(self) -> None:
        self._segment: Segment | None = None
        self._fd = -1
        self._fd_lock = threading.Lock()
        self._region_bytes = 0
        self.in_use = False

    def offer(self, shard_bytes: int) -> pb.Segment | None:
        """Memory for a shard of this size, to be offered with the next operation; None if it is not to be, or cannot."""
        if self._segment is not None or shard_bytes < LEAST_BYTES or not shared.SUPPORTED:
            return None
        self._region_bytes = min(shard_bytes, MOST_BYTES)
        with contextlib.suppress(OSError):  # no more descriptors, say: then everything goes through the connection
            self._segment, address, self._fd = Segment.create(2 * self._region_bytes)
            return pb.Segment(
                pid=address.pid, fd=address.fd, nbytes=address.nbytes, nonce=address.nonce, host=address.host
            )
        return None

    @property
    def offered(self) -> bool:
        """Whether the ps has still to say whether it takes it."""
        return self._fd >= 0

    def answered(self, mapped: bool) -> None:
        """The ps has said so."""
        self._close_fd()
        self.in_use = mapped
        if not mapped:
            self._segment = None

    def refused(self) -> None:
        """The operation was refused, which says nothing about the offer that came with it: the next one makes another."""
        if self.offered:
            self.answered(False)

    def close(self) -> None:
        """Let go of it. Called from any thread: a stream may be closed while its answer arrives."""
        self._close_fd()
        self._segment, self.in_use = None, False

    def _close_fd(self) -> None:
        with self._fd_lock:  # closed twice, it might be somebody else's by then
            fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def filled(self, blocks: Iterator[Block]) -> Iterator[Block]:
        """The blocks of a push, with as much of their data in shared memory as fits."""
        if self._segment is None or not self.in_use:
            return blocks
        return placed(blocks, Region(self._segment, START, self._region_bytes))

    def reply_place(self) -> tuple[int, int]:
        """Where in it the values of a reply may go: offset and bytes."""
        return (START + self._region_bytes, self._region_bytes) if self.in_use else (0, 0)

    def fetched(self, block: Block) -> Block:
        """A block of a reply, with its data."""
        if not block.shared_bytes:
            return block
        if self._segment is None:
            raise InternalError(field="shared memory", got="a reply in it", expected="a stream that has some")
        return block._replace(data=self._segment.at(block.shared_offset, block.shared_bytes))
