"""How does one state of a shard become the next? The engine that feeds gradients to a rule.

Elementwise rules get one page at a time: value, gradient and slots of a page fit in the cache together, so each byte
comes from memory once. Other rules get the variable whole. 16-bit variables are updated in float32 and rounded once; their
slots stay float32. A sparse gradient updates the rows it names and leaves the others alone, slots included.

Pure: it takes a state and returns another, or raises RuleFailed and has changed nothing. It must not know modes, threads
or the wire. Next: ps/rules/base.py (the contract), ps/shard.py (who calls this, and when).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from protos.codec import Array
from protos.errors import RuleFailed
from ps.rules import Context, UpdateRule
from ps.variable import (
    DenseGradient,
    Gradient,
    Gradients,
    Paged,
    Partition,
    ShardState,
    SparseGradient,
    frozen,
)


def with_slots(partition: Partition, rule: UpdateRule) -> Partition:
    """The partition with the slots that the rule wants, at their first content."""
    if not partition.key.trainable:
        return partition
    value = partition.value
    dtype = compute(np.empty(0, value.dtype)).dtype
    slots = {}
    for name in rule.slots:
        if rule.elementwise:
            pages = tuple(_first_slot(rule, name, compute(page), partition) for page in value.pages)
            slots[name] = Paged(value.shape, dtype, pages)
        else:
            slots[name] = Paged.cut_like(_first_slot(rule, name, compute(value.whole()), partition), value)
    return dataclasses.replace(partition, slots=slots)


def _first_slot(rule: UpdateRule, name: str, value: Array, partition: Partition) -> Array:
    try:
        return _checked(rule, f"{name} of {partition.key}", rule.init_slot(name, value), value.shape, value.dtype)
    except RuleFailed:
        raise
    except BaseException as error:
        raise RuleFailed(
            field=f"rule {rule.name}, init_slot {name} of {partition.key}",
            got=f"{type(error).__name__}: {error}",
            expected="an array; the argument is read-only",
        ) from error


def apply(
    state: ShardState,
    rule: UpdateRule,
    gradients: Gradients,
    *,
    staleness: int,
    worker: int | None,
    read_state: ShardState | None = None,
) -> ShardState:
    """The state after one update by `rule`. Partitions without a gradient are shared; the version rises by one.

    read_state: the state the gradient was computed at; needed by rules with `needs_read_value`.
    """
    ctx = Context(step=state.version, learning_rate=rule.learning_rate, staleness=staleness, worker=worker)
    partitions = list(state.partitions)
    with np.errstate(
        all="ignore"
    ):  # an overflow is the model's business, as in TensorFlow; --guard-nonfinite tells of it
        for index, gradient in gradients.items():
            read = read_state.partitions[index].value if rule.needs_read_value and read_state else None
            try:
                partitions[index] = _update(partitions[index], rule, ctx, gradient, read)
            except RuleFailed:
                raise
            except BaseException as error:  # a rule that calls sys.exit ends its push, not the ps
                raise RuleFailed(
                    field=f"rule {rule.name}, variable {partitions[index].key}",
                    got=f"{type(error).__name__}: {error}",
                    expected="new arrays; arguments are read-only",
                    hint="Nothing was applied.",
                ) from error
    return ShardState(state.version + 1, tuple(partitions))


def _update(partition: Partition, rule: UpdateRule, ctx: Context, gradient: Gradient, read: Paged | None) -> Partition:
    if isinstance(gradient, SparseGradient):
        if rule.elementwise:
            return _update_rows(partition, rule, ctx, gradient, read)
        gradient = densify(gradient, partition.value)
    if not rule.elementwise:
        return _update_whole(partition, rule, ctx, gradient, read)
    pages: list[list[Array]] = []
    slot_pages = [partition.slots[name].pages for name in rule.slots]
    for number, (value, grad) in enumerate(zip(partition.value.pages, gradient.value.pages)):
        page_ctx = ctx if read is None else dataclasses.replace(ctx, read_value=compute(read.pages[number]))
        pages.append(_call(partition, rule, page_ctx, value, grad, [slot[number] for slot in slot_pages]))
    columns = [tuple(column) for column in zip(*pages)] or [() for _ in range(1 + len(rule.slots))]
    slots = {
        name: dataclasses.replace(partition.slots[name], pages=column) for name, column in zip(rule.slots, columns[1:])
    }
    return Partition(partition.key, dataclasses.replace(partition.value, pages=columns[0]), slots)


def _update_whole(
    partition: Partition, rule: UpdateRule, ctx: Context, gradient: DenseGradient, read: Paged | None
) -> Partition:
    if read is not None:
        ctx = dataclasses.replace(ctx, read_value=compute(read.whole()))
    old = [partition.slots[name].whole() for name in rule.slots]
    value, *slots = _call(partition, rule, ctx, partition.value.whole(), gradient.value.whole(), old)
    like = partition.value
    return Partition(
        partition.key,
        Paged.cut_like(value, like),
        {name: Paged.cut_like(slot, like) for name, slot in zip(rule.slots, slots)},
    )


def _update_rows(
    partition: Partition, rule: UpdateRule, ctx: Context, gradient: SparseGradient, read: Paged | None
) -> Partition:
    at = gradient.indices
    if read is not None:
        ctx = dataclasses.replace(ctx, read_value=compute(read.rows(at)))
    old = [partition.slots[name].rows(at) for name in rule.slots]
    value, *slots = _call(partition, rule, ctx, partition.value.rows(at), gradient.rows, old)
    return Partition(
        partition.key,
        partition.value.with_rows(at, value),
        {name: partition.slots[name].with_rows(at, slot) for name, slot in zip(rule.slots, slots)},
    )


def _call(
    partition: Partition, rule: UpdateRule, ctx: Context, value: Array, grad: Array, slots: Sequence[Array]
) -> list[Array]:
    """One call of the rule, its answer checked: value and slots in the shapes and dtypes they had, read-only."""
    answer = rule.update(ctx, compute(value), compute(grad), *map(frozen, slots))
    news = list(answer) if isinstance(answer, tuple) else [answer]
    olds = [value, *slots]
    if len(news) != len(olds):
        raise RuleFailed(
            field=f"rule {rule.name}",
            got=f"{len(news)} arrays from update",
            expected=f"{len(olds)}: {', '.join(('value', *rule.slots))}",
        )
    checked = []
    for name, new, old in zip(("value", *rule.slots), news, olds):
        checked.append(_checked(rule, f"{name} of {partition.key}", new, old.shape, old.dtype))
    return checked


def _checked(rule: UpdateRule, what: str, new: object, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """What a rule returned as a read-only array of this shape and dtype. Nobody, the rule neither, can write to it any more."""
    array = np.asarray(new)
    if array.shape != shape or array.dtype.kind in "cOSUmM":
        raise RuleFailed(
            field=f"rule {rule.name}, {what}", got=f"{array.dtype.name} {array.shape}", expected=f"floats {shape}"
        )
    result: Array = np.asarray(array, dtype=dtype, order="C")
    owner = result
    while isinstance(owner.base, np.ndarray):  # a view of a buffer that the rule may want to use again
        owner = frozen(owner.base)
    return frozen(result)


def compute(array: Array) -> Array:
    """The array in the precision of updates, read-only: float32 for 16-bit floats, else its own."""
    return frozen(array.astype(np.float32) if array.dtype.itemsize == 2 else array)


def densify(gradient: SparseGradient, like: Paged) -> DenseGradient:
    """The same gradient with zeros in the rows it does not name."""
    whole: Array = np.zeros(like.shape, like.dtype)
    whole[gradient.indices] = gradient.rows
    return DenseGradient(Paged.of(whole))
