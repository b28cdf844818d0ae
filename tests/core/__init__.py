"""Tests of the core: no socket, no sleeping, milliseconds each. Read test_consistency.py first: the modes, as transcripts."""
