"""What could nobody beat on this machine? The same bytes over a bare TCP connection of loopback, and copied in memory.

A step is what a push_pull moves: every byte of the model one way, then every byte back. TCP is between two processes, with
plain blocking sockets; a copy is numpy's, of memory that is already there. Run as a program it is one of these processes.
Next: peers.py, what others offer.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import sys
from collections.abc import Callable, Iterator

import numpy as np

from benchmarks.cases import Case, Shape
from benchmarks.rounds import Missing, Subject
from benchmarks.tasks import Message, Tasks, answers, follow_parent, serve, steps_for

TCP, MEMCPY = "raw TCP", "memcpy"
READ_BYTES = 1 << 20
HEADER = struct.Struct("!qq")  # bytes that come, bytes that are wanted back


class Limit:
    """`raw TCP` or `memcpy`. operation: "round trip", or "one way" (for a pull or a push alone)."""

    def __init__(self, name: str, operation: str = "round trip") -> None:
        self.name, self._operation = name, operation

    @contextlib.contextmanager
    def cluster(self, shape: Shape) -> Iterator[Callable[[Case], contextlib.AbstractContextManager[Subject]]]:
        if shape != Shape():
            raise Missing("measured for one worker and one ps")
        yield self._subject

    @contextlib.contextmanager
    def _subject(self, case: Case) -> Iterator[Subject]:
        with Tasks() as tasks:
            port = 0
            if self.name == TCP:
                port = tasks.start("TCP server", "benchmarks.limits", "server").answer()["port"]
            client = tasks.start(f"{self.name} client", "benchmarks.limits", "client", str(port), str(case.bytes))
            yield Subject(self.name, [client], {"operation": self._operation})


class Client:
    """In the process that measures. port: of the TCP server, 0 to copy in memory."""

    def __init__(self, port: int, count_bytes: int) -> None:
        self._data = np.ones(count_bytes, np.uint8)
        self._back = np.ones(count_bytes, np.uint8)
        self._connection = _connection(port) if port else None

    def handle(self, message: Message) -> Message:
        one_way = message["operation"] == "one way"
        return steps_for(message["seconds"], lambda: self._step(one_way))

    def _step(self, one_way: bool) -> None:
        if self._connection is None:
            np.copyto(self._back, self._data)
            if not one_way:
                np.copyto(self._data, self._back)
            return
        back = self._back[: 1 if one_way else None]
        self._connection.sendall(HEADER.pack(self._data.size, back.size))
        self._connection.sendall(self._data)
        _receive(self._connection, memoryview(back))


def _connection(port: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _receive(connection: socket.socket, into: memoryview) -> None:
    done = 0
    while done < len(into):
        count = connection.recv_into(into[done : done + READ_BYTES])
        if not count:
            raise EOFError("the other side is gone")
        done += count


def _serve_tcp(connection: socket.socket) -> None:
    """Take what is announced, and send back as much as is wanted."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    header = bytearray(HEADER.size)
    buffer = bytearray()
    while True:
        _receive(connection, memoryview(header))
        coming, wanted = HEADER.unpack(header)
        if len(buffer) < max(coming, wanted):
            buffer = bytearray(max(coming, wanted))
        _receive(connection, memoryview(buffer)[:coming])
        connection.sendall(memoryview(buffer)[:wanted])


def main(role: str, *arguments: str) -> None:
    commands = follow_parent()
    output = answers()
    if role == "client":
        port, count_bytes = map(int, arguments)
        serve(commands, output, Client(port, count_bytes).handle)
        return
    with socket.create_server(("127.0.0.1", 0)) as listener:
        output.write(f'{{"port": {listener.getsockname()[1]}}}\n')
        connection, _ = listener.accept()
        with connection, contextlib.suppress(EOFError):
            _serve_tcp(connection)


if __name__ == "__main__":
    main(*sys.argv[1:])
