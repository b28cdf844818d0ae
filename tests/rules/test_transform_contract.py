"""What must every gradient transform do, and what becomes of one that does not? Who registers one has it tested here.

The contract is in ps/rules/transforms.py. Numbers that each must give are in test_transforms.py.
"""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

from protos.errors import RuleError, RuleFailed
from ps.apply import apply, with_slots
from ps.rules import Context, Sgd, Transform, UpdateRule, make_rule, register, registered
from ps.rules.configured import make
from ps.rules.options import may_be_cut
from ps.variable import Gradients, ShardState
from tests.core.builders import dense, small_pages, sparse, state, value_of

# Each with arguments that do something to the numbers below; one without an argument that it needs must have a line here.
EXAMPLES = {
    "clip_by_value": "clip_by_value(0.5)",
    "clip_by_norm": "clip_by_norm(0.5)",
    "clip_by_global_norm": "clip_by_global_norm(0.5)",
    "weight_decay": "weight_decay(0.25)",
    "scale_by_staleness": "scale_by_staleness(0.5)",
    "accumulate": "accumulate(2)",
}
OURS = [name for name, cls in registered("transform").items() if cls.__module__.startswith("ps.rules.")]
every_transform = pytest.mark.parametrize("text", [EXAMPLES.get(name, name) for name in OURS])
rng = np.random.default_rng(3)


def prepared(rule: UpdateRule, **values: Any) -> ShardState:
    return ShardState(0, tuple(with_slots(item, rule) for item in state(**values).partitions))


def update(now: ShardState, rule: UpdateRule, gradients: Gradients) -> ShardState:
    return apply(now, rule, gradients, staleness=3, worker=0)


def numbers(now: ShardState) -> list[Any]:
    """Every number that a state holds, as copies."""
    return [paged.whole().copy() for item in now.partitions for paged in (item.value, *item.slots.values())]


def arrays(transform: Transform, shape: tuple[int, ...], dtype: str = "float32") -> list[Any]:
    """Value, gradient and slots, as they may be after some pushes."""
    return [rng.normal(size=shape).astype(dtype) for _ in range(2 + len(transform.slots))]


def transformed(transform: Transform, *arrays: Any, push: int = 3) -> list[Any]:
    ctx = Context(push, 0.1, staleness=3, worker=0, norm=2.5, push=push)
    answer = transform.transform(ctx, *arrays)
    return list(answer) if isinstance(answer, tuple) else [answer]


@every_transform
@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 5), (2, 3, 4), (0,), (0, 3)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("push", [2, 3])
def test_shapes_and_dtypes_are_kept(text: str, shape: tuple[int, ...], dtype: str, push: int) -> None:
    transform = make("transform", text)
    _, *olds = given = arrays(transform, shape, dtype)
    news = transformed(transform, *given, push=push)
    assert len(news) == len(olds)
    for new, old in zip(news, olds):
        assert new is None or (np.shape(new), new.dtype) == (old.shape, old.dtype)
    assert all(new is not None for new in news[1:])
    assert news[0] is not None or transform.pushes_a_step() > 1


@every_transform
def test_arguments_are_read_and_never_written_to(text: str) -> None:
    transform = make("transform", text)
    given = arrays(transform, (3, 5))
    copies = [array.copy() for array in given]
    for array in given:
        array.setflags(write=False)
    transformed(transform, *given)
    for array, copy in zip(given, copies):
        np.testing.assert_array_equal(array, copy)


@every_transform
def test_the_same_input_gives_the_same_bits(text: str) -> None:
    given = arrays(make("transform", text), (20, 5))
    for one, other in zip(*(transformed(make("transform", text), *given) for _ in range(2))):
        assert one.tobytes() == other.tobytes()


@every_transform
@pytest.mark.parametrize("parts", [2, 3, 7])
def test_an_elementwise_transform_gives_the_same_bits_in_parts(text: str, parts: int) -> None:
    # claim 7: this promise is what lets a gradient be cut in pages and rows. What it needs to know of the whole is a norm.
    transform = make("transform", text)
    if not transform.elementwise:
        assert not may_be_cut(Sgd(transforms=(transform,)))  # so it gets variables that nobody has cut
        return
    given = arrays(transform, (101,))
    pieces = zip(*(np.array_split(array, parts) for array in given))
    by_parts = zip(*(transformed(transform, *piece) for piece in pieces))
    for one, other in zip(transformed(transform, *given), by_parts):
        assert one.tobytes() == np.concatenate(other).tobytes()


@every_transform
@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_how_many_pages_there_are_is_nobodys_concern(text: str, kind: str, dtype: str) -> None:
    rule = Sgd(0.5, transforms=(make("transform", text),))
    value, grads = rng.normal(size=(9, 4)).astype(dtype), rng.normal(size=(2, 9, 4)).astype(dtype)
    results = []
    for page_bytes in (32, 1 << 20):
        with small_pages(page_bytes):
            now = prepared(rule, w=value)
            for grad in grads:
                now = update(now, rule, {0: dense(grad) if kind == "dense" else sparse([2, 3, 8], grad[:3])})
            results.append(numbers(now))
    for one, other in zip(*results):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-7)
    assert not np.array_equal(results[0][0], value)


@every_transform
def test_a_transform_and_its_text_say_the_same(text: str) -> None:
    rule = Sgd(transforms=(make("transform", text), make("transform", "clip_by_norm(1)")))
    assert make_rule(f"sgd:transforms=[{text},clip_by_norm(1)]") == rule
    assert make_rule(rule.spec()) == rule
    assert make_rule(rule.config()) == rule
    known = {cls.__name__: cls for kind in ("rule", "transform") for cls in registered(kind).values()}
    assert eval(repr(rule), known) == rule
    assert hash(make_rule(rule.spec())) == hash(rule)


@every_transform
def test_its_docstring_has_the_formula_and_says_where_it_comes_from(text: str) -> None:
    doc = inspect.getdoc(type(make("transform", text))) or ""
    assert "g ←" in doc
    assert any(str(year) in doc for year in range(1940, 2040))


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("clip_by_value(0)", "limit"),
        ("clip_by_norm(-1)", "limit"),
        ("clip_by_global_norm(0)", "limit"),
        ("weight_decay(-0.1)", "rate"),
        ("scale_by_staleness(-1)", "power"),
        ("accumulate(0)", "pushes"),
    ],
)
def test_an_argument_that_makes_no_sense_is_refused_by_name(text: str, field: str) -> None:
    with pytest.raises(RuleError, match=rf"transform {text.partition('(')[0]}, argument {field}"):
        make_rule(f"sgd:transforms=[{text}]")


@pytest.mark.parametrize(("attribute", "said"), [("slots", "sum"), ("norm_of", "modell")])
def test_an_attribute_that_means_nothing_is_refused_when_a_transform_is_registered(attribute: str, said: str) -> None:
    with pytest.raises(RuleError, match=rf"transform odd, {attribute}.*'{said}'"):
        register("odd")(type("Odd", (Transform,), {attribute: said}))
    assert "odd" not in registered("transform")


def answering(answer: Any) -> Transform:
    class Odd(Transform):
        name = "odd"
        slots = ("s",)

        def transform(self, ctx: Any, value: Any, grad: Any, s: Any) -> Any:
            return answer(value, grad, s)

    return Odd()


def into_the_gradient(value: Any, grad: Any, s: Any) -> Any:
    grad[...] = 0
    return grad, s


@pytest.mark.parametrize(
    ("answer", "field", "got"),
    [
        (lambda value, grad, s: (1 / 0, s), "variable b", "ZeroDivisionError: division by zero"),
        (into_the_gradient, "variable b", "ValueError: assignment destination is read-only"),
        (lambda value, grad, s: grad, "", "1 array"),
        (lambda value, grad, s: None, "", "None"),
        (lambda value, grad, s: (grad, s, s), "", "3 arrays"),
        (lambda value, grad, s: (grad[:1], s), "gradient of b", "float32 (1,)"),
        (lambda value, grad, s: (grad * np.float64(2), s), "gradient of b", "float64 (3,)"),
        (lambda value, grad, s: (grad, s[:2]), "s of b", "float32 (2,)"),
        (lambda value, grad, s: (None, s.astype("d")), "s of b", "float64 (3,)"),
        (lambda value, grad, s: (np.sqrt(-1 - grad * grad), s), "gradient of b", "NaN from finite arguments"),
        (lambda value, grad, s: (grad, s / s), "s of b", "NaN from finite arguments"),
    ],
)
def test_a_wrong_answer_fails_the_push_and_names_the_transform(answer: Any, field: str, got: str) -> None:
    # claim 11: the first variable is done already when the second fails, and nothing of it stays.
    def for_b(value: Any, grad: Any, s: Any) -> Any:
        return answer(value, grad, s) if value[0] == 2 else (grad, s + 1)

    rule = Sgd(1.0, transforms=(make("transform", "clip_by_norm(1)"), answering(for_b)))
    before = prepared(rule, a=np.ones(3, np.float32), b=np.full(3, 2, np.float32))
    copies = [page.copy() for item in before.partitions for p in (item.value, *item.slots.values()) for page in p.pages]
    with pytest.raises(RuleFailed) as caught:
        update(before, rule, {0: dense(np.ones(3, np.float32)), 1: dense(np.ones(3, np.float32))})
    assert caught.value.field.startswith("rule sgd, transform odd")
    assert field in caught.value.field
    assert caught.value.got.partition(" (test_transform_contract.py")[0] == got
    now = [page for item in before.partitions for p in (item.value, *item.slots.values()) for page in p.pages]
    for one, other in zip(now, copies):
        np.testing.assert_array_equal(one, other)


def test_a_transform_holds_back_all_of_a_push_or_nothing() -> None:
    # The slots of the pages that were let go would be lost.
    rule = Sgd(1.0, transforms=(answering(lambda value, grad, s: (None if grad[0] > 0 else grad, s)),))
    with small_pages(16):
        before = prepared(rule, w=np.zeros(8, np.float32))
        with pytest.raises(RuleFailed, match="None for a part of it") as caught:
            update(before, rule, {0: dense(np.array([1, 1, 1, 1, -1, -1, -1, -1], np.float32))})
    assert caught.value.field == "rule sgd, transform odd, gradient of w"


def test_nan_and_infinity_that_are_pushed_are_the_models_business() -> None:
    rule = make_rule("sgd:learning_rate=1,transforms=[clip_by_value(1),weight_decay(0.1),scale_by_staleness(0)]")
    odd = np.array([np.nan, np.inf, -np.inf, 0.5], np.float32)
    now = update(prepared(rule, w=np.zeros(4, np.float32)), rule, {0: dense(odd)})
    np.testing.assert_array_equal(value_of(now), [np.nan, -1, 1, -0.5])
