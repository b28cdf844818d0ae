"""How do the gradients of several workers become one?

The mean, summed in the order of worker indices, so that sync training gives the same bits whatever the order of arrival.
16-bit gradients are summed in float32. It must not know who was asked to contribute. Next: ps/consistency.py, which decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from protos.codec import Array
from ps.apply import compute, densify
from ps.variable import DenseGradient, Gradient, Gradients, Paged, ShardState, SparseGradient, frozen, sparse_gradient


def mean(contributions: Mapping[int, Gradients], state: ShardState) -> Gradients:
    """The mean over workers of what each pushed, by partition id.

    A worker that pushed nothing for a partition counts as zero there, as it would in one process with the union batch;
    a partition that nobody pushed for is left out.
    """
    ordered = [contributions[worker] for worker in sorted(contributions)]
    result: dict[int, Gradient] = {}
    for index, partition in enumerate(state.partitions):
        present = [gradients[index] for gradients in ordered if index in gradients]
        if present:
            result[index] = _mean(present, len(ordered), partition.value)
    return result


def _mean(gradients: Sequence[Gradient], count: int, like: Paged) -> Gradient:
    if count == 1:
        return gradients[0]
    sparse = [gradient for gradient in gradients if isinstance(gradient, SparseGradient)]
    if len(sparse) == len(gradients):
        total = sparse_gradient(
            np.concatenate([gradient.indices for gradient in sparse]),
            np.concatenate([compute(gradient.rows) for gradient in sparse]),
        )
        return SparseGradient(total.indices, frozen((total.rows / count).astype(like.dtype, copy=False)))
    dense = [densify(gradient, like) if isinstance(gradient, SparseGradient) else gradient for gradient in gradients]
    pages = tuple(
        _mean_page([gradient.value.pages[number] for gradient in dense], count) for number in range(len(like.pages))
    )
    return DenseGradient(Paged(like.shape, like.dtype, pages))


def _mean_page(pages: Sequence[Array], count: int) -> Array:
    total = compute(pages[0]).copy()  # the contributions stay as they came
    for page in pages[1:]:
        total += page
    total /= count
    return frozen(total.astype(pages[0].dtype, copy=False))
