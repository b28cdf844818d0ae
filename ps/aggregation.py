"""How do the gradients of several workers become one, in a step of sync mode?

What the rule's aggregation says (ps/rules/aggregations.py), fed page by page, in the order of worker indices, so that sync
training gives the same bits whatever the order of arrival. 16-bit gradients become float32 and stay it. Distances between
workers are over the whole model, so they are asked of all shards by `yield`, as in ps/apply.py.

It must not know who was asked to contribute. Next: ps/consistency.py, which decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from protos.codec import Array
from protos.errors import RuleFailed
from ps.answers import guarded
from ps.apply import Exchange, alone, sum_of_squares
from ps.faults import NOTHING, RETURN
from ps.feed import compute, densify
from ps.rules.aggregations import Aggregation, Mean
from ps.variable import (
    DenseGradient,
    Gradient,
    Gradients,
    Paged,
    Partition,
    ShardState,
    SparseGradient,
    frozen,
    sparse_gradient,
)


@dataclass(frozen=True)
class Contribution:
    """What one worker pushed. weight: its batch size, or 1. norm: of its gradient over the whole model, where it said so."""

    gradients: Gradients
    weight: float = 1.0
    norm: float | None = None


def mean(contributions: Mapping[int, Gradients], state: ShardState) -> Gradients:
    """The plain mean over workers of what each pushed, by partition id. See `aggregating`."""
    return alone(aggregating(Mean(), {w: Contribution(gradients) for w, gradients in contributions.items()}, state))


def aggregating(
    aggregation: Aggregation, contributions: Mapping[int, Contribution], state: ShardState
) -> Exchange[Gradients]:
    """One gradient for each partition that somebody pushed for, by partition id, from what each worker pushed.

    A worker that pushed nothing for a partition counts as zero there, as it would in one process with the union batch;
    a partition that nobody pushed for is left out.
    """
    ordered = [contributions[worker] for worker in sorted(contributions)]
    pushed = [contribution.gradients for contribution in ordered]
    if len(ordered) == 1:
        return pushed[0]
    distances = np.empty((0, 0))
    if aggregation.needs_distances:
        flat = yield _squared_distances(pushed, state).reshape(-1)
        distances = flat.reshape(len(ordered), len(ordered))
    shares = None
    if aggregation.linear:
        shares = _shares(aggregation, np.array([contribution.weight for contribution in ordered]), distances)
    result: dict[int, Gradient] = {}
    for index, partition in enumerate(state.partitions):
        if not any(index in gradients for gradients in pushed):
            continue
        if shares is not None:
            present = [(gradients[index], share) for gradients, share in zip(pushed, shares) if index in gradients]
            result[index] = _weighted_mean(present, sum(shares), partition.value)
        else:
            result[index] = _combined(aggregation, [gradients.get(index) for gradients in pushed], partition)
    return result


def _shares(aggregation: Aggregation, weights: Array, distances: Array) -> list[float]:
    field, expected = f"aggregation {aggregation.name}, shares", f"{len(weights)} numbers"
    answer = guarded(lambda: aggregation.shares(frozen(weights), frozen(distances)), field=field)
    if answer is None:
        raise RuleFailed(field=field, got="None", expected=expected, hint=f"{RETURN} {NOTHING}")
    shares = guarded(lambda: np.asarray(answer, np.float64), field=field, expected=expected)
    with np.errstate(over="ignore"):
        total = shares.sum()
    if shares.shape != weights.shape or not np.isfinite(total) or (shares < 0).any() or not total:
        raise RuleFailed(
            field=field,
            got=f"{shares.tolist()}",
            expected=f"{expected} of 0 or more, not all 0, with a finite sum",
            hint=NOTHING,
        )
    return [float(share) for share in shares]


def _weighted_mean(gradients: Sequence[tuple[Gradient, float]], total: float, like: Paged) -> Gradient:
    """Σ share · gradient / total. Shares of 1 multiply nothing: the plain mean is a sum and one division."""
    counted = [(gradient, share) for gradient, share in gradients if share]
    sparse = [(gradient, share) for gradient, share in gradients if isinstance(gradient, SparseGradient)]
    if len(sparse) == len(gradients):
        parts = [(gradient.indices, _times(gradient.rows, share)) for gradient, share in sparse if share]
        none = (sparse[0][0].indices[:0], compute(sparse[0][0].rows[:0]))  # so that there is something to join
        indices, rows = zip(none, *parts)
        summed = sparse_gradient(np.concatenate(indices), np.concatenate(rows))
        return SparseGradient(summed.indices, frozen(summed.rows / total))
    dense = [(_dense(gradient, like), share) for gradient, share in counted]
    pages = tuple(
        _mean_page([(gradient.value.pages[number], share) for gradient, share in dense], total, page)
        for number, page in enumerate(like.pages)
    )
    return DenseGradient(_wide(like, pages))


def _mean_page(pages: Sequence[tuple[Array, float]], total: float, like: Array) -> Array:
    if not pages:
        return frozen(np.zeros_like(compute(like)))
    mean = _times(*pages[0]).copy()  # the contributions stay as they came
    for page, share in pages[1:]:
        mean += _times(page, share)
    mean /= total
    return frozen(mean)


def _times(array: Array, share: float) -> Array:
    wide = compute(array)
    return wide if share == 1 else wide * share


def _combined(aggregation: Aggregation, gradients: Sequence[Gradient | None], partition: Partition) -> Gradient:
    """What an aggregation that looks at each element apart makes of them, in the order of workers. None: zeros."""
    like, field = partition.value, f"aggregation {aggregation.name}, combine, variable {partition.key}"
    dense = [_dense(gradient, like) if gradient is not None else None for gradient in gradients]
    pages = []
    for number, page in enumerate(like.pages):
        zeros = np.zeros_like(compute(page))
        stack = frozen(np.stack([compute(each.value.pages[number]) if each is not None else zeros for each in dense]))
        pages.append(_combined_page(aggregation, stack, field))
    return DenseGradient(_wide(like, tuple(pages)))


def _combined_page(aggregation: Aggregation, stack: Array, field: str) -> Array:
    answer = guarded(lambda: aggregation.combine(stack), field=field)
    expected = f"{stack.dtype.name} {stack.shape[1:]}, one number for each element of a flat piece"
    if answer is None:
        raise RuleFailed(field=field, got="None", expected=expected, hint=f"{RETURN} {NOTHING}")
    combined = guarded(lambda: np.asarray(answer), field=field, expected=expected)
    if combined.shape != stack.shape[1:] or combined.dtype.kind != "f":
        raise RuleFailed(
            field=field,
            got=f"{combined.dtype.name} {combined.shape}",
            expected=expected,
            hint=NOTHING,
        )
    if combined.size and np.isnan(combined.min()) and np.isfinite(stack).all():
        raise RuleFailed(field=field, got="NaN from finite gradients", expected="numbers", hint=NOTHING)
    return frozen(combined.astype(stack.dtype, copy=False))


def _wide(like: Paged, pages: tuple[Array, ...]) -> Paged:
    """Pages in the precision of updates, of a gradient for `like`: it is rounded with the value, and not before."""
    return Paged(like.shape, compute(np.empty(0, like.dtype)).dtype, pages)


def _dense(gradient: Gradient, like: Paged) -> DenseGradient:
    return densify(gradient, like) if isinstance(gradient, SparseGradient) else gradient


def _squared_distances(pushed: Sequence[Gradients], state: ShardState) -> Array:
    """(n, n): this shard's part of the squared distances between the workers' gradients."""
    count = len(pushed)
    distances = np.zeros((count, count))
    for index, partition in enumerate(state.partitions):
        dense = [_dense(gradients[index], partition.value) if index in gradients else None for gradients in pushed]
        for number, page in enumerate(partition.value.pages):
            zeros = np.zeros_like(compute(page))
            wide = [compute(each.value.pages[number]) if each is not None else zeros for each in dense]
            for one in range(count):
                for other in range(one + 1, count):
                    with np.errstate(all="ignore"):  # infinity less infinity is as far away as can be
                        difference = wide[one] - wide[other]
                    distances[one, other] += sum_of_squares(difference)
    return np.asarray(distances + distances.T)
