"""What happened on a shard, in order? Events as lines of JSON, there and back."""

from __future__ import annotations

import json
from dataclasses import fields

import pytest

from ps.story import KEPT_EVENTS, Event, Story

EVENTS = [
    Event("init", 0, worker=0, names=("emb/table[0:7]", "größe")),
    Event("join", 3, worker=1, generation=2),
    Event("push", 4, worker=1, generation=2, sequence=9, at_version=0, outcome="applied", staleness=3),
    Event("push", 4, worker=0, generation=1, sequence=2, at_version=4, outcome="buffered", staleness=0),
    Event("step", 5, contributors=((0, 1, 2), (1, 2, 10))),
    Event("leave", 5, worker=1, reason='failed: ValueError: a "quoted" reason\nover two lines'),
    Event("lost", 5, worker=0, reason="its connection was gone"),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.kind)
def test_an_event_is_one_line_and_comes_back_equal(event: Event) -> None:
    line = event.to_json()
    assert "\n" not in line
    assert Event.from_json(line) == event


def test_what_does_not_apply_is_left_out_and_zeros_are_not() -> None:
    push = Event("push", 0, worker=0, generation=1, sequence=1, at_version=0, outcome="stale", staleness=0)
    assert set(json.loads(push.to_json())) == {field.name for field in fields(Event)} - {
        "contributors",
        "names",
        "reason",
    }
    assert json.loads(Event("step", 5, contributors=((0, 1, 2),)).to_json()) == {
        "kind": "step",
        "version": 5,
        "contributors": [[0, 1, 2]],
    }


def test_memory_keeps_the_newest_events_and_the_sink_gets_all() -> None:
    sunk: list[Event] = []
    story = Story(sunk.append)
    for version in range(KEPT_EVENTS + 2):
        story.tell(Event("step", version))
    assert len(story.events) == KEPT_EVENTS
    assert story.events[0].version == 2
    assert len(sunk) == KEPT_EVENTS + 2
