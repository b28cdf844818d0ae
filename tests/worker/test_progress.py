"""What does a person, or ps-run, see of a worker's steps?"""

from __future__ import annotations

import io
import math
import os

import pytest

from client.run_display import ProgressEvent
from protos.errors import InvalidInput
from worker.loop import Event
from worker.progress import Bar, Lines, Pipe, choose


def event(step: int, total: int | None = 10, loss: float = 0.5, stale: int = 0) -> Event:
    return Event(step, total, loss, 2, "applied", stale)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_ps_run_reads_what_a_worker_writes() -> None:
    read, write = os.pipe()
    with choose(environ={"PARAMSERVER_PROGRESS_FD": str(write)}) as progress:
        for step in range(1, 4):
            progress.update(event(step, total=None, loss=math.nan if step == 2 else 0.25))
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        events = [ProgressEvent.parse(line) for line in pipe]
    assert events[0] == ProgressEvent(step=1, total=None, loss=0.25, staleness=2, outcome="applied")
    assert events[-1].step == 3  # the last is always told


def test_training_goes_on_when_nobody_reads() -> None:
    read, write = os.pipe()
    os.close(read)
    progress = Pipe(write)
    progress.show(event(1))
    progress.show(event(2))
    os.close(write)


def test_without_a_terminal_there_are_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with choose(every=2, environ={}, stdout=io.StringIO()) as progress:
        for step in range(1, 6):
            progress.update(event(step, stale=step // 5))
    assert capsys.readouterr().out.splitlines() == [
        "step 2/10  loss 0.5000  staleness 2",
        "step 4/10  loss 0.5000  staleness 2",
        "step 5/10  loss 0.5000  staleness 2  stale 1",
    ]


def test_what_is_chosen_follows_from_where_it_goes() -> None:
    assert isinstance(choose(environ={"TERM": "xterm"}, stdout=Terminal()), Bar)
    assert isinstance(choose(environ={"TERM": "dumb"}, stdout=Terminal()), Lines)
    assert isinstance(choose(environ={"TERM": "xterm"}, stdout=io.StringIO()), Lines)


@pytest.mark.parametrize("text", ["three", "987654"])
def test_a_file_descriptor_that_is_none_is_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidInput, match="PARAMSERVER_PROGRESS_FD"):
        choose(environ={"PARAMSERVER_PROGRESS_FD": text})
