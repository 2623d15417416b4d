from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Executable(_message.Message):
    __slots__ = ("name", "command", "description", "cell_name")
    NAME_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    CELL_NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    command: str
    description: str
    cell_name: str
    def __init__(self, name: _Optional[str] = ..., command: _Optional[str] = ..., description: _Optional[str] = ..., cell_name: _Optional[str] = ...) -> None: ...

class Cell(_message.Message):
    __slots__ = ("name", "cpu_shares")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CPU_SHARES_FIELD_NUMBER: _ClassVar[int]
    name: str
    cpu_shares: int
    def __init__(self, name: _Optional[str] = ..., cpu_shares: _Optional[int] = ...) -> None: ...

class AllocateCellRequest(_message.Message):
    __slots__ = ("cell",)
    CELL_FIELD_NUMBER: _ClassVar[int]
    cell: Cell
    def __init__(self, cell: _Optional[_Union[Cell, _Mapping]] = ...) -> None: ...

class AllocateCellResponse(_message.Message):
    __slots__ = ("cell_name", "cgroup_v2")
    CELL_NAME_FIELD_NUMBER: _ClassVar[int]
    CGROUP_V2_FIELD_NUMBER: _ClassVar[int]
    cell_name: str
    cgroup_v2: bool
    def __init__(self, cell_name: _Optional[str] = ..., cgroup_v2: _Optional[bool] = ...) -> None: ...

class FreeCellRequest(_message.Message):
    __slots__ = ("cell_name",)
    CELL_NAME_FIELD_NUMBER: _ClassVar[int]
    cell_name: str
    def __init__(self, cell_name: _Optional[str] = ...) -> None: ...

class FreeCellResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StartCellRequest(_message.Message):
    __slots__ = ("executable",)
    EXECUTABLE_FIELD_NUMBER: _ClassVar[int]
    executable: Executable
    def __init__(self, executable: _Optional[_Union[Executable, _Mapping]] = ...) -> None: ...

class StartCellResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StopCellRequest(_message.Message):
    __slots__ = ("cell_name", "executable_name")
    CELL_NAME_FIELD_NUMBER: _ClassVar[int]
    EXECUTABLE_NAME_FIELD_NUMBER: _ClassVar[int]
    cell_name: str
    executable_name: str
    def __init__(self, cell_name: _Optional[str] = ..., executable_name: _Optional[str] = ...) -> None: ...

class StopCellResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
