"""How does an error of ours cross grpc? One table, and one translator each way.

Unary calls carry an error as a grpc status with the whole error in a trailing-metadata entry; Exchange carries the same
message in band, so that the stream outlives a refusal. Only this file and the transports know grpc statuses.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import grpc

from protos import errors
from protos import parameter_server_pb2 as pb
from protos.codec import wire_text

TRAILER = "paramserver-error-bin"

STATUS: Mapping[type[errors.ParameterServerError], grpc.StatusCode] = {
    errors.ParameterServerError: grpc.StatusCode.UNKNOWN,
    errors.InvalidInput: grpc.StatusCode.INVALID_ARGUMENT,
    errors.ClusterError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.RuleError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.UnknownVariable: grpc.StatusCode.NOT_FOUND,
    errors.ShapeMismatch: grpc.StatusCode.INVALID_ARGUMENT,
    errors.DtypeMismatch: grpc.StatusCode.INVALID_ARGUMENT,
    errors.NotTrainable: grpc.StatusCode.INVALID_ARGUMENT,
    errors.RowOutOfRange: grpc.StatusCode.OUT_OF_RANGE,
    errors.NonFiniteGradient: grpc.StatusCode.INVALID_ARGUMENT,
    errors.InvalidVersion: grpc.StatusCode.INVALID_ARGUMENT,
    errors.Conflict: grpc.StatusCode.FAILED_PRECONDITION,
    errors.ConfigurationConflict: grpc.StatusCode.FAILED_PRECONDITION,
    errors.InitConflict: grpc.StatusCode.ALREADY_EXISTS,
    errors.WrongRun: grpc.StatusCode.PERMISSION_DENIED,
    errors.WorkerIndexTaken: grpc.StatusCode.ALREADY_EXISTS,
    errors.ProtocolMismatch: grpc.StatusCode.FAILED_PRECONDITION,
    errors.AlreadyPushed: grpc.StatusCode.FAILED_PRECONDITION,
    errors.NotInitialized: grpc.StatusCode.FAILED_PRECONDITION,
    errors.NotJoined: grpc.StatusCode.UNAUTHENTICATED,
    errors.ReadOnly: grpc.StatusCode.PERMISSION_DENIED,
    errors.RuleFailed: grpc.StatusCode.ABORTED,
    errors.PushFailed: grpc.StatusCode.ABORTED,
    errors.WaitTimeout: grpc.StatusCode.DEADLINE_EXCEEDED,
    errors.Unavailable: grpc.StatusCode.UNAVAILABLE,
    errors.PeerUnavailable: grpc.StatusCode.UNAVAILABLE,
    errors.ServerStopping: grpc.StatusCode.UNAVAILABLE,
    errors.AddressInUse: grpc.StatusCode.UNAVAILABLE,
    errors.InternalError: grpc.StatusCode.INTERNAL,
}


def to_message(error: errors.ParameterServerError) -> pb.Error:
    return pb.Error(
        name=type(error).__name__, attributes={key: wire_text(text) for key, text in error.attributes().items()}
    )


def from_message(message: pb.Error) -> errors.ParameterServerError:
    return errors.from_wire(message.name, message.attributes)


def to_trailer(error: errors.ParameterServerError) -> tuple[tuple[str, bytes]]:
    return ((TRAILER, to_message(error).SerializeToString()),)


def from_rpc_error(error: grpc.RpcError, doing: str) -> errors.ParameterServerError:
    """Our error inside a failed call, or, where the failure is grpc's own, what it means to the caller.

    `doing` says what the call was for: "join", "status" …
    """
    call: grpc.Call = error
    trailers: Iterable[tuple[str, str | bytes]] = call.trailing_metadata() or ()
    for key, value in trailers:
        if key == TRAILER and isinstance(value, bytes):
            return from_message(pb.Error.FromString(value))
    code, details = call.code(), call.details() or ""
    if code == grpc.StatusCode.DEADLINE_EXCEEDED:
        return errors.WaitTimeout(field=doing, got="no answer before the deadline", expected="an answer")
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
        return errors.PeerUnavailable(field=doing, got=repr(details), expected="a ps that answers")
    if code == grpc.StatusCode.UNIMPLEMENTED:
        return errors.ProtocolMismatch(
            field=doing, got=repr(details), expected="a paramserver ps", hint="Something else listens at this address."
        )
    return errors.InternalError(field=doing, got=f"{code}: {details}", expected="an answer")


async def abort(context: Any, error: errors.ParameterServerError) -> None:
    """End a call that a grpc.aio server is answering with an error of ours, whole. Raises what grpc raises for it."""
    await context.abort(STATUS[type(error)], wire_text(str(error)), to_trailer(error))
