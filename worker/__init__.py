"""The training process: a Keras or TensorFlow model, its data and its loss, trained through the ps.

`ps-worker MODEL.py` runs it; from a script of your own, `worker.train(server, model, dataset, loss, rule=…, steps=…)` does.
This is the only package that imports TensorFlow, and it does so when it has to, not before: that takes seconds.

Read loop.py first (pull, compute, push), then training.py (what surrounds it), variables.py and step.py (what is TensorFlow's).
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing itself takes a while to load
if TYPE_CHECKING:
    from typing import Any

    from worker.evaluation import final_values
    from worker.keras_rules import rule_from_keras
    from worker.loop import Event, Summary
    from worker.training import train
    from worker.variables import Variables

__all__ = ["Event", "Summary", "Variables", "final_values", "rule_from_keras", "train"]

_HOME = {
    "Event": "worker.loop",
    "Summary": "worker.loop",
    "Variables": "worker.variables",
    "final_values": "worker.evaluation",
    "rule_from_keras": "worker.keras_rules",
    "train": "worker.training",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'worker' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOME[name]), name)
