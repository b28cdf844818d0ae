"""What does ours make of the wire, of many variables, and of a second worker? Ours against itself and against bare TCP.

Pull alone and push alone of 32 MB, as a share of a bare TCP connection that moves the same bytes one way; push_pull of the
same bytes in one variable and in a hundred; two workers on one ps against one. Next: training.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace

from benchmarks.cases import LARGE_BYTES, Case, Shape, named
from benchmarks.limits import TCP, Limit
from benchmarks.ours import Ours
from benchmarks.steps import Plan, Row

MANY = 100
PULL, PUSH, ONE_VARIABLE, MANY_VARIABLES = "pull", "push", "one variable", f"{MANY} variables"
ONE_WORKER, TWO_WORKERS = "one worker", "two workers"


def large(transport: str, plan: Plan, count_bytes: int = LARGE_BYTES) -> Row:
    """Pull, push, and push_pull in one variable and in many, beside raw TCP one way: steps per second of each."""
    ours = Ours(transport)
    one, many = named(f"1x{count_bytes}"), named(f"{MANY}x{count_bytes}")
    with contextlib.ExitStack() as stack:
        plan.say(f"{count_bytes / 1e6:.0f} MB over {transport}")
        tcp = stack.enter_context(stack.enter_context(Limit(TCP, "one way").cluster(Shape()))(one))
        whole = stack.enter_context(ours.subject(Shape(), one))
        parts = stack.enter_context(ours.subject(Shape(), many))
        subjects = [
            tcp,
            replace(whole, name=PULL, command={"operation": "pull"}),
            replace(whole, name=PUSH, command={"operation": "push"}),
            replace(whole, name=ONE_VARIABLE),
            replace(parts, name=MANY_VARIABLES),
        ]
        return plan.row(transport, one, Shape(), subjects, {})


def two_workers(transport: str, cases: Sequence[Case], plan: Plan) -> list[Row]:
    """Steps per second of one worker, and of two together, on one ps."""
    ours = Ours(transport)
    rows = []
    for case in cases:
        with contextlib.ExitStack() as stack:
            plan.say(f"{case.name}: two workers against one, {transport}")
            subjects = [
                replace(stack.enter_context(ours.subject(Shape(workers), case)), name=name)
                for workers, name in ((1, ONE_WORKER), (2, TWO_WORKERS))
            ]
            rows.append(plan.row(f"{case.name}, {transport}", case, Shape(), subjects, {}))
    return rows
