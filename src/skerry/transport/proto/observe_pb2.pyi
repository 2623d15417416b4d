from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class LogChannelType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CHANNEL_STDOUT: _ClassVar[LogChannelType]
    CHANNEL_STDERR: _ClassVar[LogChannelType]
CHANNEL_STDOUT: LogChannelType
CHANNEL_STDERR: LogChannelType

class GetAuraeDaemonLogStreamRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetSubProcessStreamRequest(_message.Message):
    __slots__ = ("channel_type", "process_id")
    CHANNEL_TYPE_FIELD_NUMBER: _ClassVar[int]
    PROCESS_ID_FIELD_NUMBER: _ClassVar[int]
    channel_type: LogChannelType
    process_id: int
    def __init__(self, channel_type: _Optional[_Union[LogChannelType, str]] = ..., process_id: _Optional[int] = ...) -> None: ...

class LogItem(_message.Message):
    __slots__ = ("channel", "line", "timestamp")
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    LINE_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    channel: str
    line: str
    timestamp: int
    def __init__(self, channel: _Optional[str] = ..., line: _Optional[str] = ..., timestamp: _Optional[int] = ...) -> None: ...
