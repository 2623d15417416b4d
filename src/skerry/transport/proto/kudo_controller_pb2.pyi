from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Status(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RUNNING: _ClassVar[Status]
    STARTING: _ClassVar[Status]
    STOPPED: _ClassVar[Status]
    STOPPING: _ClassVar[Status]
    DESTROYING: _ClassVar[Status]
    TERMINATED: _ClassVar[Status]
    CRASHED: _ClassVar[Status]
    FAILED: _ClassVar[Status]
    SCHEDULING: _ClassVar[Status]
    SCHEDULED: _ClassVar[Status]

class Type(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CONTAINER: _ClassVar[Type]
RUNNING: Status
STARTING: Status
STOPPED: Status
STOPPING: Status
DESTROYING: Status
TERMINATED: Status
CRASHED: Status
FAILED: Status
SCHEDULING: Status
SCHEDULED: Status
CONTAINER: Type

class InstanceStatus(_message.Message):
    __slots__ = ("id", "status", "description", "resource", "exit_code")
    ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    id: str
    status: Status
    description: str
    resource: Resource
    exit_code: int
    def __init__(self, id: _Optional[str] = ..., status: _Optional[_Union[Status, str]] = ..., description: _Optional[str] = ..., resource: _Optional[_Union[Resource, _Mapping]] = ..., exit_code: _Optional[int] = ...) -> None: ...

class NodeStatus(_message.Message):
    __slots__ = ("id", "status", "description", "resource", "instances")
    ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    INSTANCES_FIELD_NUMBER: _ClassVar[int]
    id: str
    status: Status
    description: str
    resource: Resource
    instances: _containers.RepeatedCompositeFieldContainer[Instance]
    def __init__(self, id: _Optional[str] = ..., status: _Optional[_Union[Status, str]] = ..., description: _Optional[str] = ..., resource: _Optional[_Union[Resource, _Mapping]] = ..., instances: _Optional[_Iterable[_Union[Instance, _Mapping]]] = ...) -> None: ...

class Instance(_message.Message):
    __slots__ = ("id", "name", "type", "status", "uri", "environnement", "resource", "ports", "ip")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    URI_FIELD_NUMBER: _ClassVar[int]
    ENVIRONNEMENT_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    PORTS_FIELD_NUMBER: _ClassVar[int]
    IP_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    type: Type
    status: Status
    uri: str
    environnement: _containers.RepeatedScalarFieldContainer[str]
    resource: Resource
    ports: _containers.RepeatedScalarFieldContainer[str]
    ip: str
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., type: _Optional[_Union[Type, str]] = ..., status: _Optional[_Union[Status, str]] = ..., uri: _Optional[str] = ..., environnement: _Optional[_Iterable[str]] = ..., resource: _Optional[_Union[Resource, _Mapping]] = ..., ports: _Optional[_Iterable[str]] = ..., ip: _Optional[str] = ...) -> None: ...

class ResourceSummary(_message.Message):
    __slots__ = ("cpu", "memory", "disk")
    CPU_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    DISK_FIELD_NUMBER: _ClassVar[int]
    cpu: int
    memory: int
    disk: int
    def __init__(self, cpu: _Optional[int] = ..., memory: _Optional[int] = ..., disk: _Optional[int] = ...) -> None: ...

class Resource(_message.Message):
    __slots__ = ("max", "usage")
    MAX_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    max: ResourceSummary
    usage: ResourceSummary
    def __init__(self, max: _Optional[_Union[ResourceSummary, _Mapping]] = ..., usage: _Optional[_Union[ResourceSummary, _Mapping]] = ...) -> None: ...
