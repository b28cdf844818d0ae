"""`programs`: real processes for a test, gone after it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.processes import Programs


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Programs]:
    """Starts processes in tmp_path; kills what is left at the end, and shows what each said if the test failed."""
    started = Programs(tmp_path)
    yield started
    started.end_all()
