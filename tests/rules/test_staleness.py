"""Do the rules against staleness give the numbers of their papers? Through the engine, against a few lines of numpy.

Workers are simulated here: each reads a state, and its gradient arrives when others have updated it. The last lessons do the
same with clients and a ps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import client
import ps
from ps.apply import apply, with_slots
from ps.rules import UpdateRule, make_rule
from ps.variable import Gradient, ShardState
from tests.core.builders import dense, sparse, state, value_of

SPECS = ["staleness_aware", "dc_asgd", "dc_asgd_adaptive", "gap_aware", "dana", "diloco", "elastic_average"]
SPECS += ["staleness_aware:momentum=0.9", "gap_aware:momentum=0.9"]
rng = np.random.default_rng(16)


def ready(rule: UpdateRule, value: Any) -> ShardState:
    start = state(w=np.asarray(value))
    return ShardState(0, tuple(with_slots(partition, rule) for partition in start.partitions))


def pushed(rule: UpdateRule, now: ShardState, grad: Any, read: ShardState | None = None, worker: int = 0) -> ShardState:
    """The state after `worker` has pushed a gradient of the state that it read."""
    read = read or now
    gradient: Gradient = dense(np.asarray(grad, "f")) if not hasattr(grad, "indices") else grad
    staleness = now.version - read.version
    return apply(now, rule, {0: gradient}, staleness=staleness, worker=worker, read_state=read)


def arrivals(workers: int, count: int) -> list[int]:
    """Who pushes when: everybody as often as the others, in an order that changes."""
    return [int(worker) for _ in range(count) for worker in rng.permutation(workers)]


def trained(rule: UpdateRule, first: Any, gradient: Callable[[Any], Any], workers: int, rounds: int) -> Any:
    """The value after every worker has pushed `rounds` gradients, each of what it read after its push before."""
    now = ready(rule, first)
    read = [now] * workers
    for worker in arrivals(workers, rounds):
        now = pushed(rule, now, gradient(value_of(read[worker])), read[worker], worker)
        read[worker] = now
    return value_of(now)


# -- the rate by the staleness -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("staleness", "expected"), [(0, 0.0), (1, 0.0), (2, 0.5), (4, 0.75)])
def test_staleness_aware_divides_the_rate_by_the_staleness(staleness: int, expected: float) -> None:
    rule = make_rule("staleness_aware:learning_rate=0.5")
    start = ready(rule, [1.0])
    now = apply(start, rule, {0: dense(np.array([2.0]))}, staleness=staleness, worker=0)
    assert value_of(now).tolist() == [expected]  # 1 - 0.5 / max(1, staleness) * 2


def test_staleness_aware_with_momentum_divides_what_the_push_adds_to_the_velocity() -> None:
    rule = make_rule("staleness_aware:learning_rate=0.5,momentum=0.5")
    now = ready(rule, [1.0])
    w, velocity = 1.0, 0.0
    for staleness, grad in [(0, 1.0), (2, 3.0), (4, -1.0)]:
        now = apply(now, rule, {0: dense(np.array([grad]))}, staleness=staleness, worker=0)
        velocity = 0.5 * velocity - 0.5 / max(1, staleness) * grad
        w += velocity
        assert value_of(now).tolist() == [w]  # these numbers are exact in binary


# -- the gradient by the way the value has gone ------------------------------------------------------------------------


def test_dc_asgd_adds_lambda_g_squared_times_the_way_since_the_read() -> None:
    rule = make_rule("dc_asgd:learning_rate=0.5,compensation=0.25")
    read = ready(rule, [1.0, 1.0])
    now = pushed(rule, read, [-2.0, 0.0])  # w: 2, 1
    after = pushed(rule, now, [2.0, 2.0], read)
    # 2 - 0.5 (2 + 0.25 · 4 · (2 - 1)) = 0.5; the other has not moved since: 1 - 0.5 · 2 = 0
    assert value_of(after).tolist() == [0.5, 0.0]


def test_dc_asgd_is_exact_where_lambda_g_squared_is_the_curvature() -> None:
    # claim of the paper's section 3: to first order the old gradient becomes that of the present values.
    curvature, bottom = 3.0, 5.0
    read, now = 1.0, 2.0
    old, new = curvature * (read - bottom), curvature * (now - bottom)
    rule = make_rule({"name": "dc_asgd", "learning_rate": 1.0, "compensation": curvature / old**2})
    start = ready(rule, [read])
    moved = pushed(rule, start, [read - now], start)  # one step to `now`; no way gone yet, so nothing to compensate
    after = pushed(rule, moved, [old], start)
    np.testing.assert_allclose(value_of(after), [now - new], rtol=1e-6)


def test_dc_asgd_adaptive_divides_lambda_by_the_size_of_the_gradients() -> None:
    rule = make_rule("dc_asgd_adaptive:learning_rate=0.1,compensation=2,decay=0.9,epsilon=1e-7")
    values = [ready(rule, rng.normal(size=5).astype("f"))]
    w, mean_square = [value_of(values[0]).astype(float)], np.zeros(5)
    for t in range(6):
        grad, at = rng.normal(size=5), max(0, t - 2)  # two others have pushed since the read
        values.append(pushed(rule, values[t], grad, values[at]))
        mean_square = 0.9 * mean_square + 0.1 * grad**2
        w.append(w[t] - 0.1 * (grad + 2 / np.sqrt(mean_square + 1e-7) * grad**2 * (w[t] - w[at])))
        np.testing.assert_allclose(value_of(values[-1]), w[-1], rtol=1e-4)


def test_gap_aware_divides_each_element_by_one_and_its_gap_in_typical_steps() -> None:
    rule = make_rule("gap_aware:learning_rate=0.5,epsilon=1e-30")
    states = [ready(rule, [8.0, 8.0])]
    for _ in range(3):
        states.append(pushed(rule, states[-1], [2.0, 0.0]))  # steps of 1, and of nothing
    assert value_of(states[3]).tolist() == [5.0, 8.0]
    after = pushed(rule, states[3], [2.0, 2.0], states[0])
    # The first has gone 3 typical steps: 5 - 1/(1+3). The second has not moved, however stale the gradient: 8 - 1.
    np.testing.assert_allclose(value_of(after), [4.75, 7.0], rtol=1e-6)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_gap_aware_is_its_formula_for_any_gradients(momentum: float) -> None:
    rule = make_rule({"name": "gap_aware", "learning_rate": 0.1, "momentum": momentum, "decay": 0.9})
    values = [ready(rule, rng.normal(size=5).astype("f"))]
    w, mean_square, velocity = [value_of(values[0]).astype(float)], np.zeros(5), np.zeros(5)
    for t in range(8):
        grad, at = rng.normal(size=5), max(0, t - 3)
        values.append(pushed(rule, values[t], grad, values[at]))
        square = (0.1 * (momentum * velocity + grad)) ** 2
        mean_square = square if t == 0 else 0.9 * mean_square + 0.1 * square
        penalty = 1 + np.abs(w[t] - w[at]) / (np.sqrt(mean_square) + 1e-8)
        velocity = momentum * velocity + grad / penalty
        w.append(w[t] - 0.1 * velocity)
        np.testing.assert_allclose(value_of(values[-1]), w[-1], rtol=1e-4)


@pytest.mark.parametrize("spec", ["dc_asgd", "dc_asgd_adaptive", "gap_aware", "staleness_aware"])
def test_without_staleness_they_are_plain_descent_bit_for_bit(spec: str) -> None:
    value, grads = rng.normal(size=50).astype("f"), rng.normal(size=(20, 50)).astype("f")
    ours, plain = make_rule(f"{spec}:learning_rate=0.1"), make_rule("sgd:learning_rate=0.1")
    one, other = ready(ours, value), ready(plain, value)
    for grad in grads:
        one, other = pushed(ours, one, grad), pushed(plain, other, grad)
    assert value_of(one).tobytes() == value_of(other).tobytes()


# -- momentum of many --------------------------------------------------------------------------------------------------


def test_dana_with_one_worker_is_nesterov_momentum_as_keras_has_it() -> None:
    # velocity = -η velocity₁ is the change of variables. With η a power of two it changes exponents only: the same bits.
    value, grads = rng.normal(size=50).astype("f"), rng.normal(size=(50, 50)).astype("f")
    ours = make_rule("dana:learning_rate=0.25,momentum=0.9")
    keras = make_rule("momentum:learning_rate=0.25,momentum=0.9,nesterov=true")  # test_golden.py: Keras's bits
    one, other = ready(ours, value), ready(keras, value)
    for grad in grads:
        one, other = pushed(ours, one, grad), pushed(keras, other, grad)
    assert value_of(one).tobytes() == value_of(other).tobytes()
    mine, theirs = (partition.slots for (partition,) in (one.partitions, other.partitions))
    assert (-0.25 * mine["velocity/worker 0"].whole()).tobytes() == theirs["velocity"].whole().tobytes()


def test_dana_holds_the_point_where_the_momentum_of_all_workers_leads() -> None:
    # The paper's DANA keeps θ and hands out θ - η μ Σ velocity. Ours keeps what is handed out.
    rate, momentum, workers = 0.1, 0.9, 3
    rule = make_rule({"name": "dana", "learning_rate": rate, "momentum": momentum})
    now = ready(rule, rng.normal(size=4).astype("f"))
    theta, velocities = value_of(now).astype(float), np.zeros((workers, 4))
    for worker in arrivals(workers, 10):
        grad = rng.normal(size=4)
        now = pushed(rule, now, grad, worker=worker)
        velocities[worker] = momentum * velocities[worker] + grad
        theta = theta - rate * velocities[worker]
        np.testing.assert_allclose(value_of(now), theta - rate * momentum * velocities.sum(axis=0), rtol=1e-4)


# -- workers that train on their own -----------------------------------------------------------------------------------


def test_the_centre_of_elastic_averaging_moves_by_alpha_of_the_way_to_the_worker() -> None:
    rule = make_rule("elastic_average:learning_rate=0.25")
    centre, local = ready(rule, [1.0, 4.0]), np.array([3.0, 0.0])
    assert value_of(pushed(rule, centre, value_of(centre) - local)).tolist() == [1.5, 3.0]


def test_diloco_is_nesterov_momentum_of_rate_and_momentum_of_the_paper() -> None:
    rule = make_rule("diloco")
    now = ready(rule, rng.normal(size=4).astype("f"))
    theta, buffer = value_of(now).astype(float), np.zeros(4)
    for _ in range(5):
        local = rng.normal(size=4)
        now = pushed(rule, now, value_of(now) - local)
        delta = theta - local
        buffer = 0.9 * buffer + delta
        theta = theta - 0.7 * (delta + 0.9 * buffer)
        np.testing.assert_allclose(value_of(now), theta, rtol=1e-4)


# -- every one of them -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", [spec for spec in SPECS if spec not in ("diloco", "elastic_average")])
def test_sixteen_asynchronous_workers_find_the_bottom_of_a_bowl(spec: str) -> None:
    curvature, bottom = np.array([1, 0.5, 1], np.float32), np.array([1, -2, 3], np.float32)
    rule = make_rule({**make_rule(spec).config(), "learning_rate": 0.02})
    found = trained(rule, np.zeros(3, np.float32), lambda w: curvature * (w - bottom), workers=16, rounds=400)
    np.testing.assert_allclose(found, bottom, atol=0.05)


def test_where_plain_descent_is_too_fast_for_its_staleness_the_staleness_aware_rules_are_not() -> None:
    def distance(spec: str) -> float:
        found = trained(make_rule(spec), np.full(3, 10, np.float32), lambda w: w, workers=16, rounds=20)
        return float(np.abs(found).max())

    assert distance("sgd:learning_rate=0.2") > 10  # further away than at first
    assert distance("staleness_aware:learning_rate=0.2") < 1
    assert distance("gap_aware:learning_rate=0.2") < 1
    assert distance("momentum:learning_rate=0.01") > 10
    assert distance("dana:learning_rate=0.01") < 3


@pytest.mark.parametrize("spec", SPECS)
def test_rows_of_a_sparse_gradient_are_updated_as_they_would_be_in_a_dense_one_and_the_others_not(spec: str) -> None:
    rule = make_rule(spec)
    table = rng.normal(size=(6, 4)).astype("f")
    by_rows = whole = ready(rule, table)
    rows_read = whole_read = by_rows
    for _ in range(4):
        rows = rng.normal(size=(2, 4)).astype("f")
        full = np.zeros((6, 4), np.float32)
        full[[1, 4]] = rows
        by_rows, rows_read = pushed(rule, by_rows, sparse([1, 4], rows), rows_read), by_rows
        whole, whole_read = pushed(rule, whole, full, whole_read), whole
    assert value_of(by_rows)[[1, 4]].tobytes() == value_of(whole)[[1, 4]].tobytes()
    assert value_of(by_rows)[[0, 2, 3, 5]].tobytes() == table[[0, 2, 3, 5]].tobytes()


@pytest.mark.parametrize("spec", SPECS)
def test_a_16_bit_variable_is_the_float32_one_rounded(spec: str) -> None:
    rule = make_rule(spec)
    first = rng.normal(size=20).astype(np.float16)
    narrow, wide = ready(rule, first), ready(rule, first.astype(np.float32))
    grad = rng.normal(size=20).astype(np.float16)  # and of the values themselves: two reads alike in both precisions
    for _ in range(2):
        narrow = apply(narrow, rule, {0: dense(grad)}, staleness=1, worker=0, read_state=ready(rule, first))
        wide = pushed(rule, wide, grad, ready(rule, first.astype(np.float32)))
    assert value_of(narrow).dtype == np.float16
    assert value_of(narrow).tobytes() == value_of(wide).astype(np.float16).tobytes()


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        # Worker 0 has moved w from 1 to 2, 3 and 4 by the time that worker 1's gradient of 1 at w = 1 arrives.
        ("staleness_aware:learning_rate=1", 4 - 1 / 3),
        ("dc_asgd:learning_rate=1,compensation=0.5", 4 - (1 + 0.5 * 1 * (4 - 1))),
        ("dc_asgd_adaptive:learning_rate=1,compensation=0.5,decay=0", 4 - (1 + 0.5 * 1 * (4 - 1))),
        ("gap_aware:learning_rate=1", 4 - 1 / (1 + 3)),
    ],
)
def test_a_ps_tells_the_rule_how_stale_a_push_is_and_what_was_read(spec: str, expected: float) -> None:
    with (
        ps.LocalCluster(servers=2, mode="async", workers=2, rule=spec) as local,
        client.connect(local.cluster, worker=0) as fast,
        client.connect(local.cluster, worker=1) as slow,
    ):
        fast.init({"w": np.ones(1, np.float32)})
        slow.pull()
        for _ in range(3):
            fast.pull()
            fast.push({"w": np.array([-1], np.float32)})
        assert slow.push({"w": np.array([1], np.float32)}).staleness == 3
        np.testing.assert_allclose(slow.pull()["w"], [expected], rtol=1e-6)
