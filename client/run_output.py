"""How does the output of many processes reach one terminal or file, whole lines, nothing lost and nothing stuck?

Three small parts: `LineSplitter` (bytes to lines), `Sink` (lines to a file descriptor that may be slow) and `Relay`
(pipe to lines). None of them ever blocks the event loop, so a signal is acted upon even while nobody reads our
output; a slow reader slows the children down instead of filling our memory. This file must not know about ps, workers
or bars. Read next: `run_display.py`.
"""

from __future__ import annotations

import asyncio
import os
import select
from collections import deque
from collections.abc import Awaitable, Callable

_CHUNK_BYTES = 1 << 16
_LONGEST_LINE_BYTES = 16 << 20
_QUEUE_BYTES = 1 << 18
_AFTER_END_BYTES = 1 << 20


class LineSplitter:
    """Cuts a byte stream into lines, without their ends.

    LF, CRLF and a bare CR end a line, so that a bar drawn with CR becomes one line for each time it was drawn; the
    empty line before a bare CR is no line. Bytes that are not UTF-8 pass unchanged. A line longer than
    `longest_bytes` comes in parts.
    """

    def __init__(self, longest_bytes: int = _LONGEST_LINE_BYTES) -> None:
        self._longest_bytes = longest_bytes
        self._parts: list[bytes] = []
        self._parts_bytes = 0
        self._held_cr = b""

    def feed(self, chunk: bytes) -> list[bytes]:
        chunk = self._held_cr + chunk
        self._held_cr = b"\r" if chunk.endswith(b"\r") else b""  # LF may follow in the next chunk
        lines: list[bytes] = []
        for piece in chunk[: len(chunk) - len(self._held_cr)].splitlines(keepends=True):
            text = piece.rstrip(b"\r\n")
            self._parts.append(text)
            self._parts_bytes += len(text)
            if len(text) < len(piece):
                line = self._take()
                if line or not piece.endswith(b"\r"):
                    lines.append(line)
            elif self._parts_bytes >= self._longest_bytes:
                lines.append(self._take())
        return lines

    def rest(self) -> list[bytes]:
        """The last line when the stream ended without a line end, else nothing."""
        return [self._take()] if self._parts_bytes else []

    def _take(self) -> bytes:
        line = b"".join(self._parts)
        self._parts, self._parts_bytes = [], 0
        return line


class Sink:
    """Writes to a file descriptor in order, without blocking the loop and without O_NONBLOCK.

    (That flag belongs to the open file, which our shell and our neighbours in a pipeline share.) A descriptor that is
    ready takes PIPE_BUF bytes without blocking, so pieces of that size are written, one for each readiness.
    """

    def __init__(self, fd: int, on_broken: Callable[[OSError], None]) -> None:
        self._fd = fd
        self._on_broken = on_broken
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._broken = False
        self._changed = asyncio.Condition()
        self._wake = asyncio.Event()
        self._pump_task = asyncio.get_running_loop().create_task(self._pump())

    @property
    def is_terminal(self) -> bool:
        return os.isatty(self._fd)

    @property
    def is_full(self) -> bool:
        return self._queued_bytes > _QUEUE_BYTES

    def put(self, data: bytes) -> None:
        if data and not self._broken:
            self._queue.append(data)
            self._queued_bytes += len(data)
            self._wake.set()

    async def room(self) -> None:
        """Waits until the reader has caught up."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self.is_full)

    async def flushed(self) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: not self._queued_bytes)

    def close(self) -> None:
        self._pump_task.cancel()

    async def _pump(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._queue:
                data = self._queue.popleft()
                try:
                    await self._write(data)
                except OSError as error:
                    self._broken = True
                    self._queue.clear()
                    self._queued_bytes = 0
                    self._on_broken(error)
                else:
                    self._queued_bytes -= len(data)
                async with self._changed:
                    self._changed.notify_all()

    async def _write(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            piece_bytes = select.PIPE_BUF if await self._ready() else len(left)
            try:
                left = left[os.write(self._fd, left[:piece_bytes]) :]
            except BlockingIOError:  # somebody else set O_NONBLOCK
                continue

    async def _ready(self) -> bool:
        """Waits until a write will not block. False for what has no readiness: a regular file never blocks."""
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        try:
            loop.add_writer(self._fd, ready.set)
        except PermissionError:
            return False
        try:
            await ready.wait()
        finally:
            loop.remove_writer(self._fd)
        return True


class Relay:
    """Reads a pipe of a child to its end and hands on whole lines, many at a time."""

    def __init__(self, fd: int, hand_on: Callable[[list[bytes]], Awaitable[None]]) -> None:
        self._fd = fd
        self._hand_on = hand_on
        self._ended = False
        self._readable = asyncio.Event()
        self.task = asyncio.get_running_loop().create_task(self._run())

    def end(self) -> None:
        """No process of ours holds the pipe any more: take what is in it, and wait for no stranger."""
        self._ended = True
        self._readable.set()

    async def _run(self) -> None:
        splitter = LineSplitter()
        after_end_bytes = 0
        while chunk := await self._read():
            await self._hand_on(splitter.feed(chunk))
            after_end_bytes += len(chunk) if self._ended else 0
            if after_end_bytes > _AFTER_END_BYTES:  # more than a pipe holds: a stranger writes it
                break
        await self._hand_on(splitter.rest())

    async def _read(self) -> bytes:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(0)  # a child that never stops writing must not starve the others
            try:
                return os.read(self._fd, _CHUNK_BYTES)
            except BlockingIOError:
                if self._ended:
                    return b""
            self._readable.clear()
            loop.add_reader(self._fd, self._readable.set)
            try:
                await self._readable.wait()
            finally:
                loop.remove_reader(self._fd)
