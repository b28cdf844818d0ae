"""On what was it measured? The processor, the memory, the system, the versions, and how busy it was with other things."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path

PACKAGES = ("grpcio", "protobuf", "numpy", "tensorflow", "tensorflow-cpu", "torch", "ray")


def describe() -> dict[str, str]:
    """What to print above a table; also in the JSON file."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "processor": f"{_processor()}, {len(os.sched_getaffinity(0))} cores, {memory:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        "packages": ", ".join(f"{name} {version}" for name in PACKAGES if (version := _version(name))),
    }


def load() -> float:
    """Processes that wanted a core, on average over the last minute: before a run, how busy others keep the machine."""
    return os.getloadavg()[0]


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
