"""What must the weights be, if a story is true? Twenty lines of numpy that know nothing of the ps.

The story of a shard says who pushed what, in which order; the gradients are known; so the weights follow. The oracle also
says what each worker must have read: the values of the versions that its push says it was computed at.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Values = dict[str, npt.NDArray[np.float32]]


def replay(
    stories: Iterable[list[dict[str, Any]]],
    initial: Mapping[str, npt.NDArray[np.float32]],
    gradient: Callable[[int, int], Mapping[str, npt.NDArray[np.float32]]],
    learning_rate: float,
) -> tuple[Values, list[list[Values]]]:
    """Final weights, and for each shard its rows at every version. gradient(worker, sequence) is what was pushed."""
    final = {name: value.copy() for name, value in initial.items()}
    histories: list[list[Values]] = []
    for story in stories:
        init, *events = [event for event in story if event["kind"] in ("init", "push")]
        rows = {held: _rows(held, initial) for held in init.get("names", ())}
        history = [{held: initial[name][part].copy() for held, (name, part) in rows.items()}]
        for event in events:
            pushed = gradient(event["worker"], event["sequence"])
            step = {
                held: value - learning_rate * pushed[rows[held][0]][rows[held][1]]
                for held, value in history[-1].items()
            }
            history.append(step)
        for held, (name, part) in rows.items():
            final[name][part] = history[-1][held]
        histories.append(history)
    return final, histories


def _rows(held: str, initial: Mapping[str, npt.NDArray[np.float32]]) -> tuple[str, slice]:
    """The variable and the rows of a partition as a story names it: "dense0/kernel[0:7]", or without rows if whole."""
    match = re.fullmatch(r"(.*)\[(\d+):(\d+)\]", held)
    return (match[1], slice(int(match[2]), int(match[3]))) if match else (held, slice(0, len(initial[held])))
