"""What must every rule do in the engine? It must not matter how a variable is cut, stored, or which options are on.

Rules that may not be cut are held whole: then it must not matter how the bytes are paged. The registry joins rules to tests,
as in test_contract.py.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from client.partitioner import FixedShardsPartitioner, cut, row_ranges
from ps.apply import apply, with_slots
from ps.rules import UpdateRule
from ps.rules.options import may_be_cut
from ps.rules.transforms import ClipByNorm
from ps.variable import Gradient, Paged, Partition, PartitionKey, ShardState
from tests.core.builders import dense, small_pages, sparse, state
from tests.rules.test_contract import RULES, every_rule

STEPS = 5
SHAPE = (9, 4)
rng = np.random.default_rng(17)
VALUE = rng.normal(size=SHAPE).astype("f")
GRADIENTS = rng.normal(size=(STEPS, *SHAPE)).astype("f")
every_rule_that_may_be_cut = pytest.mark.parametrize("rule", [rule for rule in RULES if may_be_cut(rule)], ids=repr)


def ready(rule: UpdateRule, **values: Any) -> ShardState:
    return ShardState(0, tuple(with_slots(item, rule) for item in state(**values).partitions))


def trained(now: ShardState, rule: UpdateRule, pushes: Sequence[Gradient]) -> ShardState:
    """The state after these gradients of its first variable."""
    for gradient in pushes:
        now = apply(now, rule, {0: gradient}, staleness=0, worker=0, read_state=now)
    return now


def contents(partition: Partition) -> dict[str, Any]:
    """Value and slots, whole, by name."""
    return {"value": partition.value.whole(), **{name: slot.whole() for name, slot in partition.slots.items()}}


def assert_same_bits(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert list(ours) == list(theirs)
    for name, array in ours.items():
        assert (array.dtype, array.shape) == (theirs[name].dtype, theirs[name].shape), name
        assert array.tobytes() == theirs[name].tobytes(), name


@every_rule
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_pages_do_not_matter(rule: UpdateRule, dtype: str) -> None:
    # claim 7
    value, pushes = VALUE.astype(dtype), [gradient.astype(dtype) for gradient in GRADIENTS]
    whole = trained(ready(rule, w=value), rule, [dense(gradient) for gradient in pushes])
    with small_pages():
        paged = trained(ready(rule, w=value), rule, [dense(gradient) for gradient in pushes])
        assert len(paged.partitions[0].value.pages) > 1
    assert_same_bits(contents(paged.partitions[0]), contents(whole.partitions[0]))


@every_rule_that_may_be_cut
@pytest.mark.parametrize("servers", [1, 2, 3])
def test_how_many_ps_hold_a_variable_does_not_matter(rule: UpdateRule, servers: int) -> None:
    # claim 8: a checkpoint of N ps is one of M.
    whole = contents(trained(ready(rule, w=VALUE), rule, list(map(dense, GRADIENTS))).partitions[0])
    parts = [
        contents(
            trained(ready(rule, w=VALUE[rows]), rule, [dense(gradient[rows]) for gradient in GRADIENTS]).partitions[0]
        )
        for rows in itertools.starmap(slice, row_ranges(SHAPE[0], servers))
    ]
    assert_same_bits({name: np.concatenate([part[name] for part in parts]) for name in whole}, whole)


@every_rule_that_may_be_cut
def test_rows_of_a_sparse_gradient_are_updated_as_if_they_were_all_there_is(rule: UpdateRule) -> None:
    rows = [1, 4, 8]
    table = trained(ready(rule, w=VALUE), rule, [sparse(rows, gradient[rows]) for gradient in GRADIENTS])
    alone = trained(ready(rule, w=VALUE[rows]), rule, [dense(gradient[rows]) for gradient in GRADIENTS])
    chosen = {name: array[rows] for name, array in contents(table.partitions[0]).items()}
    assert_same_bits(chosen, contents(alone.partitions[0]))
    others = np.delete(np.arange(SHAPE[0]), rows)
    np.testing.assert_array_equal(table.partitions[0].value.whole()[others], VALUE[others])


@every_rule
def test_a_sparse_gradient_of_every_row_is_a_dense_one(rule: UpdateRule) -> None:
    everything = list(range(SHAPE[0]))
    table = trained(ready(rule, w=VALUE), rule, [sparse(everything, gradient) for gradient in GRADIENTS])
    same = trained(ready(rule, w=VALUE), rule, list(map(dense, GRADIENTS)))
    assert_same_bits(contents(table.partitions[0]), contents(same.partitions[0]))


@every_rule
def test_a_variable_that_may_not_be_cut_is_kept_whole(rule: UpdateRule) -> None:
    pieces = cut({"w": (SHAPE, 4)}, FixedShardsPartitioner(3), 3, elementwise=may_be_cut(rule))
    assert len(pieces) == (3 if may_be_cut(rule) else 1)
    assert not may_be_cut(dataclasses.replace(rule, clipnorm=1.0))
    assert not may_be_cut(dataclasses.replace(rule, transforms=(ClipByNorm(1.0),)))


# -- as bytes ----------------------------------------------------------------------------------------------------------


def stored(now: ShardState) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Every array of a state by name, as what it takes to store it: dtype, shape, raw bytes."""
    return {
        f"{partition.key.name} {name}": (array.dtype.name, array.shape, array.tobytes())
        for partition in now.partitions
        for name, array in contents(partition).items()
    }


def restored(version: int, keys: Sequence[PartitionKey], arrays: dict[str, tuple[str, tuple[int, ...], bytes]]) -> Any:
    """The state again, from names and bytes alone."""
    read = {
        name: np.frombuffer(raw, np.dtype(dtype)).reshape(shape).copy() for name, (dtype, shape, raw) in arrays.items()
    }
    partitions = []
    for key in keys:
        own = {
            name.removeprefix(f"{key.name} "): array for name, array in read.items() if name.startswith(f"{key.name} ")
        }
        value = Paged.of(own.pop("value"))
        slots = {
            name: Paged.cut_like(array, value) if array.shape == value.shape else Paged.of(array)
            for name, array in own.items()
        }
        partitions.append(Partition(key, value, slots))
    return ShardState(version, tuple(partitions))


@every_rule
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_value_and_slots_survive_a_round_trip_through_bytes(rule: UpdateRule, dtype: str) -> None:
    # claim 8: there is no state but what the arrays, their names and the version say.
    rule = dataclasses.replace(rule, use_ema=True)
    with small_pages():
        pushes = [dense(gradient.astype(dtype)) for gradient in GRADIENTS]
        now = trained(ready(rule, w=VALUE.astype(dtype)), rule, pushes[:3])
        again = restored(now.version, [partition.key for partition in now.partitions], stored(now))
        went_on, restarted = trained(now, rule, pushes[3:]), trained(again, rule, pushes[3:])
    assert stored(restarted) == stored(went_on)


# -- options -----------------------------------------------------------------------------------------------------------


@every_rule
def test_keras_options_go_with_every_rule(rule: UpdateRule) -> None:
    """All at once, over several variables of which one gets no gradient. What they do is in test_keras_options.py."""
    rule = dataclasses.replace(
        rule,
        learning_rate=0.01,
        weight_decay=0.1,
        global_clipnorm=1.0,
        use_ema=True,
        ema_momentum=0.5,
        ema_overwrite_frequency=2,
        loss_scale_factor=8.0,
        gradient_accumulation_steps=3,
    )
    values = {"bias": VALUE[0], "scale": VALUE[0, 0], "table": VALUE, "unused": VALUE}
    now = ready(rule, **values)
    for step in range(12):
        pushed = {0: dense(GRADIENTS[step % STEPS, 0]), 1: dense(GRADIENTS[step % STEPS, 0, 0])}
        pushed |= {2: dense(GRADIENTS[step % STEPS])}
        now = apply(now, rule, pushed, staleness=0, worker=0, read_state=now)
    for partition in now.partitions:
        moved = not np.array_equal(partition.value.whole(), values[partition.key.name])
        assert moved == (partition.key.name != "unused")
        assert all(np.isfinite(array).all() for array in contents(partition).values())
