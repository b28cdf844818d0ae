"""Which texts can a message carry? Any that somebody may hand us: file names that are no UTF-8, errors of any length."""

from __future__ import annotations

from protos import errors, status
from protos import parameter_server_pb2 as pb
from protos.codec import wire_text


def test_text_that_is_no_utf8_is_made_so() -> None:
    assert wire_text("no file caf\udce9") == "no file caf?"


def test_a_text_too_long_for_a_trailer_is_cut_and_says_so() -> None:
    error = errors.InitConflict(field="x" * 100_000, got="y" * 100_000, expected="é" * 100_000)
    ((_, trailer),) = status.to_trailer(error)
    assert len(trailer) < 16_384  # where grpc drops it, and the error with it
    back = status.from_message(pb.Error.FromString(trailer))
    assert type(back) is errors.InitConflict
    assert back.field.startswith("xxx")
    assert back.field.endswith("…")
