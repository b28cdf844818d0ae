"""Tests of the repo itself: who may import whom, how long a file may be, what a fresh interpreter loads."""
