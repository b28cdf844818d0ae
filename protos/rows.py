"""What do repeated rows of a gradient come to? The sum that the ps makes of them, and that a client must know beforehand.

Both sides use this one function: a ps that guards against NaN and Inf looks at the sums, so the client has to look at the
same ones, bit for bit, to refuse a push before any ps has it. It must not know variables or messages.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from protos.codec import Array


def summed_rows(indices: npt.NDArray[np.int64], rows: Array) -> tuple[npt.NDArray[np.int64], Array]:
    """Each index once, in rising order, and its rows summed, as `tf.IndexedSlices` means them.

    indices: int64 (n,); rows: (n, ...). Sums of 16-bit rows are made in float32. A sum that its dtype cannot hold is Inf.
    """
    unique, inverse = np.unique(indices, return_inverse=True)
    if len(unique) == len(indices):
        return unique, rows[np.argsort(indices, kind="stable")]
    total = np.zeros((len(unique), *rows.shape[1:]), np.float32 if rows.itemsize == 2 else rows.dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        np.add.at(total, inverse.reshape(-1), rows.astype(total.dtype, copy=False))
        return unique, total.astype(rows.dtype, copy=False)
