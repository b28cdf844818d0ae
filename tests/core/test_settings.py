"""How long does a client wait, and for whom is it? Argument, then environment, then default."""

from __future__ import annotations

import math
from typing import Any

import pytest

from client.settings import Settings, resolve
from protos.errors import InvalidInput

ENVIRON = {
    "PARAMSERVER_RUN_ID": "job 7",
    "PARAMSERVER_CONNECT_TIMEOUT_S": "5",
    "PARAMSERVER_WAIT_TIMEOUT_S": "1.5",
    "PARAMSERVER_RETRY_BUDGET_S": "2e1",
}


def test_nothing_said_means_the_defaults() -> None:
    assert resolve(environ={}) == Settings("", 60.0, 300.0, 10.0)


def test_the_environment_comes_before_the_defaults() -> None:
    assert resolve(environ=ENVIRON) == Settings("job 7", 5.0, 1.5, 20.0)


def test_an_argument_comes_before_the_environment() -> None:
    said = resolve(run_id="", connect_timeout_s=1, wait_timeout_s=2, retry_budget_s=3, environ=ENVIRON)
    assert said == Settings("", 1.0, 2.0, 3.0)


def test_a_variable_that_is_empty_is_not_set() -> None:
    assert resolve(environ={"PARAMSERVER_WAIT_TIMEOUT_S": ""}).wait_timeout_s == 300


@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, "soon", 1e300, [1]])
@pytest.mark.parametrize("name", ["connect_timeout_s", "wait_timeout_s", "retry_budget_s"])
def test_what_is_no_number_of_seconds_is_refused_by_the_name_it_was_given_under(name: str, value: Any) -> None:
    # claim 11
    with pytest.raises(InvalidInput) as caught:
        resolve(environ={}, **{name: value})
    assert (caught.value.field, caught.value.got) == (name, repr(value))
    variable = f"PARAMSERVER_{name.upper()}"
    with pytest.raises(InvalidInput) as caught:
        resolve(environ={variable: str(value)})
    assert (caught.value.field, caught.value.got) == (variable, repr(str(value)))
    assert caught.value.expected == "a positive number of seconds"
