"""How is a state machine shown on a page? Events on the left, what it decided on the right; the page is the test.

    push 0 at 0        -> buffer, missing 1
    pull 0             -> wait for 1: step 0 to be complete

`play` gives the machine each event and writes down its decision. The page it writes must be the page that was read.

    push W at V        a gradient of worker W, computed at version V, arrives (at the end: counted / passed over)
    applied [W]        the update that was decided is in the values (in async and ssp: worker W's)
    failed             it could not be made
    pull W             worker W wants to read ("pull -": an observer)
    leave W · lose W · join W     membership changes
    clocks             how many iterations each has finished
"""

from __future__ import annotations

import inspect

from ps.consistency import Apply, Buffer, Complete, Consistency, Refuse, Seat, Stale
from tests.core.builders import facts

SEATS = {"": Seat.UNDECIDED, "counted": Seat.COUNTED, "passed over": Seat.PASSED_OVER}


def play(machine: Consistency, page: str) -> None:
    """Play the page, and compare."""
    lines = [line for line in inspect.cleandoc(page).splitlines() if line]
    written = []
    for line in lines:
        event = line.partition("->")[0].strip()
        answer = event if event.startswith("#") else f"{event:<27} -> {_perform(machine, event)}"
        written.append(" ".join(answer.split()))
    assert written == [" ".join(line.split()) for line in lines]


def _perform(machine: Consistency, event: str) -> str:
    verb, *words = event.split()
    if verb == "push":
        worker, _, version, *seat = words
        return _text(machine.push(int(worker), int(version), SEATS[" ".join(seat)]))
    if verb == "pull":
        wait = machine.pull(None if words == ["-"] else int(words[0]))
        return f"wait for {_list(wait.missing)}: {wait.reason}" if wait else "go on"
    if verb == "applied":
        machine.applied(*(int(word) for word in words))
        return f"version {machine.version}"
    if verb == "failed":
        machine.failed()
        return f"version {machine.version}"
    if verb == "clocks":
        return " ".join(f"{worker}:{clock}" for worker, clock in sorted(machine.clocks.items()))
    return _member(machine, verb, int(words[0]))


def _member(machine: Consistency, verb: str, worker: int) -> str:
    membership = machine.membership
    if verb == "join":
        session = membership.join(facts(f"new w{worker}", worker, membership.num_workers))
        machine.joined(worker)
        return f"generation {session.generation}, clock {machine.clocks[worker]}"
    (session_id,) = (session.id for session in membership.sessions.values() if session.worker == worker)
    if verb == "leave":
        membership.leave(session_id, "")
    else:
        assert verb == "lose", f"no such event: {verb}"
        membership.disconnected(session_id, now_s=0)
        assert membership.expire(now_s=11, lease_s=10) == [worker]
    due = machine.due()
    return _text(due) if due else "nothing is due"


def _text(decision: object) -> str:
    if isinstance(decision, Apply):
        return f"apply, staleness {decision.staleness}"
    if isinstance(decision, Buffer):
        return f"buffer, missing {_list(decision.missing)}"
    if isinstance(decision, Complete):
        return f"complete with {_list(decision.contributors)}"
    if isinstance(decision, Stale):
        return f"stale, staleness {decision.staleness}"
    assert isinstance(decision, Refuse)
    return f"refuse: {type(decision.error).__name__}"


def _list(workers: tuple[int, ...]) -> str:
    return " ".join(map(str, workers)) or "nobody"
