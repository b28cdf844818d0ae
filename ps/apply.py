"""How does one state of a shard become the next? The engine that feeds gradients to transforms and to a rule.

A push goes through the stages of Keras's optimizers (ps/rules/options.py): gradient transforms in their order, the decay of
the weights, the rule, the moving average. Elementwise maths gets one page at a time: value, gradient and slots of a page
fit in the cache together, so each byte comes from memory once; other maths gets the variable whole, in its shape. A sparse
gradient updates the rows it names and leaves the others alone, slots included.

16-bit variables have a float32 master copy among their slots: it is what is updated, and the value is it, rounded.

What needs a number from the whole model, on all ps together, asks for it by `yield`: it hands out this shard's part and
gets the sum over all shards. Pure otherwise: a state becomes another, or RuleFailed is raised and nothing has changed.
It must not know modes, threads or the wire. Next: ps/rules/base.py (the contract), ps/shard.py (who calls this, and when).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from protos.codec import Array
from protos.errors import RuleFailed
from ps.feed import MASTER, Feed, compute
from ps.rules import Context, UpdateRule, options
from ps.rules.transforms import Transform
from ps.variable import DenseGradient, Gradient, Gradients, Paged, Partition, ShardState, SparseGradient, frozen

T = TypeVar("T")
Sums = npt.NDArray[np.float64]
# Yields this shard's part of some sums over the model and is sent the sums over all shards; returns a T.
Exchange = Generator[Sums, Sums, T]

# `map`, or another that works on several items at once and gives the results in the same order.
Each = Callable[[Callable[[int], Any], Iterable[int]], Iterable[Any]]
# The slot that holds the moving average of a value.
AVERAGE = "engine/average"


def alone(exchange: Exchange[T]) -> T:
    """Run it to its end on a ps that holds the whole model: its part of a sum is the sum."""
    try:
        sums = next(exchange)
        while True:
            sums = exchange.send(sums)
    except StopIteration as done:
        result: T = done.value
        return result


def apply(
    state: ShardState,
    rule: UpdateRule,
    gradients: Gradients,
    *,
    staleness: int,
    worker: int | None,
    read_state: ShardState | None = None,
) -> ShardState:
    """The state after one update by `rule` of a model that this shard holds alone. See `updating`."""
    return alone(updating(state, rule, gradients, staleness=staleness, worker=worker, read_state=read_state))


def updating(
    state: ShardState,
    rule: UpdateRule,
    gradients: Gradients,
    *,
    staleness: int,
    worker: int | None,
    read_state: ShardState | None = None,
    norm: float | None = None,
    each: Each = map,
) -> Exchange[ShardState]:
    """The state after one update. Partitions without a gradient are shared; the version rises by one.

    read_state: the state the gradient was computed at; needed by rules with `needs_read_value`.
    norm: the norm of the whole model's gradient where the sender has said it; else the shards are asked for it.
    each: how the pieces of a partition are worked on: one after the other, or several at once.
    """
    push, pushes = state.version, options.pushes_a_step(rule)
    ctx = Context(push // pushes, _rate(rule, push), staleness, worker, push=push)
    partitions = list(state.partitions)
    gradients = dict(gradients)
    for number, stage in enumerate(options.stages(rule)):
        if stage.norm_of == "model":
            if norm is None:
                squares = yield np.array([sum(map(_square, gradients.values()))], np.float64)
                norm = math.sqrt(squares[0])
            ctx = dataclasses.replace(ctx, norm=norm)
        for index, gradient in list(gradients.items()):
            partitions[index], transformed = _transform(partitions[index], rule, stage, number, ctx, gradient, each)
            if transformed is None:
                del gradients[index]
            else:
                gradients[index] = transformed
        norm = None  # what a later stage asks for is the norm of what this one made
    for index, gradient in gradients.items():
        read = read_state.partitions[index].value if rule.needs_read_value and read_state else None
        partitions[index] = _update(partitions[index], rule, ctx, gradient, read, each)
    if options.averages(rule):
        partitions = [_average(partition, rule, ctx.step) for partition in partitions]
    return ShardState(state.version + 1, tuple(partitions))


def _rate(rule: UpdateRule, step: int) -> float:
    """The learning rate at this step, as a Python number, which widens nothing it is multiplied with."""
    field, expected = f"rule {rule.name}, learning_rate at step {step}", "a finite number"
    rate = _guarded(lambda: float(rule.rate_at(step)), field=field, expected=expected)
    if not math.isfinite(rate):
        raise RuleFailed(field=field, got=f"{rate}", expected=expected, hint="Nothing was applied.")
    return rate


def with_slots(partition: Partition, rule: UpdateRule) -> Partition:
    """The partition with the slots that the rule and its options want, at their first content."""
    value = partition.value
    if not partition.key.trainable:
        return partition
    dtype = compute(np.empty(0, value.dtype)).dtype
    wide = Paged(value.shape, dtype, tuple(map(compute, value.pages)))
    zeros = Paged(value.shape, dtype, tuple(frozen(np.zeros_like(page)) for page in wide.pages))
    slots = {name: _first_slot(rule, name, wide, partition) for name in rule.slot_names()}
    for number, stage in enumerate(options.stages(rule)):
        slots.update(dict.fromkeys(_stage_slots(stage, number), zeros))
    if value.dtype.itemsize == 2:
        slots[MASTER] = wide
    if options.averages(rule):
        slots[AVERAGE] = wide
    return dataclasses.replace(partition, slots=slots)


def _stage_slots(stage: Transform, number: int) -> list[str]:
    return [f"{stage.name} {number}/{slot}" for slot in stage.slots]


def _worker_slots(rule: UpdateRule, worker: int | None) -> list[str]:
    return [f"{slot}/{'all workers' if worker is None else f'worker {worker}'}" for slot in rule.worker_slots]


def _first_slot(rule: UpdateRule, name: str, value: Paged, partition: Partition) -> Paged:
    what = f"rule {rule.name}, {name} of {partition.key}"
    blocks = value.pages if rule.elementwise else (frozen(value.whole()),)
    first = _guarded(
        lambda: [np.asarray(rule.init_slot(name, block)) for block in blocks],
        field=f"rule {rule.name}, init_slot {name} of {partition.key}",
        expected="an array; the argument is read-only",
    )
    checked = [
        _checked(what, new, block.shape if rule.elementwise else new.shape, block.dtype)
        for new, block in zip(first, blocks)
    ]
    if rule.elementwise:
        return Paged(value.shape, value.dtype, tuple(checked))
    (slot,) = checked
    return Paged.cut_like(slot, value) if slot.shape == value.shape else Paged.of(slot)


# -- one stage of one partition ----------------------------------------------------------------------------------------


def _transform(
    partition: Partition, rule: UpdateRule, stage: Transform, number: int, ctx: Context, gradient: Gradient, each: Each
) -> tuple[Partition, Gradient | None]:
    """The gradient that a transform makes of one, None if it holds it back; and the partition with the transform's slots."""
    norm = math.sqrt(_square(gradient)) if stage.norm_of == "variable" else ctx.norm
    ctx = dataclasses.replace(ctx, norm=norm, variable=partition.key.name)
    dense = not stage.elementwise or bool(stage.slots)  # rows that are not named have a part in it
    feed = Feed.of(partition, gradient, whole=not stage.elementwise, dense=dense)
    what, names = f"rule {rule.name}, transform {stage.name}", _stage_slots(stage, number)
    returns = ("gradient", *stage.slots)
    values, grads = feed.values(), feed.gradients()
    slots = [feed.split(partition.slots[name]) for name in names]

    def piece(at: int) -> tuple[bool, list[Array]]:
        value, grad, olds = values[at], grads[at], [slot[at] for slot in slots]
        answer = _answer(what, partition, returns, lambda: stage.transform(ctx, value, grad, *olds))
        held = answer[0] is None
        return held, _all_checked(
            what, partition, returns, [grad, *answer[1:]] if held else answer, [grad, *olds], [value]
        )

    pieces = list(each(piece, range(len(grads))))
    held = any(held for held, _ in pieces)
    columns = _columns([new for _, new in pieces], 1 + len(names))
    kept = {name: feed.join(column, partition.slots[name]) for name, column in zip(names, columns[1:])}
    partition = dataclasses.replace(partition, slots={**partition.slots, **kept})
    return partition, None if held else feed.join_gradient(columns[0])


def _update(
    partition: Partition, rule: UpdateRule, ctx: Context, gradient: Gradient, read: Paged | None, each: Each
) -> Partition:
    """The partition after the rule has seen the gradient."""
    feed = Feed.of(partition, gradient, whole=not rule.elementwise, dense=not rule.elementwise)
    ctx = dataclasses.replace(ctx, variable=partition.key.name)
    what, returns = f"rule {rule.name}", ("value", *rule.slot_names(), *rule.worker_slots)
    names = [*rule.slot_names(), *_worker_slots(rule, ctx.worker)]
    olds = _with_worker_slots(partition, rule, names)
    values, grads = feed.values(), feed.gradients()
    slots = [feed.split(olds[name]) for name in names]
    reads = feed.split(read) if read is not None else None

    def piece(at: int) -> list[Array]:
        value, grad, old = values[at], grads[at], [slot[at] for slot in slots]
        told = ctx if reads is None else dataclasses.replace(ctx, read_value=compute(reads[at]))

        def call() -> object:
            return rule.update(told, frozen(options.decayed(rule, ctx.learning_rate, value)), grad, *old)

        answer = _answer(what, partition, returns, call)
        given = [grad] if told.read_value is None else [grad, told.read_value]
        return _all_checked(what, partition, returns, answer, [value, *old], given)

    columns = _columns(list(each(piece, range(len(grads)))), 1 + len(names))
    kept = {name: feed.join(column, olds[name]) for name, column in zip(names, columns[1:])}
    return _with_value(dataclasses.replace(partition, slots={**partition.slots, **kept}), feed, columns[0])


def _columns(rows: Sequence[Sequence[Array]], count: int) -> list[tuple[Array, ...]]:
    """The pieces of the first result, of the second, …; none of each where there are no pieces."""
    return list(zip(*rows)) or [()] * count


def _with_worker_slots(partition: Partition, rule: UpdateRule, names: Sequence[str]) -> Mapping[str, Paged]:
    """The slots, those of a worker that has not pushed yet at their first content."""
    missing = [name for name in names if name not in partition.slots]
    if not missing:
        return partition.slots
    value = partition.value
    wide = Paged(value.shape, compute(np.empty(0, value.dtype)).dtype, tuple(map(compute, value.pages)))
    first = {name: _first_slot(rule, name.partition("/")[0], wide, partition) for name in missing}
    return {**partition.slots, **first}


def _with_value(partition: Partition, feed: Feed, blocks: Sequence[Array]) -> Partition:
    """The partition with new values, given in the precision of updates."""
    if MASTER not in partition.slots:
        return dataclasses.replace(partition, value=feed.join(blocks, partition.value))
    rounded = [frozen(block.astype(partition.value.dtype)) for block in blocks]
    slots = {**partition.slots, MASTER: feed.join(blocks, partition.slots[MASTER])}
    return Partition(partition.key, feed.join(rounded, partition.value), slots)


def _average(partition: Partition, rule: UpdateRule, step: int) -> Partition:
    """The partition with its moving average a step on, and in its place if that is due."""
    if not partition.key.trainable:
        return partition
    feed = Feed.of(partition, DenseGradient(partition.value), whole=False, dense=True)
    olds = partition.slots[AVERAGE].pages
    with np.errstate(all="ignore"):
        pages = tuple(frozen(options.averaged(rule, step, value, old)) for value, old in zip(feed.values(), olds))
    average = dataclasses.replace(partition.slots[AVERAGE], pages=pages)
    partition = dataclasses.replace(partition, slots={**partition.slots, AVERAGE: average})
    return _with_value(partition, feed, pages) if options.overwrites(rule, step) else partition


def _square(gradient: Gradient) -> float:
    """The sum of squares of a gradient: pages in their precision, their sums in float64."""
    pages = [gradient.rows] if isinstance(gradient, SparseGradient) else gradient.value.pages
    with np.errstate(all="ignore"):
        return math.fsum(float(np.vdot(wide, wide)) for wide in map(compute, pages))


# -- what maths of others returns --------------------------------------------------------------------------------------


def _answer(what: str, partition: Partition, names: Sequence[str], call: Callable[[], object]) -> list[Any]:
    """What a rule or a transform returned, as a list of one array a name."""
    answer = _guarded(
        call,
        field=f"{what}, variable {partition.key}",
        expected="new arrays; arguments are read-only",
        hint="Nothing was applied.",
    )
    news = list(answer) if isinstance(answer, tuple) else [answer]
    if len(news) != len(names):
        raise RuleFailed(field=what, got=f"{len(news)} arrays", expected=f"{len(names)}: {', '.join(names)}")
    return news


def _guarded(call: Callable[[], T], *, field: str, expected: str, hint: str = "") -> T:
    """What `call` returns; whatever it raises as RuleFailed. Overflows make no noise."""
    try:
        with np.errstate(all="ignore"):  # an overflow is the model's business, as in TensorFlow
            return call()
    except RuleFailed:
        raise
    except BaseException as error:  # a rule that calls sys.exit ends its push, not the ps
        raise RuleFailed(field=field, got=f"{type(error).__name__}: {error}", expected=expected, hint=hint) from error


def _all_checked(
    what: str,
    partition: Partition,
    names: Sequence[str],
    news: Sequence[object],
    olds: Sequence[Array],
    given: Sequence[Array],
) -> list[Array]:
    """Value and slots in the shapes and dtypes they had, read-only, and no NaN that the arguments do not explain."""
    checked = []
    for name, new, old in zip(names, news, olds):
        array = _checked(f"{what}, {name} of {partition.key}", new, old.shape, old.dtype)
        if array.size and np.isnan(array.min()) and all(np.isfinite(each).all() for each in (*olds, *given)):
            raise RuleFailed(
                field=f"{what}, {name} of {partition.key}",
                got="NaN from finite arguments",
                expected="numbers",
                hint="Nothing was applied. Is there a division by zero, or a root of a negative number?",
            )
        checked.append(array)
    return checked


def _checked(what: str, new: object, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """What maths returned, as a read-only array of this shape and dtype. Nobody, not even its author, can write to it now."""
    array = np.asarray(new)
    if array.shape != shape or array.dtype != dtype:
        raise RuleFailed(
            field=what,
            got=f"{array.dtype.name} {array.shape}",
            expected=f"{dtype.name} {shape}",
            hint="A numpy float64 scalar widens what it meets; a Python float does not."
            if array.dtype != dtype
            else "",
        )
    result: Array = np.asarray(array, order="C")
    owner = result
    while isinstance(owner.base, np.ndarray):  # a view of a buffer that the rule may want to use again
        owner = frozen(owner.base)
    return frozen(result)
