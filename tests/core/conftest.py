"""How hypothesis works for these tests: no deadlines, as a machine may be busy, and few examples, as there are many tests."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("lessons", deadline=None, max_examples=50)
settings.load_profile("lessons")
