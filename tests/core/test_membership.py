"""Who belongs to the job, who is alive, and what has each already been answered? Joining, leaving, leases, second processes.

Time is an argument here: nothing waits. Next: test_consistency.py (what follows from who counts).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from protos.errors import ClusterError, NotJoined, ParameterServerError, ProtocolMismatch, WorkerIndexTaken, WrongRun
from ps.membership import REMEMBERED_PUSHES, JoinFacts, Membership
from tests.core.builders import facts, members


def states(membership: Membership[Any]) -> list[str]:
    return [member.state for member in membership.members.values()]


def test_a_worker_is_expected_then_active_then_left() -> None:
    membership: Membership[str] = Membership(2)
    assert states(membership) == ["expected", "expected"]
    assert sorted(membership.counted()) == [0, 1]  # a barrier waits for those still to come
    membership.join(facts("a", 0, 2))
    assert states(membership) == ["active", "expected"]
    assert membership.leave("a", reason="") == 0
    assert states(membership) == ["left", "expected"]
    assert sorted(membership.counted()) == [1]
    assert not membership.done()
    membership.join(facts("b", 1, 2))
    membership.leave("b", reason="out of data")
    assert membership.members[1].reason == "out of data"
    assert membership.done()


def test_a_broken_connection_may_be_taken_up_again_within_the_lease() -> None:
    membership = members(1)
    membership.disconnected("w0", now_s=100)
    assert membership.expire(now_s=110, lease_s=10) == []  # exactly the lease is not longer than the lease
    again = membership.join(facts("w0", 0, 1))
    assert again.generation == 1  # the same process
    assert membership.expire(now_s=1000, lease_s=10) == []
    assert states(membership) == ["active"]


def test_a_worker_is_lost_when_its_connection_is_gone_for_longer_than_the_lease() -> None:
    membership = members(2)
    membership.disconnected("w1", now_s=100)
    assert sorted(membership.counted()) == [0, 1]
    assert membership.describe(1) == "worker 1 (host, pid of w1, connection lost)"
    assert membership.expire(now_s=110.5, lease_s=10) == [1]
    assert membership.expire(now_s=111, lease_s=10) == []  # told once
    assert states(membership) == ["active", "lost"]
    with pytest.raises(NotJoined):
        membership.session("w1")


def test_the_lease_starts_when_the_last_of_several_connections_breaks() -> None:
    membership = members(1)
    membership.join(facts("w0", 0, 1))  # joined anew before the ps saw that the old connection was broken
    membership.disconnected("w0", now_s=100)
    assert membership.expire(now_s=1000, lease_s=10) == []
    membership.disconnected("w0", now_s=1000)
    assert membership.expire(now_s=1011, lease_s=10) == [0]


def test_the_generation_rises_when_another_process_takes_the_index() -> None:
    membership = members(1)
    membership.leave("w0", "")
    assert membership.join(facts("second", 0, 1)).generation == 2
    membership.disconnected("second", now_s=0)
    assert membership.join(facts("third", 0, 1)).generation == 3  # at once: a dead process holds nobody up
    with pytest.raises(NotJoined):
        membership.session("second")


def test_a_second_live_process_under_one_index_is_refused() -> None:
    # claim 11
    membership = members(1)
    with pytest.raises(WorkerIndexTaken) as caught:
        membership.join(facts("other", 0, 1))
    assert caught.value.field == "worker 0"
    assert "pid of other" in caught.value.got
    assert "pid of w0" in caught.value.expected
    assert membership.session("w0").generation == membership.members[0].generation == 1


def test_a_forked_child_shares_the_index_and_comes_and_goes_alone() -> None:
    membership = members(2)
    child = membership.join(facts("child", 0, 2, parent_session="w0"))
    grandchild = membership.join(facts("grandchild", 0, 2, parent_session="child"))
    assert child.forked
    assert grandchild.forked
    assert [child.generation, grandchild.generation] == [2, 3]  # (worker, generation, sequence) stays unique
    assert membership.leave("child", "") is None  # the worker itself is still here
    membership.disconnected("grandchild", now_s=0)
    assert membership.expire(now_s=100, lease_s=10) == []
    assert membership.leave("w0", "") == 0
    with pytest.raises(NotJoined):
        membership.session("grandchild")  # children go with the worker


def test_who_claims_a_parent_of_another_worker_is_no_child() -> None:
    with pytest.raises(WorkerIndexTaken):
        members(2).join(facts("x", 1, 2, parent_session="w0"))


def test_an_observer_counts_nowhere() -> None:
    membership = members(1)
    membership.join(JoinFacts("eye", None))
    assert sorted(membership.counted()) == [0]
    assert membership.leave("eye", "") is None
    membership.join(JoinFacts("eye 2", None))
    membership.disconnected("eye 2", now_s=0)
    with pytest.raises(NotJoined):
        membership.session("eye 2")


# -- exactly once: a session id never begins anew ---------------------------------------------------------------------


def test_answers_are_remembered_and_the_oldest_forgotten() -> None:
    # claim 2
    session = members(1).session("w0")
    for sequence in range(1, REMEMBERED_PUSHES + 3):
        session.remember(sequence, f"answer {sequence}")
    assert len(session.answers) == REMEMBERED_PUSHES
    assert session.forgotten_through == 2
    assert session.answers[3] == "answer 3"


def test_a_worker_that_was_lost_too_early_comes_back_with_its_answers() -> None:
    # claim 2: else the push it sends again after a long break would be applied again.
    membership = members(1)
    membership.session("w0").remember(7, "applied")
    membership.disconnected("w0", now_s=0)
    membership.expire(now_s=11, lease_s=10)
    found = membership.join(facts("w0", 0, 1))
    assert found.answers[7] == "applied"
    assert found.generation == 1
    assert states(membership) == ["active"]


def test_a_forked_child_comes_back_with_its_answers() -> None:
    # claim 2
    membership = members(1)
    membership.join(facts("child", 0, 1, parent_session="w0")).remember(1, "applied")
    membership.disconnected("child", now_s=0)
    assert membership.join(facts("child", 0, 1, parent_session="w0")).answers[1] == "applied"


def test_a_lost_worker_brings_its_children_back_and_no_child_comes_back_before_it() -> None:
    membership = members(1)
    membership.join(facts("child", 0, 1, parent_session="w0")).remember(1, "applied")
    membership.disconnected("w0", now_s=0)
    membership.expire(now_s=11, lease_s=10)
    with pytest.raises(NotJoined):
        membership.join(facts("child", 0, 1, parent_session="w0"))
    membership.join(facts("w0", 0, 1))
    assert membership.join(facts("child", 0, 1, parent_session="w0")).answers[1] == "applied"


@pytest.mark.parametrize("end", ["left", "replaced", "lost and replaced"])
def test_a_process_that_left_or_was_replaced_may_not_come_back(end: str) -> None:
    # A process that was cut off for a while must not push out the one that was started in its place.
    membership = members(1)
    if end == "left":
        membership.leave("w0", "")
    else:
        membership.disconnected("w0", now_s=0)
        if end == "lost and replaced":
            membership.expire(now_s=11, lease_s=10)
        membership.join(facts("successor", 0, 1))
        membership.disconnected("successor", now_s=20)
    with pytest.raises(NotJoined):
        membership.join(facts("w0", 0, 1))


# -- who is refused, and that nothing has changed then -----------------------------------------------------------------

GOOD = JoinFacts(
    "new", 1, run_id="run a", origin="host, pid 1", protocol_version=3, num_ps=2, num_workers=2, ps_index=1
)
REFUSED = [
    ({"run_id": "run b"}, WrongRun, "run_id", "'run b'", "'run a'"),
    ({"protocol_version": 2}, ProtocolMismatch, "protocol_version", "client 2", "3, which this ps speaks"),
    ({"protocol_version": 4}, ProtocolMismatch, "protocol_version", "client 4", "3, which this ps speaks"),
    ({"num_ps": 3}, ClusterError, "cluster.ps", "ps 1 of 3", "ps 1 of 2, as this ps was started"),
    ({"ps_index": 0}, ClusterError, "cluster.ps", "ps 0 of 2", "ps 1 of 2, as this ps was started"),
    ({"num_workers": 3}, ClusterError, "cluster.worker", "3 workers", "2, as this ps was started"),
    ({"worker": 2}, ClusterError, "worker", "2", "0 to 1"),
]


@pytest.mark.parametrize(("change", "error", "field", "got", "expected"), REFUSED)
def test_who_does_not_belong_is_refused_and_told_why(
    change: dict[str, Any], error: type[ParameterServerError], field: str, got: str, expected: str
) -> None:
    # claim 11
    membership: Membership[str] = Membership(2, run_id="run a", ps_index=1, num_ps=2, protocol_version=3)
    membership.join(GOOD)
    before = repr(membership)
    with pytest.raises(error) as caught:
        membership.join(dataclasses.replace(GOOD, session="x", **change))
    assert (caught.value.field, caught.value.got, caught.value.expected) == (field, got, expected)
    assert repr(membership) == before


@pytest.mark.parametrize(("version", "which"), [(2, "client"), (4, "ps")])
def test_a_protocol_mismatch_says_which_side_is_older(version: int, which: str) -> None:
    membership: Membership[str] = Membership(2, protocol_version=3)
    with pytest.raises(ProtocolMismatch) as caught:
        membership.join(dataclasses.replace(GOOD, protocol_version=version, num_ps=0))
    assert caught.value.hint == f"Upgrade the {which}."


def test_a_run_takes_its_id_from_whoever_says_it_first() -> None:
    membership: Membership[str] = Membership(2)
    membership.join(facts("a", 0, 2))
    assert membership.run_id == ""
    membership.join(facts("b", 1, 2, run_id="run a"))
    assert membership.run_id == "run a"
    with pytest.raises(WrongRun):
        membership.join(JoinFacts("c", None, run_id="run b"))
