"""What is one measurement, and how do several compare on a machine that is never quite idle?

A Subject is what can be asked to work for a while: tasks that are up and warm. In a round each subject works once, one after
the other, so that a noise that lasts longer than a turn hits all of them. A Series keeps every round; a ratio is taken
within a round, and only then its median. It must not know who the subjects are. Next: ours.py, a contestant.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from benchmarks.cases import Case, Shape
from benchmarks.tasks import DEADLINE_S, Message, Task, ask_all


class Missing(Exception):
    """This contestant cannot take part here; the message says why, such as `not installed`."""


@dataclass
class Subject:
    """Tasks that work together when they are given one command. answered: what they said last, which may be more.

    restless: tasks that burn a core also while they wait, and so are paused between the turns. remark: what a reader of its
    numbers should know.
    """

    name: str
    tasks: list[Task]
    command: dict[str, Any] = field(default_factory=dict)
    answered: list[Message] = field(default_factory=list)
    restless: list[Task] = field(default_factory=list)
    remark: str = ""

    def measure(self, seconds: float) -> float:
        """Work for about so long: steps per second, of all tasks together. Raises TaskFailed."""
        message = {"command": "measure", "seconds": seconds, **self.command}
        for task in self.restless:
            task.resume()
        self.answered = ask_all(self.tasks, message, DEADLINE_S + 10 * seconds)
        for task in self.restless:
            task.pause()
        return sum(float(answer["steps"] / answer["seconds"]) for answer in self.answered)


class Contestant(Protocol):
    """Something that moves gradients and values. Its cluster may serve one case after the other."""

    name: str

    def cluster(self, shape: Shape) -> AbstractContextManager[Callable[[Case], AbstractContextManager[Subject]]]:
        """Start the processes that all cases share; inside, a call with a case makes its subject. Raises Missing."""


@dataclass(frozen=True)
class Series:
    """Numbers of one kind, one a round."""

    values: list[float]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def least(self) -> float:
        return min(self.values)

    @property
    def most(self) -> float:
        return max(self.values)

    def over(self, other: Series) -> Series:
        """The ratio, round by round."""
        return Series([mine / theirs for mine, theirs in zip(self.values, other.values)])


def run(subjects: Iterable[Subject], rounds: int, seconds: float, done: Callable[[], None]) -> dict[str, Series]:
    """Steps per second of each, by name. The first turn of each is for warming up and is not kept."""
    subjects = list(subjects)
    for subject in subjects:
        subject.measure(seconds)
    values: dict[str, list[float]] = {subject.name: [] for subject in subjects}
    for _, subject in _turns(subjects, rounds):
        values[subject.name].append(subject.measure(seconds))
        done()
    return {name: Series(measured) for name, measured in values.items()}


def _turns(subjects: list[Subject], rounds: int) -> Iterator[tuple[int, Subject]]:
    """Every other round in reverse: nobody always comes after the same one."""
    for number in range(rounds):
        for subject in subjects if number % 2 == 0 else reversed(subjects):
            yield number, subject
