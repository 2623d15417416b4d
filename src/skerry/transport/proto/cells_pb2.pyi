from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Channel(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CHANNEL_UNSPECIFIED: _ClassVar[Channel]
    CHANNEL_STDOUT: _ClassVar[Channel]
    CHANNEL_STDERR: _ClassVar[Channel]

class Form(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FORM_PIECES: _ClassVar[Form]
    FORM_LINES: _ClassVar[Form]
CHANNEL_UNSPECIFIED: Channel
CHANNEL_STDOUT: Channel
CHANNEL_STDERR: Channel
FORM_PIECES: Form
FORM_LINES: Form

class Limits(_message.Message):
    __slots__ = ("cpu_weight", "cpu_milli", "cpus", "mems", "memory_mb", "pids", "cpu_shares")
    CPU_WEIGHT_FIELD_NUMBER: _ClassVar[int]
    CPU_MILLI_FIELD_NUMBER: _ClassVar[int]
    CPUS_FIELD_NUMBER: _ClassVar[int]
    MEMS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MB_FIELD_NUMBER: _ClassVar[int]
    PIDS_FIELD_NUMBER: _ClassVar[int]
    CPU_SHARES_FIELD_NUMBER: _ClassVar[int]
    cpu_weight: int
    cpu_milli: int
    cpus: str
    mems: str
    memory_mb: int
    pids: int
    cpu_shares: int
    def __init__(self, cpu_weight: _Optional[int] = ..., cpu_milli: _Optional[int] = ..., cpus: _Optional[str] = ..., mems: _Optional[str] = ..., memory_mb: _Optional[int] = ..., pids: _Optional[int] = ..., cpu_shares: _Optional[int] = ...) -> None: ...

class AllocateRequest(_message.Message):
    __slots__ = ("cell", "limits", "own_network")
    CELL_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    OWN_NETWORK_FIELD_NUMBER: _ClassVar[int]
    cell: str
    limits: Limits
    own_network: bool
    def __init__(self, cell: _Optional[str] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., own_network: _Optional[bool] = ...) -> None: ...

class AllocateReply(_message.Message):
    __slots__ = ("cgroup_v2",)
    CGROUP_V2_FIELD_NUMBER: _ClassVar[int]
    cgroup_v2: bool
    def __init__(self, cgroup_v2: _Optional[bool] = ...) -> None: ...

class FreeRequest(_message.Message):
    __slots__ = ("cell",)
    CELL_FIELD_NUMBER: _ClassVar[int]
    cell: str
    def __init__(self, cell: _Optional[str] = ...) -> None: ...

class FreeReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Sandbox(_message.Message):
    __slots__ = ("uid", "gid", "root_capabilities", "environment", "folder", "open_files")
    UID_FIELD_NUMBER: _ClassVar[int]
    GID_FIELD_NUMBER: _ClassVar[int]
    ROOT_CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    OPEN_FILES_FIELD_NUMBER: _ClassVar[int]
    uid: int
    gid: int
    root_capabilities: bool
    environment: _containers.RepeatedScalarFieldContainer[str]
    folder: str
    open_files: int
    def __init__(self, uid: _Optional[int] = ..., gid: _Optional[int] = ..., root_capabilities: _Optional[bool] = ..., environment: _Optional[_Iterable[str]] = ..., folder: _Optional[str] = ..., open_files: _Optional[int] = ...) -> None: ...

class StartRequest(_message.Message):
    __slots__ = ("cell", "executable", "command", "arguments", "description", "sandbox")
    CELL_FIELD_NUMBER: _ClassVar[int]
    EXECUTABLE_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    SANDBOX_FIELD_NUMBER: _ClassVar[int]
    cell: str
    executable: str
    command: str
    arguments: _containers.RepeatedScalarFieldContainer[str]
    description: str
    sandbox: Sandbox
    def __init__(self, cell: _Optional[str] = ..., executable: _Optional[str] = ..., command: _Optional[str] = ..., arguments: _Optional[_Iterable[str]] = ..., description: _Optional[str] = ..., sandbox: _Optional[_Union[Sandbox, _Mapping]] = ...) -> None: ...

class StartReply(_message.Message):
    __slots__ = ("pid", "started_at")
    PID_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    pid: int
    started_at: float
    def __init__(self, pid: _Optional[int] = ..., started_at: _Optional[float] = ...) -> None: ...

class StopRequest(_message.Message):
    __slots__ = ("cell", "executable", "grace_s")
    CELL_FIELD_NUMBER: _ClassVar[int]
    EXECUTABLE_FIELD_NUMBER: _ClassVar[int]
    GRACE_S_FIELD_NUMBER: _ClassVar[int]
    cell: str
    executable: str
    grace_s: float
    def __init__(self, cell: _Optional[str] = ..., executable: _Optional[str] = ..., grace_s: _Optional[float] = ...) -> None: ...

class StopReply(_message.Message):
    __slots__ = ("exit",)
    EXIT_FIELD_NUMBER: _ClassVar[int]
    exit: Exit
    def __init__(self, exit: _Optional[_Union[Exit, _Mapping]] = ...) -> None: ...

class Exit(_message.Message):
    __slots__ = ("at", "code", "signal", "oom")
    AT_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    OOM_FIELD_NUMBER: _ClassVar[int]
    at: float
    code: int
    signal: int
    oom: bool
    def __init__(self, at: _Optional[float] = ..., code: _Optional[int] = ..., signal: _Optional[int] = ..., oom: _Optional[bool] = ...) -> None: ...

class ListRequest(_message.Message):
    __slots__ = ("cell", "usage")
    CELL_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    cell: str
    usage: bool
    def __init__(self, cell: _Optional[str] = ..., usage: _Optional[bool] = ...) -> None: ...

class CellStatus(_message.Message):
    __slots__ = ("cell", "limits", "own_network", "executables", "usage")
    CELL_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    OWN_NETWORK_FIELD_NUMBER: _ClassVar[int]
    EXECUTABLES_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    cell: str
    limits: Limits
    own_network: bool
    executables: _containers.RepeatedCompositeFieldContainer[ExecutableStatus]
    usage: Usage
    def __init__(self, cell: _Optional[str] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., own_network: _Optional[bool] = ..., executables: _Optional[_Iterable[_Union[ExecutableStatus, _Mapping]]] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ...) -> None: ...

class ExecutableStatus(_message.Message):
    __slots__ = ("name", "command", "description", "pid", "started_at", "exit")
    NAME_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    EXIT_FIELD_NUMBER: _ClassVar[int]
    name: str
    command: str
    description: str
    pid: int
    started_at: float
    exit: Exit
    def __init__(self, name: _Optional[str] = ..., command: _Optional[str] = ..., description: _Optional[str] = ..., pid: _Optional[int] = ..., started_at: _Optional[float] = ..., exit: _Optional[_Union[Exit, _Mapping]] = ...) -> None: ...

class WaitRequest(_message.Message):
    __slots__ = ("cell", "executable")
    CELL_FIELD_NUMBER: _ClassVar[int]
    EXECUTABLE_FIELD_NUMBER: _ClassVar[int]
    cell: str
    executable: str
    def __init__(self, cell: _Optional[str] = ..., executable: _Optional[str] = ...) -> None: ...

class WaitReply(_message.Message):
    __slots__ = ("exit",)
    EXIT_FIELD_NUMBER: _ClassVar[int]
    exit: Exit
    def __init__(self, exit: _Optional[_Union[Exit, _Mapping]] = ...) -> None: ...

class LogsRequest(_message.Message):
    __slots__ = ("cell", "executable", "channel", "form", "stdout_after", "stderr_after", "follow", "tail")
    CELL_FIELD_NUMBER: _ClassVar[int]
    EXECUTABLE_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    FORM_FIELD_NUMBER: _ClassVar[int]
    STDOUT_AFTER_FIELD_NUMBER: _ClassVar[int]
    STDERR_AFTER_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    TAIL_FIELD_NUMBER: _ClassVar[int]
    cell: str
    executable: str
    channel: Channel
    form: Form
    stdout_after: int
    stderr_after: int
    follow: bool
    tail: int
    def __init__(self, cell: _Optional[str] = ..., executable: _Optional[str] = ..., channel: _Optional[_Union[Channel, str]] = ..., form: _Optional[_Union[Form, str]] = ..., stdout_after: _Optional[int] = ..., stderr_after: _Optional[int] = ..., follow: _Optional[bool] = ..., tail: _Optional[int] = ...) -> None: ...

class LogItem(_message.Message):
    __slots__ = ("channel", "position", "time_ns", "data", "lost")
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    TIME_NS_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    channel: Channel
    position: int
    time_ns: int
    data: bytes
    lost: int
    def __init__(self, channel: _Optional[_Union[Channel, str]] = ..., position: _Optional[int] = ..., time_ns: _Optional[int] = ..., data: _Optional[bytes] = ..., lost: _Optional[int] = ...) -> None: ...

class UsageRequest(_message.Message):
    __slots__ = ("cell",)
    CELL_FIELD_NUMBER: _ClassVar[int]
    cell: str
    def __init__(self, cell: _Optional[str] = ...) -> None: ...

class UsageReply(_message.Message):
    __slots__ = ("usage",)
    USAGE_FIELD_NUMBER: _ClassVar[int]
    usage: Usage
    def __init__(self, usage: _Optional[_Union[Usage, _Mapping]] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("cpu_ns", "throttled_ns", "memory_bytes", "memory_peak_bytes", "pids", "read_bytes", "written_bytes", "oom_kills")
    CPU_NS_FIELD_NUMBER: _ClassVar[int]
    THROTTLED_NS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_PEAK_BYTES_FIELD_NUMBER: _ClassVar[int]
    PIDS_FIELD_NUMBER: _ClassVar[int]
    READ_BYTES_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_BYTES_FIELD_NUMBER: _ClassVar[int]
    OOM_KILLS_FIELD_NUMBER: _ClassVar[int]
    cpu_ns: int
    throttled_ns: int
    memory_bytes: int
    memory_peak_bytes: int
    pids: int
    read_bytes: int
    written_bytes: int
    oom_kills: int
    def __init__(self, cpu_ns: _Optional[int] = ..., throttled_ns: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., memory_peak_bytes: _Optional[int] = ..., pids: _Optional[int] = ..., read_bytes: _Optional[int] = ..., written_bytes: _Optional[int] = ..., oom_kills: _Optional[int] = ...) -> None: ...

class NodeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class NodeReply(_message.Message):
    __slots__ = ("architecture", "system", "kernel", "cgroups", "cpus", "memory_bytes", "disk_bytes", "cpu_busy_s", "load", "memory_available_bytes", "disk_free_bytes", "runtime")
    ARCHITECTURE_FIELD_NUMBER: _ClassVar[int]
    SYSTEM_FIELD_NUMBER: _ClassVar[int]
    KERNEL_FIELD_NUMBER: _ClassVar[int]
    CGROUPS_FIELD_NUMBER: _ClassVar[int]
    CPUS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    DISK_BYTES_FIELD_NUMBER: _ClassVar[int]
    CPU_BUSY_S_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    MEMORY_AVAILABLE_BYTES_FIELD_NUMBER: _ClassVar[int]
    DISK_FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_FIELD_NUMBER: _ClassVar[int]
    architecture: str
    system: str
    kernel: str
    cgroups: str
    cpus: int
    memory_bytes: int
    disk_bytes: int
    cpu_busy_s: float
    load: _containers.RepeatedScalarFieldContainer[float]
    memory_available_bytes: int
    disk_free_bytes: int
    runtime: str
    def __init__(self, architecture: _Optional[str] = ..., system: _Optional[str] = ..., kernel: _Optional[str] = ..., cgroups: _Optional[str] = ..., cpus: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., disk_bytes: _Optional[int] = ..., cpu_busy_s: _Optional[float] = ..., load: _Optional[_Iterable[float]] = ..., memory_available_bytes: _Optional[int] = ..., disk_free_bytes: _Optional[int] = ..., runtime: _Optional[str] = ...) -> None: ...
