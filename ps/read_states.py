"""At which values was a gradient computed? The states that each client has read, for rules that ask for `ctx.read_value`.

States are immutable and share their pages, so keeping one costs what has changed since. Next: ps/shard.py.
"""

from __future__ import annotations

from collections.abc import Collection

from protos.errors import RuleError
from ps.rules import UpdateRule
from ps.variable import ShardState

# How many versions are kept for one client: each of its threads may have pulled one.
KEPT = 4


class ReadStates:
    """By session: the newest states it has pulled."""

    def __init__(self) -> None:
        self._states: dict[str, dict[int, ShardState]] = {}

    def __len__(self) -> int:
        return sum(len(states) for states in self._states.values())

    def remember(self, session_id: str, state: ShardState) -> None:
        """The session has pulled this state."""
        kept = self._states.setdefault(session_id, {})
        kept[state.version] = state
        while len(kept) > KEPT:
            del kept[min(kept)]

    def of(self, session_id: str, version: int, present: ShardState, rule: UpdateRule) -> ShardState:
        """The state of `version` as the session read it; the present one if it is of that version. Else RuleError."""
        state = self._states.get(session_id, {}).get(version)
        if state is None and version == present.version:
            return present
        if state is None:
            raise RuleError(
                field=f"rule {rule.name}",
                got=f"a gradient of version {version}, which this worker did not pull last",
                expected="the version of its last pull: the rule needs the value read",
                hint="Pull, compute, push.",
            )
        return state

    def keep_only(self, session_ids: Collection[str]) -> None:
        """Forget what other sessions have read."""
        for session_id in self._states.keys() - set(session_ids):
            del self._states[session_id]
