"""The client of the parameter server: what workers and tools use. Start with `client.connect`; read client.py next.

What it offers is loaded at first use, so that a program can start before anything heavy is there.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing itself takes a while to load
if TYPE_CHECKING:
    from typing import Any

    from client.client import Client
    from client.compression import Traffic
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
    from protos import errors
    from protos.errors import ParameterServerError

__all__ = [
    "Client",
    "FixedShardsPartitioner",
    "IndexedSlices",
    "MaxSizePartitioner",
    "MinSizePartitioner",
    "ParameterServerError",
    "Partitioner",
    "PushResult",
    "Traffic",
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
    "ParameterServerError": "protos.errors",
    "PushResult": "client.results",
    "Traffic": "client.compression",
    "Values": "client.results",
    "WholeVariables": "client.partitioner",
    "connect": "client.connecting",
}


def __getattr__(name: str) -> Any:
    import importlib

    if name == "errors":
        return importlib.import_module("protos.errors")
    if name not in _HOME:
        raise AttributeError(f"module 'client' has no attribute {name!r}")
    return globals().setdefault(name, getattr(importlib.import_module(_HOME[name]), name))


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
