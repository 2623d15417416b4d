from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class LogChannelType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LOG_CHANNEL_TYPE_UNSPECIFIED: _ClassVar[LogChannelType]
    LOG_CHANNEL_TYPE_STDOUT: _ClassVar[LogChannelType]
    LOG_CHANNEL_TYPE_STDERR: _ClassVar[LogChannelType]

class WorkloadType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WORKLOAD_TYPE_UNSPECIFIED: _ClassVar[WorkloadType]
    WORKLOAD_TYPE_CELL: _ClassVar[WorkloadType]
    WORKLOAD_TYPE_POD_SANDBOX: _ClassVar[WorkloadType]
    WORKLOAD_TYPE_VM: _ClassVar[WorkloadType]
LOG_CHANNEL_TYPE_UNSPECIFIED: LogChannelType
LOG_CHANNEL_TYPE_STDOUT: LogChannelType
LOG_CHANNEL_TYPE_STDERR: LogChannelType
WORKLOAD_TYPE_UNSPECIFIED: WorkloadType
WORKLOAD_TYPE_CELL: WorkloadType
WORKLOAD_TYPE_POD_SANDBOX: WorkloadType
WORKLOAD_TYPE_VM: WorkloadType

class GetAuraeDaemonLogStreamRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetAuraeDaemonLogStreamResponse(_message.Message):
    __slots__ = ("item",)
    ITEM_FIELD_NUMBER: _ClassVar[int]
    item: LogItem
    def __init__(self, item: _Optional[_Union[LogItem, _Mapping]] = ...) -> None: ...

class GetSubProcessStreamRequest(_message.Message):
    __slots__ = ("channel_type", "process_id")
    CHANNEL_TYPE_FIELD_NUMBER: _ClassVar[int]
    PROCESS_ID_FIELD_NUMBER: _ClassVar[int]
    channel_type: LogChannelType
    process_id: int
    def __init__(self, channel_type: _Optional[_Union[LogChannelType, str]] = ..., process_id: _Optional[int] = ...) -> None: ...

class GetSubProcessStreamResponse(_message.Message):
    __slots__ = ("item",)
    ITEM_FIELD_NUMBER: _ClassVar[int]
    item: LogItem
    def __init__(self, item: _Optional[_Union[LogItem, _Mapping]] = ...) -> None: ...

class LogItem(_message.Message):
    __slots__ = ("channel", "line", "timestamp")
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    LINE_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    channel: str
    line: str
    timestamp: int
    def __init__(self, channel: _Optional[str] = ..., line: _Optional[str] = ..., timestamp: _Optional[int] = ...) -> None: ...

class GetPosixSignalsStreamRequest(_message.Message):
    __slots__ = ("workload",)
    WORKLOAD_FIELD_NUMBER: _ClassVar[int]
    workload: Workload
    def __init__(self, workload: _Optional[_Union[Workload, _Mapping]] = ...) -> None: ...

class GetPosixSignalsStreamResponse(_message.Message):
    __slots__ = ("signal",)
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    signal: Signal
    def __init__(self, signal: _Optional[_Union[Signal, _Mapping]] = ...) -> None: ...

class Workload(_message.Message):
    __slots__ = ("workload_type", "id")
    WORKLOAD_TYPE_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    workload_type: WorkloadType
    id: str
    def __init__(self, workload_type: _Optional[_Union[WorkloadType, str]] = ..., id: _Optional[str] = ...) -> None: ...

class Signal(_message.Message):
    __slots__ = ("signal", "process_id")
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    PROCESS_ID_FIELD_NUMBER: _ClassVar[int]
    signal: int
    process_id: int
    def __init__(self, signal: _Optional[int] = ..., process_id: _Optional[int] = ...) -> None: ...
