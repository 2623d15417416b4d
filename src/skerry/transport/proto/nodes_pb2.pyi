from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Desired(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DESIRED_UNSPECIFIED: _ClassVar[Desired]
    DESIRED_RUNNING: _ClassVar[Desired]
    DESIRED_STOPPED: _ClassVar[Desired]
    DESIRED_DESTROYED: _ClassVar[Desired]

class Status(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STATUS_UNSPECIFIED: _ClassVar[Status]
    STATUS_SCHEDULING: _ClassVar[Status]
    STATUS_SCHEDULED: _ClassVar[Status]
    STATUS_STARTING: _ClassVar[Status]
    STATUS_RUNNING: _ClassVar[Status]
    STATUS_STOPPING: _ClassVar[Status]
    STATUS_STOPPED: _ClassVar[Status]
    STATUS_CRASHED: _ClassVar[Status]
    STATUS_DESTROYING: _ClassVar[Status]
    STATUS_TERMINATED: _ClassVar[Status]
    STATUS_FAILED: _ClassVar[Status]
DESIRED_UNSPECIFIED: Desired
DESIRED_RUNNING: Desired
DESIRED_STOPPED: Desired
DESIRED_DESTROYED: Desired
STATUS_UNSPECIFIED: Status
STATUS_SCHEDULING: Status
STATUS_SCHEDULED: Status
STATUS_STARTING: Status
STATUS_RUNNING: Status
STATUS_STOPPING: Status
STATUS_STOPPED: Status
STATUS_CRASHED: Status
STATUS_DESTROYING: Status
STATUS_TERMINATED: Status
STATUS_FAILED: Status

class FromNode(_message.Message):
    __slots__ = ("hello", "reports", "heartbeat", "claims", "volume_reports", "secret_request", "network_reports")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    REPORTS_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    CLAIMS_FIELD_NUMBER: _ClassVar[int]
    VOLUME_REPORTS_FIELD_NUMBER: _ClassVar[int]
    SECRET_REQUEST_FIELD_NUMBER: _ClassVar[int]
    NETWORK_REPORTS_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    reports: Reports
    heartbeat: Heartbeat
    claims: Claims
    volume_reports: VolumeReports
    secret_request: SecretRequest
    network_reports: NetworkReports
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., reports: _Optional[_Union[Reports, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., claims: _Optional[_Union[Claims, _Mapping]] = ..., volume_reports: _Optional[_Union[VolumeReports, _Mapping]] = ..., secret_request: _Optional[_Union[SecretRequest, _Mapping]] = ..., network_reports: _Optional[_Union[NetworkReports, _Mapping]] = ...) -> None: ...

class ToNode(_message.Message):
    __slots__ = ("welcome", "orders", "acknowledged", "open_tunnel", "goodbye", "servers", "heartbeat", "members", "functions", "revocations", "volumes", "secrets", "network")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    ORDERS_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    OPEN_TUNNEL_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    FUNCTIONS_FIELD_NUMBER: _ClassVar[int]
    REVOCATIONS_FIELD_NUMBER: _ClassVar[int]
    VOLUMES_FIELD_NUMBER: _ClassVar[int]
    SECRETS_FIELD_NUMBER: _ClassVar[int]
    NETWORK_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    orders: Orders
    acknowledged: Acknowledged
    open_tunnel: OpenTunnel
    goodbye: Goodbye
    servers: Servers
    heartbeat: Heartbeat
    members: Members
    functions: Functions
    revocations: Revocations
    volumes: Volumes
    secrets: SecretDelivery
    network: Network
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., orders: _Optional[_Union[Orders, _Mapping]] = ..., acknowledged: _Optional[_Union[Acknowledged, _Mapping]] = ..., open_tunnel: _Optional[_Union[OpenTunnel, _Mapping]] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping]] = ..., servers: _Optional[_Union[Servers, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., members: _Optional[_Union[Members, _Mapping]] = ..., functions: _Optional[_Union[Functions, _Mapping]] = ..., revocations: _Optional[_Union[Revocations, _Mapping]] = ..., volumes: _Optional[_Union[Volumes, _Mapping]] = ..., secrets: _Optional[_Union[SecretDelivery, _Mapping]] = ..., network: _Optional[_Union[Network, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("name", "facts", "room", "labels", "subnet", "member", "takes_revocations", "occupied", "makes_claims", "former", "protocol")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    ROOM_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    SUBNET_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    TAKES_REVOCATIONS_FIELD_NUMBER: _ClassVar[int]
    OCCUPIED_FIELD_NUMBER: _ClassVar[int]
    MAKES_CLAIMS_FIELD_NUMBER: _ClassVar[int]
    FORMER_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    name: str
    facts: Facts
    room: Room
    labels: _containers.ScalarMap[str, str]
    subnet: str
    member: Member
    takes_revocations: bool
    occupied: _containers.RepeatedScalarFieldContainer[str]
    makes_claims: bool
    former: _containers.RepeatedScalarFieldContainer[str]
    protocol: int
    def __init__(self, name: _Optional[str] = ..., facts: _Optional[_Union[Facts, _Mapping]] = ..., room: _Optional[_Union[Room, _Mapping]] = ..., labels: _Optional[_Mapping[str, str]] = ..., subnet: _Optional[str] = ..., member: _Optional[_Union[Member, _Mapping]] = ..., takes_revocations: _Optional[bool] = ..., occupied: _Optional[_Iterable[str]] = ..., makes_claims: _Optional[bool] = ..., former: _Optional[_Iterable[str]] = ..., protocol: _Optional[int] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ("node", "name", "area", "remote_area", "address", "memory_mb", "cpus", "server")
    NODE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    AREA_FIELD_NUMBER: _ClassVar[int]
    REMOTE_AREA_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MB_FIELD_NUMBER: _ClassVar[int]
    CPUS_FIELD_NUMBER: _ClassVar[int]
    SERVER_FIELD_NUMBER: _ClassVar[int]
    node: str
    name: str
    area: str
    remote_area: str
    address: str
    memory_mb: int
    cpus: float
    server: bool
    def __init__(self, node: _Optional[str] = ..., name: _Optional[str] = ..., area: _Optional[str] = ..., remote_area: _Optional[str] = ..., address: _Optional[str] = ..., memory_mb: _Optional[int] = ..., cpus: _Optional[float] = ..., server: _Optional[bool] = ...) -> None: ...

class Facts(_message.Message):
    __slots__ = ("architecture", "system", "kernel", "version", "runtime", "userns", "warnings", "disk_pressure", "runs_checks", "features", "devices", "enforcement")
    ARCHITECTURE_FIELD_NUMBER: _ClassVar[int]
    SYSTEM_FIELD_NUMBER: _ClassVar[int]
    KERNEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_FIELD_NUMBER: _ClassVar[int]
    USERNS_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    DISK_PRESSURE_FIELD_NUMBER: _ClassVar[int]
    RUNS_CHECKS_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    ENFORCEMENT_FIELD_NUMBER: _ClassVar[int]
    architecture: str
    system: str
    kernel: str
    version: str
    runtime: str
    userns: bool
    warnings: _containers.RepeatedScalarFieldContainer[str]
    disk_pressure: str
    runs_checks: bool
    features: _containers.RepeatedScalarFieldContainer[str]
    devices: _containers.RepeatedScalarFieldContainer[str]
    enforcement: Enforcement
    def __init__(self, architecture: _Optional[str] = ..., system: _Optional[str] = ..., kernel: _Optional[str] = ..., version: _Optional[str] = ..., runtime: _Optional[str] = ..., userns: _Optional[bool] = ..., warnings: _Optional[_Iterable[str]] = ..., disk_pressure: _Optional[str] = ..., runs_checks: _Optional[bool] = ..., features: _Optional[_Iterable[str]] = ..., devices: _Optional[_Iterable[str]] = ..., enforcement: _Optional[_Union[Enforcement, _Mapping]] = ...) -> None: ...

class Enforcement(_message.Message):
    __slots__ = ("isolation", "cpu", "memory", "processes", "disk", "network", "filesystem", "user_ids", "first_port", "has_mesh_links", "reasons")
    ISOLATION_FIELD_NUMBER: _ClassVar[int]
    CPU_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    PROCESSES_FIELD_NUMBER: _ClassVar[int]
    DISK_FIELD_NUMBER: _ClassVar[int]
    NETWORK_FIELD_NUMBER: _ClassVar[int]
    FILESYSTEM_FIELD_NUMBER: _ClassVar[int]
    USER_IDS_FIELD_NUMBER: _ClassVar[int]
    FIRST_PORT_FIELD_NUMBER: _ClassVar[int]
    HAS_MESH_LINKS_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    isolation: str
    cpu: str
    memory: str
    processes: str
    disk: str
    network: str
    filesystem: str
    user_ids: int
    first_port: int
    has_mesh_links: bool
    reasons: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, isolation: _Optional[str] = ..., cpu: _Optional[str] = ..., memory: _Optional[str] = ..., processes: _Optional[str] = ..., disk: _Optional[str] = ..., network: _Optional[str] = ..., filesystem: _Optional[str] = ..., user_ids: _Optional[int] = ..., first_port: _Optional[int] = ..., has_mesh_links: _Optional[bool] = ..., reasons: _Optional[_Iterable[str]] = ...) -> None: ...

class Room(_message.Message):
    __slots__ = ("cpu_milli", "memory_mb", "disk_gb")
    CPU_MILLI_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MB_FIELD_NUMBER: _ClassVar[int]
    DISK_GB_FIELD_NUMBER: _ClassVar[int]
    cpu_milli: int
    memory_mb: int
    disk_gb: int
    def __init__(self, cpu_milli: _Optional[int] = ..., memory_mb: _Optional[int] = ..., disk_gb: _Optional[int] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("node", "subnet", "report_s", "restart_base_s", "restart_cap_s", "restart_reset_s", "silence_s", "takes_claims", "wants_claims", "protocol", "joins_mesh", "version")
    NODE_FIELD_NUMBER: _ClassVar[int]
    SUBNET_FIELD_NUMBER: _ClassVar[int]
    REPORT_S_FIELD_NUMBER: _ClassVar[int]
    RESTART_BASE_S_FIELD_NUMBER: _ClassVar[int]
    RESTART_CAP_S_FIELD_NUMBER: _ClassVar[int]
    RESTART_RESET_S_FIELD_NUMBER: _ClassVar[int]
    SILENCE_S_FIELD_NUMBER: _ClassVar[int]
    TAKES_CLAIMS_FIELD_NUMBER: _ClassVar[int]
    WANTS_CLAIMS_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    JOINS_MESH_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    node: str
    subnet: str
    report_s: float
    restart_base_s: float
    restart_cap_s: float
    restart_reset_s: float
    silence_s: float
    takes_claims: bool
    wants_claims: bool
    protocol: int
    joins_mesh: bool
    version: str
    def __init__(self, node: _Optional[str] = ..., subnet: _Optional[str] = ..., report_s: _Optional[float] = ..., restart_base_s: _Optional[float] = ..., restart_cap_s: _Optional[float] = ..., restart_reset_s: _Optional[float] = ..., silence_s: _Optional[float] = ..., takes_claims: _Optional[bool] = ..., wants_claims: _Optional[bool] = ..., protocol: _Optional[int] = ..., joins_mesh: _Optional[bool] = ..., version: _Optional[str] = ...) -> None: ...

class Orders(_message.Message):
    __slots__ = ("sequence", "whole", "more", "orders", "gone")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    WHOLE_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    ORDERS_FIELD_NUMBER: _ClassVar[int]
    GONE_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    whole: bool
    more: bool
    orders: _containers.RepeatedCompositeFieldContainer[Order]
    gone: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, sequence: _Optional[int] = ..., whole: _Optional[bool] = ..., more: _Optional[bool] = ..., orders: _Optional[_Iterable[_Union[Order, _Mapping]]] = ..., gone: _Optional[_Iterable[str]] = ...) -> None: ...

class Order(_message.Message):
    __slots__ = ("instance", "generation", "spec", "desired", "egress", "receipt", "request_id", "namespace", "is_isolated", "owner")
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    DESIRED_FIELD_NUMBER: _ClassVar[int]
    EGRESS_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    IS_ISOLATED_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    instance: str
    generation: int
    spec: Spec
    desired: Desired
    egress: str
    receipt: bytes
    request_id: str
    namespace: str
    is_isolated: bool
    owner: str
    def __init__(self, instance: _Optional[str] = ..., generation: _Optional[int] = ..., spec: _Optional[_Union[Spec, _Mapping]] = ..., desired: _Optional[_Union[Desired, str]] = ..., egress: _Optional[str] = ..., receipt: _Optional[bytes] = ..., request_id: _Optional[str] = ..., namespace: _Optional[str] = ..., is_isolated: _Optional[bool] = ..., owner: _Optional[str] = ...) -> None: ...

class Claims(_message.Message):
    __slots__ = ("claims", "revoked")
    CLAIMS_FIELD_NUMBER: _ClassVar[int]
    REVOKED_FIELD_NUMBER: _ClassVar[int]
    claims: _containers.RepeatedCompositeFieldContainer[Claim]
    revoked: _containers.RepeatedCompositeFieldContainer[RevokedCertificate]
    def __init__(self, claims: _Optional[_Iterable[_Union[Claim, _Mapping]]] = ..., revoked: _Optional[_Iterable[_Union[RevokedCertificate, _Mapping]]] = ...) -> None: ...

class Claim(_message.Message):
    __slots__ = ("receipt", "report")
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    receipt: bytes
    report: Report
    def __init__(self, receipt: _Optional[bytes] = ..., report: _Optional[_Union[Report, _Mapping]] = ...) -> None: ...

class Spec(_message.Message):
    __slots__ = ("name", "uri", "kind", "environment", "room", "ports", "restart", "restart_budget", "arguments", "architecture", "constraints", "userns", "image_access", "restart_unlimited", "checks", "spread", "max_per_node", "metric", "node", "cpu_limit", "user", "entrypoint", "stop_signal", "stop_grace_s", "read_only", "shm", "ulimits", "init", "host_name", "extra_hosts", "dns", "mounts", "secrets", "devices", "egress", "egress_granted")
    NAME_FIELD_NUMBER: _ClassVar[int]
    URI_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    ROOM_FIELD_NUMBER: _ClassVar[int]
    PORTS_FIELD_NUMBER: _ClassVar[int]
    RESTART_FIELD_NUMBER: _ClassVar[int]
    RESTART_BUDGET_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    ARCHITECTURE_FIELD_NUMBER: _ClassVar[int]
    CONSTRAINTS_FIELD_NUMBER: _ClassVar[int]
    USERNS_FIELD_NUMBER: _ClassVar[int]
    IMAGE_ACCESS_FIELD_NUMBER: _ClassVar[int]
    RESTART_UNLIMITED_FIELD_NUMBER: _ClassVar[int]
    CHECKS_FIELD_NUMBER: _ClassVar[int]
    SPREAD_FIELD_NUMBER: _ClassVar[int]
    MAX_PER_NODE_FIELD_NUMBER: _ClassVar[int]
    METRIC_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    CPU_LIMIT_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    ENTRYPOINT_FIELD_NUMBER: _ClassVar[int]
    STOP_SIGNAL_FIELD_NUMBER: _ClassVar[int]
    STOP_GRACE_S_FIELD_NUMBER: _ClassVar[int]
    READ_ONLY_FIELD_NUMBER: _ClassVar[int]
    SHM_FIELD_NUMBER: _ClassVar[int]
    ULIMITS_FIELD_NUMBER: _ClassVar[int]
    INIT_FIELD_NUMBER: _ClassVar[int]
    HOST_NAME_FIELD_NUMBER: _ClassVar[int]
    EXTRA_HOSTS_FIELD_NUMBER: _ClassVar[int]
    DNS_FIELD_NUMBER: _ClassVar[int]
    MOUNTS_FIELD_NUMBER: _ClassVar[int]
    SECRETS_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    EGRESS_FIELD_NUMBER: _ClassVar[int]
    EGRESS_GRANTED_FIELD_NUMBER: _ClassVar[int]
    name: str
    uri: str
    kind: str
    environment: _containers.RepeatedScalarFieldContainer[str]
    room: Room
    ports: _containers.RepeatedScalarFieldContainer[str]
    restart: str
    restart_budget: int
    arguments: _containers.RepeatedScalarFieldContainer[str]
    architecture: str
    constraints: _containers.RepeatedScalarFieldContainer[str]
    userns: str
    image_access: str
    restart_unlimited: bool
    checks: _containers.RepeatedCompositeFieldContainer[Check]
    spread: _containers.RepeatedScalarFieldContainer[str]
    max_per_node: int
    metric: Metric
    node: str
    cpu_limit: int
    user: str
    entrypoint: _containers.RepeatedScalarFieldContainer[str]
    stop_signal: str
    stop_grace_s: float
    read_only: bool
    shm: int
    ulimits: _containers.RepeatedScalarFieldContainer[str]
    init: bool
    host_name: str
    extra_hosts: _containers.RepeatedScalarFieldContainer[str]
    dns: _containers.RepeatedScalarFieldContainer[str]
    mounts: _containers.RepeatedCompositeFieldContainer[Mount]
    secrets: _containers.RepeatedCompositeFieldContainer[SecretUse]
    devices: _containers.RepeatedScalarFieldContainer[str]
    egress: str
    egress_granted: bool
    def __init__(self, name: _Optional[str] = ..., uri: _Optional[str] = ..., kind: _Optional[str] = ..., environment: _Optional[_Iterable[str]] = ..., room: _Optional[_Union[Room, _Mapping]] = ..., ports: _Optional[_Iterable[str]] = ..., restart: _Optional[str] = ..., restart_budget: _Optional[int] = ..., arguments: _Optional[_Iterable[str]] = ..., architecture: _Optional[str] = ..., constraints: _Optional[_Iterable[str]] = ..., userns: _Optional[str] = ..., image_access: _Optional[str] = ..., restart_unlimited: _Optional[bool] = ..., checks: _Optional[_Iterable[_Union[Check, _Mapping]]] = ..., spread: _Optional[_Iterable[str]] = ..., max_per_node: _Optional[int] = ..., metric: _Optional[_Union[Metric, _Mapping]] = ..., node: _Optional[str] = ..., cpu_limit: _Optional[int] = ..., user: _Optional[str] = ..., entrypoint: _Optional[_Iterable[str]] = ..., stop_signal: _Optional[str] = ..., stop_grace_s: _Optional[float] = ..., read_only: _Optional[bool] = ..., shm: _Optional[int] = ..., ulimits: _Optional[_Iterable[str]] = ..., init: _Optional[bool] = ..., host_name: _Optional[str] = ..., extra_hosts: _Optional[_Iterable[str]] = ..., dns: _Optional[_Iterable[str]] = ..., mounts: _Optional[_Iterable[_Union[Mount, _Mapping]]] = ..., secrets: _Optional[_Iterable[_Union[SecretUse, _Mapping]]] = ..., devices: _Optional[_Iterable[str]] = ..., egress: _Optional[str] = ..., egress_granted: _Optional[bool] = ...) -> None: ...

class SecretUse(_message.Message):
    __slots__ = ("name", "kind", "target", "variable", "mode", "uid", "gid", "version")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    VARIABLE_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    GID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    name: str
    kind: str
    target: str
    variable: str
    mode: int
    uid: int
    gid: int
    version: int
    def __init__(self, name: _Optional[str] = ..., kind: _Optional[str] = ..., target: _Optional[str] = ..., variable: _Optional[str] = ..., mode: _Optional[int] = ..., uid: _Optional[int] = ..., gid: _Optional[int] = ..., version: _Optional[int] = ...) -> None: ...

class SecretRef(_message.Message):
    __slots__ = ("namespace", "kind", "name", "version")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    kind: str
    name: str
    version: int
    def __init__(self, namespace: _Optional[str] = ..., kind: _Optional[str] = ..., name: _Optional[str] = ..., version: _Optional[int] = ...) -> None: ...

class SecretRequest(_message.Message):
    __slots__ = ("refs",)
    REFS_FIELD_NUMBER: _ClassVar[int]
    refs: _containers.RepeatedCompositeFieldContainer[SecretRef]
    def __init__(self, refs: _Optional[_Iterable[_Union[SecretRef, _Mapping]]] = ...) -> None: ...

class SecretDelivery(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedCompositeFieldContainer[SecretValue]
    def __init__(self, values: _Optional[_Iterable[_Union[SecretValue, _Mapping]]] = ...) -> None: ...

class SecretValue(_message.Message):
    __slots__ = ("ref", "data", "error")
    REF_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ref: SecretRef
    data: bytes
    error: str
    def __init__(self, ref: _Optional[_Union[SecretRef, _Mapping]] = ..., data: _Optional[bytes] = ..., error: _Optional[str] = ...) -> None: ...

class Mount(_message.Message):
    __slots__ = ("kind", "path", "source", "read_only", "size", "is_granted", "is_exclusive", "volume")
    KIND_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    READ_ONLY_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    IS_GRANTED_FIELD_NUMBER: _ClassVar[int]
    IS_EXCLUSIVE_FIELD_NUMBER: _ClassVar[int]
    VOLUME_FIELD_NUMBER: _ClassVar[int]
    kind: str
    path: str
    source: str
    read_only: bool
    size: int
    is_granted: bool
    is_exclusive: bool
    volume: str
    def __init__(self, kind: _Optional[str] = ..., path: _Optional[str] = ..., source: _Optional[str] = ..., read_only: _Optional[bool] = ..., size: _Optional[int] = ..., is_granted: _Optional[bool] = ..., is_exclusive: _Optional[bool] = ..., volume: _Optional[str] = ...) -> None: ...

class Volumes(_message.Message):
    __slots__ = ("more", "orders")
    MORE_FIELD_NUMBER: _ClassVar[int]
    ORDERS_FIELD_NUMBER: _ClassVar[int]
    more: bool
    orders: _containers.RepeatedCompositeFieldContainer[VolumeOrder]
    def __init__(self, more: _Optional[bool] = ..., orders: _Optional[_Iterable[_Union[VolumeOrder, _Mapping]]] = ...) -> None: ...

class Network(_message.Message):
    __slots__ = ("more", "whole", "objects", "gone")
    MORE_FIELD_NUMBER: _ClassVar[int]
    WHOLE_FIELD_NUMBER: _ClassVar[int]
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    GONE_FIELD_NUMBER: _ClassVar[int]
    more: bool
    whole: bool
    objects: _containers.RepeatedCompositeFieldContainer[NetworkObject]
    gone: _containers.RepeatedCompositeFieldContainer[NetworkKey]
    def __init__(self, more: _Optional[bool] = ..., whole: _Optional[bool] = ..., objects: _Optional[_Iterable[_Union[NetworkObject, _Mapping]]] = ..., gone: _Optional[_Iterable[_Union[NetworkKey, _Mapping]]] = ...) -> None: ...

class NetworkReports(_message.Message):
    __slots__ = ("objects",)
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    objects: _containers.RepeatedCompositeFieldContainer[NetworkObject]
    def __init__(self, objects: _Optional[_Iterable[_Union[NetworkObject, _Mapping]]] = ...) -> None: ...

class NetworkKey(_message.Message):
    __slots__ = ("kind", "key")
    KIND_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    kind: str
    key: str
    def __init__(self, kind: _Optional[str] = ..., key: _Optional[str] = ...) -> None: ...

class NetworkObject(_message.Message):
    __slots__ = ("kind", "key", "value")
    KIND_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    kind: str
    key: str
    value: bytes
    def __init__(self, kind: _Optional[str] = ..., key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...

class VolumeOrder(_message.Message):
    __slots__ = ("id", "name", "namespace", "size_gb", "generation", "may_create", "is_deleted", "receipt", "request_id")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    SIZE_GB_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    MAY_CREATE_FIELD_NUMBER: _ClassVar[int]
    IS_DELETED_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    namespace: str
    size_gb: int
    generation: int
    may_create: bool
    is_deleted: bool
    receipt: bytes
    request_id: str
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., namespace: _Optional[str] = ..., size_gb: _Optional[int] = ..., generation: _Optional[int] = ..., may_create: _Optional[bool] = ..., is_deleted: _Optional[bool] = ..., receipt: _Optional[bytes] = ..., request_id: _Optional[str] = ...) -> None: ...

class VolumeReports(_message.Message):
    __slots__ = ("reports",)
    REPORTS_FIELD_NUMBER: _ClassVar[int]
    reports: _containers.RepeatedCompositeFieldContainer[VolumeReport]
    def __init__(self, reports: _Optional[_Iterable[_Union[VolumeReport, _Mapping]]] = ...) -> None: ...

class VolumeReport(_message.Message):
    __slots__ = ("id", "generation", "is_ready", "is_gone", "reason", "used_bytes", "capacity_bytes", "receipt")
    ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    IS_READY_FIELD_NUMBER: _ClassVar[int]
    IS_GONE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_BYTES_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    id: str
    generation: int
    is_ready: bool
    is_gone: bool
    reason: str
    used_bytes: int
    capacity_bytes: int
    receipt: bytes
    def __init__(self, id: _Optional[str] = ..., generation: _Optional[int] = ..., is_ready: _Optional[bool] = ..., is_gone: _Optional[bool] = ..., reason: _Optional[str] = ..., used_bytes: _Optional[int] = ..., capacity_bytes: _Optional[int] = ..., receipt: _Optional[bytes] = ...) -> None: ...

class Check(_message.Message):
    __slots__ = ("role", "method", "port", "path", "service", "command", "interval_s", "timeout_s", "healthy_after", "unhealthy_after", "grace_s")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_S_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    HEALTHY_AFTER_FIELD_NUMBER: _ClassVar[int]
    UNHEALTHY_AFTER_FIELD_NUMBER: _ClassVar[int]
    GRACE_S_FIELD_NUMBER: _ClassVar[int]
    role: str
    method: str
    port: int
    path: str
    service: str
    command: _containers.RepeatedScalarFieldContainer[str]
    interval_s: float
    timeout_s: float
    healthy_after: int
    unhealthy_after: int
    grace_s: float
    def __init__(self, role: _Optional[str] = ..., method: _Optional[str] = ..., port: _Optional[int] = ..., path: _Optional[str] = ..., service: _Optional[str] = ..., command: _Optional[_Iterable[str]] = ..., interval_s: _Optional[float] = ..., timeout_s: _Optional[float] = ..., healthy_after: _Optional[int] = ..., unhealthy_after: _Optional[int] = ..., grace_s: _Optional[float] = ...) -> None: ...

class Metric(_message.Message):
    __slots__ = ("name", "port", "path")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    name: str
    port: int
    path: str
    def __init__(self, name: _Optional[str] = ..., port: _Optional[int] = ..., path: _Optional[str] = ...) -> None: ...

class Reports(_message.Message):
    __slots__ = ("sequence", "reports")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    REPORTS_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    reports: _containers.RepeatedCompositeFieldContainer[Report]
    def __init__(self, sequence: _Optional[int] = ..., reports: _Optional[_Iterable[_Union[Report, _Mapping]]] = ...) -> None: ...

class Report(_message.Message):
    __slots__ = ("instance", "generation", "status", "at", "reason", "exit_code", "restarts", "ip", "usage", "retry_at", "has_passed", "checked_at", "check_message", "metric", "ip6", "previous_exit_code")
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    RESTARTS_FIELD_NUMBER: _ClassVar[int]
    IP_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    RETRY_AT_FIELD_NUMBER: _ClassVar[int]
    HAS_PASSED_FIELD_NUMBER: _ClassVar[int]
    CHECKED_AT_FIELD_NUMBER: _ClassVar[int]
    CHECK_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    METRIC_FIELD_NUMBER: _ClassVar[int]
    IP6_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    instance: str
    generation: int
    status: Status
    at: float
    reason: str
    exit_code: int
    restarts: int
    ip: str
    usage: Room
    retry_at: float
    has_passed: bool
    checked_at: float
    check_message: str
    metric: float
    ip6: str
    previous_exit_code: int
    def __init__(self, instance: _Optional[str] = ..., generation: _Optional[int] = ..., status: _Optional[_Union[Status, str]] = ..., at: _Optional[float] = ..., reason: _Optional[str] = ..., exit_code: _Optional[int] = ..., restarts: _Optional[int] = ..., ip: _Optional[str] = ..., usage: _Optional[_Union[Room, _Mapping]] = ..., retry_at: _Optional[float] = ..., has_passed: _Optional[bool] = ..., checked_at: _Optional[float] = ..., check_message: _Optional[str] = ..., metric: _Optional[float] = ..., ip6: _Optional[str] = ..., previous_exit_code: _Optional[int] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("report_s",)
    REPORT_S_FIELD_NUMBER: _ClassVar[int]
    report_s: float
    def __init__(self, report_s: _Optional[float] = ...) -> None: ...

class Acknowledged(_message.Message):
    __slots__ = ("sequence",)
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    def __init__(self, sequence: _Optional[int] = ...) -> None: ...

class OpenTunnel(_message.Message):
    __slots__ = ("id", "instance", "logs", "exec", "session", "guest", "volume", "cells", "metrics")
    ID_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    LOGS_FIELD_NUMBER: _ClassVar[int]
    EXEC_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    GUEST_FIELD_NUMBER: _ClassVar[int]
    VOLUME_FIELD_NUMBER: _ClassVar[int]
    CELLS_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    id: str
    instance: str
    logs: LogsAsk
    exec: ExecAsk
    session: SessionAsk
    guest: GuestAsk
    volume: VolumeAsk
    cells: CellsAsk
    metrics: MetricsAsk
    def __init__(self, id: _Optional[str] = ..., instance: _Optional[str] = ..., logs: _Optional[_Union[LogsAsk, _Mapping]] = ..., exec: _Optional[_Union[ExecAsk, _Mapping]] = ..., session: _Optional[_Union[SessionAsk, _Mapping]] = ..., guest: _Optional[_Union[GuestAsk, _Mapping]] = ..., volume: _Optional[_Union[VolumeAsk, _Mapping]] = ..., cells: _Optional[_Union[CellsAsk, _Mapping]] = ..., metrics: _Optional[_Union[MetricsAsk, _Mapping]] = ...) -> None: ...

class CellsAsk(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class MetricsAsk(_message.Message):
    __slots__ = ("is_open_metrics",)
    IS_OPEN_METRICS_FIELD_NUMBER: _ClassVar[int]
    is_open_metrics: bool
    def __init__(self, is_open_metrics: _Optional[bool] = ...) -> None: ...

class VolumeAsk(_message.Message):
    __slots__ = ("action", "operation", "volume", "name", "namespace", "size_gb", "generation", "snapshot", "location", "digest", "store")
    ACTION_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    VOLUME_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    SIZE_GB_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    LOCATION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    action: str
    operation: str
    volume: str
    name: str
    namespace: str
    size_gb: int
    generation: int
    snapshot: str
    location: str
    digest: str
    store: ObjectStore
    def __init__(self, action: _Optional[str] = ..., operation: _Optional[str] = ..., volume: _Optional[str] = ..., name: _Optional[str] = ..., namespace: _Optional[str] = ..., size_gb: _Optional[int] = ..., generation: _Optional[int] = ..., snapshot: _Optional[str] = ..., location: _Optional[str] = ..., digest: _Optional[str] = ..., store: _Optional[_Union[ObjectStore, _Mapping]] = ...) -> None: ...

class ObjectStore(_message.Message):
    __slots__ = ("endpoint", "bucket", "region", "access_key", "secret_key", "prefix")
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    REGION_FIELD_NUMBER: _ClassVar[int]
    ACCESS_KEY_FIELD_NUMBER: _ClassVar[int]
    SECRET_KEY_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    endpoint: str
    bucket: str
    region: str
    access_key: str
    secret_key: str
    prefix: str
    def __init__(self, endpoint: _Optional[str] = ..., bucket: _Optional[str] = ..., region: _Optional[str] = ..., access_key: _Optional[str] = ..., secret_key: _Optional[str] = ..., prefix: _Optional[str] = ...) -> None: ...

class SessionAsk(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GuestAsk(_message.Message):
    __slots__ = ("instance", "logs", "exec")
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    LOGS_FIELD_NUMBER: _ClassVar[int]
    EXEC_FIELD_NUMBER: _ClassVar[int]
    instance: str
    logs: LogsAsk
    exec: ExecAsk
    def __init__(self, instance: _Optional[str] = ..., logs: _Optional[_Union[LogsAsk, _Mapping]] = ..., exec: _Optional[_Union[ExecAsk, _Mapping]] = ...) -> None: ...

class LogsAsk(_message.Message):
    __slots__ = ("follow", "tail", "stream", "previous")
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    TAIL_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_FIELD_NUMBER: _ClassVar[int]
    follow: bool
    tail: int
    stream: str
    previous: bool
    def __init__(self, follow: _Optional[bool] = ..., tail: _Optional[int] = ..., stream: _Optional[str] = ..., previous: _Optional[bool] = ...) -> None: ...

class ExecAsk(_message.Message):
    __slots__ = ("arguments", "environment", "user", "folder", "terminal", "takes_input", "rows", "columns")
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    TERMINAL_FIELD_NUMBER: _ClassVar[int]
    TAKES_INPUT_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    arguments: _containers.RepeatedScalarFieldContainer[str]
    environment: _containers.RepeatedScalarFieldContainer[str]
    user: str
    folder: str
    terminal: bool
    takes_input: bool
    rows: int
    columns: int
    def __init__(self, arguments: _Optional[_Iterable[str]] = ..., environment: _Optional[_Iterable[str]] = ..., user: _Optional[str] = ..., folder: _Optional[str] = ..., terminal: _Optional[bool] = ..., takes_input: _Optional[bool] = ..., rows: _Optional[int] = ..., columns: _Optional[int] = ...) -> None: ...

class Servers(_message.Message):
    __slots__ = ("addresses",)
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    addresses: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, addresses: _Optional[_Iterable[str]] = ...) -> None: ...

class Members(_message.Message):
    __slots__ = ("more", "members")
    MORE_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    more: bool
    members: _containers.RepeatedCompositeFieldContainer[Member]
    def __init__(self, more: _Optional[bool] = ..., members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ...) -> None: ...

class Functions(_message.Message):
    __slots__ = ("whole", "more", "functions", "gone")
    WHOLE_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    FUNCTIONS_FIELD_NUMBER: _ClassVar[int]
    GONE_FIELD_NUMBER: _ClassVar[int]
    whole: bool
    more: bool
    functions: _containers.RepeatedCompositeFieldContainer[Function]
    gone: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, whole: _Optional[bool] = ..., more: _Optional[bool] = ..., functions: _Optional[_Iterable[_Union[Function, _Mapping]]] = ..., gone: _Optional[_Iterable[str]] = ...) -> None: ...

class Revocations(_message.Message):
    __slots__ = ("more", "revoked")
    MORE_FIELD_NUMBER: _ClassVar[int]
    REVOKED_FIELD_NUMBER: _ClassVar[int]
    more: bool
    revoked: _containers.RepeatedCompositeFieldContainer[RevokedCertificate]
    def __init__(self, more: _Optional[bool] = ..., revoked: _Optional[_Iterable[_Union[RevokedCertificate, _Mapping]]] = ...) -> None: ...

class RevokedCertificate(_message.Message):
    __slots__ = ("serial", "not_after", "proof")
    SERIAL_FIELD_NUMBER: _ClassVar[int]
    NOT_AFTER_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    serial: str
    not_after: float
    proof: bytes
    def __init__(self, serial: _Optional[str] = ..., not_after: _Optional[float] = ..., proof: _Optional[bytes] = ...) -> None: ...

class Function(_message.Message):
    __slots__ = ("name", "runtime", "memory_mb", "cpu_milli", "max_concurrency", "handler", "code", "image", "environment", "network", "timeout_s", "created_at", "updated_at", "version", "idempotent", "policy", "image_access", "signature", "secrets", "web", "no_template")
    NAME_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MB_FIELD_NUMBER: _ClassVar[int]
    CPU_MILLI_FIELD_NUMBER: _ClassVar[int]
    MAX_CONCURRENCY_FIELD_NUMBER: _ClassVar[int]
    HANDLER_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    NETWORK_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    UPDATED_AT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENT_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    IMAGE_ACCESS_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    SECRETS_FIELD_NUMBER: _ClassVar[int]
    WEB_FIELD_NUMBER: _ClassVar[int]
    NO_TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    name: str
    runtime: str
    memory_mb: int
    cpu_milli: int
    max_concurrency: int
    handler: str
    code: str
    image: str
    environment: _containers.RepeatedScalarFieldContainer[str]
    network: str
    timeout_s: float
    created_at: float
    updated_at: float
    version: int
    idempotent: bool
    policy: str
    image_access: str
    signature: str
    secrets: _containers.RepeatedCompositeFieldContainer[SecretUse]
    web: bool
    no_template: bool
    def __init__(self, name: _Optional[str] = ..., runtime: _Optional[str] = ..., memory_mb: _Optional[int] = ..., cpu_milli: _Optional[int] = ..., max_concurrency: _Optional[int] = ..., handler: _Optional[str] = ..., code: _Optional[str] = ..., image: _Optional[str] = ..., environment: _Optional[_Iterable[str]] = ..., network: _Optional[str] = ..., timeout_s: _Optional[float] = ..., created_at: _Optional[float] = ..., updated_at: _Optional[float] = ..., version: _Optional[int] = ..., idempotent: _Optional[bool] = ..., policy: _Optional[str] = ..., image_access: _Optional[str] = ..., signature: _Optional[str] = ..., secrets: _Optional[_Iterable[_Union[SecretUse, _Mapping]]] = ..., web: _Optional[bool] = ..., no_template: _Optional[bool] = ...) -> None: ...

class CodeAsk(_message.Message):
    __slots__ = ("digest",)
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    digest: str
    def __init__(self, digest: _Optional[str] = ...) -> None: ...

class CodePart(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class Goodbye(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class Frame(_message.Message):
    __slots__ = ("open", "data", "end", "failure", "reach")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    REACH_FIELD_NUMBER: _ClassVar[int]
    open: str
    data: bytes
    end: End
    failure: Failure
    reach: Reach
    def __init__(self, open: _Optional[str] = ..., data: _Optional[bytes] = ..., end: _Optional[_Union[End, _Mapping]] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ..., reach: _Optional[_Union[Reach, _Mapping]] = ...) -> None: ...

class Reach(_message.Message):
    __slots__ = ("node", "tunnel")
    NODE_FIELD_NUMBER: _ClassVar[int]
    TUNNEL_FIELD_NUMBER: _ClassVar[int]
    node: str
    tunnel: OpenTunnel
    def __init__(self, node: _Optional[str] = ..., tunnel: _Optional[_Union[OpenTunnel, _Mapping]] = ...) -> None: ...

class End(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Failure(_message.Message):
    __slots__ = ("code", "message")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("within_s",)
    WITHIN_S_FIELD_NUMBER: _ClassVar[int]
    within_s: float
    def __init__(self, within_s: _Optional[float] = ...) -> None: ...

class DrainProgress(_message.Message):
    __slots__ = ("instances",)
    INSTANCES_FIELD_NUMBER: _ClassVar[int]
    instances: int
    def __init__(self, instances: _Optional[int] = ...) -> None: ...

class LeaveRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LeaveReply(_message.Message):
    __slots__ = ("instances",)
    INSTANCES_FIELD_NUMBER: _ClassVar[int]
    instances: int
    def __init__(self, instances: _Optional[int] = ...) -> None: ...
