"""May what a rule, a transform or an aggregation returned become state? If not, and if it raised, that is RuleFailed.

Checked are the count of arrays, shapes, dtypes, and NaN that the arguments do not explain; what passes is made read-only.

It must not know what is done with the answers. Next: ps/apply.py, which asks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from protos.codec import Array
from protos.errors import RuleFailed
from ps.variable import Partition, frozen

T = TypeVar("T")


def arrays_of(what: str, partition: Partition, names: Sequence[str], call: Callable[[], object]) -> list[Any]:
    """What a rule or a transform returned, as a list of one array a name."""
    answer = guarded(
        call,
        field=f"{what}, variable {partition.key}",
        expected="new arrays; arguments are read-only",
        hint="Nothing was applied.",
    )
    news = list(answer) if isinstance(answer, tuple) else [answer]
    if len(news) != len(names):
        raise RuleFailed(field=what, got=f"{len(news)} arrays", expected=f"{len(names)}: {', '.join(names)}")
    return news


def guarded(call: Callable[[], T], *, field: str, expected: str, hint: str = "") -> T:
    """What `call` returns; whatever it raises as RuleFailed. Overflows make no noise."""
    try:
        with np.errstate(all="ignore"):  # an overflow is the model's business, as in TensorFlow
            return call()
    except RuleFailed:
        raise
    except BaseException as error:  # a rule that calls sys.exit ends its push, not the ps
        raise RuleFailed(field=field, got=f"{type(error).__name__}: {error}", expected=expected, hint=hint) from error


def all_checked(
    what: str,
    partition: Partition,
    names: Sequence[str],
    news: Sequence[object],
    olds: Sequence[Array],
    given: Sequence[Array],
) -> list[Array]:
    """Value and slots in the shapes and dtypes they had, read-only, and no NaN that the arguments do not explain."""
    checked = []
    for name, new, old in zip(names, news, olds):
        array = checked_array(f"{what}, {name} of {partition.key}", new, old.shape, old.dtype)
        if array.size and np.isnan(array.min()) and all(np.isfinite(each).all() for each in (*olds, *given)):
            raise RuleFailed(
                field=f"{what}, {name} of {partition.key}",
                got="NaN from finite arguments",
                expected="numbers",
                hint="Nothing was applied. Is there a division by zero, or a root of a negative number?",
            )
        checked.append(array)
    return checked


def checked_array(what: str, new: object, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """What maths returned, as a read-only array of this shape and dtype. Nobody, not even its author, can write to it now.

    A gradient may lie in memory that its worker fills again (protos/segment.py): one that is returned as it is, is copied.
    """
    array = np.asarray(new)
    if array.shape != shape or array.dtype != dtype:
        raise RuleFailed(
            field=what,
            got=f"{array.dtype.name} {array.shape}",
            expected=f"{dtype.name} {shape}",
            hint="A numpy float64 scalar widens what it meets; a Python float does not."
            if array.dtype != dtype
            else "",
        )
    result: Array = np.asarray(array, order="C")
    owner = result
    while isinstance(owner.base, np.ndarray):  # a view of a buffer that the rule may want to use again
        owner = frozen(owner.base)
    if isinstance(owner.base, memoryview) and not owner.base.readonly:
        result = result.copy()
    return frozen(result)
