"""Of which operations does a rule's maths consist? It is asked by calling it once, with stand-ins for its arrays.

A stand-in computes nothing: it writes down each operation that it takes part in. Numbers (a learning rate, a correction for
the step) are worked out by the rule itself as ever, and become constants; so a rule may branch on the step as it likes, and
is traced anew for every update, which takes microseconds. What asks a stand-in for numbers or for a shape, or does anything
that is not in the list below, is refused with TypeError: such maths stays with numpy.

It must not know how operations are carried out. Next: ps/fused.py, which makes machine code of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from protos.codec import Array

# Operations that are exact or correctly rounded (IEEE 754), so that there is one right answer in bits.
OPERATIONS: dict[Any, str] = {
    np.add: "add",
    np.subtract: "subtract",
    np.multiply: "multiply",
    np.true_divide: "divide",
    np.negative: "negative",
    np.absolute: "absolute",
    np.sqrt: "sqrt",
    np.square: "square",
}


@dataclass(frozen=True)
class Program:
    """What becomes of some arrays of one dtype, element by element.

    steps: operation and what it takes: ("input", i), ("constant", i), ("step", i), each step after those that it takes.
    results: what comes out, named the same way. Two updates with the same Program differ in their constants at most.
    """

    dtype: str
    inputs: int
    constants: int
    steps: tuple[tuple[str, tuple[Operand, ...]], ...]
    results: tuple[Operand, ...]


Operand = tuple[str, int]


def trace(
    maths: Callable[[Sequence[Any]], object], inputs: int, results: int, dtype: np.dtype[Any]
) -> tuple[Program, Array]:
    """The program of maths that takes `inputs` arrays and gives `results`, and its constants. TypeError if it has none."""
    notes = _Notes(dtype)
    answer = maths([StandIn(notes, ("input", number)) for number in range(inputs)])
    outs = answer if isinstance(answer, tuple) else (answer,)
    if len(outs) != results or not all(isinstance(out, StandIn) for out in outs):
        raise TypeError("not the arrays that were expected")
    named = tuple(out.operand for out in outs)
    return Program(dtype.name, inputs, len(notes.constants), tuple(notes.steps), named), np.array(
        notes.constants, dtype
    )


@dataclass
class _Notes:
    dtype: np.dtype[Any]
    steps: list[tuple[str, tuple[Operand, ...]]] = field(default_factory=list)
    constants: list[Any] = field(default_factory=list)

    def operand(self, given: object) -> Operand:
        if isinstance(given, StandIn):
            return given.operand
        # A scalar of numpy's has a dtype of its own, which may widen the result; a Python number takes the array's.
        if (isinstance(given, np.generic) and given.dtype != self.dtype) or not isinstance(
            given, (int, float, np.generic)
        ):
            raise TypeError(f"{type(given).__name__} in maths on {self.dtype.name}")
        if isinstance(given, bool):
            raise TypeError("bool in maths on floats")
        with np.errstate(all="ignore"):
            self.constants.append(self.dtype.type(given))
        return "constant", len(self.constants) - 1


class StandIn(NDArrayOperatorsMixin):
    """In the place of an array."""

    def __init__(self, notes: _Notes, operand: Operand) -> None:
        self._notes, self.operand, self.dtype = notes, operand, notes.dtype

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: object, **more: object) -> StandIn:
        if method != "__call__" or more or ufunc not in OPERATIONS:
            raise TypeError(f"{ufunc.__name__} is not traced")
        taken = tuple(self._notes.operand(each) for each in inputs)
        self._notes.steps.append((OPERATIONS[ufunc], taken))
        return StandIn(self._notes, ("step", len(self._notes.steps) - 1))

    def __pow__(self, exponent: object) -> StandIn:
        if isinstance(exponent, np.generic) or exponent != 2:
            raise TypeError("only squares are traced")
        return self.__array_ufunc__(np.square, "__call__", self)  # as numpy does

    def _refuse(self, *arguments: object, **more: object) -> NoReturn:
        raise TypeError("a stand-in has no numbers")

    __array__ = __array_function__ = __bool__ = __float__ = __int__ = __len__ = __iter__ = __getitem__ = _refuse
