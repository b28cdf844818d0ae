"""Many workers push, pull, send twice, vanish, leave, crash and come back in random order: nothing promised is ever broken.

Every seed is a run that can be repeated. What is checked after each event is in simulation.py.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.core.simulation import Simulation

CASES = [
    ("async", {}),
    ("sync", {}),
    ("sync", {"backup_workers": 1}),
    ("sync", {"backup_workers": 2}),
    ("ssp", {"slack": 0}),
    ("ssp", {"slack": 2}),
]


@pytest.mark.parametrize(("mode", "options"), CASES)
@pytest.mark.parametrize("seed", range(8))
def test_whatever_happens_in_whatever_order(mode: str, options: dict[str, int], seed: int) -> None:
    # claims 1, 2, 3, 4, 5
    simulation = Simulation(seed, mode, workers=3 + seed % 4, **options)
    try:
        asyncio.run(asyncio.wait_for(simulation.run(events=150), 60))
    except BaseException as error:
        print(
            f"seed {seed}, {mode} {options}; the last of {len(simulation.log)} events:",
            *simulation.log[-20:],
            sep="\n  ",
        )
        raise AssertionError(f"seed {seed}, {mode} {options}, event {len(simulation.log)}: {error}") from error


def test_the_same_seed_is_the_same_run() -> None:
    runs = [Simulation(7, "sync", workers=4) for _ in range(2)]
    for simulation in runs:
        asyncio.run(simulation.run(events=100))
    assert runs[0].log == runs[1].log
    one, other = (list(simulation.shard.story.events) for simulation in runs)
    assert one == other


def test_the_simulator_sees_what_it_should_see() -> None:
    # A simulation that never comes to the interesting places proves nothing.
    seen: set[str] = set()
    for seed in range(8):
        simulation = Simulation(seed, "sync", workers=4, backup_workers=1)
        asyncio.run(simulation.run(events=150))
        events = simulation.shard.story.events
        seen |= {event.kind for event in events} | {event.outcome for event in events}
        seen |= {"duplicate"} if simulation.shard.counters.duplicate else set()
        seen |= {"taken over"} if any((event.generation or 0) > 2 for event in events) else set()
    assert seen >= {"step", "lost", "leave", "join", "applied", "buffered", "stale", "duplicate", "taken over"}
