"""What was the job told to do: mode, slack, backup workers, rule; and who may say so?

The command line of the ps and the first init may each say any part. What both say must agree; what nobody says gets a
default when the model is initialised. Pure. Next: ps/consistency.py (what a mode does), ps/rules/base.py (what a rule is).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from protos.errors import ConfigurationConflict
from ps.consistency import Consistency, make_consistency
from ps.membership import Membership
from ps.rules import UpdateRule, make_rule
from ps.rules.aggregations import Mean
from ps.rules.options import needs_sums, norm_is_of_what_is_pushed


@dataclass(frozen=True)
class Configuration:
    """Empty text and None: not said. rule: a rule SPEC."""

    mode: str = ""
    slack: int | None = None
    backup_workers: int | None = None
    rule: str = ""


def agree(present: Configuration, wanted: Configuration) -> Configuration:
    """Both together. ConfigurationConflict, which prints both, where they differ; RuleError for a rule that is none."""

    def pick(field: str, mine: object, theirs: object) -> object:
        if mine not in ("", None) and theirs not in ("", None) and mine != theirs:
            raise ConfigurationConflict(
                field=field,
                got=repr(theirs),
                expected=f"{mine!r}, as the job already is",
                hint="Leave it out, or say the same everywhere.",
            )
        return theirs if mine in ("", None) else mine

    mode = str(pick("mode", present.mode, wanted.mode))
    slack = pick("slack", present.slack, wanted.slack)
    backup_workers = pick("backup_workers", present.backup_workers, wanted.backup_workers)
    rule = str(pick("rule", _canonical(present.rule), _canonical(wanted.rule)))
    assert isinstance(slack, (int, type(None))) and isinstance(backup_workers, (int, type(None)))
    return Configuration(mode, slack, backup_workers, rule)


def settle(present: Configuration, wanted: Configuration, membership: Membership[Any]) -> Configuration:
    """What is in force once a model is initialised: both together, and defaults for what nobody said. Errors as `agree`."""
    agreed = agree(present, wanted)
    consistency_of(agreed, membership)
    mode = agreed.mode or "async"
    slack = 0 if mode == "ssp" and agreed.slack is None else agreed.slack
    backup_workers = 0 if mode == "sync" and agreed.backup_workers is None else agreed.backup_workers
    return Configuration(mode, slack, backup_workers, agreed.rule)


def consistency_of(configuration: Configuration, membership: Membership[Any]) -> Consistency:
    """The state machine of the mode; ConfigurationConflict if there is none such, or the rule cannot be had in it."""
    consistency = make_consistency(
        configuration.mode or "async",
        membership,
        slack=configuration.slack,
        backup_workers=configuration.backup_workers,
    )
    if configuration.rule:
        _check_rule(make_rule(configuration.rule), configuration, membership)
    return consistency


def _check_rule(rule: UpdateRule, configuration: Configuration, membership: Membership[Any]) -> None:
    mode = configuration.mode or "async"
    if mode != "sync" and rule.aggregation != Mean():
        raise ConfigurationConflict(
            field="aggregation",
            got=f"{rule.aggregation.name} with mode {mode}",
            expected="mode sync",
            hint="Gradients of several workers become one in mode sync only.",
        )
    counted = membership.num_workers - (configuration.backup_workers or 0)
    if mode == "sync" and counted < rule.aggregation.workers_needed():
        raise ConfigurationConflict(
            field="aggregation",
            got=f"{rule.aggregation!r} of {counted} workers",
            expected=f"{rule.aggregation.workers_needed()} workers or more that count",
        )
    if configuration.backup_workers and membership.num_ps > 1 and needs_sums(rule):
        raise ConfigurationConflict(
            field="backup_workers",
            got=f"{configuration.backup_workers} with a rule that looks at the whole model, and {membership.num_ps} ps",
            expected="no backup workers, or one ps",
            hint="ps 0 says whose gradients count only when its step is made; this step would wait for the other ps.",
        )
    if mode != "sync" and membership.num_ps > 1 and not norm_is_of_what_is_pushed(rule):
        raise ConfigurationConflict(
            field="rule",
            got=f"a global norm of what other transforms made, with mode {mode} and {membership.num_ps} ps",
            expected="clipping by global norm as the first transform, mode sync, or one ps",
            hint="Without steps, the norm over all ps can only be that of the gradient as it is pushed.",
        )


def _canonical(rule: str) -> str:
    """A SPEC with every field said, so that "adam" and "adam:learning_rate=0.001" are seen to be the same."""
    return make_rule(rule).spec() if rule else ""
