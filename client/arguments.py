"""Is an argument of a public method what it should be? InvalidInput, by its name, if not.

What only a model or a cluster can answer is asked elsewhere: model.py, protos/cluster.py. Numbers of seconds: settings.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from client.partitioner import Partitioner
from protos.errors import InvalidInput


def text(field: str, value: Any) -> str:
    """Text."""
    if not isinstance(value, str):
        raise InvalidInput(field=field, got=repr(value), expected="text")
    return value


def printable(field: str, value: Any) -> str:
    """Text that can be shown and sent; it may be empty."""
    if not isinstance(value, str) or not value.isprintable():
        raise InvalidInput(field=field, got=repr(value), expected="printable text")
    return value


def flag(field: str, value: Any) -> bool:
    """True or False, and nothing that is only as good as true."""
    if not isinstance(value, bool):
        raise InvalidInput(field=field, got=repr(value), expected="True or False")
    return value


def names(field: str, value: Any) -> list[str]:
    """Names of variables, each once, in their order. One name alone may come without a list around it."""
    given = [value] if isinstance(value, str) else value
    if not isinstance(given, Iterable) or isinstance(given, (bytes, bytearray)):
        raise InvalidInput(field=field, got=repr(value), expected="a list of names of variables")
    listed = list(given)
    for name in listed:
        if not isinstance(name, str):
            raise InvalidInput(field=field, got=repr(name), expected="names of variables, which are text")
    return list(dict.fromkeys(listed))


def partitioner(field: str, value: Any) -> Partitioner:
    """Something that says where variables are cut."""
    if not isinstance(value, Partitioner):
        raise InvalidInput(
            field=field, got=repr(value), expected="a Partitioner", hint="Such as client.WholeVariables()."
        )
    return value
