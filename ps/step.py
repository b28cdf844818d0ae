"""What is one update of a shard, from what workers pushed to the next state? Aggregate, then transform and update.

The same function makes it live (ps/updates.py), in a replay (ps/replay.py) and in the simulator. Pure, as ps/apply.py is.
Next: ps/aggregation.py, ps/apply.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from ps.aggregation import Contribution, aggregating
from ps.apply import Each, Exchange, updating
from ps.rules import UpdateRule
from ps.variable import ShardState


def stepping(
    state: ShardState,
    rule: UpdateRule | None,
    contributions: Mapping[int, Contribution],
    *,
    staleness: int = 0,
    worker: int | None = None,
    read_state: ShardState | None = None,
    each: Each = map,
) -> Exchange[ShardState]:
    """The state after one update with what the contributions, by worker, become.

    worker: whose update it is, outside sync mode; None for a step of all. The rest as for `updating`.
    """
    if rule is None:  # a model of state alone: a push has nothing in it, and is a step all the same
        return ShardState(state.version + 1, state.partitions)
    norm = contributions[worker].norm if worker is not None else None
    if norm is not None:
        norm /= rule.loss_scale_factor or 1.0
    gradients = yield from aggregating(rule.aggregation, contributions, state)
    return (
        yield from updating(
            state,
            rule,
            gradients,
            staleness=staleness,
            worker=worker,
            read_state=read_state,
            norm=norm,
            each=each,
        )
    )
