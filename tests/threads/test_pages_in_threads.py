"""Do several threads share the pages of an update as one thread alone would have worked on them?"""

from __future__ import annotations

import threading

import numpy as np
import pytest

import client
from ps import LocalCluster
from ps.threads import Threads


def test_results_come_in_the_order_of_the_items() -> None:
    assert Threads(4).each(lambda item: item * item, range(100)) == [item * item for item in range(100)]


def test_threads_work_at_the_same_time() -> None:
    # Each waits for the others: one thread alone would never come through.
    together = threading.Barrier(3)
    names = Threads(3).each(lambda item: (together.wait(60), threading.current_thread().name)[1], range(6))
    assert len(set(names)) == 3


def test_what_is_raised_is_what_the_first_item_raised_and_the_threads_live_on() -> None:
    def work(item: int) -> int:
        if item >= 3:
            raise ValueError(f"item {item}")
        return item

    threads = Threads(3)
    with pytest.raises(ValueError, match="item"):
        threads.each(work, range(20))
    assert threads.each(abs, range(5)) == list(range(5))


def test_a_cluster_gives_the_same_bits_with_any_number_of_threads() -> None:
    rng = np.random.default_rng(3)
    value, gradient = (rng.standard_normal(5 << 18, dtype=np.float32) for _ in range(2))  # five pages
    trained = []
    for count in (1, 3):
        with LocalCluster(rule="adam", apply_threads=count) as local, client.connect(local.cluster, worker=0) as server:
            server.init({"w": value})
            for _ in range(3):
                server.push({"w": gradient})
            trained.append(server.pull()["w"].tobytes())
    assert trained[0] == trained[1]
