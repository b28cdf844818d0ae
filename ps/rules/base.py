"""What is an update rule, and how is one named, configured and found?

A rule is a frozen dataclass: its fields are its whole configuration, its command line and its repr. Its maths is one pure
function, `update`. Registering it under a name is all it takes to use it from every program. See sgd.py for the smallest.

It must not know shards, pages, workers' processes or the wire. Next: ps/apply.py, which calls `update`.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import math
import sys
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Union

import numpy as np
import numpy.typing as npt

from protos.errors import RuleError

Floats = npt.NDArray[Any]
# What `update` returns: the new value, or the new value followed by the new slots in the order of `slots`.
Updated = Union[Floats, tuple[Floats, ...]]


@dataclasses.dataclass(frozen=True)
class Context:
    """What a rule may know besides value and gradient.

    step: updates applied before this one (an Adam that counts from 1 uses step + 1).
    learning_rate: the rule's learning rate at this step.
    staleness: version now - version the gradient was computed at; 0 in sync mode.
    worker: who pushed; None for a mean of several.
    read_value: the value the gradient was computed at, same shape as value; only for rules with `needs_read_value`.
    """

    step: int
    learning_rate: float
    staleness: int = 0
    worker: int | None = None
    read_value: Floats | None = None


@dataclasses.dataclass(frozen=True)
class UpdateRule:
    """Base of all rules. Subclass, annotate the fields with defaults, name the slots, write `update`, register."""

    # Names of the per-variable state, all zeros at first.
    slots: ClassVar[tuple[str, ...]] = ()
    # True promises that updating parts equals updating the whole: the rule is then fed flat blocks.
    elementwise: ClassVar[bool] = True
    # True asks for `ctx.read_value`.
    needs_read_value: ClassVar[bool] = False
    # True promises that `update` is a few numpy operations and waits for nothing: a small update is then made at once, and
    # not in a thread of its own. Not inherited: a subclass promises for itself.
    quick: ClassVar[bool] = False
    name: ClassVar[str] = ""

    learning_rate: float = 0.01

    def __post_init__(self) -> None:
        """Refuse arguments that make no sense; a subclass with more of them extends this."""
        self.require("learning_rate", self.learning_rate >= 0, "0 or more")

    def require(self, field: str, holds: bool, expected: str) -> None:
        """RuleError, by name, unless `holds`."""
        if not holds:
            raise RuleError(field=f"rule {self.name}, argument {field}", got=getattr(self, field), expected=expected)

    def update(self, ctx: Context, value: Floats, grad: Floats, *slots: Floats) -> Updated:
        """The new value and the new slots. Pure: arguments are read-only arrays, results are new ones.

        value, grad and every slot: one shape, one float dtype (float32 for 16-bit variables). Flat blocks if
        `elementwise`, else the whole variable in its shape.
        """
        raise TypeError(f"{type(self).__name__} does not define update")

    def init_slot(self, name: str, value: Floats) -> Floats:
        """The first content of slot `name` for a variable of this value, in the shape of `value`."""
        return np.zeros_like(value)

    def spec(self) -> str:
        """The rule as a command line has it: NAME:key=value,key=value, every field said."""
        fields = ",".join(f"{key}={value}" for key, value in dataclasses.asdict(self).items())
        return f"{self.name}:{fields}" if fields else self.name


_FIELD_TYPES = {bool, int, float, str, type(None)}
_RULES: dict[str, type[UpdateRule]] = {}

R = typing.TypeVar("R", bound=UpdateRule)


def register(name: str) -> Callable[[type[R]], type[R]]:
    """Class decorator: make the rule known under `name`. The same name again replaces it, as a notebook needs."""

    def decorate(cls: type[R]) -> type[R]:
        if not issubclass(cls, UpdateRule):
            raise RuleError(field=f"rule {name}", got=cls, expected="a subclass of ps.rules.UpdateRule")
        if not name.isidentifier():
            raise RuleError(field="rule name", got=repr(name), expected="letters, digits and underscores")
        try:
            made = dataclasses.dataclass(frozen=True)(cls)
        except TypeError as error:
            raise RuleError(
                field=f"rule {name}",
                got=f"{cls.__name__}: {error}",
                expected="a plain class that is registered once, its fields annotated and with defaults",
            ) from error
        fields = {field.name for field in dataclasses.fields(made)}
        if taken := sorted(fields & {"slots", "elementwise", "needs_read_value", "quick", "name"}):
            raise RuleError(
                field=f"rule {name}",
                got=f"{taken[0]} as a field",
                expected="no annotation on it, as a rule's fields are its configuration",
            )
        hints = typing.get_type_hints(made)
        for field in dataclasses.fields(made):
            hint = hints[field.name]
            either = typing.get_origin(hint) in (Union, types.UnionType)
            kinds = set(typing.get_args(hint)) if either else {hint}
            if not kinds <= _FIELD_TYPES:
                raise RuleError(
                    field=f"rule {name}, field {field.name}",
                    got=str(hint),
                    expected="bool, int, float, str, or one of them or None: what a command line can say",
                )
        if isinstance(made.slots, str):
            raise RuleError(
                field=f"rule {name}, slots", got=repr(made.slots), expected=f"a tuple of names: ({made.slots!r},)"
            )
        made.name, made.quick = name, vars(cls).get("quick", False)
        _RULES[name] = made
        return made

    return decorate


def registered() -> Mapping[str, type[UpdateRule]]:
    """All known rules by name."""
    return dict(sorted(_RULES.items()))


def make_rule(spec: str | Mapping[str, Any]) -> UpdateRule:
    """The rule that a SPEC (NAME:key=value,…) or a mapping ({"name": NAME, key: value, …}) describes; else RuleError."""
    name, arguments = _split(spec)
    cls = _RULES.get(name)
    if cls is None:
        raise RuleError(
            field="rule",
            got=repr(name),
            expected=f"one of {', '.join(sorted(_RULES))}",
            hint="--rules FILE.py adds your own.",
        )
    hints = typing.get_type_hints(cls)
    fields = {field.name: hints[field.name] for field in dataclasses.fields(cls)}
    converted = {}
    for key, value in arguments.items():
        if key not in fields:
            raise RuleError(field=f"rule {name}", got=f"argument {key!r}", expected=f"one of {', '.join(fields)}")
        converted[key] = _convert(value, fields[key], f"rule {name}, argument {key}")
    try:
        return cls(**converted)
    except RuleError:
        raise
    except Exception as error:
        raise RuleError(
            field=f"rule {name}", got=f"{type(error).__name__}: {error}", expected="arguments it accepts"
        ) from error


def _split(spec: str | Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    if isinstance(spec, Mapping):
        arguments = dict(spec)
        name = arguments.pop("name", None)
        if not isinstance(name, str):
            raise RuleError(field="rule", got=repr(dict(spec)), expected='a mapping with "name"')
        return name, arguments
    if not isinstance(spec, str):
        raise RuleError(field="rule", got=repr(spec), expected="NAME:key=value,… or a mapping")
    name, _, rest = spec.partition(":")
    arguments = {}
    for item in filter(None, (part.strip() for part in rest.split(","))):
        key, equals, value = item.partition("=")
        if not equals or not key.strip():
            raise RuleError(field=f"rule {name}", got=repr(item), expected="key=value")
        if key.strip() in arguments:
            raise RuleError(field=f"rule {name}", got=f"{key.strip()} twice", expected="each argument once")
        arguments[key.strip()] = value.strip()
    return name.strip(), arguments


def _convert(value: Any, hint: Any, field: str) -> Any:
    """`value` (text from a command line, or already typed) as the field's type; no evaluation of anything."""
    options = typing.get_args(hint) or (hint,)
    if type(None) in options and (value is None or value == "None"):
        return None
    if bool in options:
        known = {"true": True, "1": True, "false": False, "0": False}
        if str(value).lower() in known:
            return known[str(value).lower()]
        raise RuleError(field=field, got=repr(value), expected="true or false")
    for kind in (int, float):
        if kind in options and not isinstance(value, bool):
            try:
                number = kind(value)
            except (TypeError, ValueError):
                continue
            if math.isfinite(number) and (kind is float or isinstance(value, str) or number == value):
                return number
    if str in options and isinstance(value, str) and "," not in value and value == value.strip():
        return value
    expected = " or ".join(
        "a finite number" if kind is float else getattr(kind, "__name__", str(kind)) for kind in options
    )
    raise RuleError(field=field, got=repr(value), expected=expected)


def load_rules(path: str | Path) -> list[str]:
    """Import a rule file and return the names it registered. RuleError if it cannot be, or if it registers none."""
    path = Path(path)
    if not path.is_file():
        raise RuleError(field="--rules", got=path, expected="a Python file that registers rules")
    before = dict(_RULES)
    module_name = f"paramserver_rules_{path.stem}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise RuleError(field="--rules", got=path, expected="a file whose name ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses look their module up to resolve annotations
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        _RULES.clear()
        _RULES.update(before)
        if isinstance(error, RuleError):
            raise
        raise RuleError(
            field=f"--rules {path}", got=f"{type(error).__name__}: {error}", expected="a file that imports"
        ) from error
    added = [name for name, cls in _RULES.items() if before.get(name) is not cls]
    if not added:
        raise RuleError(field=f"--rules {path}", got="no rule", expected="@register(name) on a subclass of UpdateRule")
    return added
