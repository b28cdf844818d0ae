"""How does a model get onto the ps? Ask ps 0, cut and place the variables, send each ps its part, ps 0 last.

One worker is granted the right to send values; the others wait and find them there. ps 0 gets its part last, so that once
it holds values, every ps does. Next: ps/initialization.py (the other side), client/partitioner.py.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from client.partitioner import Partitioner, Piece, cut, pack, place
from protos import codec
from protos import parameter_server_pb2 as pb
from protos.codec import TRAINABLE_DTYPES, Array, dense_blocks, to_array, wire_text
from protos.errors import ConfigurationConflict, DtypeMismatch, InvalidInput, UnknownVariable
from protos.wire import Block


def checked_values(values: Mapping[str, npt.ArrayLike]) -> dict[str, Array]:
    """The arrays to begin with, or a typed error that names the variable."""
    if not isinstance(values, Mapping):
        raise InvalidInput(field="values", got=type(values).__name__, expected="a mapping of names to arrays")
    for name in values:
        if not isinstance(name, str) or not name or not name.isprintable():
            raise InvalidInput(field="variable name", got=repr(name), expected="printable text")
    return {name: to_array(value, name) for name, value in sorted(values.items())}


def variable_specs(values: Mapping[str, Array], non_trainable: Collection[str]) -> list[pb.VariableSpec]:
    """How the variables are described on the wire. Integers and booleans are never trainable."""
    for name in non_trainable:
        if name not in values:
            raise UnknownVariable(field="non_trainable", got=repr(name), expected="a name in values")
    return [
        pb.VariableSpec(
            name=name,
            dtype=value.dtype.name,
            shape=value.shape,
            trainable=value.dtype.name in TRAINABLE_DTYPES and name not in non_trainable,
        )
        for name, value in values.items()
    ]


def tables(
    specs: list[pb.VariableSpec],
    values: Mapping[str, Array],
    partitioner: Partitioner,
    num_ps: int,
    *,
    elementwise: bool,
    packed: bool = False,
) -> list[list[pb.PartitionSpec]]:
    """For each ps, the partitions it is to hold, in the order of their ids. elementwise, packed: what the rule allows."""
    by_name = {spec.name: spec for spec in specs}
    sizes = {name: (value.shape, value.itemsize) for name, value in values.items()}
    placed = place(cut(sizes, partitioner, num_ps, elementwise=elementwise), num_ps)
    kinds = {name: spec.dtype if packed and spec.trainable else None for name, spec in by_name.items()}

    def partition(pieces: list[Piece]) -> pb.PartitionSpec:
        members = [pb.PartitionSpec(variable=by_name[p.name], start=p.start, stop=p.stop) for p in pieces]
        return members[0] if len(members) == 1 else pb.PartitionSpec(members=members)

    return [[partition(pieces) for pieces in pack(mine, kinds, codec.PAGE_BYTES)] for mine in placed]


def table_blocks(table: list[pb.PartitionSpec], values: Mapping[str, Array]) -> Iterator[Block]:
    """The values of one ps's partitions, made one at a time."""
    for index, spec in enumerate(table):
        arrays = [_rows_of(part, values[part.variable.name]) for part in spec.members or [spec]]
        yield from dense_blocks(
            index, arrays[0] if len(arrays) == 1 else np.concatenate([a.reshape(-1) for a in arrays])
        )


def _rows_of(spec: pb.PartitionSpec, value: Array) -> Array:
    return value[spec.start : spec.stop] if spec.variable.shape else value


def configuration(
    rule: str | Mapping[str, Any] | None, mode: str | None, slack: int | None, backup_workers: int | None
) -> pb.Configuration:
    """What the caller of init says of the job; what it does not say stays empty."""
    for field, value in (("slack", slack), ("backup_workers", backup_workers)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 31):
            raise ConfigurationConflict(
                field=field, got=repr(value), expected="a number of iterations or workers, 0 or more"
            )
    if mode is not None and not isinstance(mode, str):
        raise ConfigurationConflict(field="mode", got=repr(mode), expected="async, sync or ssp")
    return pb.Configuration(
        mode=wire_text(mode or ""), slack=slack, backup_workers=backup_workers, rule=rule_spec(rule)
    )


def rule_spec(rule: str | Mapping[str, Any] | None) -> str:
    """A rule as text: NAME:key=value,key=name(key=value),key=[a,b]. The ps knows the rules; here only the form is checked."""
    if rule is None:
        return ""
    if isinstance(rule, str):
        return wire_text(rule)
    if not isinstance(rule, Mapping):
        raise InvalidInput(field="rule", got=repr(rule), expected='NAME:key=value,… or {"name": NAME, key: value, …}')
    name, arguments = _named("rule", rule)
    said = _arguments(f"rule {name}", arguments)
    return f"{name}:{said}" if said else name


def _named(field: str, value: Mapping[Any, Any]) -> tuple[str, dict[Any, Any]]:
    """Name and arguments of a mapping that describes a rule, or a schedule, a transform or an aggregation within one."""
    arguments = dict(value)
    name = arguments.pop("name", None)
    if not isinstance(name, str):
        raise InvalidInput(field=field, got=repr(value), expected='NAME:key=value,… or {"name": NAME, key: value, …}')
    return name, arguments


def _arguments(what: str, arguments: Mapping[Any, Any]) -> str:
    for key in arguments:
        if not isinstance(key, str) or not key.isidentifier():
            raise InvalidInput(field=what, got=f"argument {key!r}", expected="the name of an argument")
    return ",".join(f"{key}={_said(f'{what}, argument {key}', value)}" for key, value in arguments.items())


def _said(field: str, value: Any) -> str:
    """A value as text: a number, a boolean, text; a mapping as name(key=value,…), a list as [a,b]."""
    if isinstance(value, Mapping):
        name, arguments = _named(field, value)
        said = _arguments(f"{field}, {name}", arguments)
        return f"{name}({said})" if said else name
    if isinstance(value, (list, tuple)):
        return f"[{','.join(_said(f'{field}[{index}]', item) for index, item in enumerate(value))}]"
    with contextlib.suppress(TypeError, ValueError, RuntimeError):  # of an array of several numbers
        value = value.item() if hasattr(value, "item") else value
    if not isinstance(value, (bool, int, float, str, type(None))):
        raise DtypeMismatch(
            field=field, got=repr(value), expected="a number, a boolean, text, a list of them, or a mapping with a name"
        )
    if isinstance(value, str) and _has_bare_comma(value):  # what follows would be another argument
        raise InvalidInput(field=field, got=repr(value), expected="text without commas, except in brackets")
    return str(value)


def _has_bare_comma(text: str) -> bool:
    depths = itertools.accumulate((character in "([") - (character in ")]") for character in text)
    return any(character == "," and depth <= 0 for character, depth in zip(text, depths))
