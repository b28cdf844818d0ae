"""The laboratory: jobs of 2 to 1,000 virtual workers on the core of the daemons, in virtual time, from one seed.

`python -m ps.simulate --help` is the program. Next: run.py (how a run goes), virtual_time.py (what makes it repeatable).
"""

from __future__ import annotations

from ps.simulation.plan import Plan
from ps.simulation.result import Result
from ps.simulation.run import simulate
from ps.simulation.speeds import Constant, LogNormal, Pause, Speed, Straggler, parse_speed

__all__ = ["Constant", "LogNormal", "Pause", "Plan", "Result", "Speed", "Straggler", "parse_speed", "simulate"]
