from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CellServiceAllocateRequest(_message.Message):
    __slots__ = ("cell",)
    CELL_FIELD_NUMBER: _ClassVar[int]
    cell: Cell
    def __init__(self, cell: _Optional[_Union[Cell, _Mapping]] = ...) -> None: ...

class CellServiceAllocateResponse(_message.Message):
    __slots__ = ("cell_name", "cgroup_v2")
    CELL_NAME_FIELD_NUMBER: _ClassVar[int]
    CGROUP_V2_FIELD_NUMBER: _ClassVar[int]
    cell_name: str
    cgroup_v2: bool
    def __init__(self, cell_name: _Optional[str] = ..., cgroup_v2: _Optional[bool] = ...) -> None: ...

class CellServiceFreeRequest(_message.Message):
    __slots__ = ("cell_name",)
    CELL_NAME_FIELD_NUMBER: _ClassVar[int]
    cell_name: str
    def __init__(self, cell_name: _Optional[str] = ...) -> None: ...

class CellServiceFreeResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CellServiceStartRequest(_message.Message):
    __slots__ = ("cell_name", "executable", "uid", "gid")
    CELL_NAME_FIELD_NUMBER: _ClassVar[int]
    EXECUTABLE_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    GID_FIELD_NUMBER: _ClassVar[int]
    cell_name: str
    executable: Executable
    uid: int
    gid: int
    def __init__(self, cell_name: _Optional[str] = ..., executable: _Optional[_Union[Executable, _Mapping]] = ..., uid: _Optional[int] = ..., gid: _Optional[int] = ...) -> None: ...

class CellServiceStartResponse(_message.Message):
    __slots__ = ("pid", "uid", "gid")
    PID_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    GID_FIELD_NUMBER: _ClassVar[int]
    pid: int
    uid: int
    gid: int
    def __init__(self, pid: _Optional[int] = ..., uid: _Optional[int] = ..., gid: _Optional[int] = ...) -> None: ...

class CellServiceStopRequest(_message.Message):
    __slots__ = ("cell_name", "executable_name")
    CELL_NAME_FIELD_NUMBER: _ClassVar[int]
    EXECUTABLE_NAME_FIELD_NUMBER: _ClassVar[int]
    cell_name: str
    executable_name: str
    def __init__(self, cell_name: _Optional[str] = ..., executable_name: _Optional[str] = ...) -> None: ...

class CellServiceStopResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CellServiceListRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CellServiceListResponse(_message.Message):
    __slots__ = ("cells",)
    CELLS_FIELD_NUMBER: _ClassVar[int]
    cells: _containers.RepeatedCompositeFieldContainer[CellGraphNode]
    def __init__(self, cells: _Optional[_Iterable[_Union[CellGraphNode, _Mapping]]] = ...) -> None: ...

class CellGraphNode(_message.Message):
    __slots__ = ("cell", "children")
    CELL_FIELD_NUMBER: _ClassVar[int]
    CHILDREN_FIELD_NUMBER: _ClassVar[int]
    cell: Cell
    children: _containers.RepeatedCompositeFieldContainer[CellGraphNode]
    def __init__(self, cell: _Optional[_Union[Cell, _Mapping]] = ..., children: _Optional[_Iterable[_Union[CellGraphNode, _Mapping]]] = ...) -> None: ...

class Cell(_message.Message):
    __slots__ = ("name", "cpu", "cpuset", "memory", "isolate_process", "isolate_network")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CPU_FIELD_NUMBER: _ClassVar[int]
    CPUSET_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    ISOLATE_PROCESS_FIELD_NUMBER: _ClassVar[int]
    ISOLATE_NETWORK_FIELD_NUMBER: _ClassVar[int]
    name: str
    cpu: CpuController
    cpuset: CpusetController
    memory: MemoryController
    isolate_process: bool
    isolate_network: bool
    def __init__(self, name: _Optional[str] = ..., cpu: _Optional[_Union[CpuController, _Mapping]] = ..., cpuset: _Optional[_Union[CpusetController, _Mapping]] = ..., memory: _Optional[_Union[MemoryController, _Mapping]] = ..., isolate_process: _Optional[bool] = ..., isolate_network: _Optional[bool] = ...) -> None: ...

class Executable(_message.Message):
    __slots__ = ("name", "command", "description")
    NAME_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    name: str
    command: str
    description: str
    def __init__(self, name: _Optional[str] = ..., command: _Optional[str] = ..., description: _Optional[str] = ...) -> None: ...

class CpuController(_message.Message):
    __slots__ = ("weight", "max", "period")
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    MAX_FIELD_NUMBER: _ClassVar[int]
    PERIOD_FIELD_NUMBER: _ClassVar[int]
    weight: int
    max: int
    period: int
    def __init__(self, weight: _Optional[int] = ..., max: _Optional[int] = ..., period: _Optional[int] = ...) -> None: ...

class CpusetController(_message.Message):
    __slots__ = ("cpus", "mems")
    CPUS_FIELD_NUMBER: _ClassVar[int]
    MEMS_FIELD_NUMBER: _ClassVar[int]
    cpus: str
    mems: str
    def __init__(self, cpus: _Optional[str] = ..., mems: _Optional[str] = ...) -> None: ...

class MemoryController(_message.Message):
    __slots__ = ("min", "low", "high", "max")
    MIN_FIELD_NUMBER: _ClassVar[int]
    LOW_FIELD_NUMBER: _ClassVar[int]
    HIGH_FIELD_NUMBER: _ClassVar[int]
    MAX_FIELD_NUMBER: _ClassVar[int]
    min: int
    low: int
    high: int
    max: int
    def __init__(self, min: _Optional[int] = ..., low: _Optional[int] = ..., high: _Optional[int] = ..., max: _Optional[int] = ...) -> None: ...
