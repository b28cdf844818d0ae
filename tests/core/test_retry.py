"""How often, and for how long, is a broken call tried again? Delays as numbers: nobody sleeps here."""

from __future__ import annotations

import itertools
import random

from hypothesis import given
from hypothesis import strategies as st

from client.retry import Retry


@given(
    seed=st.integers(0, 99),
    budget_s=st.floats(0.01, 60),
    first_s=st.floats(0.001, 1),
    factor=st.floats(1, 4),
    most_s=st.floats(1, 5),
)
def test_delays_grow_up_to_a_bound_and_their_sum_stays_within_the_budget(
    seed: int, budget_s: float, first_s: float, factor: float, most_s: float
) -> None:
    # claim 4
    retry = Retry(budget_s, first_s, factor, most_s)
    delays_s = list(retry.delays(random.Random(seed)))
    assert sum(delays_s) <= budget_s
    bound_s = first_s
    for delay_s in delays_s:
        assert bound_s / 2 <= delay_s <= bound_s
        bound_s = min(most_s, bound_s * factor)
    assert sum(delays_s) + bound_s > budget_s  # and the budget is used: the next could have passed it


def test_two_clients_do_not_come_back_at_the_same_moment() -> None:
    one, other = (list(itertools.islice(Retry().delays(random.Random(seed)), 5)) for seed in (1, 2))
    assert all(a != b for a, b in zip(one, other))


def test_the_same_chance_gives_the_same_delays() -> None:
    assert list(Retry().delays(random.Random(3))) == list(Retry().delays(random.Random(3)))
