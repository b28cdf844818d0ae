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
from ps.faults import NOTHING, RETURN, hint, told
from ps.rules import UpdateRule
from ps.rules.transforms import Transform
from ps.variable import Partition, frozen

T = TypeVar("T")


def arrays_of(
    what: str, partition: Partition, names: Sequence[str], maths: UpdateRule | Transform, call: Callable[[], object]
) -> list[Any]:
    """What a rule or a transform (`maths`) returned, as a list of one array a name."""
    answer = guarded(call, field=f"{what}, variable {partition.key}", maths=maths, names=names)
    news = list(answer) if isinstance(answer, tuple) else [answer]
    if len(news) != len(names):
        got = "None" if answer is None else f"{len(news)} array{'s' if len(news) > 1 else ''}"
        why = f"{RETURN} {NOTHING}" if answer is None else NOTHING
        raise RuleFailed(field=what, got=got, expected=f"{len(names)}: {', '.join(names)}", hint=why)
    return news


def guarded(
    call: Callable[[], T],
    *,
    field: str,
    expected: str = "",
    maths: UpdateRule | Transform | None = None,
    names: Sequence[str] = (),
) -> T:
    """What `call` returns; whatever it raises as RuleFailed, which says where and why. Overflows make no noise."""
    try:
        with np.errstate(all="ignore"):  # an overflow is the model's business, as in TensorFlow
            return call()
    except RuleFailed:
        raise
    except BaseException as error:  # a rule that calls sys.exit ends its push, not the ps
        why = f"{hint(error, maths, names)} {NOTHING}".strip()
        raise RuleFailed(field=field, got=told(error), expected=expected, hint=why) from error


def all_checked(
    what: str,
    partition: Partition,
    names: Sequence[str],
    news: Sequence[object],
    olds: Sequence[Array],
    given: Sequence[Array],
) -> list[Array]:
    """Value and slots in the shapes and dtypes they had, read-only, and no NaN that the arguments do not explain."""
    checked, of = [], _piece(partition, olds[0])
    for name, new, old in zip(names, news, olds):
        array = checked_array(f"{what}, {name} of {partition.key}", new, old.shape, old.dtype, of)
        if array.size and np.isnan(array.min()) and all(np.isfinite(each).all() for each in (*olds, *given)):
            raise RuleFailed(
                field=f"{what}, {name} of {partition.key}",
                got="NaN from finite arguments",
                expected="numbers",
                hint=f"{NOTHING} Is there a division by zero, or a root of a negative number?",
            )
        checked.append(array)
    return checked


def _piece(partition: Partition, piece: Array) -> str:
    """What the shape of a piece is the shape of, where it is not that of the variable."""
    if piece.shape == partition.value.shape and not partition.key.members:
        return ""
    return f", {'a flat piece' if piece.ndim == 1 else 'rows'} of {partition.key}"


def checked_array(what: str, new: object, shape: tuple[int, ...], dtype: np.dtype[Any], of: str = "") -> Array:
    """What maths returned, as a read-only array of this shape and dtype. Nobody, not even its author, can write to it now.

    of: added where the shape is told.
    A gradient may lie in memory that its worker fills again (protos/segment.py): one that is returned as it is, is copied.
    """
    if new is None:
        raise RuleFailed(field=what, got="None", expected=f"{dtype.name} {shape}{of}", hint=f"{RETURN} {NOTHING}")
    try:
        array = np.asarray(new)
    except ValueError as error:  # lists of different lengths
        raise RuleFailed(field=what, got=str(error), expected=f"{dtype.name} {shape}{of}", hint=NOTHING) from error
    if array.shape != shape or array.dtype != dtype:
        wide = array.dtype == np.float64 and dtype != np.float64
        raise RuleFailed(
            field=what,
            got=f"{array.dtype.name} {array.shape}",
            expected=f"{dtype.name} {shape}{of}",
            hint=("A numpy float64 scalar widens what it meets; a Python float does not. " if wide else "") + NOTHING,
        )
    result: Array = np.asarray(array, order="C")
    owner = result
    while isinstance(owner.base, np.ndarray):  # a view of a buffer that the rule may want to use again
        owner = frozen(owner.base)
    if isinstance(owner.base, memoryview) and not owner.base.readonly:
        result = result.copy()
    return frozen(result)
