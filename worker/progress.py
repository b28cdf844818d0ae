"""How does a person see that a worker gets on? A bar on a terminal, plain lines elsewhere, JSON lines for ps-run.

Under ps-run on a terminal PARAMSERVER_PROGRESS_FD is a pipe: the worker writes {"step", "total", "loss", "staleness",
"outcome"} there and ps-run draws the bars of all workers. Must not know what is trained.
Next: client/run_display.py, the other end.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from protos.errors import InvalidInput
from worker.loop import Event

PLAIN_PERIOD_S = 1.0
PIPE_PERIOD_S = 0.1


class Progress:
    """Shows nothing. The others show something in `show`, at most once in `period_s`, but always the last event."""

    period_s = 0.0

    def __init__(self) -> None:
        self._shown_s = float("-inf")
        self._held: Event | None = None

    def update(self, event: Event) -> None:
        now_s = time.monotonic()
        if self._due(event, now_s):
            self._shown_s, self._held = now_s, None
            self.show(event)
        else:
            self._held = event

    def _due(self, event: Event, now_s: float) -> bool:
        return now_s - self._shown_s >= self.period_s

    def show(self, event: Event) -> None:
        pass

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._held is not None:
            self.show(self._held)


class Lines(Progress):
    """A line a second, or one every `every` steps."""

    def __init__(self, every: int | None = None) -> None:
        super().__init__()
        self.period_s = PLAIN_PERIOD_S
        self._every = every

    def _due(self, event: Event, now_s: float) -> bool:
        return event.step % self._every == 0 if self._every else super()._due(event, now_s)

    def show(self, event: Event) -> None:
        stale = f"  stale {event.stale}" if event.stale else ""
        print(f"step {_count(event)}  loss {event.loss:.4f}  staleness {event.staleness}{stale}", flush=True)


class Pipe(Progress):
    """JSON lines to a file descriptor."""

    period_s = PIPE_PERIOD_S

    def __init__(self, fd: int) -> None:
        super().__init__()
        self._fd: int | None = fd

    def show(self, event: Event) -> None:
        if self._fd is None:
            return
        fields = {
            "step": event.step,
            "total": event.total,
            "loss": event.loss,
            "staleness": event.staleness,
            "outcome": event.outcome,
        }
        try:
            os.write(self._fd, json.dumps(fields).encode() + b"\n")
        except BrokenPipeError:  # nobody draws any more; that is no reason to stop training
            self._fd = None


class Bar(Progress):
    """One bar on the terminal."""

    def __init__(self) -> None:
        super().__init__()
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Rich

        self._rich = Rich(
            TextColumn("step {task.fields[count]}"),
            BarColumn(),
            TextColumn("{task.fields[numbers]}"),
            TimeElapsedColumn(),
        )
        self._task = self._rich.add_task("", total=None, count="0", numbers="")

    def __enter__(self) -> Progress:
        self._rich.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, traceback)
        self._rich.stop()

    def show(self, event: Event) -> None:
        numbers = f"loss {event.loss:.4f}  staleness {event.staleness}" + (
            f"  stale {event.stale}" if event.stale else ""
        )
        self._rich.update(self._task, completed=event.step, total=event.total, count=_count(event), numbers=numbers)


def choose(every: int | None = None, environ: Mapping[str, str] = os.environ, stdout: Any = None) -> Progress:
    """What fits: ps-run's pipe if there is one, else a bar on a terminal, else lines. every: a line every so many steps."""
    if text := environ.get("PARAMSERVER_PROGRESS_FD"):
        try:
            fd = int(text)
            os.fstat(fd)
        except (ValueError, OSError) as error:
            raise InvalidInput(
                field="PARAMSERVER_PROGRESS_FD", got=f"{text!r} ({error})", expected="an open file descriptor"
            ) from None
        return Pipe(fd)
    if every is None and (stdout or sys.stdout).isatty() and environ.get("TERM", "dumb") != "dumb":
        return Bar()
    return Lines(every)


def _count(event: Event) -> str:
    return f"{event.step}" if event.total is None else f"{event.step}/{event.total}"
