"""What is an update rule?

A rule is a frozen dataclass: its fields are its whole configuration, its command line and its repr. Its maths is one pure
function, `update`. Registering it under a name is all it takes to use it from every program. See sgd.py for the smallest.

It must not know shards, pages, workers' processes or the wire. Next: options.py (what every rule has besides its maths),
configured.py (names and text), ps/apply.py, which calls `update`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import field
from typing import Any, ClassVar, Union

import numpy as np
import numpy.typing as npt

from protos.errors import RuleError
from ps.rules.aggregations import Aggregation, Mean
from ps.rules.configured import Configured, make
from ps.rules.schedules import Schedule
from ps.rules.transforms import Transform

Floats = npt.NDArray[Any]
# What `update` returns: the new value, or the new value followed by the new slots in the order of `slots`.
Updated = Union[Floats, tuple[Floats, ...]]


@dataclasses.dataclass(frozen=True)
class Context:
    """What a rule or a transform may know besides value and gradient.

    step: updates applied before this one (an Adam that counts from 1 uses step + 1). With accumulation, those that
        the rule has made.
    learning_rate: the rule's learning rate at this step.
    staleness: version now - version the gradient was computed at; 0 in sync mode.
    worker: who pushed; None for a mean of several.
    read_value: the value the gradient was computed at, same shape as value; only for rules with `needs_read_value`.
    norm: the Euclidean norm that a transform asked for (Transform.norm_of); 0 for all others.
    push: pushes applied before this one; the same as `step` without accumulation.
    variable: the variable's name; for rules and transforms with `needs_variable`, as others get several at once.
    """

    step: int
    learning_rate: float
    staleness: int = 0
    worker: int | None = None
    read_value: Floats | None = None
    norm: float = 0.0
    push: int = 0
    variable: str = ""


@dataclasses.dataclass(frozen=True, repr=False)
class UpdateRule(Configured):
    """Base of all rules. Subclass, annotate the fields with defaults, name the slots, write `update`, register.

    The fields below come with every rule; all but the learning rate are `options`, carried out by the engine (options.py),
    with Keras's names. A rule that annotates one of them anew takes it over: the engine then leaves it to the rule.
    """

    kind: ClassVar[str] = "rule"
    # Names of the per-variable state, all zeros at first.
    slots: ClassVar[tuple[str, ...]] = ()
    # Names of state that is kept for each worker apart; `update` gets and returns those of ctx.worker, after `slots`.
    worker_slots: ClassVar[tuple[str, ...]] = ()
    # True promises that updating parts equals updating the whole: the rule is then fed flat blocks.
    elementwise: ClassVar[bool] = True
    # True asks for `ctx.read_value`.
    needs_read_value: ClassVar[bool] = False
    # True asks for `ctx.variable`, and for the name in `init_slot_of`: each variable is then kept whole, apart from others.
    needs_variable: ClassVar[bool] = False
    # True promises that `update` is a few numpy operations and waits for nothing: a small update is then made at once, and
    # not in a thread of its own. Not inherited: a subclass promises for itself.
    quick: ClassVar[bool] = False
    learning_rate: float | Schedule = 0.01
    weight_decay: float | None = field(default=None, kw_only=True)
    clipnorm: float | None = field(default=None, kw_only=True)
    clipvalue: float | None = field(default=None, kw_only=True)
    global_clipnorm: float | None = field(default=None, kw_only=True)
    use_ema: bool = field(default=False, kw_only=True)
    ema_momentum: float = field(default=0.99, kw_only=True)
    ema_overwrite_frequency: int | None = field(default=None, kw_only=True)
    loss_scale_factor: float | None = field(default=None, kw_only=True)
    gradient_accumulation_steps: int | None = field(default=None, kw_only=True)
    transforms: tuple[Transform, ...] = field(default=(), kw_only=True)
    aggregation: Aggregation = field(default=Mean(), kw_only=True)

    def __post_init__(self) -> None:
        """Refuse arguments that make no sense; a subclass with more of them extends this."""
        rate = self.learning_rate
        self.require("learning_rate", isinstance(rate, Schedule) or rate >= 0, "0 or more")
        for name in ("clipnorm", "clipvalue", "global_clipnorm", "loss_scale_factor"):
            value = getattr(self, name)
            self.require(name, value is None or value > 0, "more than 0, or None")
        self.require("weight_decay", self.weight_decay is None or self.weight_decay >= 0, "0 or more, or None")
        clips = [name for name in ("clipnorm", "clipvalue", "global_clipnorm") if getattr(self, name) is not None]
        self.require(clips[-1] if clips else "clipnorm", len(clips) < 2, f"only one of {', '.join(clips)}")
        self.require("ema_momentum", 0 <= self.ema_momentum <= 1, "0 to 1")
        every = self.ema_overwrite_frequency
        self.require("ema_overwrite_frequency", every is None or every >= 1, "1 or more, or None")
        count = self.gradient_accumulation_steps
        self.require("gradient_accumulation_steps", not count or count >= 2, "2 or more, or None")
        holding = [transform for transform in self.transforms if transform.pushes_a_step() > 1]
        self.require("transforms", len(holding) + bool(count) < 2, "at most one that accumulates")

    def update(self, ctx: Context, value: Floats, grad: Floats, *slots: Floats) -> Updated:
        """The new value and the new slots. Pure: arguments are read-only arrays, results are new ones.

        value, grad and every slot: one shape, one float dtype (float32 for 16-bit variables). Flat blocks if
        `elementwise`, else the whole variable in its shape. Results are of the same shapes and dtypes.
        """
        raise TypeError(f"{type(self).__name__} does not define update")

    def slot_names(self) -> tuple[str, ...]:
        """The slots this configuration of the rule has: `slots`, unless fields decide."""
        return self.slots

    def init_slot(self, name: str, value: Floats) -> Floats:
        """The first content of slot `name` for a variable of this value: in its shape, unless the rule is not elementwise."""
        return np.zeros_like(value)

    def init_slot_of(self, variable: str, name: str, value: Floats) -> Floats:
        """The same, for a rule whose slots depend on the variable's name (`needs_variable`)."""
        return self.init_slot(name, value)

    def rate_at(self, step: int) -> float:
        """The learning rate at this step: a schedule's value, or the same number always."""
        return self.learning_rate(step) if isinstance(self.learning_rate, Schedule) else self.learning_rate

    @classmethod
    def hints(cls) -> dict[str, Any]:
        """A learning rate may be a schedule, whatever a rule's annotation says: `update` sees the number of the step."""
        return super().hints() | {"learning_rate": float | Schedule}

    @classmethod
    def registered_as(cls, own: Mapping[str, Any]) -> None:
        for name in ("slots", "worker_slots"):
            if isinstance(getattr(cls, name), str):
                raise RuleError(
                    field=f"rule {cls.name}, {name}",
                    got=repr(getattr(cls, name)),
                    expected=f"a tuple of names: ({getattr(cls, name)!r},)",
                )
        names = (*cls.slots, *cls.worker_slots)
        if len(set(names)) < len(names):
            raise RuleError(field=f"rule {cls.name}, slots", got=", ".join(names), expected="each name once")
        cls.quick = own.get("quick", False)
        taken = {
            name for base in cls.__mro__ if base is not UpdateRule for name in vars(base).get("__annotations__", {})
        }
        own_fields = {name for name, hint in UpdateRule.__annotations__.items() if not hint.startswith("ClassVar")}
        cls.options = frozenset(own_fields - taken - {"learning_rate"})


def make_rule(spec: str | Mapping[str, Any] | UpdateRule) -> UpdateRule:
    """The rule that a SPEC (NAME:key=value,…) or a mapping ({"name": NAME, key: value, …}) describes; else RuleError."""
    rule: UpdateRule = make("rule", spec)
    return rule
