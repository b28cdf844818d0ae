"""Where and why did somebody's maths fail? What its author is told besides the exception itself.

It must not know what is done with it. Next: ps/answers.py, which raises RuleFailed with it.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Sequence

import numpy as np

from protos.errors import RuleFailed
from ps.rules import UpdateRule
from ps.rules.files import place
from ps.rules.transforms import Transform

log = logging.getLogger("paramserver.ps")

NOTHING = "Nothing was applied on this ps."
RETURN = "Is there a return?"
READ_ONLY = "Arguments are read-only: value = value - … makes a new array, value -= … would write to the old one."
FLAT = "Elementwise maths is fed flat pieces, of several variables too; elementwise = False gives whole variables."
# What numpy and Python say of arrays that have fewer axes than somebody thought.
OF_SHAPES = ("unpack", "broadcast", "dimension", "out of bounds")
# Which failures are in the log with their traceback.
_logged: set[str] = set()


def told(error: BaseException) -> str:
    """The exception in a line, and where in its author's code it came from: "KeyError: 'boom' (mine.py, line 12)"."""
    return f"{type(error).__name__}: {error}{place(error)}"


def hint(error: BaseException, maths: UpdateRule | Transform | None = None, names: Sequence[str] = ()) -> str:
    """What to do about it, where that is known. names: of what `maths` returns, of which all but the first are slots."""
    said = str(error)
    if isinstance(error, ValueError) and "read-only" in said:
        return READ_ONLY
    if maths is None:
        return RETURN if isinstance(error, TypeError) and "NoneType" in said else ""
    if isinstance(error, TypeError) and "positional argument" in said and not place(error):
        method, slots = "transform" if isinstance(maths, Transform) else "update", names[1:]
        count = f"{len(slots)} slot{'s' if len(slots) != 1 else ''}" + (f" ({', '.join(slots)})" if slots else "")
        return f"{type(maths).__name__} names {count}: {method} gets {', '.join(('ctx', 'value', 'grad', *slots))}."
    if isinstance(maths, UpdateRule) and not maths.needs_read_value and "NoneType" in said:
        return "ctx.read_value is None unless the class says needs_read_value = True."
    of_shapes = isinstance(error, ValueError) and any(word in said for word in OF_SHAPES)
    if maths.elementwise and (of_shapes or isinstance(error, (IndexError, np.linalg.LinAlgError))):
        return FLAT
    return ""


def log_once(error: RuleFailed) -> None:
    """The traceback of what an author's maths raised, for the operator of the ps; the same failure again is told no more."""
    cause = error.__cause__
    if cause is None or error.got in _logged or len(_logged) >= 100:
        return
    _logged.add(error.got)
    lines = "".join(traceback.format_exception(type(cause), cause, cause.__traceback__))
    log.warning("%s\n%s", error, lines.rstrip())
