"""Which others can be measured here? Those that are installed: `pip install '.[bench]'` brings what PyPI has.

A peer that is not there is named in the table, and the benchmark goes on. Next: vs_tf_pss.py, the program.
"""

from __future__ import annotations

import importlib.util

from benchmarks.rounds import Missing


def require(package: str) -> None:
    """Raises Missing where this package cannot be imported."""
    if importlib.util.find_spec(package) is None:
        raise Missing(f"not installed: pip install {package}")
