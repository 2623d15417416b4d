"""Facts that checks are made of: plain values, gathered by `machine_facts` and `server_facts`."""

from __future__ import annotations

from typing import Any, NamedTuple


class SkerryFacts(NamedTuple):
    """The Skerry of a data folder."""

    folder: str
    failure: str = ""  # why it does not run, or cannot be seen
    role: str = ""
    pid: int = 0
    is_private: bool = False  # it is another user's


class CgroupFacts(NamedTuple):
    kind: str = ""  # unified, hybrid or legacy
    failure: str = ""


class KernelFacts(NamedTuple):
    release: str
    machine: str
    file_systems: frozenset[str]
    max_user_namespaces: int | None  # None: the kernel has none
    has_seccomp: bool
    has_loop_devices: bool
    has_tun: bool
    has_wireguard: bool | None  # in the kernel; None: not known
    descriptors: int  # that a process may open at most


class RootlessFacts(NamedTuple):
    """What this machine gives a node of an ordinary user."""

    user: str
    forbidding: str = ""  # the sysctl with which users make no namespaces: `user.max_user_namespaces=0`
    missing_programs: tuple[str, ...] = ()  # of newuidmap and newgidmap
    missing_ranges: tuple[str, ...] = ()  # files that assign the user no ids
    controllers: frozenset[str] | None = None  # of the delegated cgroup; None: none is
    tun_failure: str = ""  # why /dev/net/tun cannot be opened
    has_network_program: bool = False  # pasta or slirp4netns
    first_port: int = 1024  # that a user may listen on


class RuntimeFacts(NamedTuple):
    """An OCI runtime that is installed."""

    name: str
    version: str
    warning: str  # of its known vulnerabilities


class ProgramFacts(NamedTuple):
    """Programs that Skerry runs: paths by name, empty if not installed; and OCI runtimes."""

    paths: dict[str, str]
    runtimes: tuple[RuntimeFacts, ...]


class PortFacts(NamedTuple):
    """An address that Skerry listens on, or would."""

    setting: str  # http.listen
    address: str
    failure: str = ""  # of an attempt to listen; empty: it is free
    holder: str = ""  # the process that listens there, or has a connection from there
    is_own: bool = False  # that is this Skerry


class DiskFacts(NamedTuple):
    """The disk of the data folder."""

    folder: str
    total_bytes: int
    free_bytes: int
    total_inodes: int
    free_inodes: int
    is_read_only: bool
    needed_bytes: int  # to start


class ClockOffset(NamedTuple):
    """The clock of another machine: ahead of ours by so many seconds, give or take."""

    name: str
    seconds: float
    uncertainty_s: float


class ClockFacts(NamedTuple):
    is_synchronized: bool | None  # None: not known
    has_timedatectl: bool


class Leftover(NamedTuple):
    """What a Skerry made in the kernel. `key` is that of its data folder."""

    kind: str  # link, table, cgroup or folder
    name: str
    key: str
    family: str = ""  # of a table
    has_processes: bool = False


class LeftoverFacts(NamedTuple):
    found: tuple[Leftover, ...]
    running: frozenset[str]  # keys of Skerrys that run
    own: str  # the key of the data folder that was named
    is_complete: bool  # False: only root sees all of it


class EndpointFacts(NamedTuple):
    """An address of the server, as another machine would dial it."""

    address: str
    host: str
    failure: str = ""  # of the TCP connection
    is_unknown_name: bool = False  # the host is a name that has no address
    uses_tls: bool = False
    tls_failure: str = ""
    names: tuple[str, ...] = ()  # of the certificate
    not_after: float | None = None


class AddressFacts(NamedTuple):
    is_loopback: bool  # only this machine can reach it
    endpoints: tuple[EndpointFacts, ...]
    now: float


class EtcdFacts(NamedTuple):
    endpoint: str
    failure: str = ""  # empty: it is healthy


class ServerFacts(NamedTuple):
    """What the server says; None where it did not answer, or refuses us."""

    url: str
    failure: str = ""
    about: dict[str, Any] | None = None
    checks: dict[str, str] | None = None  # of its readiness
    nodes: list[dict[str, Any]] | None = None
    mesh: dict[str, Any] | None = None
    peers: list[dict[str, Any]] | None = None
    routes: list[dict[str, Any]] | None = None


class ContextFacts(NamedTuple):
    path: str
    known: int  # how many there are
    current: str
    failure: str = ""
    is_open_to_others: bool = False
