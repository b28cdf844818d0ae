"""Which workers of the job have ever been there? The ps know: `ps-run` asks them when its commands have ended.

It must not know processes. Next: run_job.py, which asks; status.py, which speaks to one ps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from client.status import ask
from protos.errors import ParameterServerError

_ANSWER_S = 2.0


async def worker_states(addresses: Sequence[str]) -> dict[int, set[str]]:
    """What the ps say of each worker, by index: expected, active, left or lost. A ps that does not answer says nothing."""
    loop = asyncio.get_running_loop()
    answers = await asyncio.gather(*(loop.run_in_executor(None, _states, address) for address in addresses))
    states: dict[int, set[str]] = {}
    for answer in answers:
        for worker, state in answer.items():
            states.setdefault(worker, set()).add(state)
    return states


def _states(address: str) -> dict[int, str]:
    try:
        peer, reply = ask(address, _ANSWER_S)
    except ParameterServerError:
        return {}  # it is ending, which our caller sees
    peer.close()
    return {worker.worker: worker.state for worker in reply.workers}
