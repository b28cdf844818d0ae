"""When is a gradient applied, and when may a worker read? The three modes as transcripts; transcript.py says how to read them.

Next: test_shard.py, where the same decisions are performed on real values.
"""

from __future__ import annotations

import pytest

from protos.errors import AlreadyPushed, ConfigurationConflict, InvalidVersion
from ps.consistency import Async, Refuse, Ssp, Sync, make_consistency
from tests.core.builders import members
from tests.core.transcript import play


def test_async_applies_every_push_on_arrival_and_nobody_waits() -> None:
    # claim 3: staleness is version now - version the gradient was computed at.
    play(
        make_consistency("async", members(2)),
        """
        push 0 at 0                -> apply, staleness 0
        applied 0                  -> version 1
        push 1 at 0                -> apply, staleness 1
        applied 1                  -> version 2
        push 0 at 1                -> apply, staleness 1
        applied 0                  -> version 3
        pull 0                     -> go on
        pull -                     -> go on
        clocks                     -> 0:2 1:1
        leave 1                    -> nothing is due
        push 0 at 0                -> apply, staleness 3
        """,
    )


def test_sync_makes_one_step_of_the_gradients_of_all_workers() -> None:
    # claim 5: step 0 is made of exactly the gradients of version 0 of workers 0, 1 and 2.
    play(
        make_consistency("sync", members(3)),
        """
        push 2 at 0                -> buffer, missing 0 1
        pull 2                     -> wait for 0 1: step 0 to be complete
        pull 0                     -> go on
        pull -                     -> go on
        push 0 at 0                -> buffer, missing 1
        push 1 at 0                -> complete with 0 1 2
        pull 2                     -> wait for nobody: step 0 to be complete
        applied                    -> version 1
        pull 2                     -> go on
        push 2 at 1                -> buffer, missing 0 1
        """,
    )


def test_sync_drops_what_is_late_and_refuses_what_is_twice() -> None:
    play(
        make_consistency("sync", members(2)),
        """
        push 0 at 0                -> buffer, missing 1
        push 0 at 0                -> refuse: AlreadyPushed
        push 1 at 0                -> complete with 0 1
        applied                    -> version 1
        push 1 at 0                -> stale, staleness 1
        push 1 at 1                -> buffer, missing 0
        clocks                     -> 0:1 1:3
        """,
    )


def test_sync_shrinks_the_barrier_when_a_worker_leaves() -> None:
    play(
        make_consistency("sync", members(3)),
        """
        push 0 at 0                -> buffer, missing 1 2
        leave 1                    -> nothing is due
        push 2 at 0                -> complete with 0 2
        applied                    -> version 1
        push 0 at 1                -> buffer, missing 2
        lose 2                     -> complete with 0
        applied                    -> version 2
        push 0 at 2                -> complete with 0
        """,
    )


def test_sync_keeps_the_gradient_of_a_worker_that_pushed_and_left() -> None:
    # No batch is lost: what worker 1 pushed before it ran out of data is in the step.
    play(
        make_consistency("sync", members(2)),
        """
        push 1 at 0                -> buffer, missing 0
        leave 1                    -> nothing is due
        push 0 at 0                -> complete with 0 1
        """,
    )


def test_sync_waits_for_a_process_that_takes_the_place_of_a_lost_one() -> None:
    play(
        make_consistency("sync", members(2)),
        """
        lose 1                     -> nothing is due
        push 0 at 0                -> complete with 0
        applied                    -> version 1
        join 1                     -> generation 2, clock 1
        push 0 at 1                -> buffer, missing 1
        push 1 at 1                -> complete with 0 1
        """,
    )


def test_sync_counts_workers_that_have_not_come_yet() -> None:
    membership = members(1)
    membership.num_workers = 2
    membership.members[1] = type(membership.members[0])()
    play(
        make_consistency("sync", membership),
        """
        push 0 at 0                -> buffer, missing 1
        pull 0                     -> wait for 1: step 0 to be complete
        """,
    )


def test_a_step_that_failed_begins_again() -> None:
    play(
        make_consistency("sync", members(2)),
        """
        push 0 at 0                -> buffer, missing 1
        push 1 at 0                -> complete with 0 1
        failed                     -> version 0
        clocks                     -> 0:0 1:0
        pull 0                     -> go on
        push 0 at 0                -> buffer, missing 1
        push 1 at 0                -> complete with 0 1
        applied                    -> version 1
        """,
    )


def test_backup_workers_let_a_step_go_without_the_slowest() -> None:
    play(
        make_consistency("sync", members(3), backup_workers=1),
        """
        push 2 at 0                -> buffer, missing 0 1
        push 0 at 0                -> complete with 0 2
        applied                    -> version 1
        push 1 at 0                -> stale, staleness 1
        push 1 at 1                -> buffer, missing 0 2
        leave 0                    -> nothing is due
        push 2 at 1                -> complete with 1 2
        """,
    )


def test_the_other_ps_take_the_workers_that_ps_0_has_counted() -> None:
    # Worker 2's gradient comes first here, but ps 0 has counted 0 and 1: no shard may mix other workers.
    play(
        make_consistency("sync", members(3), backup_workers=1),
        """
        push 2 at 0 passed over    -> stale, staleness 0
        pull 2                     -> go on
        push 0 at 0 counted        -> buffer, missing 1
        pull 0                     -> wait for 1: step 0 to be complete
        push 1 at 0 counted        -> complete with 0 1
        applied                    -> version 1
        push 2 at 1 counted        -> buffer, missing 0 1
        """,
    )


def test_nobody_waits_for_a_worker_that_was_passed_over() -> None:
    # ps 0 counted 0 and 1, and worker 1 died before this ps had its gradient: worker 2 will not push for step 0 again.
    play(
        make_consistency("sync", members(3), backup_workers=1),
        """
        push 0 at 0 counted        -> buffer, missing 1 2
        push 2 at 0 passed over    -> stale, staleness 0
        lose 1                     -> complete with 0
        applied                    -> version 1
        """,
    )


def test_ssp_lets_a_worker_lead_by_the_slack_and_no_more() -> None:
    play(
        make_consistency("ssp", members(2), slack=1),
        """
        push 0 at 0                -> apply, staleness 0
        applied 0                  -> version 1
        pull 0                     -> go on
        push 0 at 1                -> apply, staleness 0
        applied 0                  -> version 2
        pull 0                     -> wait for 1: clock 1 of the slowest (slack 1)
        pull 1                     -> go on
        pull -                     -> go on
        push 1 at 0                -> apply, staleness 2
        applied 1                  -> version 3
        pull 0                     -> go on
        clocks                     -> 0:2 1:1
        """,
    )


def test_ssp_counts_an_iteration_when_its_update_is_in_the_values() -> None:
    # Whoever waits for a worker's clock must find that worker's update when it reads: a decision is not an update yet.
    play(
        make_consistency("ssp", members(2), slack=0),
        """
        push 1 at 0                -> apply, staleness 0
        applied 1                  -> version 1
        push 0 at 0                -> apply, staleness 1
        pull 1                     -> wait for 0: clock 1 of the slowest (slack 0)
        applied 0                  -> version 2
        pull 1                     -> go on
        """,
    )


def test_ssp_goes_on_without_those_who_left_and_level_with_those_who_join() -> None:
    play(
        make_consistency("ssp", members(3), slack=0),
        """
        push 0 at 0                -> apply, staleness 0
        applied 0                  -> version 1
        push 0 at 1                -> apply, staleness 0
        applied 0                  -> version 2
        push 1 at 2                -> apply, staleness 0
        applied 1                  -> version 3
        pull 0                     -> wait for 1 2: clock 2 of the slowest (slack 0)
        leave 2                    -> nothing is due
        pull 0                     -> wait for 1: clock 2 of the slowest (slack 0)
        # The newcomer starts level with the slowest: from clock 0 it would hold everyone up.
        join 2                     -> generation 2, clock 1
        push 1 at 3                -> apply, staleness 0
        applied 1                  -> version 4
        pull 0                     -> wait for 2: clock 2 of the slowest (slack 0)
        lose 2                     -> nothing is due
        pull 0                     -> go on
        """,
    )


@pytest.mark.parametrize("mode", ["async", "sync", "ssp"])
def test_a_gradient_of_a_version_that_is_not_yet_is_refused_and_changes_nothing(mode: str) -> None:
    # claim 11
    machine = make_consistency(mode, members(2))
    play(
        machine,
        """
        push 0 at 1                -> refuse: InvalidVersion
        clocks                     ->
        pull 0                     -> go on
        """,
    )
    decision = machine.push(0, 1)
    assert isinstance(decision, Refuse)
    assert isinstance(decision.error, InvalidVersion)
    assert (decision.error.got, decision.error.expected) == ("1", "at most 0, the present one")


def test_a_second_gradient_for_one_version_is_refused_with_what_to_do() -> None:
    machine = make_consistency("sync", members(2))
    machine.push(0, 0)
    decision = machine.push(0, 0)
    assert isinstance(decision, Refuse)
    assert isinstance(decision.error, AlreadyPushed)
    assert "Pull first" in decision.error.hint
    assert machine.clocks == {0: 1}  # a refused push finishes no iteration


def test_a_mode_is_made_with_its_options() -> None:
    membership = members(3)
    assert type(make_consistency("async", membership)) is Async
    sync, ssp = make_consistency("sync", membership, backup_workers=2), make_consistency("ssp", membership, slack=5)
    assert isinstance(sync, Sync)
    assert sync.backup_workers == 2
    assert isinstance(ssp, Ssp)
    assert ssp.slack == 5


@pytest.mark.parametrize(
    ("mode", "options", "field"),
    [
        ("bsp", {}, "mode"),
        ("async", {"slack": 0}, "slack"),
        ("sync", {"slack": 3}, "slack"),
        ("ssp", {"backup_workers": 1}, "backup_workers"),
        ("sync", {"backup_workers": 3}, "backup_workers"),
    ],
)
def test_an_option_that_the_mode_has_not_is_a_conflict(mode: str, options: dict[str, int], field: str) -> None:
    with pytest.raises(ConfigurationConflict) as caught:
        make_consistency(mode, members(3), **options)
    assert caught.value.field == field
    assert caught.value.got
    assert caught.value.expected
