"""The client of the parameter server: what workers and tools use. Start with `client.connect`; read client.py next."""

from client.client import Client
from client.connect import connect
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
    "Values",
    "WholeVariables",
    "connect",
    "errors",
]
