"""Every setting, as one frozen tree with its default, unit, range and meaning.

Read once at the edge (`skerry.cli.settings`) from flags, environment and a TOML file, then passed down.
`docs/settings.md` is generated from here. Nothing below the CLI reads the environment.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Annotated, Any, Final, NamedTuple, get_args

import msgspec
from msgspec import Meta

from skerry.model.alert_settings import AlertSettings
from skerry.model.backup_settings import BackupSettings
from skerry.model.identity_settings import IdentitySettings
from skerry.model.image_settings import ImageSettings
from skerry.model.log_settings import LogSettings
from skerry.model.market_settings import MarketSettings
from skerry.model.mesh_settings import MeshSettings
from skerry.model.route_settings import RouteSettings
from skerry.model.snapshot_settings import SnapshotSettings
from skerry.model.tls_settings import TlsSettings
from skerry.model.trace_settings import TraceSettings


class HttpSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The HTTP listener: REST, functions, market, console."""

    listen: Annotated[str, Meta(description="HOST:PORT; port 0 takes any free one")] = "127.0.0.1:1323"
    socket: Annotated[
        str, Meta(description="Unix socket of the same API; empty: http.sock in the data folder")
    ] = ""
    tls: Annotated[
        bool, Meta(description="Serve HTTPS with a certificate of Skerry's own CA; needed off loopback")
    ] = False
    names: Annotated[
        tuple[str, ...],
        Meta(description="More host names of this server, for its certificate and the Host check"),
    ] = ()
    max_connections: Annotated[
        int, Meta(ge=1, description="Connections served at once on each listener; more get 503")
    ] = 4096
    max_connections_per_source: Annotated[
        int,
        Meta(
            ge=1,
            description="Of those, one local user's or one remote address's (IPv6: one /64 network's); root "
            "and the server's own user have no such limit",
        ),
    ] = 1024
    max_header_bytes: Annotated[int, Meta(ge=1024, description="Request line and headers together")] = 65536
    max_body_bytes: Annotated[int, Meta(ge=1024, description="Request body; routes may set less")] = (
        16 * 1024 * 1024
    )
    header_timeout_s: Annotated[
        float, Meta(gt=0, description="From the first byte to the end of the headers")
    ] = 10.0
    body_timeout_s: Annotated[float, Meta(gt=0, description="Between two parts of a body")] = 30.0
    keep_alive_s: Annotated[float, Meta(gt=0, description="An idle connection is closed after this")] = 75.0
    request_timeout_s: Annotated[
        float,
        Meta(gt=0, description="From the end of the headers to the answer, on routes that do not stream"),
    ] = 60.0


class GrpcSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The gRPC listeners: the TCP port and the unix socket."""

    listen: Annotated[
        str,
        Meta(
            description="HOST:PORT; port 0 takes any free one; empty: port 50052 on the host of `http.listen`"
        ),
    ] = ""
    socket: Annotated[
        str,
        Meta(description="Unix socket; empty: /var/run/aurae/aurae.sock as root, else in the data folder"),
    ] = ""
    max_connections: Annotated[int, Meta(ge=1, description="Connections served at once on each listener")] = (
        1024
    )
    max_connections_per_source: Annotated[
        int,
        Meta(
            ge=1,
            description="Of those, one local user's or one remote address's (IPv6: one /64 network's); root "
            "and the server's own user have no such limit",
        ),
    ] = 256
    socket_mode: Annotated[
        str,
        Meta(
            pattern="^0?[0-7]{3}$",
            description="Permissions of the unix sockets, octal: users that may write can connect, and then "
            "need a certificate, or a token on that of `http.socket`",
        ),
    ] = "600"
    socket_group: Annotated[
        str,
        Meta(description="Group of the unix sockets, by name or number; with it the mode is at least 660"),
    ] = ""
    max_message_bytes: Annotated[int, Meta(ge=1024, description="One message of a client")] = 4 * 1024 * 1024
    handshake_timeout_s: Annotated[
        float, Meta(gt=0, description="For the first byte and for the TLS handshake")
    ] = 10.0


class StoreSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where desired state is kept."""

    url: Annotated[
        str, Meta(description="`sqlite`, or `etcd://HOST:PORT[,HOST:PORT...]`, `etcds://` for TLS")
    ] = "sqlite"
    history: Annotated[int, Meta(ge=100, description="Revisions kept for watchers that fell behind")] = 10_000
    etcd_prefix: Annotated[str, Meta(description="Key prefix of this cloud in etcd")] = "/skerry/"
    etcd_ca: Annotated[str, Meta(description="PEM file: the CA of etcd's certificate")] = ""
    etcd_cert: Annotated[str, Meta(description="PEM file: our client certificate for etcd")] = ""
    etcd_key: Annotated[str, Meta(description="PEM file: its private key")] = ""
    timeout_s: Annotated[float, Meta(gt=0, description="One operation on a remote store")] = 5.0


class EventSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The durable event log."""

    keep: Annotated[int, Meta(ge=100, description="Events kept; the oldest go first")] = 10_000
    max_streams: Annotated[int, Meta(ge=1, description="Open /events streams at once")] = 256
    heartbeat_s: Annotated[
        float, Meta(gt=0, description="A comment is sent on a silent stream after this")
    ] = 15.0


class NodeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """This machine as a node."""

    name: Annotated[str, Meta(description="Name for people; empty: the host name")] = ""
    labels: Annotated[
        tuple[str, ...], Meta(description="Labels of this node, as KEY=VALUE, for constraints of instances")
    ] = ()
    join: Annotated[
        str, Meta(description="URL of the server to join (`skerry node`), or of several with commas")
    ] = ""
    http: Annotated[
        str,
        Meta(
            description="HOST:PORT where a node (`skerry node`) takes calls of functions: HTTPS off "
            "loopback, for the devices of its network; empty: nowhere"
        ),
    ] = ""
    names: Annotated[
        tuple[str, ...],
        Meta(
            description="More names and addresses of this node, for the certificate of `node.http` and the "
            "Host check; those that are not its own need `identity.edge_names` on the server"
        ),
    ] = ()
    tls_cert: Annotated[
        str,
        Meta(
            description="PEM file: certificate (and chain) of `node.http`, read again when it changes; "
            "empty: one of Skerry's own CA"
        ),
    ] = ""
    tls_key: Annotated[str, Meta(description="PEM file: its private key")] = ""
    offline_s: Annotated[
        float,
        Meta(
            ge=0,
            description="Offline tokens are accepted for this long after the last contact with a server; "
            "0: for ever",
        ),
    ] = 7 * 86400.0
    edge: Annotated[
        bool,
        Meta(
            description="Serve routes on this node (`skerry node`), with HAProxy; a server with containers "
            "(`skerry up`) always does when there are routes"
        ),
    ] = False
    cgroup_root: Annotated[
        str,
        Meta(pattern="^[a-z][a-z0-9-]{0,31}$", description="Group that all cells are in, in every hierarchy"),
    ] = "skerry"
    isolation: Annotated[str, Meta(pattern="^(auto|none)$", description="`none`: child processes")] = "auto"
    first_uid: Annotated[int, Meta(ge=1000, description="Cells get users of their own from here on")] = 61184
    max_cells: Annotated[int, Meta(ge=1, le=100_000, description="Cells at once, and users for them")] = 4096
    spare_inits: Annotated[
        int,
        Meta(ge=0, le=64, description="Cell inits made ahead, so that a first start need not wait for one"),
    ] = 3
    stop_grace_s: Annotated[
        float, Meta(ge=0, description="From SIGTERM to SIGKILL when something is stopped")
    ] = 5.0
    free_timeout_s: Annotated[
        float, Meta(gt=0, description="Freeing a cell with all in it takes at most this")
    ] = 30.0
    log_bytes: Annotated[int, Meta(ge=65536, description="Output kept of each stream of an executable")] = (
        4 * 1024 * 1024
    )
    tmp_mb: Annotated[int, Meta(ge=1, description="Size of a cell's private /tmp")] = 64
    device_folders: Annotated[
        tuple[str, ...],
        Meta(description="Folders with CDI files, which describe devices for containers; the last one wins"),
    ] = ("/etc/cdi", "/var/run/cdi")
    cell_paths: Annotated[
        tuple[str, ...],
        Meta(
            description="Absolute paths on this machine that cells and functions see, read-only, besides /usr"
        ),
    ] = ()
    runtime: Annotated[
        str, Meta(description="OCI runtime, a name or a path; empty: the first of runc and crun that works")
    ] = ""
    container_pids: Annotated[int, Meta(ge=1, description="Default limit of processes of a container")] = 4096
    disk_check_s: Annotated[
        float, Meta(gt=0, description="How often the disk usage of containers is checked")
    ] = 5.0
    measured_disk_limits: Annotated[
        bool,
        Meta(
            description="Take containers with a disk limit also where the kernel cannot hold it: they are "
            "measured, and can write more for a while"
        ),
    ] = False


AUTO: Final = "auto"


class NetworkSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Addresses of containers."""

    subnet: Annotated[
        str,
        Meta(
            description="IPv4 network for containers that this node requests from its server; the first "
            "address is the node's; empty: any"
        ),
    ] = ""
    dns: Annotated[
        tuple[str, ...],
        Meta(
            description="Resolvers that are asked for names outside this cloud, by the name server of "
            "containers and by guests; empty: those of this machine"
        ),
    ] = ()
    domain: Annotated[
        str,
        Meta(
            description="Domain of the names of services and instances (`web.shop.skerry`), the same on all "
            "nodes; empty: containers get no name server of their own"
        ),
    ] = "skerry"
    dns_ttl_s: Annotated[
        int, Meta(ge=0, le=300, description="Clients may remember a name of the domain for so long")
    ] = 5
    dns_grace_s: Annotated[
        float,
        Meta(
            ge=0,
            description="When no server has been in touch for so long, unknown names of the domain are "
            "answered with SERVFAIL instead of NXDOMAIN",
        ),
    ] = 15.0
    dns_rate: Annotated[
        int,
        Meta(
            ge=10,
            le=1_000_000,
            description="Work of the name server for one container: so many answers from memory in a second, "
            "fewer of others; ten times that for all containers",
        ),
    ] = 2000
    allow: Annotated[
        tuple[str, ...],
        Meta(
            description="Addresses (10.1.2.3, 10.1.0.0/16) that containers and functions may reach though "
            "they are link-local, a cloud's metadata, or private and closed by `egress`"
        ),
    ] = ()
    ipv6: Annotated[
        str,
        Meta(
            pattern="^(auto|off)$",
            description="IPv6 addresses of containers, and published ports at those of this machine: `auto`, "
            "if this machine has IPv6; or `off`",
        ),
    ] = AUTO
    pool: Annotated[
        int,
        Meta(
            ge=0,
            le=64,
            description="Network namespaces made ahead for each policy, so that a start need not wait",
        ),
    ] = 4


class FleetSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The nodes of this cloud, and where instances are put."""

    subnets: Annotated[
        str, Meta(description="Pool of node subnets (a /24 each): IPv4 network, /8 to /23")
    ] = "10.64.0.0/10"
    service_subnet: Annotated[
        str,
        Meta(
            description="Virtual addresses of services: a private IPv4 network, /12 to /28, that does "
            "not overlap `subnets`"
        ),
    ] = "10.63.0.0/16"
    egress: Annotated[
        tuple[str, ...],
        Meta(
            description="Egress of the instances of a namespace without one of its own, as NAMESPACE=EGRESS: "
            "`all`, `internet`, `mesh` or `none`; `*` is every other namespace"
        ),
    ] = ()
    report_s: Annotated[
        float,
        Meta(
            gt=0,
            description="A node reports at least this often; with more than 200 nodes for each second of it "
            "less often, at most after half of `suspect_after_s`",
        ),
    ] = 2.0
    suspect_after_s: Annotated[
        float, Meta(gt=0, description="A node that is silent for this long takes nothing new")
    ] = 6.0
    lost_after_s: Annotated[
        float, Meta(gt=0, description="What a node runs that is silent for this long is replaced")
    ] = 15.0
    forget_foreign_after_s: Annotated[
        float,
        Meta(
            ge=0,
            description="A node that uses only Kudo's calls is unregistered when it has been lost for this "
            "long; 0: never",
        ),
    ] = 86400.0
    replacements_per_s: Annotated[
        float, Meta(gt=0, description="Instances of lost nodes that are replaced in a second, at most")
    ] = 20.0
    placement: Annotated[
        str, Meta(pattern="^(binpack|spread)$", description="Fill nodes up, or spread over them")
    ] = "binpack"
    spread_copies: Annotated[
        bool,
        Meta(description="Copies of one workload go to nodes with few of them, whatever `placement` says"),
    ] = True
    reserve_percent: Annotated[
        int, Meta(ge=0, le=90, description="Share of a node's resources that is left to the node itself")
    ] = 5
    leader_lease_s: Annotated[
        int, Meta(ge=1, description="Leader lease: another server leads this long after the leader failed")
    ] = 5
    restart_base_s: Annotated[float, Meta(gt=0, description="First pause before a restart; doubles")] = 1.0
    restart_cap_s: Annotated[float, Meta(gt=0, description="Longest pause before a restart")] = 300.0
    restart_reset_s: Annotated[
        float, Meta(gt=0, description="A run that lasts this long begins a new count of restarts")
    ] = 600.0
    drain_s: Annotated[float, Meta(gt=0, description="Time of a drain that names none")] = 300.0
    job_retry_base_s: Annotated[
        float, Meta(gt=0, description="Pause before a job tries again what failed; doubles")
    ] = 10.0
    job_retry_cap_s: Annotated[float, Meta(gt=0, description="Longest pause before a job tries again")] = (
        300.0
    )


class FunctionSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Functions on this node: what their workers may take, and the bounds of a call."""

    memory_mb: Annotated[
        int, Meta(ge=0, description="Memory of all workers together, MB; 0: a quarter of the machine's")
    ] = 0
    cpus: Annotated[float, Meta(ge=0, description="Cores of all busy workers together; 0: all there are")] = (
        0.0
    )
    image_disk_gb: Annotated[
        int,
        Meta(
            ge=0,
            le=2**20,
            description="Disk that a worker of an image may write to, GB, where the node can hold it; 0: any",
        ),
    ] = 1
    area: Annotated[str, Meta(description="Where this node is, as reports name it")] = "local"
    remote_area: Annotated[
        str, Meta(description="Area for calls that this one has no capacity for; empty: none")
    ] = ""
    policy: Annotated[
        str, Meta(description="Routing policy of calls whose function has none: `default`, `qosaware`, ...")
    ] = "default"
    classes: Annotated[
        tuple[str, ...],
        Meta(
            min_length=1,
            description="QoS classes from class 0 on, as NAME:WEIGHT:DEADLINE_S:UTILITY: its share of the "
            "turns when calls wait, and what an answer in time is worth",
        ),
    ] = ("background:1:60:1", "standard:4:5:4", "urgent:16:1:16")
    max_hops: Annotated[
        int, Meta(ge=0, le=16, description="Nodes that a call may be handed on to, one after the other")
    ] = 1
    neighbours: Annotated[
        str,
        Meta(
            description="HOST:PORT for other members; `auto`: where gRPC listens, or on a node where it "
            "reaches its server, on port 7331 or any free one; empty: none"
        ),
    ] = "auto"
    neighbour_address: Annotated[
        str, Meta(description="HOST:PORT by which other nodes reach that, if it is another")
    ] = ""
    ping_s: Annotated[float, Meta(gt=0, description="Members exchange their load this often")] = 5.0
    neighbour_timeout_s: Annotated[
        float, Meta(gt=0, description="A member that does not answer for this long is down")
    ] = 2.0
    repair_s: Annotated[float, Meta(gt=0, description="The code of members is listed this often")] = 5.0
    keep_alive_s: Annotated[float, Meta(gt=0, description="An idle worker is kept this long")] = 600.0
    call_timeout_s: Annotated[
        float, Meta(gt=0, description="A call that names no time of its own is ended after this")
    ] = 300.0
    image_start_s: Annotated[
        float, Meta(gt=0, description="The container of a `custom` function listens within this, or fails")
    ] = 30.0
    fronts: Annotated[
        int, Meta(ge=-1, le=8, description="Processes for connections of callers without TLS; -1: by cores")
    ] = -1
    queue_length: Annotated[int, Meta(ge=0, description="Calls that may wait for a worker; more get 429")] = (
        1024
    )
    queue_wait_s: Annotated[float, Meta(gt=0, description="A call waits at most this long for a worker")] = (
        30.0
    )
    max_functions: Annotated[int, Meta(ge=1, description="Functions that may be registered")] = 100_000
    max_code_bytes: Annotated[int, Meta(ge=1024, description="A function's archive, as it is sent")] = (
        64 * 1024 * 1024
    )
    max_unpacked_bytes: Annotated[int, Meta(ge=1024, description="The same, unpacked")] = 512 * 1024 * 1024
    max_params_bytes: Annotated[int, Meta(ge=1024, description="The body of a call")] = 16 * 1024 * 1024
    max_result_bytes: Annotated[int, Meta(ge=1024, description="What a call may return")] = 16 * 1024 * 1024
    max_output_bytes: Annotated[
        int, Meta(ge=1024, description="What a call may print and have returned; the rest is in the logs")
    ] = 1024 * 1024
    log_bytes: Annotated[int, Meta(ge=64 * 1024, description="Output kept of each function")] = (
        4 * 1024 * 1024
    )
    result_ttl_s: Annotated[
        float, Meta(gt=0, description="The result of an async call is kept this long")
    ] = 1800.0
    max_pending: Annotated[int, Meta(ge=1, description="Async calls that wait or run at once")] = 10_000
    result_bytes: Annotated[int, Meta(ge=1024, description="All kept results of async calls together")] = (
        1024 * 1024 * 1024
    )
    preload: Annotated[
        tuple[str, ...],
        Meta(description="Python modules that every worker has imported when its function is loaded"),
    ] = (
        "asyncio",
        "base64",
        "collections",
        "datetime",
        "functools",
        "json",
        "logging",
        "math",
        "random",
        "re",
    )
    spare_workers: Annotated[
        int,
        Meta(
            ge=0,
            le=64,
            description="Prepared cells, and blank Node.js processes, kept ready once there are functions",
        ),
    ] = 3
    template_memory_mb: Annotated[
        int,
        Meta(
            ge=0,
            description="Memory of all templates of functions, MB, beyond that of workers; 0: no templates",
        ),
    ] = 0
    template_after_ms: Annotated[
        int,
        Meta(
            ge=0, description="A function whose code takes this much processor time to load gets a template"
        ),
    ] = 15
    template_idle_s: Annotated[
        float, Meta(gt=0, description="A template that no worker was started from is kept this long")
    ] = 3600.0
    worker_pids: Annotated[int, Meta(ge=8, description="Processes and threads of a worker")] = 256
    egress: Annotated[
        str,
        Meta(
            pattern="^(all|internet)$",
            description="What functions may reach: `internet` closes private networks and the node to them",
        ),
    ] = "all"
    web_socket: Annotated[
        str,
        Meta(description="Unix socket of web functions for HAProxy; empty: web.sock in the data folder"),
    ] = ""
    web_socket_group: Annotated[
        str,
        Meta(
            description="Group that may connect to it beside root and Skerry's own user, by name or number; "
            "empty, or one that does not exist: nobody"
        ),
    ] = "haproxy"


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole tree."""

    data: Annotated[
        str, Meta(description="Data folder; empty: /var/lib/skerry as root, else ~/.local/share/skerry")
    ] = ""
    stop_timeout_s: Annotated[float, Meta(gt=0, description="A clean stop takes at most this long")] = 10.0
    takeover_wait_s: Annotated[
        float,
        Meta(
            ge=0,
            description="At a takeover, requests that run have this long, while new ones are still served",
        ),
    ] = 30.0
    disk_reserve_mb: Annotated[
        int,
        Meta(
            ge=0, le=65536, description="Disk kept back so that stop and delete work when it is full; 0: none"
        ),
    ] = 16
    log: LogSettings = LogSettings()
    http: HttpSettings = HttpSettings()
    grpc: GrpcSettings = GrpcSettings()
    store: StoreSettings = StoreSettings()
    identity: IdentitySettings = IdentitySettings()
    events: EventSettings = EventSettings()
    node: NodeSettings = NodeSettings()
    images: ImageSettings = ImageSettings()
    network: NetworkSettings = NetworkSettings()
    mesh: MeshSettings = MeshSettings()
    fleet: FleetSettings = FleetSettings()
    functions: FunctionSettings = FunctionSettings()
    market: MarketSettings = MarketSettings()
    snapshots: SnapshotSettings = SnapshotSettings()
    backup: BackupSettings = BackupSettings()
    tls: TlsSettings = TlsSettings()
    routes: RouteSettings = RouteSettings()
    traces: TraceSettings = TraceSettings()
    alerts: AlertSettings = AlertSettings()


class SettingField(NamedTuple):
    """One leaf of the tree: its dotted `key`, the section that it is in, and its default."""

    key: str
    section: type[msgspec.Struct]
    default: Any

    @property
    def type(self) -> Any:
        """Its annotated type."""
        return _types(self.section)[self.key.rpartition(".")[2]]

    @property
    def meta(self) -> Meta:
        return next(extra for extra in get_args(self.type) if isinstance(extra, Meta))

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return "SKERRY_" + self.key.replace(".", "_").upper()


def setting_fields() -> dict[str, SettingField]:
    """Every setting by its dotted key, in the order of the tree."""
    return {field.key: field for field in _leaves(Settings(), "")}


def _leaves(tree: msgspec.Struct, prefix: str) -> Iterator[SettingField]:
    for name in tree.__struct_fields__:
        default, key = getattr(tree, name), f"{prefix}{name}"
        if isinstance(default, msgspec.Struct):
            yield from _leaves(default, f"{key}.")
        else:
            yield SettingField(key, type(tree), default)


@functools.cache
def _types(section: type[msgspec.Struct]) -> dict[str, Any]:
    # Asked of single sections: to evaluate the annotations of all is a large part of a start.
    return {field.name: field.type for field in msgspec.structs.fields(section)}
