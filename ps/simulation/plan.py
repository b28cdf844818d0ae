"""What is to be simulated? Everything that decides the result, and nothing else.

Next: ps/simulation/run.py, which carries it out.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from protos.errors import InvalidInput
from ps.configuration import Configuration
from ps.rules import make_rule
from ps.simulation.data import DATA
from ps.simulation.models import MODELS
from ps.simulation.speeds import Constant, Speed


@dataclass(frozen=True)
class Plan:
    """One run. The same plan gives the same result, bit for bit (on one machine, with the same numpy).

    steps: iterations of each worker; None for as many as fit before until_s (virtual seconds). Both: whichever is first.
    rule: a rule SPEC. speeds: see speeds.py. batch_size: examples of one gradient. evaluate_every: steps of the model
    between two looks at the held-out loss. seed: of everything that is random.
    """

    workers: int = 4
    steps: int | None = 100
    until_s: float | None = None
    servers: int = 1
    mode: str = "async"
    slack: int | None = None
    backup_workers: int | None = None
    rule: str = "sgd:learning_rate=0.1"
    speeds: tuple[Speed, ...] = field(default=(Constant(1),))
    model: str = "softmax"
    data: str = "digits"
    batch_size: int = 32
    evaluate_every: int = 20
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("workers", "servers", "batch_size", "evaluate_every"):
            _require(name, getattr(self, name) >= 1, getattr(self, name), "1 or more")
        _require("steps", self.steps is None or self.steps >= 1, self.steps, "1 or more")
        _require("until_s", self.until_s is None or self.until_s > 0, self.until_s, "more than 0")
        _require("steps", self.steps is not None or self.until_s is not None, None, "an end: steps or until_s")
        _require("seed", self.seed >= 0, self.seed, "0 or more")
        _require("model", self.model in MODELS, repr(self.model), " or ".join(MODELS))
        _require("data", self.data in DATA, repr(self.data), " or ".join(DATA))
        kinds = [speed.distribution for speed in self.speeds]
        said = ", ".join(map(str, self.speeds)) or "none"
        _require(
            "speeds", kinds[:1] == [True] and sum(kinds) == 1, said, "one distribution, and it first: constant(1), …"
        )
        for speed in self.speeds:
            worker = getattr(speed, "worker", 0)
            _require(f"speed {speed.name}, worker", worker < self.workers, worker, f"0 to {self.workers - 1}")
        make_rule(self.rule)

    @property
    def configuration(self) -> Configuration:
        """What the job is told, as an init would say it."""
        return Configuration(self.mode, self.slack, self.backup_workers, self.rule)

    def __str__(self) -> str:
        """Everything in a line."""
        limits = {"slack": self.slack, "backup workers": self.backup_workers}
        mode = self.mode + "".join(f", {name} {value}" for name, value in limits.items() if value is not None)
        return (
            f"{self.workers} workers, {self.servers} ps, mode {mode}, {self.rule}; {self.model} on {self.data}; "
            f"{' '.join(map(str, self.speeds))}; seed {self.seed}"
        )

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {**asdict(self), "speeds": [str(speed) for speed in self.speeds]}


def _require(name: str, holds: bool, got: object, expected: str) -> None:
    if not holds:
        raise InvalidInput(field=name, got=got, expected=expected)
