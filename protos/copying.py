"""How is much memory copied fast? In several threads: one core cannot fill what memory can take.

numpy lets other threads run while it copies. Few or small copies are made at once, by the caller; for many the caller is
helped by a few threads, which are made when first needed and made anew after a fork. It must not know what is copied.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

# Below this, waking a thread costs more than it saves.
LEAST_BYTES = 4 << 20
# More than a few threads only wait for the same memory.
MOST_THREADS = 4

_threads = max(1, min(MOST_THREADS, os.cpu_count() or 1))
_pool: ThreadPoolExecutor | None = None


def copy_all(copies: Sequence[tuple[Bytes, bytes | memoryview]]) -> None:
    """Copy each buffer into the array beside it, which is as long. The arrays do not overlap."""
    total = sum(target.nbytes for target, _ in copies)
    if total < LEAST_BYTES or _threads == 1 or len(copies) == 1:
        _copy(copies)
        return
    shares: list[list[tuple[Bytes, bytes | memoryview]]] = [[]]
    taken = 0
    for copy in copies:  # in order, about the same bytes for each thread
        if taken >= total * len(shares) / _threads:
            shares.append([])
        shares[-1].append(copy)
        taken += copy[0].nbytes
    mine, *others = shares
    helpers = []
    try:
        for share in others:
            helpers.append(_helpers().submit(_copy, share))
    except RuntimeError:  # the interpreter is ending, and starts no thread any more
        mine = [copy for share in shares for copy in share]
    try:
        _copy(mine)
    finally:
        wait(helpers)
    for helper in helpers:
        helper.result()


def _copy(copies: Sequence[tuple[Bytes, bytes | memoryview]]) -> None:
    for target, data in copies:
        target[...] = np.frombuffer(data, np.uint8)


def _helpers() -> ThreadPoolExecutor:
    global _pool
    if _pool is None:
        _pool = ThreadPoolExecutor(_threads, thread_name_prefix="paramserver-copy")
    return _pool


def _forget() -> None:
    """A forked child has none of its parent's threads."""
    global _pool
    _pool = None


os.register_at_fork(after_in_child=_forget)
