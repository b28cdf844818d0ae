"""When does a pull from several ps come to an end? Answers that never agree, without any ps."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from client.fanout import Fanout
from protos import parameter_server_pb2 as pb
from protos.errors import WaitTimeout


class Racing(Fanout):
    """Whoever is asked is one version ahead of the other by the time it answers."""

    def __init__(self) -> None:
        self.versions = itertools.count(1)

    def on_all(self, headers: Any, *_: Any) -> list[pb.Answer]:
        only: Sequence[int] = _[3] if len(_) > 3 else range(len(headers))
        answers = [pb.Answer(version=next(self.versions)) for _ in only]
        assert answers[-1].version < 100_000, "it asks for ever"
        return answers


def pull(one_version: bool) -> tuple[int, ...]:
    headers = [pb.Header(operation=pb.OPERATION_PULL) for _ in range(2)]
    return Racing().pull(headers, [], None, 0.01, one_version=one_version)  # type: ignore[arg-type]


def test_shards_that_never_are_of_one_version_are_asked_until_the_deadline() -> None:
    # claim 4
    with pytest.raises(WaitTimeout) as caught:
        pull(one_version=True)
    assert "after 0.01 s" in caught.value.got
    assert caught.value.expected == "one version of all shards"


def test_who_needs_no_single_version_takes_what_is_there() -> None:
    assert pull(one_version=False) == (1, 2)
