"""What tests of the core are made of: partitions, gradients, joined workers, a shard that is ready. No sockets, no threads."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any
from unittest import mock

import numpy as np

from protos import codec
from ps.configuration import Configuration
from ps.initialization import Declaration
from ps.membership import JoinFacts, Membership, Session
from ps.shard import PushResult, Shard
from ps.variable import DenseGradient, Paged, Partition, PartitionKey, ShardState, SparseGradient

Array = Any
WAIT_S = 3600.0  # no test waits for this: what it waits for comes, or never does and the test says so


def key(name: str, shape: tuple[int, ...], dtype: str = "float32", *, trainable: bool = True) -> PartitionKey:
    """A variable that one ps holds whole."""
    return PartitionKey(name, dtype, shape, 0, shape[0] if shape else 1, trainable)


def partition(name: str, value: Array, *, trainable: bool = True) -> Partition:
    array = np.array(value, order="C")
    return Partition(key(name, array.shape, array.dtype.name, trainable=trainable), Paged.of(array))


def state(**values: Array) -> ShardState:
    """A shard at version 0 with these variables, partition ids in the order of their names."""
    return ShardState(0, tuple(partition(name, value) for name, value in sorted(values.items())))


def dense(value: Array) -> DenseGradient:
    return DenseGradient(Paged.of(np.array(value, order="C")))


def sparse(indices: list[int], rows: Array) -> SparseGradient:
    """indices: sorted and unique, as an intake makes them."""
    array = np.array(rows)
    array.setflags(write=False)
    return SparseGradient(np.array(indices, np.int64), array)


@contextlib.contextmanager
def small_pages(nbytes: int = 64) -> Iterator[None]:
    """Pages so small that a few numbers fill several of them."""
    with mock.patch.object(codec, "PAGE_BYTES", nbytes):
        yield


def facts(session: str, worker: int | None, num_workers: int, **more: Any) -> JoinFacts:
    return JoinFacts(session, worker, num_workers=num_workers, origin=f"host, pid of {session}", **more)


def members(num_workers: int) -> Membership[Any]:
    """All workers joined: worker 2 has session "w2"."""
    membership: Membership[Any] = Membership(num_workers)
    for worker in range(num_workers):
        membership.join(facts(f"w{worker}", worker, num_workers))
    return membership


def declaration(values: Mapping[str, Array]) -> Declaration:
    arrays = [(name, np.asarray(value)) for name, value in sorted(values.items())]
    variables = tuple((name, array.dtype.name, array.shape, array.dtype.kind not in "biu") for name, array in arrays)
    return Declaration(variables, "WholeVariables()")


def run(lesson: Coroutine[Any, Any, Any]) -> Any:
    """Run a lesson to its end. One that would hang is ended after half a minute, with a trace of where it hung."""
    return asyncio.run(asyncio.wait_for(lesson, 30))


class Clock:
    """A clock that goes only when it is told to."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


async def ready_shard(
    mode: str = "async",
    workers: int = 1,
    rule: str = "sgd:learning_rate=1",
    values: Mapping[str, Array] | None = None,
    *,
    slack: int | None = None,
    backup_workers: int | None = None,
    clock: Callable[[], float] | None = None,
) -> tuple[Shard, list[Session[PushResult]]]:
    """A shard whose workers have joined and which worker 0 has initialised; by default with w = 0 and plain descent."""
    values = {"w": np.zeros(2, np.float32)} if values is None else values
    shard = Shard(Membership(workers), Configuration(), clock=clock or Clock())
    sessions = [shard.join(facts(f"w{worker}", worker, workers)) for worker in range(workers)]
    wanted = Configuration(mode, slack, backup_workers, rule)
    grant, configuration, _ = await shard.begin_init("w0", wanted, declaration(values), False, WAIT_S)
    partitions = [partition(name, value) for name, value in sorted(values.items())]
    await shard.initialize("w0", grant, configuration, partitions)
    return shard, sessions


def value_of(shard_or_state: Shard | ShardState, index: int = 0) -> Array:
    """The whole value of one partition."""
    now = shard_or_state if isinstance(shard_or_state, ShardState) else shard_or_state.ready_state()
    return now.partitions[index].value.whole()
