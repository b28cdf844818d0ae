"""How do several gradients become one? Closed forms, workers that push nonsense, and models cut in pages and spread over ps.

Whatever way a model is cut, the result must be that of numpy on all gradients laid end to end.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from protos.errors import RuleError, RuleFailed
from ps.aggregation import Contribution, aggregating
from ps.apply import alone
from ps.rules import Aggregation, Sgd, make_rule, registered
from ps.rules.configured import make
from ps.variable import Gradients, SparseGradient
from tests.core.builders import dense, small_pages, sparse, state
from tests.rules.together import together

# Each with arguments that fit seven workers; one without an argument that it needs must have a line here.
EXAMPLES = {"trimmed_mean": "trimmed_mean(2)", "krum": "krum(byzantine=1,keep=2)"}
OURS = [name for name, cls in registered("aggregation").items() if cls.__module__.startswith("ps.rules.")]
EVERY = [EXAMPLES.get(name, name) for name in OURS]
every_aggregation = pytest.mark.parametrize("text", EVERY)
rng = np.random.default_rng(17)


def of(text: str) -> Aggregation:
    aggregation: Aggregation = make("aggregation", text)
    return aggregation


def one_of(text: str, gradients: Sequence[Any], weights: Sequence[float] | None = None) -> Any:
    """What becomes of one array a worker, as the gradients of a model of one variable."""
    now = state(w=np.zeros_like(gradients[0]))
    pushed = contributions([{0: dense(gradient)} for gradient in gradients], weights)
    return whole(alone(aggregating(of(text), pushed, now))[0], now)


def contributions(pushes: Sequence[Gradients], weights: Sequence[float] | None = None) -> dict[int, Contribution]:
    return {worker: Contribution(g, weights[worker] if weights else 1.0) for worker, g in enumerate(pushes)}


def whole(gradient: Any, now: Any, index: int = 0) -> Any:
    if isinstance(gradient, SparseGradient):
        out = np.zeros(now.partitions[index].key.shape, gradient.rows.dtype)
        out[gradient.indices] = gradient.rows
        return out
    return gradient.value.whole()


def plain(text: str, gradients: Any, weights: Any) -> Any:
    """The same in numpy, as in a textbook. gradients: (n, m), float64."""
    count, name = len(gradients), text.partition("(")[0]
    if name == "mean":
        return gradients.mean(axis=0)
    if name == "weighted_mean":
        return np.average(gradients, axis=0, weights=weights)
    if name == "median":
        return np.median(gradients, axis=0)
    if name == "trimmed_mean":
        return np.sort(gradients, axis=0)[2:-2].mean(axis=0)
    scores = []
    for one in range(count):
        distances = sorted(((gradients[one] - gradients[other]) ** 2).sum() for other in range(count) if other != one)
        scores.append(sum(distances[: count - 1 - 2]))
    return gradients[np.argsort(scores)[:2]].mean(axis=0)


# -- closed forms ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "pushed", "expected"),
    [
        ("mean", [1, 2, 6], 3),
        ("median", [6, 1, 2], 2),
        ("median", [6, 1, 2, 3], 2.5),
        ("median", [6, 1], 3.5),
        ("trimmed_mean(1)", [100, 1, 2, 3, -100], 2),
        ("trimmed_mean(0)", [1, 2, 6], 3),
        ("trimmed_mean(2)", [100, 1, 2, 3, -100], 2),
        ("trimmed_mean(2)", [6, 1, 2], 2),  # two of five have left: as many are cut off as leaves one
        ("trimmed_mean(1)", [6, 1], 3.5),
        ("krum(1)", [1, 2, 2.5, 4, 100], 2),  # the sums over two others: 3.25, 1.25, 2.5, …
        ("krum(1,keep=2)", [1, 2, 2.5, 4, 100], 2.25),
        ("krum(1,keep=9)", [1, 2, 2.5, 4, 100], 2.25),  # at most n - byzantine - 2 are kept
        ("krum(0)", [5, 1, 2], 1),  # of two that are as close to each other the first
        ("krum(1)", [100, 1, 2], 1),  # fewer than it takes: the closest pair
        ("krum(1)", [5, 1], 5),
        ("krum(5,keep=2)", [100, 1, 2], 1),
    ],
)
def test_each_is_its_formula(text: str, pushed: list[float], expected: float) -> None:
    gradients = [np.full((2, 2), number, np.float32) for number in pushed]
    np.testing.assert_array_equal(one_of(text, gradients), np.full((2, 2), expected))


def test_the_median_and_the_trimmed_mean_look_at_each_element_apart_and_krum_at_the_whole_model() -> None:
    gradients = [np.array(numbers, np.float32) for numbers in ([0, 9, 1], [9, 1, 0], [1, 0, 9], [1, 1, 2], [1, 1, 1])]
    assert one_of("median", gradients).tolist() == one_of("trimmed_mean(2)", gradients).tolist() == [1, 1, 1]
    assert any(np.array_equal(one_of("krum(1)", gradients), gradient) for gradient in gradients)


def test_a_weighted_mean_with_batch_sizes_is_the_gradient_of_the_union_of_the_batches() -> None:
    # Linear regression: each worker has the mean gradient over its own batch, and the batches differ in size.
    sizes = [5, 1, 10, 3]
    inputs, labels, weights = rng.normal(size=(19, 4)), rng.normal(size=19), rng.normal(size=4)

    def gradient(x: Any, y: Any) -> Any:
        return 2 * x.T @ (x @ weights - y) / len(y)

    cuts = np.cumsum(sizes)[:-1]
    gradients = [gradient(x, y) for x, y in zip(np.split(inputs, cuts), np.split(labels, cuts))]
    union = gradient(inputs, labels)
    np.testing.assert_allclose(one_of("weighted_mean", gradients, sizes), union, rtol=1e-12)
    assert not np.allclose(one_of("mean", gradients, sizes), union, rtol=1e-2)


# -- workers that push nonsense ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("nonsense", [1e6, -1e6, 3e38, np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("who", [0, 3, 6])
@pytest.mark.parametrize("text", ["median", "trimmed_mean(1)", "krum(1)", "krum(1,keep=4)"])
def test_one_worker_of_seven_may_push_what_it_likes(text: str, who: int, nonsense: float) -> None:
    truth = rng.normal(size=50)
    gradients = [(truth + 0.1 * rng.normal(size=50)).astype("f") for _ in range(7)]
    honest = np.delete(gradients, who, axis=0)
    gradients[who] = np.full(50, nonsense, np.float32)
    result = one_of(text, gradients)
    assert (honest.min(axis=0) <= result).all() and (result <= honest.max(axis=0)).all()
    assert np.linalg.norm(result - honest.mean(axis=0)) < 0.1 * np.sqrt(50) * 1.5
    assert not np.abs(one_of("mean", gradients)).max() < 1e4


@pytest.mark.parametrize("text", ["median", "trimmed_mean(3)", "krum(byzantine=2)"])
def test_several_that_agree_do_not_help_each_other_as_long_as_they_are_no_more_than_was_said(text: str) -> None:
    bad = {"median": 3, "trimmed_mean(3)": 3, "krum(byzantine=2)": 2}[text]
    gradients = [np.full(9, 50, np.float32)] * bad
    gradients += [(1 + 0.1 * rng.normal(size=9)).astype("f") for _ in range(7 - bad)]
    assert len(gradients) >= of(text).workers_needed()
    np.testing.assert_allclose(one_of(text, gradients), 1, atol=0.5)


def test_how_many_workers_it_takes() -> None:
    needed = {text: of(text).workers_needed() for text in ("mean", "weighted_mean", "median")}
    assert needed == {"mean": 1, "weighted_mean": 1, "median": 1}
    assert [of(f"trimmed_mean({trim})").workers_needed() for trim in (0, 1, 2)] == [1, 3, 5]
    assert [of(f"krum({byzantine})").workers_needed() for byzantine in (0, 1, 2)] == [3, 5, 7]
    assert of("krum(1,keep=4)").workers_needed() == 7  # of which one may be bad, and two more are not kept


# -- models in pages, and on several ps ---------------------------------------------------------------------------------

SHAPES = [(), (3,), (5, 7), (2, 3, 4), (0, 2), (40,)]
WEIGHTS = [3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0]


@every_aggregation
@pytest.mark.parametrize("shards", [1, 2, 3])
@pytest.mark.parametrize("page_bytes", [16, 1 << 20])
def test_however_a_model_is_cut_it_is_numpy_on_gradients_laid_end_to_end(
    text: str, shards: int, page_bytes: int
) -> None:
    # claim 5
    pushes = [[rng.normal(size=shape).astype("f") for shape in SHAPES] for _ in WEIGHTS]
    flat = np.array([np.concatenate([g.reshape(-1) for g in pushed]) for pushed in pushes], np.float64)
    with small_pages(page_bytes):
        states, exchanges = [], []
        for shard in range(shards):
            mine = range(len(SHAPES))[shard::shards]
            now = state(**{f"w{at}": np.zeros(SHAPES[number], np.float32) for at, number in enumerate(mine)})
            pushed = [{at: dense(push[number]) for at, number in enumerate(mine)} for push in pushes]
            states.append(now)
            exchanges.append(aggregating(of(text), contributions(pushed, WEIGHTS), now))
        results = together(exchanges)
    parts = [
        whole(results[number % shards][number // shards], states[number % shards], number // shards).reshape(-1)
        for number in range(len(SHAPES))
    ]
    np.testing.assert_allclose(np.concatenate(parts), plain(text, flat, WEIGHTS), rtol=1e-5, atol=1e-6)


@every_aggregation
def test_sparse_and_missing_gradients_count_as_zeros_in_what_they_do_not_name(text: str) -> None:
    now = state(a=np.zeros((5, 2), np.float32), b=np.zeros((3, 2), np.float32), c=np.zeros(2, np.float32))
    pushes: list[dict[int, Any]] = []
    flat = []
    for worker in range(7):
        table, other = np.zeros((5, 2), np.float32), np.zeros((3, 2), np.float32)
        table[[0, 1, worker % 5]] = rng.normal(size=2) + worker
        pushes.append({0: sparse(sorted({0, 1, worker % 5}), table[sorted({0, 1, worker % 5})])})
        if worker % 3:
            other[:] = rng.normal(size=(3, 2))
            pushes[-1][1] = dense(other) if worker % 2 else sparse([0, 1, 2], other)
        flat.append(np.concatenate([table.reshape(-1), other.reshape(-1)]))
    result = alone(aggregating(of(text), contributions(pushes, WEIGHTS), now))
    assert sorted(result) == [0, 1]  # nobody pushed for c
    ours = np.concatenate([whole(result[index], now, index).reshape(-1) for index in range(2)])
    np.testing.assert_allclose(ours, plain(text, np.array(flat, np.float64), WEIGHTS), rtol=1e-5, atol=1e-6)
    assert isinstance(result[0], SparseGradient) == of(text).linear


def test_when_the_one_that_is_kept_pushed_no_row_nothing_of_the_others_comes_in() -> None:
    now = state(a=np.zeros((5, 1), np.float32), b=np.zeros(1, np.float32))
    ones = dense(np.ones(1, np.float32))
    pushes: list[Gradients] = [{1: ones}, {1: ones}, {0: sparse([2], np.full((1, 1), np.nan, "f")), 1: ones}]
    result = alone(aggregating(of("krum(0)"), contributions(pushes), now))
    assert isinstance(result[0], SparseGradient)
    assert result[0].indices.tolist() == []
    assert result[0].rows.shape == (0, 1)
    assert whole(result[1], now, 1).tolist() == [1]


@every_aggregation
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=str)
def test_narrow_gradients_become_one_in_float32(text: str, dtype: Any) -> None:
    gradients = [rng.normal(size=(4, 3)).astype(dtype) for _ in WEIGHTS]
    result = one_of(text, gradients, WEIGHTS)
    assert result.dtype == np.float32
    flat = np.array([gradient.reshape(-1) for gradient in gradients]).astype("d")
    np.testing.assert_allclose(result.reshape(-1), plain(text, flat, WEIGHTS), rtol=1e-5, atol=1e-6)


# -- what every aggregation must do ------------------------------------------------------------------------------------


@every_aggregation
def test_the_order_of_arrival_changes_no_bit(text: str) -> None:
    # claim 5
    now = state(e=np.zeros((5, 2), np.float32), w=np.zeros(100, np.float32))
    gradients = [rng.normal(size=100).astype("f") * 10.0**worker for worker in range(4)]
    rows = rng.normal(size=(4, 2, 2)).astype("f")
    pushes = contributions(
        [{0: sparse([worker, 4], rows[worker]), 1: dense(gradients[worker])} for worker in range(4)], WEIGHTS
    )
    results = [
        alone(aggregating(of(text), {worker: pushes[worker] for worker in order}, now))
        for order in itertools.permutations(pushes)
    ]
    for result in results:
        for index in range(2):
            assert whole(result[index], now, index).tobytes() == whole(results[0][index], now, index).tobytes()


@every_aggregation
@pytest.mark.parametrize("count", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_shapes_and_dtypes_are_kept_and_what_was_pushed_stays_as_it_was(text: str, count: int, dtype: str) -> None:
    # Also with fewer workers than it takes, as when some have left.
    for shape in SHAPES:
        gradients = [rng.normal(size=shape).astype(dtype) for _ in range(count)]
        copies = [gradient.copy() for gradient in gradients]
        result = one_of(text, gradients, WEIGHTS)
        assert (result.shape, result.dtype) == (shape, np.dtype(dtype))
        assert (np.min(copies, axis=0) - 1e-6 <= result).all() and (result <= np.max(copies, axis=0) + 1e-6).all()
        for gradient, copy in zip(gradients, copies):
            np.testing.assert_array_equal(gradient, copy)


@every_aggregation
def test_of_equal_gradients_it_makes_the_same(text: str) -> None:
    gradient = rng.normal(size=(3, 4)).astype("f")
    np.testing.assert_allclose(one_of(text, [gradient] * 5, WEIGHTS), gradient, rtol=1e-6)


@every_aggregation
def test_an_aggregation_and_its_text_say_the_same(text: str) -> None:
    rule = Sgd(aggregation=of(text))
    assert make_rule(f"sgd:aggregation={text}") == rule
    assert make_rule(rule.spec()) == make_rule(rule.config()) == rule
    known = {cls.__name__: cls for kind in ("rule", "aggregation") for cls in registered(kind).values()}
    assert eval(repr(rule), known) == rule
    assert hash(make_rule(rule.spec())) == hash(rule)


@every_aggregation
def test_its_docstring_has_the_formula_and_says_where_it_comes_from(text: str) -> None:
    doc = inspect.getdoc(type(of(text))) or ""
    assert "g ←" in doc
    assert any(str(year) in doc for year in range(1940, 2040))


@pytest.mark.parametrize(
    ("text", "field"),
    [("trimmed_mean(-1)", "trim"), ("krum(byzantine=-1)", "byzantine"), ("krum(keep=0)", "keep")],
)
def test_an_argument_that_makes_no_sense_is_refused_by_name(text: str, field: str) -> None:
    with pytest.raises(RuleError, match=rf"aggregation {text.partition('(')[0]}, argument {field}"):
        make_rule(f"sgd:aggregation={text}")


# -- one of one's own that misbehaves -----------------------------------------------------------------------------------


def odd(**methods: Any) -> Aggregation:
    return type("Odd", (Aggregation,), {"name": "odd", **methods})()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("methods", "got"),
    [
        ({"shares": lambda self, weights, distances: weights / 0 + [1 / 0]}, "ZeroDivisionError: division by zero"),
        ({"shares": lambda self, weights, distances: weights.__imul__(0)}, "ValueError: output array is read-only"),
        ({"shares": lambda self, weights, distances: [1.0]}, "[1.0]"),
        ({"shares": lambda self, weights, distances: weights * 0}, "[0.0, 0.0]"),
        ({"shares": lambda self, weights, distances: weights * 1e308}, "[1e+308, 1e+308]"),
        ({"shares": lambda self, weights, distances: -weights}, "[-1.0, -1.0]"),
        ({"shares": lambda self, weights, distances: weights * np.nan}, "[nan, nan]"),
        ({"linear": False, "combine": lambda self, gradients: 1 / 0}, "ZeroDivisionError: division by zero"),
        ({"linear": False, "combine": lambda self, gradients: gradients}, "float32 (2, 3)"),
        ({"linear": False, "combine": lambda self, gradients: [None] * 3}, "object (3,)"),
        ({"linear": False, "combine": lambda self, gradients: gradients[0] / 0 * 0}, "NaN from finite gradients"),
    ],
)
def test_a_wrong_answer_fails_the_step_and_names_the_aggregation(methods: Any, got: str) -> None:
    # claim 11
    now = state(w=np.zeros(3, np.float32))
    pushed = contributions([{0: dense(np.ones(3, np.float32))}] * 2)
    with pytest.raises(RuleFailed) as caught:
        alone(aggregating(odd(**methods), pushed, now))
    assert caught.value.field.startswith("aggregation odd, ")
    assert caught.value.got.partition(" (test_aggregations.py")[0] == got
