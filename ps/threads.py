"""How are several pages of an update worked on at once?

numpy and fused maths (ps/fused.py) leave Python alone while they run, so threads do add up. Which thread gets which page is
left to chance; results have their places, and a page is worked on alone, so the bits are the same for any number of threads.

It must not know what is done to a page. Next: ps/updates.py, which has one of these for a shard.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

# With fewer pages, waking threads up takes longer than what they do.
LEAST_PAGES = 4


def usable_cpus() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Threads:
    """`count` threads at work: the one that asks and count - 1 others, which are started when they are needed first."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._others = ThreadPoolExecutor(max(1, count - 1), thread_name_prefix="update")

    def each(self, work: Callable[[int], Any], items: Iterable[int]) -> list[Any]:
        """As `list(map(work, items))`: results in the order of the items; what is raised is what the first of them raised."""
        items = list(items)
        if self.count < 2 or len(items) < LEAST_PAGES:
            return [work(item) for item in items]
        results: list[Any] = [None] * len(items)
        failures: dict[int, BaseException] = {}
        left = deque(range(len(items)))  # taking from it is safe among threads

        def share() -> None:
            while not failures:
                try:
                    at = left.popleft()
                except IndexError:
                    return
                try:
                    results[at] = work(items[at])
                except BaseException as failure:  # noqa: BLE001 - it is raised where all come together
                    failures[at] = failure

        others = [self._others.submit(share) for _ in range(min(self.count, len(items)) - 1)]
        share()
        for other in others:
            other.cancel()  # those that had no time to begin
        wait(others)
        if failures:
            raise failures[min(failures)]
        return results
