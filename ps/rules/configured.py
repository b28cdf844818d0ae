"""How is a rule, a transform, a schedule or an aggregation named, configured and found, by text and by mapping?

Each is a frozen dataclass: its fields are its whole configuration, its command line and its repr. `register` makes one
known under a name; its kind follows from the class it derives from.

    NAME:key=value,key=value                          the outermost, a rule
    sgd:learning_rate=cosine_decay(0.1,decay_steps=100)    one within another; what stands without a key goes by position
    sgd:transforms=[clip_by_norm(1),centralise]       several

Text is taken apart and converted, never evaluated. It must not know maths. Next: base.py (what a rule is).
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Union

from protos.errors import RuleError

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:  # known to type checkers only: what `register` returns has a constructor with its fields

    def dataclass_transform(**options):
        return lambda function: function


SCALARS = {bool, int, float, str, type(None)}


@dataclasses.dataclass(frozen=True, repr=False)
class Configured:
    """Base of all that is configured by name. kind: rule, transform, schedule or aggregation; name: given by `register`."""

    kind: ClassVar[str] = ""
    name: ClassVar[str] = ""
    # Fields that go unsaid as long as they are as by default.
    options: ClassVar[frozenset[str]] = frozenset()

    def require(self, field: str, holds: bool, expected: str) -> None:
        """RuleError, by name, unless `holds`."""
        if not holds:
            raise RuleError(
                field=f"{self.kind} {self.name}, argument {field}", got=getattr(self, field), expected=expected
            )

    def require_at_least_0(self, *fields: str) -> None:
        """RuleError, by name, for the first of these fields that is below 0."""
        for field in fields:
            self.require(field, getattr(self, field) >= 0, "0 or more")

    def require_below_1(self, *fields: str) -> None:
        """RuleError, by name, for the first of these fields that is not in [0, 1): shares, such as Adam's betas."""
        for field in fields:
            self.require(field, 0 <= getattr(self, field) < 1, "from 0, below 1")

    @classmethod
    def hints(cls) -> dict[str, Any]:
        """The types that each field takes."""
        return typing.get_type_hints(cls)

    @classmethod
    def registered_as(cls, own: Mapping[str, Any]) -> None:
        """Called by `register` with what the class itself defines: settle what is not inherited; RuleError if it cannot be."""

    def spec(self) -> str:
        """As a command line has it, NAME:key=value,key=value. What is off, as by default, goes unsaid, and so do options."""
        arguments = ",".join(f"{key}={_text(value)}" for key, value in self._said().items())
        return f"{self.name}:{arguments}" if arguments else self.name

    def config(self) -> dict[str, Any]:
        """As a mapping: "name" and every field."""
        fields = {field.name: _plain(getattr(self, field.name)) for field in dataclasses.fields(self)}
        return {"name": self.name, **fields}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{key}={value!r}' for key, value in self._said().items())})"

    def _said(self) -> dict[str, Any]:
        return {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if getattr(self, field.name) != field.default or (field.default and field.name not in self.options)
        }


def _text(value: Any) -> str:
    if isinstance(value, Configured):
        arguments = ",".join(f"{key}={_text(item)}" for key, item in value._said().items())
        return f"{value.name}({arguments})" if arguments else value.name
    if isinstance(value, tuple):
        return f"[{','.join(map(_text, value))}]"
    return str(value)


def _plain(value: Any) -> Any:
    if isinstance(value, Configured):
        return value.config()
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


# -- the registry ------------------------------------------------------------------------------------------------------

# By kind, by name.
_REGISTRY: dict[str, dict[str, type[Any]]] = {"rule": {}, "transform": {}, "schedule": {}, "aggregation": {}}

C = typing.TypeVar("C", bound=Configured)


@dataclass_transform(frozen_default=True)
def register(name: str) -> Callable[[type[C]], type[C]]:
    """Class decorator: make a rule, transform, schedule or aggregation known under `name`.

    The same name again replaces it, as a notebook needs.
    """

    def decorate(cls: type[C]) -> type[C]:
        if not isinstance(cls, type) or not issubclass(cls, Configured) or not cls.kind:
            raise RuleError(
                field=f"rule {name}", got=cls, expected="a subclass of UpdateRule, Transform, Schedule or Aggregation"
            )
        if not name.isidentifier():
            raise RuleError(field=f"{cls.kind} name", got=repr(name), expected="letters, digits and underscores")
        made = _dataclass(cls, f"{cls.kind} {name}")
        made.name = name
        made.registered_as(vars(cls))
        _REGISTRY[cls.kind][name] = made
        return made

    return decorate


def _dataclass(cls: type[C], what: str) -> type[C]:
    try:
        made = dataclasses.dataclass(frozen=True, repr=False)(cls)
    except TypeError as error:
        raise RuleError(
            field=what,
            got=f"{cls.__name__}: {error}",
            expected="a plain class that is registered once, its fields annotated and with defaults",
        ) from error
    hints = made.hints()
    for field in dataclasses.fields(made):
        if field.name in _class_variables(cls):
            raise RuleError(
                field=what,
                got=f"{field.name} as a field",
                expected="no annotation on it, as the fields are the configuration",
            )
        if not all(map(_can_be_said, _options(hints[field.name]))):
            raise RuleError(
                field=f"{what}, field {field.name}",
                got=str(hints[field.name]),
                expected="bool, int, float, str, None, tuple[…, ...] of one of them, a schedule, a transform, "
                "or one of several: what a command line can say",
            )
        if isinstance(field.default, str) and not _survives(field.default):
            raise RuleError(
                field=f"{what}, field {field.name}",
                got=repr(field.default),
                expected="text without commas, brackets and blanks at its ends: what a command line can say",
            )
    return made


def _class_variables(cls: type[Configured]) -> set[str]:
    """What the base classes of its kind have for themselves: no field may be called so."""
    return {
        name
        for base in cls.__mro__[1:]
        for name, hint in vars(base).get("__annotations__", {}).items()
        if str(hint).startswith(("ClassVar", "typing.ClassVar"))
    }


def _options(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) in (Union, types.UnionType) else (hint,)


def _element(option: Any) -> Any:
    """X of tuple[X, ...]; None for another hint."""
    arguments = typing.get_args(option)
    return arguments[0] if typing.get_origin(option) is tuple and arguments[1:] == (Ellipsis,) else None


def _can_be_said(option: Any) -> bool:
    if (element := _element(option)) is not None:
        return all(map(_can_be_said, _options(element)))
    return option in SCALARS or (isinstance(option, type) and issubclass(option, Configured))


def _survives(text: str) -> bool:
    return text == text.strip() and not set(text) & set(",()[]")


def registered(kind: str = "rule") -> Mapping[str, type[Any]]:
    """All known rules, transforms, schedules or aggregations by name."""
    return dict(sorted(_REGISTRY[kind].items()))


# -- from text and mappings --------------------------------------------------------------------------------------------


def make(kind: str, spec: object) -> Any:
    """What a SPEC, a mapping ({"name": NAME, key: value, …}) or an object of that kind describes; else RuleError."""
    if isinstance(spec, Configured) and spec.kind == kind and spec.name:
        return spec
    if isinstance(spec, Mapping):
        name, positional, arguments = _from_mapping(kind, spec)
    elif isinstance(spec, str):
        name, positional, arguments = _from_text(kind, spec)
    else:
        raise RuleError(field=kind, got=repr(spec), expected="NAME:key=value,… or a mapping")
    cls = _REGISTRY[kind].get(name)
    if cls is None:
        raise RuleError(
            field=kind,
            got=repr(name),
            expected=f"one of {', '.join(sorted(_REGISTRY[kind]))}",
            hint="--rules FILE.py adds your own.",
        )
    return _build(cls, f"{kind} {name}", positional, arguments)


def _build(cls: type[Configured], what: str, positional: Sequence[Any], arguments: Mapping[str, Any]) -> Any:
    hints = cls.hints()
    fields = {field.name: hints[field.name] for field in dataclasses.fields(cls)}
    if len(positional) > len(fields):
        raise RuleError(field=what, got=f"{len(positional)} arguments", expected=f"at most {', '.join(fields)}")
    said = dict(zip(fields, positional))
    for key, value in arguments.items():
        if key not in fields:
            raise RuleError(field=what, got=f"argument {key!r}", expected=f"one of {', '.join(fields)}")
        if key in said:
            raise RuleError(field=what, got=f"{key} twice", expected="each argument once")
        said[key] = value
    for field in dataclasses.fields(cls):
        if field.name not in said and field.default is dataclasses.MISSING:
            raise RuleError(field=what, got=f"no {field.name}", expected=f"{field.name}=…, which has no default")
    converted = {key: _convert(value, fields[key], f"{what}, argument {key}") for key, value in said.items()}
    try:
        return cls(**converted)
    except RuleError:
        raise
    except Exception as error:
        raise RuleError(field=what, got=f"{type(error).__name__}: {error}", expected="arguments it accepts") from error


def _from_mapping(kind: str, spec: Mapping[Any, Any]) -> tuple[str, list[Any], dict[str, Any]]:
    arguments = dict(spec)
    name = arguments.pop("name", None)
    if not isinstance(name, str):
        raise RuleError(field=kind, got=repr(dict(spec)), expected='a mapping with "name"')
    return name, [], arguments


def _from_text(kind: str, spec: str) -> tuple[str, list[Any], dict[str, Any]]:
    """NAME:key=value,… of the outermost, NAME(value,key=value,…) of what is within it."""
    opened, colon = spec.find("("), spec.find(":")
    if kind != "rule" and opened >= 0 and spec.rstrip().endswith(")"):
        name, rest = spec[:opened], spec.rstrip()[opened + 1 : -1]
    elif colon >= 0:
        name, rest = spec[:colon], spec[colon + 1 :]
    else:
        name, rest = spec, ""
    name = name.strip()
    positional: list[Any] = []
    arguments: dict[str, Any] = {}
    for item in _split(rest, f"{kind} {name}"):
        key, equals, value = item.partition("=")
        if kind != "rule" and (not equals or not key.strip().isidentifier()) and not arguments:
            positional.append(item)
        elif not equals or not key.strip():
            raise RuleError(field=f"{kind} {name}", got=repr(item), expected="key=value")
        elif key.strip() in arguments:
            raise RuleError(field=f"{kind} {name}", got=f"{key.strip()} twice", expected="each argument once")
        else:
            arguments[key.strip()] = value.strip()
    return name, positional, arguments


def _split(text: str, what: str) -> list[str]:
    """At the commas that stand in no bracket; empty items left out."""
    items, depth, start = [], 0, 0
    for position, character in enumerate(text + ","):
        depth += (character in "([") - (character in ")]")
        if depth < 0 or (position == len(text) and depth):
            raise RuleError(field=what, got=repr(text), expected="brackets that match")
        if character == "," and depth == 0:
            items.append(text[start:position].strip())
            start = position + 1
    return [item for item in items if item]


def _convert(value: Any, hint: Any, field: str) -> Any:
    """`value` (text from a command line, or already typed) as the field's type; no evaluation of anything."""
    options = _options(hint)
    if type(None) in options and (value is None or value == "None"):
        return None
    for option in options:
        if (element := _element(option)) is not None:
            return tuple(_convert(item, element, field) for item in _items(value, field))
    if bool in options:
        known = {"true": True, "1": True, "false": False, "0": False}
        if str(value).lower() in known:
            return known[str(value).lower()]
        raise RuleError(field=field, got=repr(value), expected="true or false")
    for kind in (int, float):
        if kind in options and not isinstance(value, bool) and (number := _number(value, kind)) is not None:
            return number
    for option in options:
        if isinstance(option, type) and issubclass(option, Configured) and _names_one(value, option.kind, options):
            return make(option.kind, value)
    if str in options and isinstance(value, str) and _survives(value):
        return value
    raise RuleError(field=field, got=repr(value), expected=" or ".join(map(_in_words, options)))


def _number(value: Any, kind: type[int] | type[float]) -> int | float | None:
    try:
        number = kind(value)
    except (TypeError, ValueError, OverflowError):
        return None
    exact = kind is float or isinstance(value, str) or number == value
    return number if math.isfinite(number) and exact else None


def _names_one(value: Any, kind: str, options: Iterable[Any]) -> bool:
    """Whether this can only mean something of that kind, rather than a badly written number."""
    if isinstance(value, (Mapping, Configured)):
        return True
    return isinstance(value, str) and (float not in options or value.partition("(")[0].strip() in _REGISTRY[kind])


def _items(value: Any, field: str) -> Sequence[Any]:
    """The items of "[a,b]", of one item alone, or of a sequence."""
    if isinstance(value, str):
        text = value.strip()
        return _split(text[1:-1] if text.startswith("[") and text.endswith("]") else text, field)
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _in_words(option: Any) -> str:
    if option is float:
        return "a finite number"
    if option is type(None):
        return "None"
    return f"a {option.kind}" if issubclass(option, Configured) else str(option.__name__)
