"""The client of the parameter server: what workers and tools use. Start with `client.connect`; read client.py next.

What it offers is loaded at first use, so that a program can start before anything heavy is there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from protos import errors
from protos.errors import ParameterServerError

if TYPE_CHECKING:
    from client.client import Client
    from client.connecting import connect
    from client.model import IndexedSlices
    from client.partitioner import (
        FixedShardsPartitioner,
        MaxSizePartitioner,
        MinSizePartitioner,
        Partitioner,
        WholeVariables,
    )
    from client.results import PushResult, Values

__all__ = [
    "Client",
    "FixedShardsPartitioner",
    "IndexedSlices",
    "MaxSizePartitioner",
    "MinSizePartitioner",
    "ParameterServerError",
    "Partitioner",
    "PushResult",
    "Values",
    "WholeVariables",
    "connect",
    "errors",
]

_HOME = {
    "Client": "client.client",
    "FixedShardsPartitioner": "client.partitioner",
    "IndexedSlices": "client.model",
    "MaxSizePartitioner": "client.partitioner",
    "MinSizePartitioner": "client.partitioner",
    "Partitioner": "client.partitioner",
    "PushResult": "client.results",
    "Values": "client.results",
    "WholeVariables": "client.partitioner",
    "connect": "client.connecting",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'client' has no attribute {name!r}")
    import importlib

    return globals().setdefault(name, getattr(importlib.import_module(_HOME[name]), name))


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
