"""What if the story cannot be written? It ends, which is told once, and training goes on."""

from __future__ import annotations

import asyncio
import logging

import pytest

from ps.server import Server, Settings
from ps.story import Event


class FullDisk:
    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")

    flush = close = write


def test_a_full_disk_ends_the_story_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    async def lesson() -> None:
        server = Server(Settings(index=0, ps_addresses=("127.0.0.1:1",), num_workers=1))
        server._story_file = FullDisk()  # type: ignore[assignment]
        with caplog.at_level(logging.ERROR):
            server._write_event(Event("assign", 1))
            server._write_event(Event("assign", 2))
        assert [record.message for record in caplog.records] == [
            "the story ends here, for it cannot be written: [Errno 28] No space left on device"
        ]

    asyncio.run(lesson())
