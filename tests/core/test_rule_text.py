"""How does a client send a rule that it has as a mapping? As the text that a command line would have."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from client.initialize import rule_spec
from protos.errors import DtypeMismatch, InvalidInput
from ps.rules import make_rule, registered

COSINE = {"name": "cosine_decay", "initial_learning_rate": 0.1, "decay_steps": 100}


@pytest.mark.parametrize(
    ("mapping", "text"),
    [
        ({"name": "sgd"}, "sgd"),
        ({"name": "sgd", "learning_rate": 0.5, "nesterov": True}, "sgd:learning_rate=0.5,nesterov=True"),
        ({"name": "sgd", "learning_rate": np.float32(0.5)}, "sgd:learning_rate=0.5"),
        ({"name": "muon", "weight_decay": None}, "muon:weight_decay=None"),
        (
            {"name": "sgd", "learning_rate": COSINE, "momentum": 0.9},
            "sgd:learning_rate=cosine_decay(initial_learning_rate=0.1,decay_steps=100),momentum=0.9",
        ),
        ({"name": "sgd", "aggregation": {"name": "mean"}}, "sgd:aggregation=mean"),
        (
            {
                "name": "sgd",
                "transforms": [{"name": "clip_by_norm", "limit": 1}, {"name": "clip_by_value", "limit": 2.0}],
            },
            "sgd:transforms=[clip_by_norm(limit=1),clip_by_value(limit=2.0)]",
        ),
        ({"name": "sgd", "transforms": ()}, "sgd:transforms=[]"),
        ({"name": "muon", "exclude_layers": ["head", "dense_1"]}, "muon:exclude_layers=[head,dense_1]"),
        (
            {"name": "sgd", "learning_rate": "cosine_decay(0.1,decay_steps=9)"},
            "sgd:learning_rate=cosine_decay(0.1,decay_steps=9)",
        ),
    ],
)
def test_a_mapping_becomes_the_text_of_a_command_line(mapping: dict[str, Any], text: str) -> None:
    assert rule_spec(mapping) == text
    assert rule_spec(make_rule(text).config()) == rule_spec(make_rule(mapping).config())


@pytest.mark.parametrize("name", [name for name, cls in registered().items() if cls.__module__.startswith("ps.rules.")])
def test_every_rule_arrives_as_it_was(name: str) -> None:
    plain = registered()[name]()
    full = make_rule(
        {
            **plain.config(),
            "learning_rate": COSINE,
            "transforms": [{"name": "clip_by_value", "limit": 2}],
            "use_ema": True,
            "gradient_accumulation_steps": 4,
        }
    )
    for rule in (plain, full):
        assert make_rule(rule_spec(rule.config())) == rule


@pytest.mark.parametrize(
    ("mapping", "error", "field"),
    [
        ({"learning_rate": 1}, InvalidInput, "rule"),
        (
            {"name": "sgd", "learning_rate": {"initial_learning_rate": 1}},
            InvalidInput,
            "rule sgd, argument learning_rate",
        ),
        (
            {"name": "sgd", "learning_rate": {**COSINE, "decay_steps": object()}},
            DtypeMismatch,
            "rule sgd, argument learning_rate, cosine_decay, argument decay_steps",
        ),
        (
            {"name": "sgd", "learning_rate": {"name": "cosine_decay", 5: 1}},
            InvalidInput,
            "rule sgd, argument learning_rate, cosine_decay",
        ),
        ({"name": "muon", "exclude_layers": ["head", "a,b"]}, InvalidInput, "rule muon, argument exclude_layers[1]"),
        ({"name": "sgd", "learning_rate": np.ones(2)}, DtypeMismatch, "rule sgd, argument learning_rate"),
    ],
)
def test_what_no_text_can_say_is_refused_where_it_stands(mapping: Any, error: type[Exception], field: str) -> None:
    # claim 11
    with pytest.raises(error) as caught:
        rule_spec(mapping)
    assert caught.value.field == field  # type: ignore[attr-defined]
