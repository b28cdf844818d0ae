"""Shared memory between a client and a ps on the same host: who makes it, who opens it, and how is that safe?

The client makes a file that lives in memory and has no name (memfd_create), sealed so that nobody can shrink it under the
other; the ps opens it through /proc/PID/fd/FD, which the kernel lets only the same user do. Nothing is left behind whoever is
killed: the memory goes with the last process that holds it. A ps on another host, in another container or of another user
cannot open it, says so, and everything goes through the connection.

It must not know what is in it. Next: client/transport.py (offers it), ps/exchange.py (takes it).
"""

from __future__ import annotations

import fcntl
import functools
import mmap
import os
import secrets
import stat
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from protos.copying import Bytes, copy_all
from protos.errors import InvalidInput
from protos.wire import Block

NONCE_BYTES = 16
# Payload begins here: on a page of its own, so aligned for every dtype.
START = mmap.PAGESIZE
# Of <fcntl.h> on Linux; Python's fcntl has them from 3.11 on in all builds.
_F_ADD_SEALS, _F_GET_SEALS, _SEAL_SEAL, _SEAL_SHRINK, _SEAL_GROW = 1033, 1034, 1, 2, 4
_SEALS = _SEAL_SEAL | _SEAL_SHRINK | _SEAL_GROW
# What every payload is aligned to: the vectors of a processor.
ALIGNMENT = 64

SUPPORTED = sys.platform == "linux" and hasattr(os, "memfd_create")


@dataclass(frozen=True)
class Address:
    """How a segment is told to the other side: message Segment."""

    pid: int
    fd: int
    nbytes: int
    nonce: bytes
    host: str


class Segment:
    """Mapped shared memory. `create` on the client, `open` on the ps; both unmap it by letting go of it."""

    def __init__(self, fd: int, nbytes: int) -> None:
        self.nbytes = nbytes
        self.array = np.frombuffer(mmap.mmap(fd, nbytes), np.uint8)
        self.view = self.array.data

    @staticmethod
    def create(payload_bytes: int) -> tuple[Segment, Address, int]:
        """A new segment for so many bytes, its address, and the descriptor to hold open until it is mapped. OSError if not."""
        nbytes = START + payload_bytes
        fd = os.memfd_create("paramserver", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.fchmod(fd, 0o600)
            os.ftruncate(fd, nbytes)
            fcntl.fcntl(fd, _F_ADD_SEALS, _SEALS)
            segment = Segment(fd, nbytes)
        except BaseException:
            os.close(fd)
            raise
        nonce = secrets.token_bytes(NONCE_BYTES)
        segment.view[:NONCE_BYTES] = nonce
        return segment, Address(os.getpid(), fd, nbytes, nonce, host_id()), fd

    @staticmethod
    def open(address: Address) -> Segment:
        """The same memory, opened by another process of the same user on the same host; OSError if it cannot be had."""
        if address.host != host_id():
            raise PermissionError("it is on another host")
        path = f"/proc/{address.pid}/fd/{address.fd}"
        _check_file(os.stat(path), address)  # before it is opened: opening a pipe or a device may do something
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            _check_file(os.fstat(fd), address)
            if fcntl.fcntl(fd, _F_GET_SEALS) & _SEALS != _SEALS:
                raise PermissionError("it could be shrunk")
            segment = Segment(fd, address.nbytes)
        finally:
            os.close(fd)
        if segment.view[:NONCE_BYTES] != address.nonce or len(address.nonce) != NONCE_BYTES:
            raise PermissionError("it is other memory than the one offered")
        return segment

    def write(self, offset: int, data: bytes | memoryview) -> None:
        """Copy these bytes to there; other threads run meanwhile."""
        self.array[offset : offset + len(data)] = np.frombuffer(data, np.uint8)

    def at(self, offset: int, nbytes: int) -> memoryview:
        """So many bytes from there on; InvalidInput if they are not all payload."""
        if not START <= offset <= offset + nbytes <= self.nbytes:
            raise InvalidInput(
                field="shared memory",
                got=f"{nbytes} bytes at {offset}",
                expected=f"within {START} to {self.nbytes}",
            )
        return self.view[offset : offset + nbytes]


def _check_file(found: os.stat_result, address: Address) -> None:
    mine = found.st_uid == os.getuid() and stat.S_ISREG(found.st_mode)
    if not mine or found.st_size != address.nbytes or address.nbytes <= START:
        raise PermissionError("it is not the segment that was offered")


@functools.cache
def host_id() -> str:
    """Which start of which machine this is; empty where that is not known."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


class Region:
    """A part of a segment that is filled from its start, one payload after the other: first reserved, then copied at once."""

    def __init__(self, segment: Segment, start: int, nbytes: int) -> None:
        segment.at(start, nbytes)
        self._segment, self._at, self._end = segment, -(-start // ALIGNMENT) * ALIGNMENT, start + nbytes
        self._copies: list[tuple[Bytes, bytes | memoryview]] = []

    def put(self, data: bytes | memoryview) -> int | None:
        """Reserve room for a payload and return its offset; None if it does not fit any more. `copy` brings it there."""
        at, nbytes = self._at, len(data)
        if at + nbytes > self._end:
            return None
        self._copies.append((self._segment.array[at : at + nbytes], data))
        self._at = -(-(at + nbytes) // ALIGNMENT) * ALIGNMENT
        return at

    def copy(self) -> None:
        """Copy all that was put."""
        copies, self._copies = self._copies, []
        copy_all(copies)


def placed(blocks: Iterable[Block], region: Region) -> Iterator[Block]:
    """The blocks, with the data of as many as fit brought to the region, before the first block is handed out."""
    there, rest = [], iter(blocks)
    for block in rest:
        offset = region.put(block.data) if block.data else None
        there.append(block if offset is None else block.in_shared_memory(offset))
        if block.data and offset is None:
            break  # full: what follows is made when it is asked for, for it may be more than memory holds twice
    region.copy()
    yield from there
    yield from rest
