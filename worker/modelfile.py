"""What is a model file, and what is wrong with this one? MODEL.py loaded and checked.

    build_model()                             the model, a Keras model or a tf.Module
    make_dataset(worker_index, num_workers)   this worker's data: a tf.data.Dataset of pairs (inputs, labels)
    loss(labels, outputs)                     a scalar, or one number per example
    rule()               optional             NAME:key=value,… or {"name": NAME, …}; None if the ps was told
    inner_optimizer()    optional             a Keras optimizer, for --local-steps; plain SGD without
    evaluate(model)      optional             a number, or a dict of numbers with the main one first

It must not know what is done with these. An error in the file is the file's: it comes out with its own traceback.
Next: program.py, which runs it.
"""

from __future__ import annotations

import importlib.util
import numbers
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protos.errors import InvalidInput

REQUIRED = {
    "build_model": "build_model()",
    "make_dataset": "make_dataset(worker_index, num_workers)",
    "loss": "loss(labels, outputs)",
}


@dataclass(frozen=True)
class ModelFile:
    """The functions of a model file."""

    path: Path
    build_model: Callable[[], Any]
    make_dataset: Callable[[int, int], Any]
    loss: Callable[[Any, Any], Any]
    rule: Callable[[], str | Mapping[str, Any] | None] | None
    evaluate: Callable[[Any], Any] | None
    inner_optimizer: Callable[[], Any] | None = None

    def evaluated(self, model: Any) -> dict[str, float]:
        """What evaluate(model) says, by name. InvalidInput if that is no number and no dict of numbers."""
        assert self.evaluate is not None, "ask first"
        result = self.evaluate(model)
        by_name = result if isinstance(result, Mapping) else {"result": result}
        try:
            return {str(name): _number(value) for name, value in by_name.items()}
        except (TypeError, ValueError):
            raise InvalidInput(
                field=f"{self.path}: evaluate(model)",
                got=repr(result)[:80],
                expected="a number, or a dict of numbers such as {'accuracy': 0.97}",
            ) from None


def check(path: Path) -> None:
    """What can be said before the file runs: that it is a Python file, and compiles (else SyntaxError)."""
    if path.suffix != ".py":
        raise InvalidInput(field="MODEL.py", got=path, expected="a file whose name ends in .py")
    compile(path.read_bytes(), str(path), "exec")


def load(path: Path) -> ModelFile:
    """Run the file and take its functions. It may import its neighbours. InvalidInput says which functions are missing."""
    sys.path.insert(0, str(path.resolve().parent))
    name = f"paramserver_model_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, "check() first"
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    found: dict[str, Any] = {
        key: getattr(module, key, None) for key in (*REQUIRED, "rule", "evaluate", "inner_optimizer")
    }
    missing = [REQUIRED[key] for key in REQUIRED if found[key] is None]
    if missing:
        raise InvalidInput(
            field=str(path),
            got=f"no {' and no '.join(missing)}",
            expected=f"functions {', '.join(REQUIRED.values())}",
            hint="See examples/digits.py.",
        )
    for key, function in found.items():
        if function is not None and not callable(function):
            raise InvalidInput(field=f"{path}: {key}", got=type(function).__name__, expected="a function")
    return ModelFile(path, **found)


def _number(value: Any) -> float:
    if isinstance(value, numbers.Real) or hasattr(value, "dtype"):
        return float(value)
    raise TypeError(value)
