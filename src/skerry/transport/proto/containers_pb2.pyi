from skerry.transport.proto import cells_pb2 as _cells_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class UserNamespace(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    USER_NAMESPACE_PRIVATE: _ClassVar[UserNamespace]
    USER_NAMESPACE_HOST: _ClassVar[UserNamespace]

class Network(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NETWORK_BRIDGE: _ClassVar[Network]
    NETWORK_NONE: _ClassVar[Network]

class Pull(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PULL_MISSING: _ClassVar[Pull]
    PULL_ALWAYS: _ClassVar[Pull]
    PULL_NEVER: _ClassVar[Pull]

class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STATE_UNSPECIFIED: _ClassVar[State]
    STATE_CREATED: _ClassVar[State]
    STATE_RUNNING: _ClassVar[State]
    STATE_EXITED: _ClassVar[State]
    STATE_REMOVING: _ClassVar[State]
USER_NAMESPACE_PRIVATE: UserNamespace
USER_NAMESPACE_HOST: UserNamespace
NETWORK_BRIDGE: Network
NETWORK_NONE: Network
PULL_MISSING: Pull
PULL_ALWAYS: Pull
PULL_NEVER: Pull
STATE_UNSPECIFIED: State
STATE_CREATED: State
STATE_RUNNING: State
STATE_EXITED: State
STATE_REMOVING: State

class PullRequest(_message.Message):
    __slots__ = ("reference",)
    REFERENCE_FIELD_NUMBER: _ClassVar[int]
    reference: str
    def __init__(self, reference: _Optional[str] = ...) -> None: ...

class PullItem(_message.Message):
    __slots__ = ("progress", "image")
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    progress: Progress
    image: Image
    def __init__(self, progress: _Optional[_Union[Progress, _Mapping]] = ..., image: _Optional[_Union[Image, _Mapping]] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("reference", "message", "layers")
    REFERENCE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    reference: str
    message: str
    layers: _containers.RepeatedCompositeFieldContainer[LayerProgress]
    def __init__(self, reference: _Optional[str] = ..., message: _Optional[str] = ..., layers: _Optional[_Iterable[_Union[LayerProgress, _Mapping]]] = ...) -> None: ...

class LayerProgress(_message.Message):
    __slots__ = ("digest", "state", "bytes", "total")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    digest: str
    state: str
    bytes: int
    total: int
    def __init__(self, digest: _Optional[str] = ..., state: _Optional[str] = ..., bytes: _Optional[int] = ..., total: _Optional[int] = ...) -> None: ...

class ListImagesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Image(_message.Message):
    __slots__ = ("id", "names", "platform", "config", "layers", "bytes", "pulled_at", "manifest", "folder")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    PLATFORM_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    PULLED_AT_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    id: str
    names: _containers.RepeatedScalarFieldContainer[str]
    platform: str
    config: ImageConfig
    layers: _containers.RepeatedScalarFieldContainer[str]
    bytes: int
    pulled_at: float
    manifest: str
    folder: str
    def __init__(self, id: _Optional[str] = ..., names: _Optional[_Iterable[str]] = ..., platform: _Optional[str] = ..., config: _Optional[_Union[ImageConfig, _Mapping]] = ..., layers: _Optional[_Iterable[str]] = ..., bytes: _Optional[int] = ..., pulled_at: _Optional[float] = ..., manifest: _Optional[str] = ..., folder: _Optional[str] = ...) -> None: ...

class ImageConfig(_message.Message):
    __slots__ = ("entrypoint", "command", "environment", "user", "folder", "stop_signal", "ports", "volumes", "labels")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ENTRYPOINT_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    STOP_SIGNAL_FIELD_NUMBER: _ClassVar[int]
    PORTS_FIELD_NUMBER: _ClassVar[int]
    VOLUMES_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    entrypoint: _containers.RepeatedScalarFieldContainer[str]
    command: _containers.RepeatedScalarFieldContainer[str]
    environment: _containers.RepeatedScalarFieldContainer[str]
    user: str
    folder: str
    stop_signal: str
    ports: _containers.RepeatedScalarFieldContainer[str]
    volumes: _containers.RepeatedScalarFieldContainer[str]
    labels: _containers.ScalarMap[str, str]
    def __init__(self, entrypoint: _Optional[_Iterable[str]] = ..., command: _Optional[_Iterable[str]] = ..., environment: _Optional[_Iterable[str]] = ..., user: _Optional[str] = ..., folder: _Optional[str] = ..., stop_signal: _Optional[str] = ..., ports: _Optional[_Iterable[str]] = ..., volumes: _Optional[_Iterable[str]] = ..., labels: _Optional[_Mapping[str, str]] = ...) -> None: ...

class RemoveImageRequest(_message.Message):
    __slots__ = ("image",)
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    image: str
    def __init__(self, image: _Optional[str] = ...) -> None: ...

class RemoveImageReply(_message.Message):
    __slots__ = ("bytes_freed",)
    BYTES_FREED_FIELD_NUMBER: _ClassVar[int]
    bytes_freed: int
    def __init__(self, bytes_freed: _Optional[int] = ...) -> None: ...

class CollectRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CollectReply(_message.Message):
    __slots__ = ("bytes_freed",)
    BYTES_FREED_FIELD_NUMBER: _ClassVar[int]
    bytes_freed: int
    def __init__(self, bytes_freed: _Optional[int] = ...) -> None: ...

class ContainerSpec(_message.Message):
    __slots__ = ("name", "image", "entrypoint", "arguments", "environment", "user", "folder", "host_name", "stop_signal", "stop_grace_s", "cpu_milli", "memory_mb", "disk_gb", "pids", "network", "ports", "read_only", "userns")
    NAME_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    ENTRYPOINT_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    HOST_NAME_FIELD_NUMBER: _ClassVar[int]
    STOP_SIGNAL_FIELD_NUMBER: _ClassVar[int]
    STOP_GRACE_S_FIELD_NUMBER: _ClassVar[int]
    CPU_MILLI_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MB_FIELD_NUMBER: _ClassVar[int]
    DISK_GB_FIELD_NUMBER: _ClassVar[int]
    PIDS_FIELD_NUMBER: _ClassVar[int]
    NETWORK_FIELD_NUMBER: _ClassVar[int]
    PORTS_FIELD_NUMBER: _ClassVar[int]
    READ_ONLY_FIELD_NUMBER: _ClassVar[int]
    USERNS_FIELD_NUMBER: _ClassVar[int]
    name: str
    image: str
    entrypoint: _containers.RepeatedScalarFieldContainer[str]
    arguments: _containers.RepeatedScalarFieldContainer[str]
    environment: _containers.RepeatedScalarFieldContainer[str]
    user: str
    folder: str
    host_name: str
    stop_signal: str
    stop_grace_s: float
    cpu_milli: int
    memory_mb: int
    disk_gb: int
    pids: int
    network: Network
    ports: _containers.RepeatedScalarFieldContainer[str]
    read_only: bool
    userns: UserNamespace
    def __init__(self, name: _Optional[str] = ..., image: _Optional[str] = ..., entrypoint: _Optional[_Iterable[str]] = ..., arguments: _Optional[_Iterable[str]] = ..., environment: _Optional[_Iterable[str]] = ..., user: _Optional[str] = ..., folder: _Optional[str] = ..., host_name: _Optional[str] = ..., stop_signal: _Optional[str] = ..., stop_grace_s: _Optional[float] = ..., cpu_milli: _Optional[int] = ..., memory_mb: _Optional[int] = ..., disk_gb: _Optional[int] = ..., pids: _Optional[int] = ..., network: _Optional[_Union[Network, str]] = ..., ports: _Optional[_Iterable[str]] = ..., read_only: _Optional[bool] = ..., userns: _Optional[_Union[UserNamespace, str]] = ...) -> None: ...

class CreateRequest(_message.Message):
    __slots__ = ("spec", "pull")
    SPEC_FIELD_NUMBER: _ClassVar[int]
    PULL_FIELD_NUMBER: _ClassVar[int]
    spec: ContainerSpec
    pull: Pull
    def __init__(self, spec: _Optional[_Union[ContainerSpec, _Mapping]] = ..., pull: _Optional[_Union[Pull, str]] = ...) -> None: ...

class CreateItem(_message.Message):
    __slots__ = ("progress", "container")
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_FIELD_NUMBER: _ClassVar[int]
    progress: Progress
    container: Container
    def __init__(self, progress: _Optional[_Union[Progress, _Mapping]] = ..., container: _Optional[_Union[Container, _Mapping]] = ...) -> None: ...

class Container(_message.Message):
    __slots__ = ("spec", "image", "state", "created_at", "address", "pid", "started_at", "exit", "reason", "address6")
    SPEC_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    EXIT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ADDRESS6_FIELD_NUMBER: _ClassVar[int]
    spec: ContainerSpec
    image: str
    state: State
    created_at: float
    address: str
    pid: int
    started_at: float
    exit: _cells_pb2.Exit
    reason: str
    address6: str
    def __init__(self, spec: _Optional[_Union[ContainerSpec, _Mapping]] = ..., image: _Optional[str] = ..., state: _Optional[_Union[State, str]] = ..., created_at: _Optional[float] = ..., address: _Optional[str] = ..., pid: _Optional[int] = ..., started_at: _Optional[float] = ..., exit: _Optional[_Union[_cells_pb2.Exit, _Mapping]] = ..., reason: _Optional[str] = ..., address6: _Optional[str] = ...) -> None: ...

class StartRequest(_message.Message):
    __slots__ = ("container",)
    CONTAINER_FIELD_NUMBER: _ClassVar[int]
    container: str
    def __init__(self, container: _Optional[str] = ...) -> None: ...

class StopRequest(_message.Message):
    __slots__ = ("container", "grace_s")
    CONTAINER_FIELD_NUMBER: _ClassVar[int]
    GRACE_S_FIELD_NUMBER: _ClassVar[int]
    container: str
    grace_s: float
    def __init__(self, container: _Optional[str] = ..., grace_s: _Optional[float] = ...) -> None: ...

class RemoveRequest(_message.Message):
    __slots__ = ("container", "force")
    CONTAINER_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    container: str
    force: bool
    def __init__(self, container: _Optional[str] = ..., force: _Optional[bool] = ...) -> None: ...

class RemoveReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetRequest(_message.Message):
    __slots__ = ("container",)
    CONTAINER_FIELD_NUMBER: _ClassVar[int]
    container: str
    def __init__(self, container: _Optional[str] = ...) -> None: ...

class WaitRequest(_message.Message):
    __slots__ = ("container",)
    CONTAINER_FIELD_NUMBER: _ClassVar[int]
    container: str
    def __init__(self, container: _Optional[str] = ...) -> None: ...

class WaitReply(_message.Message):
    __slots__ = ("exit",)
    EXIT_FIELD_NUMBER: _ClassVar[int]
    exit: _cells_pb2.Exit
    def __init__(self, exit: _Optional[_Union[_cells_pb2.Exit, _Mapping]] = ...) -> None: ...

class LogsRequest(_message.Message):
    __slots__ = ("container", "channel", "form", "stdout_after", "stderr_after", "follow", "tail", "previous")
    CONTAINER_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    FORM_FIELD_NUMBER: _ClassVar[int]
    STDOUT_AFTER_FIELD_NUMBER: _ClassVar[int]
    STDERR_AFTER_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    TAIL_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_FIELD_NUMBER: _ClassVar[int]
    container: str
    channel: _cells_pb2.Channel
    form: _cells_pb2.Form
    stdout_after: int
    stderr_after: int
    follow: bool
    tail: int
    previous: bool
    def __init__(self, container: _Optional[str] = ..., channel: _Optional[_Union[_cells_pb2.Channel, str]] = ..., form: _Optional[_Union[_cells_pb2.Form, str]] = ..., stdout_after: _Optional[int] = ..., stderr_after: _Optional[int] = ..., follow: _Optional[bool] = ..., tail: _Optional[int] = ..., previous: _Optional[bool] = ...) -> None: ...

class StatsRequest(_message.Message):
    __slots__ = ("container",)
    CONTAINER_FIELD_NUMBER: _ClassVar[int]
    container: str
    def __init__(self, container: _Optional[str] = ...) -> None: ...

class StatsReply(_message.Message):
    __slots__ = ("usage", "disk_bytes", "disk_limit_bytes", "disk_limit_kind")
    USAGE_FIELD_NUMBER: _ClassVar[int]
    DISK_BYTES_FIELD_NUMBER: _ClassVar[int]
    DISK_LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    DISK_LIMIT_KIND_FIELD_NUMBER: _ClassVar[int]
    usage: _cells_pb2.Usage
    disk_bytes: int
    disk_limit_bytes: int
    disk_limit_kind: str
    def __init__(self, usage: _Optional[_Union[_cells_pb2.Usage, _Mapping]] = ..., disk_bytes: _Optional[int] = ..., disk_limit_bytes: _Optional[int] = ..., disk_limit_kind: _Optional[str] = ...) -> None: ...

class ExecRequest(_message.Message):
    __slots__ = ("start", "input", "end_of_input", "resize", "signal")
    START_FIELD_NUMBER: _ClassVar[int]
    INPUT_FIELD_NUMBER: _ClassVar[int]
    END_OF_INPUT_FIELD_NUMBER: _ClassVar[int]
    RESIZE_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    start: ExecStart
    input: bytes
    end_of_input: EndOfInput
    resize: TerminalSize
    signal: int
    def __init__(self, start: _Optional[_Union[ExecStart, _Mapping]] = ..., input: _Optional[bytes] = ..., end_of_input: _Optional[_Union[EndOfInput, _Mapping]] = ..., resize: _Optional[_Union[TerminalSize, _Mapping]] = ..., signal: _Optional[int] = ...) -> None: ...

class ExecStart(_message.Message):
    __slots__ = ("container", "arguments", "environment", "user", "folder", "terminal", "size", "takes_input")
    CONTAINER_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    TERMINAL_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    TAKES_INPUT_FIELD_NUMBER: _ClassVar[int]
    container: str
    arguments: _containers.RepeatedScalarFieldContainer[str]
    environment: _containers.RepeatedScalarFieldContainer[str]
    user: str
    folder: str
    terminal: bool
    size: TerminalSize
    takes_input: bool
    def __init__(self, container: _Optional[str] = ..., arguments: _Optional[_Iterable[str]] = ..., environment: _Optional[_Iterable[str]] = ..., user: _Optional[str] = ..., folder: _Optional[str] = ..., terminal: _Optional[bool] = ..., size: _Optional[_Union[TerminalSize, _Mapping]] = ..., takes_input: _Optional[bool] = ...) -> None: ...

class TerminalSize(_message.Message):
    __slots__ = ("rows", "columns")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    rows: int
    columns: int
    def __init__(self, rows: _Optional[int] = ..., columns: _Optional[int] = ...) -> None: ...

class EndOfInput(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ExecReply(_message.Message):
    __slots__ = ("output", "errors", "exit_code")
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    output: bytes
    errors: bytes
    exit_code: int
    def __init__(self, output: _Optional[bytes] = ..., errors: _Optional[bytes] = ..., exit_code: _Optional[int] = ...) -> None: ...
