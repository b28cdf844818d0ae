"""What does the simulator promise? The same bits for the same seed, and the behaviour that each mode is known for.

The workers here are virtual, and so is their time; what they talk to is the core of the daemons. That the daemons do the
same with the same arrivals is in tests/wire/test_simulator.py.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from protos.errors import InvalidInput
from ps.simulation import Constant, LogNormal, Pause, Plan, Result, Straggler, parse_speed, simulate
from ps.simulation.data import load
from ps.simulation.models import MODELS, Model
from ps.simulation.speeds import duration_s

PLAN = Plan(workers=4, steps=12, data="synthetic", speeds=(LogNormal(1, 0.5),))
EVEN = (Constant(1),)
ONE_SLOW = (Constant(1), Straggler(0, 4))


@pytest.mark.parametrize("mode", ["async", "sync", "ssp"])
@pytest.mark.parametrize("servers", [1, 2])
def test_the_same_plan_gives_the_same_bits_and_another_seed_others(mode: str, servers: int) -> None:
    plan = replace(PLAN, mode=mode, servers=servers, rule="adam:learning_rate=0.01", model="mlp")
    first, second, other = simulate(plan), simulate(plan), simulate(replace(plan, seed=1))
    assert first.story == second.story
    assert first.looks == second.looks
    assert first.workers == second.workers
    for name, value in first.values.items():
        np.testing.assert_array_equal(value, second.values[name])
        assert not np.array_equal(value, other.values[name])
    assert first.fingerprint() == second.fingerprint() != other.fingerprint()


@pytest.mark.parametrize("model", ["softmax", "mlp"])
def test_the_model_is_real_and_learns(model: str) -> None:
    result = simulate(replace(PLAN, steps=60, model=model, data="digits", rule="momentum:learning_rate=0.02"))
    assert result.looks[0].loss > 2 > 1 > result.final.loss
    assert result.final.accuracy > 0.8


@pytest.mark.parametrize("name", MODELS)
def test_a_gradient_is_that_of_the_loss(name: str) -> None:
    model: Model = MODELS[name](64, 10)
    rng = np.random.default_rng(0)
    train, _ = load("synthetic", rng)
    batch = train.batch(rng, 16)
    values = {name: rng.standard_normal(value.shape) * 0.3 for name, value in model.first_values(rng).items()}
    gradient = model.gradient(values, *batch)
    for variable, value in values.items():
        at = tuple(rng.integers(0, length) for length in value.shape)
        near = [{**values, variable: value.copy()} for _ in range(2)]
        near[0][variable][at] -= 1e-5
        near[1][variable][at] += 1e-5
        low, high = (model.evaluate(each, *batch)[0] for each in near)
        assert gradient[variable][at] == pytest.approx((high - low) / 2e-5, abs=1e-6)


def test_in_sync_three_of_four_wait_for_a_straggler_three_quarters_of_their_time_and_in_async_never() -> None:
    sync = simulate(replace(PLAN, steps=50, mode="sync", speeds=ONE_SLOW))
    slow, *fast = sync.workers
    assert slow.idle_s == 0
    for worker in fast:
        assert worker.busy_s == 50
        assert worker.idle_share == pytest.approx(3 / 4, abs=0.02)
    alone = simulate(replace(PLAN, steps=50, mode="async", speeds=ONE_SLOW))
    assert all(worker.idle_s == 0 for worker in alone.workers)
    assert alone.duration_s == sync.duration_s == 200


def test_idle_time_falls_with_the_slack() -> None:
    shares = [
        simulate(replace(PLAN, steps=40, mode="ssp", slack=slack, speeds=(LogNormal(1, 0.7),))).idle_share
        for slack in (0, 1, 4, 16)
    ]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 4 * shares[-1]


@pytest.mark.parametrize("slack", [0, 1, 4])
def test_the_slack_bounds_how_far_a_clock_leads(slack: int) -> None:
    # A worker reads while it leads by no more than the slack, and has finished one iteration more when it has pushed.
    result = simulate(replace(PLAN, steps=30, mode="ssp", slack=slack, speeds=(LogNormal(1, 0.7), Straggler(0, 4))))
    clocks, here = Counter(dict.fromkeys(range(4), 0)), set(range(4))
    leads = []
    for told in result.story:
        if told.event.kind == "leave":
            here.discard(told.event.worker or 0)
        elif told.event.kind == "push":
            clocks[told.event.worker or 0] += 1
            leads.append(max(clocks.values()) - min(clocks[worker] for worker in here))
    assert max(leads) == slack + 1


def test_async_with_equal_workers_has_a_staleness_of_all_but_one() -> None:
    even = simulate(replace(PLAN, workers=8, steps=50, speeds=EVEN))
    assert even.staleness == {**dict.fromkeys(range(7), 1), 7: 8 * 49 + 1}  # the first of each sees fewer
    uneven = simulate(replace(PLAN, workers=8, steps=50))
    assert uneven.mean_staleness == pytest.approx(7, abs=0.5)
    assert len(uneven.staleness) > 8


@pytest.mark.parametrize(("mode", "backup"), [("async", None), ("ssp", None), ("sync", None), ("sync", 1)])
def test_every_push_is_accounted_for(mode: str, backup: int | None) -> None:
    # claim 3
    result = simulate(replace(PLAN, mode=mode, backup_workers=backup, servers=2))
    for counted in result.counters:
        assert counted["sent"] == 4 * 12 == counted["applied"] + counted["stale"]
        assert counted["applied"] == sum(result.staleness.values())
        assert (counted["stale"] > 0) == (backup == 1)
        assert counted["buffered"] == counted["duplicate"] == counted["refused"] == 0
    steps = sum(told.event.kind == "step" for told in result.story if told.ps == 0) if mode == "sync" else 48
    assert result.final.step == steps


def test_an_end_in_virtual_time_lets_everybody_work_until_then() -> None:
    result = simulate(replace(PLAN, steps=None, until_s=40, speeds=ONE_SLOW))
    assert [worker.iterations for worker in result.workers] == [10, 40, 40, 40]
    assert result.duration_s == 40


def test_a_pause_holds_up_whom_it_must() -> None:
    paused = (Constant(1), Pause(worker=1, at_s=5.5, for_s=10))
    alone = simulate(replace(PLAN, steps=None, until_s=40, speeds=paused))
    assert [worker.iterations for worker in alone.workers] == [40, 30, 40, 40]
    sync = simulate(replace(PLAN, steps=20, mode="sync", speeds=paused))
    assert [worker.idle_s for worker in sync.workers] == [10, 0, 10, 10]


def test_a_norm_over_the_whole_model_is_asked_of_all_shards() -> None:
    clipped = "sgd:learning_rate=0.1,global_clipnorm=0.1"
    for mode in ("async", "sync"):
        plan = replace(PLAN, mode=mode, rule=clipped, model="mlp", speeds=EVEN)
        one, two = simulate(plan), simulate(replace(plan, servers=2))
        for name, value in one.values.items():
            np.testing.assert_allclose(two.values[name], value, rtol=1e-4, atol=1e-6)


def test_a_thousand_workers_are_no_matter() -> None:
    result = simulate(Plan(workers=1000, steps=2, mode="sync", data="synthetic", evaluate_every=1))
    assert [len(told.event.contributors) for told in result.story if told.event.kind == "step"] == [1000, 1000]


# -- what is said of a run ---------------------------------------------------------------------------------------------


def test_a_result_is_plain_json() -> None:
    result = simulate(replace(PLAN, rule="sgd:learning_rate=1e38"))  # it diverges
    told = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert told["plan"]["speeds"] == ["lognormal(median=1,sigma=0.5)"]
    assert told["fingerprint"] == result.fingerprint()
    assert sum(told["staleness"].values()) == 48


def test_the_first_look_is_before_any_update_and_the_others_are_a_few_steps_apart() -> None:
    result: Result = simulate(replace(PLAN, evaluate_every=20))
    assert [look.step for look in result.looks] == [0, 20, 40, 48]
    assert [look.time_s for look in result.looks] == sorted(look.time_s for look in result.looks)
    assert result.looks[-1].time_s <= result.duration_s


# -- speeds ------------------------------------------------------------------------------------------------------------


def test_speeds_are_said_in_text() -> None:
    assert parse_speed("constant(2)") == Constant(2)
    assert parse_speed("lognormal") == LogNormal(1, 0.5)
    assert parse_speed(" lognormal( 2, sigma = 0.1 )") == LogNormal(2, 0.1)
    assert parse_speed("pause(worker=2,at_s=10,for_s=5)") == Pause(2, 10, 5)
    for speed in (Constant(3), LogNormal(0.5, 1.5), Straggler(3, 2.5), Pause(1, 2, 3)):
        assert parse_speed(str(speed)) == speed


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("fast(1)", "fast"),
        ("constant(1", "constant"),
        ("constant(x)", "x"),
        ("constant(1,2)", "2"),
        ("constant(nan)", "nan"),
        ("constant(-1)", "-1"),
        ("straggler(factor=2,factor=3)", "factor"),
        ("straggler(worker=0.5)", "0.5"),
    ],
)
def test_a_speed_that_is_none_is_refused_by_name(text: str, word: str) -> None:
    with pytest.raises(InvalidInput, match="speed") as refused:
        parse_speed(text)
    assert word in str(refused.value)


def test_a_lognormal_speed_has_its_median() -> None:
    rng = np.random.default_rng(0)
    drawn = [duration_s((LogNormal(2, 0.5),), 0, 0.0, rng) for _ in range(2000)]
    assert np.median(drawn) == pytest.approx(2, rel=0.05)
    assert np.std(np.log(drawn)) == pytest.approx(0.5, rel=0.05)


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"workers": 0}, "workers"),
        ({"steps": None}, "steps"),
        ({"speeds": ()}, "speeds"),
        ({"speeds": (Straggler(0, 4),)}, "speeds"),
        ({"speeds": (Constant(1), Straggler(4, 4))}, "straggler"),
        ({"data": "cats"}, "data"),
        ({"model": "transformer"}, "model"),
    ],
)
def test_a_plan_that_cannot_be_is_refused_by_name(wrong: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidInput, match=field):
        replace(PLAN, **wrong)  # type: ignore[arg-type]
