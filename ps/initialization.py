"""Which of several workers that all call init gets to send the values?

Asked of ps 0 only. The first that asks is granted; the others wait and then find the model there. Without this, two
workers could each win a different shard, and a model would start half from one and half from the other. If the granted one
goes away before it is done, the next gets a higher grant, and every ps lets a higher grant replace a lower one.

Next: ps/shard.py (takes the values), client/initialize.py (the other side).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from protos.errors import InitConflict, WaitTimeout


@dataclass(frozen=True)
class Declaration:
    """A model as an initialiser describes it. variables: (name, dtype, shape, trainable), sorted by name."""

    variables: tuple[tuple[str, str, tuple[int, ...], bool], ...]
    partitioner: str

    def check_same(self, later: Declaration) -> None:
        """InitConflict, by name, if a later declaration differs."""
        mine = {name: rest for name, *rest in self.variables}
        theirs = {name: rest for name, *rest in later.variables}
        for name in sorted(mine.keys() | theirs.keys()):
            if mine.get(name) != theirs.get(name):
                raise InitConflict(
                    field=f"variable {name!r}",
                    got=_text(theirs.get(name)),
                    expected=f"{_text(mine.get(name))}, as initialised",
                )
        if self.partitioner != later.partitioner:
            raise InitConflict(field="partitioner", got=later.partitioner, expected=self.partitioner)


def _text(variable: Sequence[object] | None) -> str:
    if variable is None:
        return "no such variable"
    dtype, shape, trainable = variable
    return f"{dtype} {shape}{'' if trainable else ', not trainable'}"


class Initialization:
    """The state of initialisation on one ps.

    granted_to: the session that may send values now. grant: the newest one given here. accepted_grant: the one whose values
    this ps holds, and accepted_from the session that sent them. On ps 0 the model is ready when the granted session has sent
    its values, which it does there last.
    """

    def __init__(self) -> None:
        self.granted_to = ""
        self.grant = 0
        self.accepted_grant = 0
        self.accepted_from = ""
        self.declaration: Declaration | None = None
        self._changed = asyncio.Event()

    async def ask(
        self,
        session: str,
        declaration: Declaration,
        check: Callable[[], None],
        wait_s: float,
        *,
        in_turn: Callable[[], bool],
        missing: Callable[[str], str] = lambda granted_to: "the worker that goes first",
    ) -> int:
        """A grant, or 0 if the model is ready; waits while another initialises. Differing models raise InitConflict.

        check: raises when there is no point in waiting any longer. in_turn: whether this session may initialise at all yet.
        missing: who is waited for, given the session that holds the grant or "" if nobody does.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + wait_s
        while True:
            check()
            if self.declaration is not None and (self.accepted_grant or self.granted_to != session):
                self.declaration.check_same(
                    declaration
                )  # its own attempt that failed binds nobody, least of all itself
            if self.accepted_grant:
                return 0
            if self.granted_to == session or (not self.granted_to and in_turn()):
                self.granted_to = session
                self.grant += 1
                self.declaration = declaration
                return self.grant
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), max(0.0, deadline_s - loop.time()))
            except asyncio.TimeoutError:
                raise WaitTimeout(
                    field="init",
                    got=f"no model after {wait_s:g} s",
                    expected=f"{missing(self.granted_to)} to initialise it",
                    hint="See whether that worker is up; the wait is set with wait_timeout_s.",
                ) from None

    def has(self, grant: int, session: str) -> bool:
        """Whether the values of this grant are here already: their sender may not have heard of it, and sends them again."""
        return (grant, session) == (self.accepted_grant, self.accepted_from)

    def outdated(self, grant: int) -> bool:
        """Whether a later initialiser is under way, or done."""
        return grant <= self.accepted_grant or grant < self.grant

    def accept(self, grant: int, session: str) -> None:
        """The values of `grant` are here."""
        self.accepted_grant, self.accepted_from = grant, session
        if self.granted_to == session:
            self.granted_to = ""
        self.wake()

    def abandoned(self, session: str) -> None:
        """A session is gone: if it held the grant, somebody else may have one."""
        if self.granted_to == session:
            self.granted_to = ""
            if not self.accepted_grant:
                self.declaration = None
        self.wake()

    def wake(self) -> None:
        self._changed.set()
