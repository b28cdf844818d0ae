"""What does the user of `ps-run` see?

Lines of the tasks with a prefix, `ps-run`'s own lines, and on a terminal one bar for each worker that reports
progress, below all lines. This file must not know when or why processes start and stop. Read next: `run_output.py`
for the bytes beneath.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO, Any, cast

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from client.run_output import Relay, Sink

_REFRESH_S = 0.2
_COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)  # ANSI foreground colours that read on dark and on light


@dataclass(frozen=True)
class ProgressEvent:
    """One line that a worker writes to PARAMSERVER_PROGRESS_FD, as a JSON object."""

    step: int
    total: int | None
    loss: float | None
    staleness: int | None
    outcome: str

    @classmethod
    def parse(cls, line: bytes) -> ProgressEvent:
        """Raises ValueError, which says what was got and what was expected."""
        try:
            fields = json.loads(line)
        except ValueError as error:
            raise ValueError(f"got {line[:80]!r}, expected a JSON object ({error})") from error
        if not isinstance(fields, dict):
            raise ValueError(f"got {line[:80]!r}, expected a JSON object")

        def number(key: str, kinds: type | tuple[type, ...], optional: bool) -> object:
            value = fields.get(key)
            if (value is None and optional) or (isinstance(value, kinds) and not isinstance(value, bool)):
                return value
            raise ValueError(f"field {key}: got {value!r}, expected {'a number' if kinds is not int else 'an integer'}")

        return cls(
            step=cast(int, number("step", int, False)),
            total=cast("int | None", number("total", int, True)),
            loss=cast("float | None", number("loss", (int, float), True)),
            staleness=cast("int | None", number("staleness", int, True)),
            outcome=str(fields.get("outcome", "")),
        )


class _SinkFile(io.TextIOBase):
    """The text file that rich writes to."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def write(self, text: str) -> int:
        self._sink.put(text.encode(errors="replace"))
        return len(text)

    def isatty(self) -> bool:
        return self._sink.is_terminal


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:.1f} steps/s" if task.speed else "", style="dim")


class Bars:
    """One bar for each worker, seen from its first progress line on."""

    def __init__(self, sink: Sink, workers: int) -> None:
        self._sink = sink
        self._console = Console(file=cast(IO[str], _SinkFile(sink)), highlight=False, markup=False, emoji=False)
        # auto_refresh would start a thread
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[count]}"),
            TextColumn("{task.fields[loss]}"),
            TextColumn("{task.fields[staleness]}"),
            _Rate(),
            TimeElapsedColumn(),
            console=self._console,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
            expand=True,
        )
        blank: dict[str, Any] = {"count": "", "loss": "", "staleness": ""}
        self._ids: list[TaskID] = [
            self._progress.add_task(f"worker {i}", total=None, start=False, visible=False, **blank)
            for i in range(workers)
        ]
        self._ticker: asyncio.Task[None] | None = None

    def above(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)

    def update(self, worker: int, event: ProgressEvent) -> None:
        task_id = self._ids[worker]
        if self._ticker is None:
            self._progress.start()
            self._ticker = asyncio.get_running_loop().create_task(self._tick())
        if not self._progress.tasks[worker].started:
            self._progress.start_task(task_id)
        self._progress.update(
            task_id,
            completed=event.step,
            total=event.total,
            visible=True,
            count=f"{event.step}/{'?' if event.total is None else event.total}",
            loss="" if event.loss is None else f"loss {event.loss:.4g}",
            staleness="" if event.staleness is None else f"staleness {event.staleness}",
        )

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_REFRESH_S)
            if not self._sink.is_full:
                self._progress.refresh()

    def stop(self) -> None:
        if self._ticker is not None:
            self._ticker.cancel()
            self._progress.refresh()
            self._progress.stop()


class Display:
    """Joins the two sinks and the bars. `bars` is None where stdout is no terminal, or a dumb one."""

    def __init__(self, stdout: Sink, stderr: Sink, workers: int) -> None:
        self._sinks = (stdout, stderr)
        clever = os.environ.get("TERM", "dumb") not in ("dumb", "unknown")
        self.bars = Bars(stdout, workers) if stdout.is_terminal and clever else None
        self._coloured = tuple(sink.is_terminal and clever and not os.environ.get("NO_COLOR") for sink in self._sinks)
        self._colour_of: dict[str, int] = {}
        self._complained: set[str] = set()

    def _prefix(self, name: str, is_error: bool) -> bytes:
        colour = self._colour_of.setdefault(name, _COLOURS[len(self._colour_of) % len(_COLOURS)])
        return (f"\x1b[{colour}m[{name}]\x1b[0m " if self._coloured[is_error] else f"[{name}] ").encode()

    def _put(self, lines: Sequence[bytes], is_error: bool) -> None:
        sink = self._sinks[is_error]
        # A bar and a line on one screen must go through one console, or they would write over each other.
        if self.bars is not None and sink.is_terminal:
            self.bars.above(b"\n".join(lines).decode(errors="replace"))
        else:
            sink.put(b"".join(line + b"\n" for line in lines))

    def say(self, text: str) -> None:
        self._put([text.encode(errors="replace")], is_error=False)

    def complain(self, text: str) -> None:
        self._put([f"ps-run: {text}".encode(errors="replace")], is_error=True)

    def relay(self, name: str, fd: int, is_error: bool, watch: Callable[[bytes], None] | None = None) -> Relay:
        """Starts to pass the lines of one stream of one task on; `watch` sees each line too."""
        prefix = self._prefix(name, is_error)
        sink = self._sinks[is_error]

        async def hand_on(lines: list[bytes]) -> None:
            if watch is not None:
                for line in lines:
                    watch(line)
            if lines:
                self._put([prefix + line for line in lines], is_error)
                await sink.room()

        return Relay(fd, hand_on)

    def relay_progress(self, worker: int, fd: int) -> Relay:
        """Starts to draw what one worker reports."""
        bars = self.bars
        assert bars is not None

        async def hand_on(lines: list[bytes]) -> None:
            for line in lines:
                try:
                    bars.update(worker, ProgressEvent.parse(line))
                except ValueError as error:
                    name = f"worker {worker}"
                    if name not in self._complained:  # once is enough
                        self._complained.add(name)
                        self.complain(f"{name} wrote a progress line that cannot be drawn: {error}")

        return Relay(fd, hand_on)

    def stop(self) -> None:
        if self.bars is not None:
            self.bars.stop()
