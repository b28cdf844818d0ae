from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Role(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROLE_WORKER: _ClassVar[Role]
    ROLE_OBSERVER: _ClassVar[Role]

class Operation(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OPERATION_UNSPECIFIED: _ClassVar[Operation]
    OPERATION_INIT: _ClassVar[Operation]
    OPERATION_PULL: _ClassVar[Operation]
    OPERATION_PUSH: _ClassVar[Operation]
    OPERATION_PUSH_PULL: _ClassVar[Operation]
    OPERATION_ASSIGN: _ClassVar[Operation]

class Seat(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SEAT_UNDECIDED: _ClassVar[Seat]
    SEAT_COUNTED: _ClassVar[Seat]
    SEAT_PASSED_OVER: _ClassVar[Seat]

class Encoding(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ENCODING_NONE: _ClassVar[Encoding]
    ENCODING_FLOAT16: _ClassVar[Encoding]
    ENCODING_BFLOAT16: _ClassVar[Encoding]
    ENCODING_INT8: _ClassVar[Encoding]
    ENCODING_TOP_K: _ClassVar[Encoding]
    ENCODING_SIGN: _ClassVar[Encoding]

class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OUTCOME_UNSPECIFIED: _ClassVar[Outcome]
    OUTCOME_APPLIED: _ClassVar[Outcome]
    OUTCOME_BUFFERED: _ClassVar[Outcome]
    OUTCOME_STALE: _ClassVar[Outcome]
    OUTCOME_DUPLICATE: _ClassVar[Outcome]
ROLE_WORKER: Role
ROLE_OBSERVER: Role
OPERATION_UNSPECIFIED: Operation
OPERATION_INIT: Operation
OPERATION_PULL: Operation
OPERATION_PUSH: Operation
OPERATION_PUSH_PULL: Operation
OPERATION_ASSIGN: Operation
SEAT_UNDECIDED: Seat
SEAT_COUNTED: Seat
SEAT_PASSED_OVER: Seat
ENCODING_NONE: Encoding
ENCODING_FLOAT16: Encoding
ENCODING_BFLOAT16: Encoding
ENCODING_INT8: Encoding
ENCODING_TOP_K: Encoding
ENCODING_SIGN: Encoding
OUTCOME_UNSPECIFIED: Outcome
OUTCOME_APPLIED: Outcome
OUTCOME_BUFFERED: Outcome
OUTCOME_STALE: Outcome
OUTCOME_DUPLICATE: Outcome

class JoinRequest(_message.Message):
    __slots__ = ("protocol_version", "run_id", "role", "worker", "session", "parent_session", "ps_index", "num_ps", "num_workers", "origin")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    PARENT_SESSION_FIELD_NUMBER: _ClassVar[int]
    PS_INDEX_FIELD_NUMBER: _ClassVar[int]
    NUM_PS_FIELD_NUMBER: _ClassVar[int]
    NUM_WORKERS_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    run_id: str
    role: Role
    worker: int
    session: str
    parent_session: str
    ps_index: int
    num_ps: int
    num_workers: int
    origin: str
    def __init__(self, protocol_version: _Optional[int] = ..., run_id: _Optional[str] = ..., role: _Optional[_Union[Role, str]] = ..., worker: _Optional[int] = ..., session: _Optional[str] = ..., parent_session: _Optional[str] = ..., ps_index: _Optional[int] = ..., num_ps: _Optional[int] = ..., num_workers: _Optional[int] = ..., origin: _Optional[str] = ...) -> None: ...

class JoinReply(_message.Message):
    __slots__ = ("protocol_version", "run_id", "generation", "guard_nonfinite", "ps_index")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    GUARD_NONFINITE_FIELD_NUMBER: _ClassVar[int]
    PS_INDEX_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    run_id: str
    generation: int
    guard_nonfinite: bool
    ps_index: int
    def __init__(self, protocol_version: _Optional[int] = ..., run_id: _Optional[str] = ..., generation: _Optional[int] = ..., guard_nonfinite: bool = ..., ps_index: _Optional[int] = ...) -> None: ...

class LeaveRequest(_message.Message):
    __slots__ = ("session", "reason")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    session: str
    reason: str
    def __init__(self, session: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class LeaveReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class VariableSpec(_message.Message):
    __slots__ = ("name", "dtype", "shape", "trainable")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    TRAINABLE_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    trainable: bool
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., trainable: bool = ...) -> None: ...

class PartitionSpec(_message.Message):
    __slots__ = ("variable", "start", "stop", "members")
    VARIABLE_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    variable: VariableSpec
    start: int
    stop: int
    members: _containers.RepeatedCompositeFieldContainer[PartitionSpec]
    def __init__(self, variable: _Optional[_Union[VariableSpec, _Mapping]] = ..., start: _Optional[int] = ..., stop: _Optional[int] = ..., members: _Optional[_Iterable[_Union[PartitionSpec, _Mapping]]] = ...) -> None: ...

class Configuration(_message.Message):
    __slots__ = ("mode", "slack", "backup_workers", "rule")
    MODE_FIELD_NUMBER: _ClassVar[int]
    SLACK_FIELD_NUMBER: _ClassVar[int]
    BACKUP_WORKERS_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    mode: str
    slack: int
    backup_workers: int
    rule: str
    def __init__(self, mode: _Optional[str] = ..., slack: _Optional[int] = ..., backup_workers: _Optional[int] = ..., rule: _Optional[str] = ...) -> None: ...

class BeginInitRequest(_message.Message):
    __slots__ = ("session", "variables", "configuration", "partitioner", "after_chief", "wait_ms")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    VARIABLES_FIELD_NUMBER: _ClassVar[int]
    CONFIGURATION_FIELD_NUMBER: _ClassVar[int]
    PARTITIONER_FIELD_NUMBER: _ClassVar[int]
    AFTER_CHIEF_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    session: str
    variables: _containers.RepeatedCompositeFieldContainer[VariableSpec]
    configuration: Configuration
    partitioner: str
    after_chief: bool
    wait_ms: int
    def __init__(self, session: _Optional[str] = ..., variables: _Optional[_Iterable[_Union[VariableSpec, _Mapping]]] = ..., configuration: _Optional[_Union[Configuration, _Mapping]] = ..., partitioner: _Optional[str] = ..., after_chief: bool = ..., wait_ms: _Optional[int] = ...) -> None: ...

class BeginInitReply(_message.Message):
    __slots__ = ("granted", "grant", "elementwise", "configuration", "packed")
    GRANTED_FIELD_NUMBER: _ClassVar[int]
    GRANT_FIELD_NUMBER: _ClassVar[int]
    ELEMENTWISE_FIELD_NUMBER: _ClassVar[int]
    CONFIGURATION_FIELD_NUMBER: _ClassVar[int]
    PACKED_FIELD_NUMBER: _ClassVar[int]
    granted: bool
    grant: int
    elementwise: bool
    configuration: Configuration
    packed: bool
    def __init__(self, granted: bool = ..., grant: _Optional[int] = ..., elementwise: bool = ..., configuration: _Optional[_Union[Configuration, _Mapping]] = ..., packed: bool = ...) -> None: ...

class DescribeRequest(_message.Message):
    __slots__ = ("session",)
    SESSION_FIELD_NUMBER: _ClassVar[int]
    session: str
    def __init__(self, session: _Optional[str] = ...) -> None: ...

class DescribeReply(_message.Message):
    __slots__ = ("partitions", "configuration", "version", "initialized", "wants_gradient_norm", "has_averages")
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    CONFIGURATION_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    INITIALIZED_FIELD_NUMBER: _ClassVar[int]
    WANTS_GRADIENT_NORM_FIELD_NUMBER: _ClassVar[int]
    HAS_AVERAGES_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionSpec]
    configuration: Configuration
    version: int
    initialized: bool
    wants_gradient_norm: bool
    has_averages: bool
    def __init__(self, partitions: _Optional[_Iterable[_Union[PartitionSpec, _Mapping]]] = ..., configuration: _Optional[_Union[Configuration, _Mapping]] = ..., version: _Optional[int] = ..., initialized: bool = ..., wants_gradient_norm: bool = ..., has_averages: bool = ...) -> None: ...

class Header(_message.Message):
    __slots__ = ("operation", "session", "sequence", "version", "partitions", "by_rows", "wait_ms", "seat", "table", "grant", "configuration", "at_least", "weight", "gradient_scale", "gradient_norm", "averages", "segment", "reply_offset", "reply_bytes")
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    BY_ROWS_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    SEAT_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    GRANT_FIELD_NUMBER: _ClassVar[int]
    CONFIGURATION_FIELD_NUMBER: _ClassVar[int]
    AT_LEAST_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_SCALE_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_NORM_FIELD_NUMBER: _ClassVar[int]
    AVERAGES_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    REPLY_OFFSET_FIELD_NUMBER: _ClassVar[int]
    REPLY_BYTES_FIELD_NUMBER: _ClassVar[int]
    operation: Operation
    session: str
    sequence: int
    version: int
    partitions: _containers.RepeatedScalarFieldContainer[int]
    by_rows: bool
    wait_ms: int
    seat: Seat
    table: _containers.RepeatedCompositeFieldContainer[PartitionSpec]
    grant: int
    configuration: Configuration
    at_least: int
    weight: float
    gradient_scale: float
    gradient_norm: float
    averages: bool
    segment: Segment
    reply_offset: int
    reply_bytes: int
    def __init__(self, operation: _Optional[_Union[Operation, str]] = ..., session: _Optional[str] = ..., sequence: _Optional[int] = ..., version: _Optional[int] = ..., partitions: _Optional[_Iterable[int]] = ..., by_rows: bool = ..., wait_ms: _Optional[int] = ..., seat: _Optional[_Union[Seat, str]] = ..., table: _Optional[_Iterable[_Union[PartitionSpec, _Mapping]]] = ..., grant: _Optional[int] = ..., configuration: _Optional[_Union[Configuration, _Mapping]] = ..., at_least: _Optional[int] = ..., weight: _Optional[float] = ..., gradient_scale: _Optional[float] = ..., gradient_norm: _Optional[float] = ..., averages: bool = ..., segment: _Optional[_Union[Segment, _Mapping]] = ..., reply_offset: _Optional[int] = ..., reply_bytes: _Optional[int] = ...) -> None: ...

class Segment(_message.Message):
    __slots__ = ("pid", "fd", "nbytes", "nonce", "host")
    PID_FIELD_NUMBER: _ClassVar[int]
    FD_FIELD_NUMBER: _ClassVar[int]
    NBYTES_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    pid: int
    fd: int
    nbytes: int
    nonce: bytes
    host: str
    def __init__(self, pid: _Optional[int] = ..., fd: _Optional[int] = ..., nbytes: _Optional[int] = ..., nonce: _Optional[bytes] = ..., host: _Optional[str] = ...) -> None: ...

class Block(_message.Message):
    __slots__ = ("partition", "page", "data", "indices", "shared_offset", "shared_bytes", "encoding")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    PAGE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    INDICES_FIELD_NUMBER: _ClassVar[int]
    SHARED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    SHARED_BYTES_FIELD_NUMBER: _ClassVar[int]
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    partition: int
    page: int
    data: bytes
    indices: bytes
    shared_offset: int
    shared_bytes: int
    encoding: Encoding
    def __init__(self, partition: _Optional[int] = ..., page: _Optional[int] = ..., data: _Optional[bytes] = ..., indices: _Optional[bytes] = ..., shared_offset: _Optional[int] = ..., shared_bytes: _Optional[int] = ..., encoding: _Optional[_Union[Encoding, str]] = ...) -> None: ...

class Request(_message.Message):
    __slots__ = ("header", "blocks", "last")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    header: Header
    blocks: _containers.RepeatedCompositeFieldContainer[Block]
    last: bool
    def __init__(self, header: _Optional[_Union[Header, _Mapping]] = ..., blocks: _Optional[_Iterable[_Union[Block, _Mapping]]] = ..., last: bool = ...) -> None: ...

class Answer(_message.Message):
    __slots__ = ("outcome", "first", "staleness", "version", "segment_mapped")
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    STALENESS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_MAPPED_FIELD_NUMBER: _ClassVar[int]
    outcome: Outcome
    first: Outcome
    staleness: int
    version: int
    segment_mapped: bool
    def __init__(self, outcome: _Optional[_Union[Outcome, str]] = ..., first: _Optional[_Union[Outcome, str]] = ..., staleness: _Optional[int] = ..., version: _Optional[int] = ..., segment_mapped: bool = ...) -> None: ...

class Reply(_message.Message):
    __slots__ = ("answer", "blocks", "last", "error")
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    answer: Answer
    blocks: _containers.RepeatedCompositeFieldContainer[Block]
    last: bool
    error: Error
    def __init__(self, answer: _Optional[_Union[Answer, _Mapping]] = ..., blocks: _Optional[_Iterable[_Union[Block, _Mapping]]] = ..., last: bool = ..., error: _Optional[_Union[Error, _Mapping]] = ...) -> None: ...

class Error(_message.Message):
    __slots__ = ("name", "attributes")
    class AttributesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    attributes: _containers.ScalarMap[str, str]
    def __init__(self, name: _Optional[str] = ..., attributes: _Optional[_Mapping[str, str]] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WorkerStatus(_message.Message):
    __slots__ = ("worker", "state", "generation", "clock", "origin", "waiting_for", "shared_memory")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    WAITING_FOR_FIELD_NUMBER: _ClassVar[int]
    SHARED_MEMORY_FIELD_NUMBER: _ClassVar[int]
    worker: int
    state: str
    generation: int
    clock: int
    origin: str
    waiting_for: str
    shared_memory: bool
    def __init__(self, worker: _Optional[int] = ..., state: _Optional[str] = ..., generation: _Optional[int] = ..., clock: _Optional[int] = ..., origin: _Optional[str] = ..., waiting_for: _Optional[str] = ..., shared_memory: bool = ...) -> None: ...

class Counters(_message.Message):
    __slots__ = ("sent", "applied", "buffered", "stale", "duplicate", "refused", "pulls")
    SENT_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    BUFFERED_FIELD_NUMBER: _ClassVar[int]
    STALE_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    PULLS_FIELD_NUMBER: _ClassVar[int]
    sent: int
    applied: int
    buffered: int
    stale: int
    duplicate: int
    refused: int
    pulls: int
    def __init__(self, sent: _Optional[int] = ..., applied: _Optional[int] = ..., buffered: _Optional[int] = ..., stale: _Optional[int] = ..., duplicate: _Optional[int] = ..., refused: _Optional[int] = ..., pulls: _Optional[int] = ...) -> None: ...

class StatusReply(_message.Message):
    __slots__ = ("ps_index", "run_id", "protocol_version", "configuration", "initialized", "version", "value_bytes", "slot_bytes", "partitions", "workers", "counters", "uptime_s", "pid", "ps_addresses", "guard_nonfinite", "learning_rate")
    PS_INDEX_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    CONFIGURATION_FIELD_NUMBER: _ClassVar[int]
    INITIALIZED_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    VALUE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SLOT_BYTES_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    UPTIME_S_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    PS_ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    GUARD_NONFINITE_FIELD_NUMBER: _ClassVar[int]
    LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    ps_index: int
    run_id: str
    protocol_version: int
    configuration: Configuration
    initialized: bool
    version: int
    value_bytes: int
    slot_bytes: int
    partitions: int
    workers: _containers.RepeatedCompositeFieldContainer[WorkerStatus]
    counters: Counters
    uptime_s: float
    pid: int
    ps_addresses: _containers.RepeatedScalarFieldContainer[str]
    guard_nonfinite: bool
    learning_rate: float
    def __init__(self, ps_index: _Optional[int] = ..., run_id: _Optional[str] = ..., protocol_version: _Optional[int] = ..., configuration: _Optional[_Union[Configuration, _Mapping]] = ..., initialized: bool = ..., version: _Optional[int] = ..., value_bytes: _Optional[int] = ..., slot_bytes: _Optional[int] = ..., partitions: _Optional[int] = ..., workers: _Optional[_Iterable[_Union[WorkerStatus, _Mapping]]] = ..., counters: _Optional[_Union[Counters, _Mapping]] = ..., uptime_s: _Optional[float] = ..., pid: _Optional[int] = ..., ps_addresses: _Optional[_Iterable[str]] = ..., guard_nonfinite: bool = ..., learning_rate: _Optional[float] = ...) -> None: ...

class StopRequest(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class StopReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SumRequest(_message.Message):
    __slots__ = ("run_id", "ps_index", "version", "attempt", "number", "parts", "failure")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    PS_INDEX_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    ps_index: int
    version: int
    attempt: int
    number: int
    parts: _containers.RepeatedScalarFieldContainer[float]
    failure: str
    def __init__(self, run_id: _Optional[str] = ..., ps_index: _Optional[int] = ..., version: _Optional[int] = ..., attempt: _Optional[int] = ..., number: _Optional[int] = ..., parts: _Optional[_Iterable[float]] = ..., failure: _Optional[str] = ...) -> None: ...

class SumReply(_message.Message):
    __slots__ = ("sums",)
    SUMS_FIELD_NUMBER: _ClassVar[int]
    sums: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, sums: _Optional[_Iterable[float]] = ...) -> None: ...
