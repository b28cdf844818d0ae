"""Which update rule is this Keras optimizer?

A rule is known by the name and the arguments of the optimizer, so a mapping of them is all it takes; the maths is on the ps.
Next: client/initialize.py, which sends the mapping.
"""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np

from protos.errors import RuleError

# The rule of each optimizer, by class.
RULES = {
    "SGD": "sgd",
    "RMSprop": "rmsprop",
    "Adam": "adam",
    "AdamW": "adamw",
    "Adadelta": "adadelta",
    "Adagrad": "adagrad",
    "Adamax": "adamax",
    "Adafactor": "adafactor",
    "Nadam": "nadam",
    "Ftrl": "ftrl",
    "Lion": "lion",
    "Lamb": "lamb",
    "Muon": "muon",
    "ScheduleFreeAdamW": "schedule_free_adamw",
}
SCHEDULES = {
    "ExponentialDecay": "exponential_decay",
    "PiecewiseConstantDecay": "piecewise_constant_decay",
    "PolynomialDecay": "polynomial_decay",
    "InverseTimeDecay": "inverse_time_decay",
    "CosineDecay": "cosine_decay",
    "CosineDecayRestarts": "cosine_decay_restarts",
}
_YOUR_OWN = "Write it as a rule in a file, which --rules gives to the ps (docs/update-rules.md)."


def rule_from_keras(optimizer: Any) -> dict[str, Any]:
    """The rule that does what this `keras.optimizers.Optimizer` does, as the mapping that `init(rule=…)` takes.

    Learning rate or schedule and every argument are carried over; moments that the optimizer has gathered are not: a rule
    begins anew. Of a LossScaleOptimizer it is the rule of the optimizer within: gradients are pushed unscaled. RuleError
    for what the ps cannot do: an optimizer or a schedule that is not Keras's own, a learning rate that is a function, and
    variables that `exclude_from_weight_decay` names.
    """
    import keras

    if not isinstance(optimizer, keras.optimizers.Optimizer):
        hint = "keras.optimizers.get(…) makes one of a name." if isinstance(optimizer, str) else ""
        raise RuleError(field="optimizer", got=repr(optimizer), expected="a keras.optimizers.Optimizer", hint=hint)
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return rule_from_keras(optimizer.inner_optimizer)
    cls = type(optimizer)
    if cls.__name__ not in RULES or cls is not getattr(keras.optimizers, cls.__name__, None):
        raise RuleError(field="optimizer", got=cls.__name__, expected=f"one of {', '.join(RULES)}", hint=_YOUR_OWN)
    _refuse_exclusions(optimizer)
    rate = _learning_rate(optimizer)
    config = optimizer.get_config()
    defaults = {name: parameter.default for name, parameter in inspect.signature(cls).parameters.items()}
    arguments = {
        name: _plain(value)
        for name, value in config.items()
        if name not in ("name", "learning_rate")
        # What is off in Keras, as by default, is off here too.
        and not (defaults.get(name) in (None, False) and not value)
        and not (name in ("clipnorm", "clipvalue", "global_clipnorm") and value <= 0)
        and not (name.startswith("ema_") and not optimizer.use_ema)
    }
    return {"name": RULES[cls.__name__], "learning_rate": rate, **arguments}


def _learning_rate(optimizer: Any) -> Any:
    """A number, or a schedule as a mapping."""
    import keras

    schedule = optimizer._learning_rate
    if isinstance(schedule, keras.optimizers.schedules.LearningRateSchedule):
        cls = type(schedule)
        if cls.__name__ not in SCHEDULES or cls is not getattr(keras.optimizers.schedules, cls.__name__, None):
            raise RuleError(
                field="learning_rate",
                got=cls.__name__,
                expected=f"a number, or one of {', '.join(SCHEDULES)}",
                hint="Write it as a schedule in a file, which --rules gives to the ps (docs/update-rules.md).",
            )
        config = {name: _plain(value) for name, value in schedule.get_config().items()}
        return {**config, "name": SCHEDULES[cls.__name__]}
    if callable(schedule):
        raise RuleError(
            field="learning_rate",
            got=f"the function {getattr(schedule, '__name__', repr(schedule))}",
            expected=f"a number, or one of {', '.join(SCHEDULES)}",
            hint="A function cannot be sent: make it a schedule, or write a schedule in a file, which --rules gives to the ps.",
        )
    # Keras keeps 0.001 in float32, which is 0.0010000000474974513: the shortest number that is the same in float32.
    return float(str(np.float32(schedule)))


def _refuse_exclusions(optimizer: Any) -> None:
    """RuleError if weight decay is on and some variables are to go without it."""
    decays = [getattr(optimizer, name, None) for name in ("weight_decay", "adam_weight_decay")]
    variables = getattr(optimizer, "_exclude_from_weight_decay", ())
    pattern = getattr(optimizer, "_exclude_from_weight_decay_pattern", None)
    if any(decays) and (variables or pattern is not None):
        raise RuleError(
            field="weight_decay",
            got=f"exclude_from_weight_decay of {pattern.pattern if pattern is not None else f'{len(variables)} variables'}",
            expected="a decay of all variables, or of none",
            hint=f"A rule with needs_variable = True can look at ctx.variable, the name. {_YOUR_OWN}",
        )


def _plain(value: Any) -> Any:
    """Numbers as Python has them, lists of them as lists."""
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value.item() if hasattr(value, "item") else value
