"""How long is a gradient, over the whole model? What a push says outside sync mode to a rule that clips by it.

Each ps holds a part of the model, and there is no step in which they could ask each other: only the sender sees it all.
Next: client/client.py (sends it), ps/sums.py (how sync mode does it).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from protos.rows import summed_rows


def global_norm(gradients: Mapping[str, Any]) -> float:
    """√ Σ g², over all arrays and IndexedSlices of a push that has been checked; repeated rows count as their sum.

    16-bit floats are squared in float32, and so are float32 as long as float32 holds their squares.
    """
    with np.errstate(all="ignore"):
        try:
            return math.sqrt(math.fsum(map(_square, gradients.values())))
        except OverflowError:  # each square is finite, and no float64 holds their sum
            return math.inf


def _square(gradient: Any) -> float:
    if hasattr(gradient, "indices") and hasattr(gradient, "values"):
        _, gradient = summed_rows(np.asarray(gradient.indices), np.asarray(gradient.values))
    array = np.asarray(gradient)
    wide = array.astype(np.float32) if array.dtype.itemsize == 2 else array
    total = float(np.vdot(wide, wide))
    return total if math.isfinite(total) else float(np.square(wide, dtype=np.float64).sum())
