"""How does one state of a shard become the next? The engine that feeds gradients to transforms and to a rule.

A push goes through the stages of Keras's optimizers (ps/rules/options.py): gradient transforms in their order, the decay of
the weights, the rule, the moving average. Elementwise maths gets one page at a time, and is one loop over it where the
variable is large (ps/fused.py); other maths gets the variable whole, in its shape. A sparse gradient updates the rows it
names and leaves the others alone, slots included.

16-bit variables have a float32 master copy among their slots: it is what is updated, and the value is it, rounded.

What needs a number from the whole model, on all ps together, asks for it by `yield`: it hands out this shard's part and
gets the sum over all shards. Pure otherwise: a state becomes another, or RuleFailed is raised and nothing has changed.
It must not know modes, threads or the wire. Next: ps/rules/base.py (the contract), ps/answers.py (what rules may return).
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
from ps.answers import all_checked, arrays_of, checked_array, guarded
from ps.faults import NOTHING, RETURN
from ps.feed import Feed, compute
from ps.fused import one_pass
from ps.rules import Context, UpdateRule, options
from ps.rules.transforms import Transform
from ps.tracing import StandIn
from ps.variable import MASTER, DenseGradient, Gradient, Gradients, Paged, Partition, ShardState, SparseGradient, frozen

T = TypeVar("T")
Sums = npt.NDArray[np.float64]
# Yields this shard's part of some sums over the model and is sent the sums over all shards; returns a T.
Exchange = Generator[Sums, Sums, T]

# `map`, or another that works on several items at once and gives the results in the same order.
Each = Callable[[Callable[[int], Any], Iterable[int]], Iterable[Any]]
# How many elements are summed in their own precision.
RUN = 1 << 13
# Variables from this size on are updated in one pass (ps/fused.py): below, translating the maths once would cost more.
FUSED_BYTES = 1 << 21
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
        if stage.pushes_a_step() > 1 and (push + 1) % pushes == 0:
            gradients.update(_held_back(partitions, stage, number, gradients))
        if stage.norm_of == "model":
            if norm is None:
                squares = yield np.array([sum(map(_square, gradients.values()))], np.float64)
                norm = math.sqrt(squares[0])
            ctx = dataclasses.replace(ctx, norm=float(norm))
        for index, gradient in list(gradients.items()):
            partitions[index], transformed = _transform(partitions[index], rule, stage, number, ctx, gradient, each)
            if transformed is None:
                del gradients[index]
            else:
                gradients[index] = transformed
        if not isinstance(stage, options.Unscale):
            norm = None  # what a later stage asks for is the norm of what this one made
    for index, gradient in gradients.items():
        read = read_state.partitions[index].value if rule.needs_read_value and read_state else None
        partitions[index] = _update(partitions[index], rule, ctx, gradient, read, each)
    if options.averages(rule):
        partitions = [_average(partition, rule, ctx.step) for partition in partitions]
    return ShardState(state.version + 1, tuple(partitions))


def _rate(rule: UpdateRule, step: int) -> float:
    """The learning rate at this step, as a Python number, which widens nothing it is multiplied with."""
    field, expected = f"rule {rule.name}, learning_rate at step {step}", "a finite number of 0 or more"
    rate = guarded(lambda: float(rule.rate_at(step)), field=field, expected=expected)
    if not math.isfinite(rate) or rate < 0:
        raise RuleFailed(field=field, got=f"{rate}", expected=expected, hint=NOTHING)
    return rate


def with_slots(partition: Partition, rule: UpdateRule) -> Partition:
    """The partition with the slots that the rule and its options want, at their first content."""
    if not partition.key.trainable:
        return partition
    wide = _wide(partition)
    zeros = _zeros(wide)
    slots = {name: _first_slot(rule, name, wide, partition) for name in rule.slot_names()}
    for number, stage in enumerate(options.stages(rule)):
        slots.update(dict.fromkeys(_stage_slots(stage, number), zeros))
    if partition.value.dtype.itemsize == 2:
        slots[MASTER] = wide
    if options.averages(rule):
        slots[AVERAGE] = wide
    return dataclasses.replace(partition, slots=slots)


def _wide(partition: Partition) -> Paged:
    """The value in the precision of updates."""
    value = partition.slots.get(MASTER, partition.value)
    return Paged(value.shape, compute(np.empty(0, value.dtype)).dtype, tuple(map(compute, value.pages)))


def _zeros(like: Paged) -> Paged:
    return dataclasses.replace(like, pages=tuple(frozen(np.zeros_like(page)) for page in like.pages))


def _stage_slots(stage: Transform, number: int) -> list[str]:
    return [f"{stage.name} {number}/{slot}" for slot in stage.slots]


def _worker_slots(rule: UpdateRule, worker: int | None) -> list[str]:
    return [f"{slot}/{'all workers' if worker is None else f'worker {worker}'}" for slot in rule.worker_slots]


def _first_slot(rule: UpdateRule, name: str, value: Paged, partition: Partition) -> Paged:
    what = f"rule {rule.name}, {name} of {partition.key}"
    blocks = value.pages if rule.elementwise else (frozen(value.whole()),)
    field = f"rule {rule.name}, init_slot {name} of {partition.key}"
    first = guarded(lambda: [rule.init_slot_of(partition.key.name, name, block) for block in blocks], field=field)
    if any(new is None for new in first):
        raise RuleFailed(field=field, got="None", expected="an array", hint=RETURN)
    first = guarded(lambda: list(map(np.asarray, first)), field=field, expected="an array")
    checked = [
        checked_array(what, new, block.shape if rule.elementwise else new.shape, block.dtype)
        for new, block in zip(first, blocks)
    ]
    if rule.elementwise:
        return Paged(value.shape, value.dtype, tuple(checked))
    (slot,) = checked
    return Paged.cut_like(slot, value) if slot.shape == value.shape else Paged.of(slot)


def _held_back(
    partitions: Sequence[Partition], stage: Transform, number: int, gradients: Gradients
) -> dict[int, Gradient]:
    """Zeros for the partitions that have no gradient now, but some that this stage has held back and is about to let go."""
    zeros: dict[int, Gradient] = {}
    for index, partition in enumerate(partitions):
        held = [partition.slots[name] for name in _stage_slots(stage, number) if name in partition.slots]
        if index not in gradients and any(page.any() for slot in held for page in slot.pages):
            zeros[index] = DenseGradient(_zeros(held[0]))
    return zeros


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
        answer = arrays_of(what, partition, returns, stage, lambda: stage.transform(ctx, value, grad, *olds))
        held = answer[0] is None
        return held, all_checked(
            what, partition, returns, [grad, *answer[1:]] if held else answer, [grad, *olds], [value]
        )

    pieces = list(each(piece, range(len(grads))))
    held = any(held for held, _ in pieces)
    if held and not all(held for held, _ in pieces):
        raise RuleFailed(
            field=f"{what}, gradient of {partition.key}",
            got="None for a part of it",
            expected="None for all of a push, or for nothing of it",
            hint=f"{NOTHING} Let ctx.push decide, not the numbers.",
        )
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

    def maths(arguments: Sequence[Any]) -> object:
        read, told = list(arguments[2 : 2 + given]), ctx
        if read:
            told = dataclasses.replace(ctx, read_value=read[0])
        return rule.update(told, _decayed(rule, ctx, arguments[0]), arguments[1], *arguments[2 + given :])

    given = 0 if reads is None else 1
    at_once = None
    if rule.elementwise and partition.value.nbytes >= FUSED_BYTES:
        at_once = one_pass(maths, 2 + given + len(names), 1 + len(names), values[0].dtype)

    def piece(at: int) -> list[Array]:
        read = [] if reads is None else [compute(reads[at])]
        old = [slot[at] for slot in slots]
        arguments = [values[at], grads[at], *read, *old]
        if at_once is not None and (made := at_once(arguments)) is not None:
            return [frozen(each) for each in made]
        # numpy, which also says what is wrong where something is
        answer = arrays_of(what, partition, returns, rule, lambda: maths(arguments))
        return all_checked(what, partition, returns, answer, [values[at], *old], [grads[at], *read])

    columns = _columns(list(each(piece, range(len(grads)))), 1 + len(names))
    kept = {name: feed.join(column, olds[name]) for name, column in zip(names, columns[1:])}
    return _with_value(dataclasses.replace(partition, slots={**partition.slots, **kept}), feed, columns[0])


def _decayed(rule: UpdateRule, ctx: Context, value: Any) -> Any:
    """What the rule gets as the value: an array that it cannot write to, or what stands in for one."""
    decayed = options.decayed(rule, ctx.learning_rate, value)
    return decayed if isinstance(decayed, StandIn) else frozen(np.asarray(decayed))


def _columns(rows: Sequence[Sequence[Array]], count: int) -> list[tuple[Array, ...]]:
    """The pieces of the first result, of the second, …; none of each where there are no pieces."""
    return list(zip(*rows)) or [()] * count


def _with_worker_slots(partition: Partition, rule: UpdateRule, names: Sequence[str]) -> Mapping[str, Paged]:
    """The slots, those of a worker that has not pushed yet at their first content."""
    missing = [name for name in names if name not in partition.slots]
    if not missing:
        return partition.slots
    wide = _wide(partition)
    first = {name: _first_slot(rule, name.partition("/")[0], wide, partition) for name in missing}
    return {**partition.slots, **first}


def _with_value(partition: Partition, feed: Feed, blocks: Sequence[Array]) -> Partition:
    """The partition with new values, given in the precision of updates."""
    if MASTER not in partition.slots:
        return dataclasses.replace(partition, value=feed.join(blocks, partition.value))
    with np.errstate(all="ignore"):  # what is beyond 16 bits is infinite in the value, and not in the master
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
    """The sum of squares of a gradient."""
    pages = [gradient.rows] if isinstance(gradient, SparseGradient) else gradient.value.pages
    return math.fsum(map(sum_of_squares, map(compute, pages)))


def sum_of_squares(array: Array) -> float:
    """Of a float32 or float64 array, whatever its shape: to a part in 10⁷ in float32, and finite if the array is.

    Runs of a few thousand are summed in their own precision, and the runs in float64: as fast as one sum, much more exact,
    and never handed to several threads, whose number would be seen in the last bits.
    """
    flat = array.reshape(-1)
    runs = [flat[start : start + RUN] for start in range(0, flat.size, RUN)]
    with np.errstate(all="ignore"):
        total = sum(float(np.vdot(run, run)) for run in runs)
        return total if math.isfinite(total) else float(np.square(flat, dtype=np.float64).sum())
