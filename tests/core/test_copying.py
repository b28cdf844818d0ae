"""Is much memory copied right in several threads? Every byte, whatever the sizes, also in a forked child."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from protos import copying

SIZES: list[list[int]] = [[], [0], [1, 5_000_000], [3_000_000] * 3, [100] * 300 + [9_000_000], [0, 4_500_000, 0]]


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("sizes", SIZES, ids=len)
def test_every_byte_arrives(sizes: list[int], threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "_threads", threads)
    rng = np.random.default_rng(0)
    sources = [rng.integers(0, 256, size, np.uint8) for size in sizes]
    targets = [np.zeros(size, np.uint8) for size in sizes]
    copying.copy_all([(target, source.data) for target, source in zip(targets, sources)])
    for source, target in zip(sources, targets):
        np.testing.assert_array_equal(source, target)


def test_a_buffer_of_another_length_is_an_error_also_in_a_helpers_share() -> None:
    targets = [np.zeros(3_000_000, np.uint8) for _ in range(4)]
    with pytest.raises(ValueError, match="broadcast"):
        copying.copy_all([(target, bytes(3_000_000 - (at == 3))) for at, target in enumerate(targets)])


def test_a_forked_child_copies_with_threads_of_its_own() -> None:
    source, target = np.ones(9_000_000, np.uint8), np.zeros(9_000_000, np.uint8)
    parts = [(target[at : at + 3_000_000], source[at : at + 3_000_000].data) for at in range(0, 9_000_000, 3_000_000)]
    copying.copy_all(parts)
    target[...] = 0
    child = os.fork()
    if child == 0:
        copying.copy_all(parts)
        os._exit(0 if target.all() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_at_the_end_of_the_interpreter_it_copies_without_helpers() -> None:
    program = (
        "import atexit, numpy as np; from protos import copying\n"
        "copying._threads = 3; target = np.zeros((3, 3_000_000), np.uint8)\n"
        "copy = lambda: copying.copy_all([(part, b'x' * 3_000_000) for part in target])\n"
        "atexit.register(lambda: (copy(), print(target.all())))"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout == "True\n"
