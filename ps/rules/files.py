"""How does a rule of one's own get onto a ps? From a Python file on its disk, named by its operator.

Nothing that can be executed crosses the wire: a rule goes by name and numbers. Next: configured.py, the registry it joins.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
import traceback
from pathlib import Path

import numpy as np

from protos.errors import RuleError
from ps.rules import configured

# Code that is not a rule author's: this package's, and numpy's.
_NOT_THEIRS = (
    *(os.path.join(Path(__file__).parents[2], name, "") for name in ("ps", "protos")),
    os.path.dirname(np.__file__),
)
log = logging.getLogger("paramserver.ps")


def place(error: BaseException) -> str:
    """ " (mine.py, line 12)": the innermost line of code that is not ours nor numpy's; "" if there is none."""
    if isinstance(error, SyntaxError) and error.filename:
        return ""  # it says so itself
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith((*_NOT_THEIRS, "<frozen")):
            return f" ({os.path.basename(frame.filename)}, line {frame.lineno})"
    return ""


def load_rules(path: str | Path) -> list[str]:
    """Import a rule file and return the names it registered, of rules, transforms, schedules and aggregations.

    RuleError if it cannot be imported, or if it registers none; the registry is then as it was.
    """
    path = Path(path)
    if not path.is_file():
        raise RuleError(field="--rules", got=path, expected="a Python file that registers rules")
    registry = configured._REGISTRY
    before = {kind: dict(known) for kind, known in registry.items()}
    module_name = f"paramserver_rules_{path.stem}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise RuleError(field="--rules", got=path, expected="a file whose name ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses look their module up to resolve annotations
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        for kind, known in before.items():
            registry[kind].clear()
            registry[kind].update(known)
        if isinstance(error, RuleError):
            raise
        got = f"{type(error).__name__}: {error}{place(error)}"
        raise RuleError(field=f"--rules {path}", got=got, expected="a file that imports") from error
    added = [
        (kind, name)
        for kind, known in registry.items()
        for name, cls in known.items()
        if before[kind].get(name) is not cls
    ]
    if not added:
        raise RuleError(field=f"--rules {path}", got="no rule", expected="@register(name) on a subclass of UpdateRule")
    for kind, name in added:
        ours = before[kind].get(name)
        if ours is not None and ours.__module__.startswith("ps.rules."):
            log.warning(
                "--rules %s: its %s is now the %s %s, in place of this package's own %s",
                path,
                registry[kind][name].__name__,
                kind,
                name,
                ours.__name__,
            )
    return [name for _, name in added]
