"""Which errors are there, what does each carry, and how does it cross the wire? The tree, the table, and there and back."""

from __future__ import annotations

import builtins
import copy
import pickle
import re
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from protos import errors, status
from protos import parameter_server_pb2 as pb
from protos.errors import BY_NAME, InternalError, ParameterServerError, PushFailed, WaitTimeout

CLASSES = list(BY_NAME.values())
TEXT = {"field": "größe/w", "got": "(3, 4)", "expected": "(3, 5)", "hint": "Say it\nagain."}


def drawn() -> dict[str, tuple[str, str]]:
    """name -> (parent, builtin that it also is) as the tree in the docstring of errors.py has it."""
    tree: dict[str, tuple[str, str]] = {}
    above: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"^    (?P<lines>[│├└─ ]*)(?P<name>[A-Z]\w+)(?P<rest>.*)$", line)
        if match is None:
            continue
        depth = len(match["lines"])
        above = [(at, name) for at, name in above if at < depth]
        also = re.search(r"\(also an? (\w+)\)", match["rest"])
        tree[match["name"]] = (above[-1][1] if above else "Exception", also[1] if also else "")
        above.append((depth, match["name"]))
    return tree


def test_the_tree_in_the_docstring_is_the_tree_of_the_classes() -> None:
    actual = {}
    for cls in CLASSES:
        first, *others = cls.__bases__
        actual[cls.__name__] = (first.__name__, others[0].__name__ if others else "")
    assert drawn() == actual


@pytest.mark.parametrize("cls", CLASSES)
def test_errors_are_the_builtins_that_people_catch(cls: type[ParameterServerError]) -> None:
    for name, base in (("InvalidInput", ValueError), ("WaitTimeout", TimeoutError), ("Unavailable", ConnectionError)):
        assert issubclass(cls, base) == issubclass(cls, BY_NAME[name])
    assert cls.__name__ not in dir(builtins)


@pytest.mark.parametrize("cls", CLASSES)
def test_an_error_says_where_what_was_got_and_expected_and_what_to_do(cls: type[ParameterServerError]) -> None:
    error = cls(**TEXT).at(1, "10.0.0.1:2222")
    assert str(error) == (f"ps 1 (10.0.0.1:2222): größe/w: {cls.summary}: got (3, 4), expected (3, 5). Say it\nagain.")
    assert str(cls()) == cls.summary
    assert (error.ps, error.address) == (1, "10.0.0.1:2222")


@pytest.mark.parametrize("cls", CLASSES)
def test_an_error_keeps_its_class_and_its_text_over_the_wire(cls: type[ParameterServerError]) -> None:
    # PushFailed too: it is made by a client, but nothing keeps one from being sent.
    wire = status.to_message(cls(**TEXT)).SerializeToString()
    back = status.from_message(pb.Error.FromString(wire))
    assert type(back) is cls
    assert back.attributes() == TEXT
    assert (back.field, back.got, back.expected, back.hint) == tuple(TEXT.values())
    assert (back.ps, back.address) == (None, None)  # who received it knows from where


@pytest.mark.parametrize("through", [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))])
@pytest.mark.parametrize("cls", CLASSES)
def test_an_error_keeps_all_that_it_carries_through_a_copy_and_a_process_pool(
    cls: type[ParameterServerError], through: Callable[[Any], Any]
) -> None:
    error = cls(**TEXT).at(1, "10.0.0.1:2222")
    error.sequence = 7
    back = through(error)
    assert type(back) is cls
    assert vars(back) == vars(error)
    assert str(back) == str(error)


def test_also_what_each_ps_refused() -> None:
    # claim 12
    error = PushFailed(refused={1: errors.RuleFailed(**TEXT).at(1, "b:1")}, sequence=7, field="push")
    back = pickle.loads(pickle.dumps(error))
    assert (back.sequence, str(back), list(back.refused)) == (7, str(error), [1])
    assert type(back.refused[1]) is errors.RuleFailed
    assert vars(back.refused[1]) == vars(error.refused[1])


def test_what_is_got_and_expected_is_text_whatever_it_was() -> None:
    error = errors.ShapeMismatch(field="w", got=(3, 4), expected=None)
    assert (error.got, error.expected) == ("(3, 4)", "None")


def test_a_push_that_failed_says_who_refused_it_and_how_to_send_it_again() -> None:
    # claim 12
    refusal = errors.RuleFailed(field="rule x").at(1, "b:1")
    error = PushFailed(refused={1: refusal}, sequence=7, field="push")
    assert error.refused == {1: refusal}
    assert error.sequence == 7


def test_an_error_of_a_newer_peer_keeps_its_name() -> None:
    back = status.from_message(pb.Error(name="QuotaExceeded", attributes={"field": "w", "got": "9", "unheard": "of"}))
    assert type(back) is InternalError
    assert (back.field, back.got) == ("QuotaExceeded w", "9")


# -- grpc's own statuses --------------------------------------------------------------------------------------------------


def test_every_error_has_a_status_and_none_is_success() -> None:
    assert set(status.STATUS) == set(CLASSES)
    assert grpc.StatusCode.OK not in status.STATUS.values()


class Broken(grpc.RpcError):
    """A failed call as grpc presents it."""

    def __init__(self, code: grpc.StatusCode, trailers: Any = None) -> None:
        self.code = lambda: code
        self.details = lambda: "the details"
        self.trailing_metadata = lambda: trailers


@pytest.mark.parametrize("cls", CLASSES)
def test_an_error_comes_out_of_a_failed_call_whole(cls: type[ParameterServerError]) -> None:
    trailers = (("other", "x"), *status.to_trailer(cls(**TEXT)))
    back = status.from_rpc_error(Broken(status.STATUS[cls], trailers), "join")
    assert type(back) is cls
    assert back.attributes() == TEXT


@pytest.mark.parametrize(
    ("code", "cls"),
    [
        (grpc.StatusCode.DEADLINE_EXCEEDED, WaitTimeout),
        (grpc.StatusCode.UNAVAILABLE, errors.PeerUnavailable),
        (grpc.StatusCode.CANCELLED, errors.PeerUnavailable),
        (grpc.StatusCode.UNIMPLEMENTED, errors.ProtocolMismatch),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, InternalError),
    ],
)
def test_a_failure_of_grpcs_own_becomes_an_error_of_ours(
    code: grpc.StatusCode, cls: type[ParameterServerError]
) -> None:
    error = status.from_rpc_error(Broken(code), "status")
    assert type(error) is cls
    assert error.field == "status"
    assert not isinstance(error, grpc.RpcError)
