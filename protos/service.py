"""Where are the methods of the service, and with which channel options are they called and served?

The paths and message classes are read off the generated descriptor, so the .proto file stays the only description. Both
sides use this table instead of generated stubs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from google.protobuf.message_factory import GetMessageClass

from protos import parameter_server_pb2 as pb

SERVICE = pb.DESCRIPTOR.services_by_name["ParameterServer"]

OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.so_reuseport", 0),  # else two servers share one port in silence
    ("grpc.enable_http_proxy", 0),  # else http_proxy hijacks even localhost
    ("grpc.optimization_target", "throughput"),
    ("grpc.max_receive_message_length", -1),  # a table of many variables has no size to set beforehand
    ("grpc.max_send_message_length", -1),
    # A peer that is silent for so long, frozen or cut off without a word, has no connection any more: its lease starts.
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),  # what counts in newer versions of grpc's core; a minute by default
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 4_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 2_000),
)


class Method(NamedTuple):
    path: str
    request: Any
    reply: Any


METHODS = {
    method.name: Method(
        f"/{SERVICE.full_name}/{method.name}", GetMessageClass(method.input_type), GetMessageClass(method.output_type)
    )
    for method in SERVICE.methods
}
