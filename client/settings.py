"""How long does a client wait, and for whom is it? Arguments, then environment, then defaults, resolved once.

PARAMSERVER_RUN_ID             identity of the job
PARAMSERVER_CONNECT_TIMEOUT_S  how long to wait for a ps that is not up (60)
PARAMSERVER_WAIT_TIMEOUT_S     how long a barrier, or a reply, may take (300)
PARAMSERVER_RETRY_BUDGET_S     how long a broken call is tried again (10)
PARAMSERVER_SHARED_MEMORY      whether to use shared memory with a ps on this host (true)
PARAMSERVER_COMPRESSION        how gradients are made smaller for the way (none)
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass

from client.arguments import flag, printable, text
from protos.errors import InvalidInput

# A century: what is longer is a mistake, and what a deadline cannot hold.
MOST_S = 100 * 365 * 86400.0


@dataclass(frozen=True)
class Settings:
    """Seconds, but run_id, which is empty to take whatever the first ps says, shared_memory: whether to use it, and
    compression: none, or the name of one; see client/compression.py.
    """

    run_id: str
    connect_timeout_s: float
    wait_timeout_s: float
    retry_budget_s: float
    shared_memory: bool = True
    compression: str = "none"


def resolve(
    *,
    run_id: str | None = None,
    connect_timeout_s: float | None = None,
    wait_timeout_s: float | None = None,
    retry_budget_s: float | None = None,
    shared_memory: bool | None = None,
    compression: str | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Settings:
    """The settings in force. InvalidInput, by name, for what is not a number of seconds."""

    def pick(name: str, argument: float | None, default: float) -> float:
        variable = f"PARAMSERVER_{name.upper()}"
        text = environ.get(variable)
        return seconds(name, argument) if argument is not None else seconds(variable, text if text else default)

    said = ("PARAMSERVER_RUN_ID", environ.get("PARAMSERVER_RUN_ID", "")) if run_id is None else ("run_id", run_id)
    return Settings(
        run_id=printable(*said),
        connect_timeout_s=pick("connect_timeout_s", connect_timeout_s, 60.0),
        wait_timeout_s=pick("wait_timeout_s", wait_timeout_s, 300.0),
        retry_budget_s=pick("retry_budget_s", retry_budget_s, 10.0),
        shared_memory=_switch(environ.get("PARAMSERVER_SHARED_MEMORY") or "true")
        if shared_memory is None
        else flag("shared_memory", shared_memory),
        compression=_compression(compression, environ),
    )


def _compression(said: str | None, environ: Mapping[str, str]) -> str:
    from client import compression  # it needs much of the client, and the settings need nothing

    field = "PARAMSERVER_COMPRESSION" if said is None else "compression"
    name = environ.get("PARAMSERVER_COMPRESSION", "") if said is None else text(field, said)
    compression.parse(name, field)
    return name or "none"


def _switch(text: str) -> bool:
    """What an environment variable says, in the words that the programs' flags take too."""
    known = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    if text.strip().lower() not in known:
        raise InvalidInput(field="PARAMSERVER_SHARED_MEMORY", got=repr(text), expected="true or false")
    return known[text.strip().lower()]


def seconds(field: str, value: float | str) -> float:
    """`value` as seconds, or InvalidInput, by name."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not 0 < number <= MOST_S:
        raise InvalidInput(field=field, got=repr(value), expected="a positive number of seconds")
    return number
