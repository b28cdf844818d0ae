"""Shared memory between a client and a ps on the same host: who gets at it, what is refused, and is nothing left behind?"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from protos.errors import InvalidInput
from protos.segment import ALIGNMENT, START, Region, Segment


def test_both_sides_see_the_same_memory() -> None:
    mine, address, fd = Segment.create(10_000)
    theirs = Segment.open(address)
    os.close(fd)
    mine.write(START, b"hello")
    assert bytes(theirs.at(START, 5)) == b"hello"
    theirs.write(START + 100, b"world")
    assert bytes(mine.at(START + 100, 5)) == b"world"


def test_it_has_no_name_and_nobody_can_shrink_it() -> None:
    _, address, fd = Segment.create(100)
    assert os.readlink(f"/proc/self/fd/{fd}").endswith("(deleted)")
    assert os.fstat(fd).st_mode & 0o777 == 0o600
    with pytest.raises(OSError, match="not permitted"):
        os.ftruncate(fd, 10)
    os.close(fd)
    with pytest.raises(OSError, match="No such file"):
        Segment.open(address)


def test_it_outlives_whoever_made_it_and_ends_with_the_last_who_holds_it() -> None:
    # The maker is killed: the other side reads on, and nothing is left in the file system.
    program = (
        "import sys, os; from protos.segment import Segment, START\n"
        "s, a, fd = Segment.create(5000); s.write(START, b'x' * 5000)\n"
        "print(a.pid, a.fd, a.nbytes, a.nonce.hex(), a.host, flush=True); sys.stdin.read()"
    )
    before = set(os.listdir("/dev/shm"))
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as maker:
        assert maker.stdout is not None
        pid, fd, nbytes, nonce, host = maker.stdout.readline().split()
        from protos.segment import Address

        theirs = Segment.open(Address(int(pid), int(fd), int(nbytes), bytes.fromhex(nonce), host))
        maker.kill()
    assert bytes(theirs.at(START, 5000)) == b"x" * 5000
    assert set(os.listdir("/dev/shm")) <= before


@pytest.mark.parametrize(
    "wrong",
    [{"fd": 0}, {"fd": 9999}, {"pid": 1}, {"pid": 2**31 - 1}, {"nbytes": 5000}, {"nbytes": 0}, {"nonce": bytes(16)}]
    + [{"nonce": b""}, {"host": "another"}, {"host": ""}],
    ids=str,
)
def test_what_is_not_the_memory_that_was_offered_is_not_taken(wrong: dict[str, object]) -> None:
    _, address, fd = Segment.create(10_000)
    with pytest.raises(OSError, match=r"."):
        Segment.open(replace(address, **wrong))  # type: ignore[arg-type]
    os.close(fd)


def test_a_file_that_could_be_shrunk_is_not_taken(tmp_path: Path) -> None:
    # Reading beyond its end would kill the reader.
    _, address, fd = Segment.create(10_000)
    with (tmp_path / "file").open("w+b") as file:
        file.write(address.nonce.ljust(address.nbytes, b"\0"))
        file.flush()
        with pytest.raises(OSError, match=r"."):
            Segment.open(replace(address, fd=file.fileno()))
    os.close(fd)


@pytest.mark.parametrize(
    ("offset", "nbytes"), [(0, 1), (START - 1, 1), (START, 10_001), (START + 10_000, 1), (2**63, 1)]
)
def test_only_the_payload_can_be_read(offset: int, nbytes: int) -> None:
    # claim 11
    segment, _, fd = Segment.create(10_000)
    os.close(fd)
    with pytest.raises(InvalidInput, match="shared memory"):
        segment.at(offset, nbytes)
    assert len(segment.at(START, 10_000)) == 10_000


def test_a_region_is_filled_in_order_aligned_and_never_beyond_its_end() -> None:
    segment, _, fd = Segment.create(1000)
    os.close(fd)
    region = Region(segment, START, 300)
    assert [region.put(bytes(size)) for size in (10, 100, 0, 100, 50, 9)] == [
        START,
        START + ALIGNMENT,
        START + 3 * ALIGNMENT,
        START + 3 * ALIGNMENT,
        None,
        None,
    ]
    with pytest.raises(InvalidInput):
        Region(segment, START, 1001)


def test_it_is_unmapped_when_nobody_refers_to_it() -> None:
    def mapped() -> int:
        return Path("/proc/self/maps").read_text(encoding="utf-8").count("memfd:paramserver")

    gc.collect()
    before = mapped()
    segment, _, fd = Segment.create(10_000)
    os.close(fd)
    view = segment.at(START, 100)
    assert mapped() == before + 1
    del segment
    gc.collect()
    assert mapped() == before + 1  # an array that is read from it holds it
    del view
    gc.collect()
    assert mapped() == before
