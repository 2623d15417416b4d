"""Container options: how the container of an instance is run, beyond its image, resources and ports.

Part of `skerry.model.workloads.InstanceSpec`; the node of the instance applies them
(`skerry.node.agent.instances.container_specs`). Empty fields mean the image's value or the node's setting.
Validation only: whether a user or a program exists is known where the image is.
"""

from __future__ import annotations

import enum
import ipaddress
import re
from typing import Final

import msgspec

from skerry.model import errors, ids
from skerry.model.resources import MAX_AMOUNT, Megabytes

MAX_ENTRYPOINT = 100
MAX_EXTRA_HOSTS = 64
MAX_DNS_SERVERS = 3  # the C library reads no more
MAX_STOP_GRACE_S = 86_400
# The limits that can be set. Without `core`, since a dump would go where the node's settings say, and without
# those that give priority over others on the machine (`nice`, `rtprio`, `rttime`).
ULIMIT_NAMES: Final = (
    "as",
    "cpu",
    "data",
    "fsize",
    "locks",
    "memlock",
    "msgqueue",
    "nofile",
    "nproc",
    "rss",
    "sigpending",
    "stack",
)
MAX_OPEN_FILES = 1_048_576  # the kernel's usual `fs.nr_open`: more cannot be set
UNLIMITED = 2**64 - 1
_ULIMIT: Final = re.compile(r"([a-z]+)=(-1|unlimited|[0-9]{1,19})(?::(-1|unlimited|[0-9]{1,19}))?")
_HOST_NAME: Final = re.compile(r"(?!-)[a-zA-Z0-9-]{1,63}(?<!-)")
_LOOKUP_NAME: Final = re.compile(r"(?=.{1,253}$)[a-zA-Z0-9_-]{1,63}(?:\.[a-zA-Z0-9_-]{1,63})*")
_SIGNAL: Final = re.compile(r"(?:SIG)?[A-Z0-9+-]{2,12}|[1-9][0-9]?")


class NodeFeature(enum.StrEnum):
    """What not every node can do; each reports what it can."""

    OPTIONS = "options"  # it knows the options here, and cpu limits beside a share; nodes of before do not
    INIT = "init"  # it has an init program for containers
    FUNCTION_NAMESPACES = "function-namespaces"  # it knows functions outside the default namespace
    SECRETS = "secrets"  # it takes values of secrets and configs
    DEVICES = "devices"  # it gives devices to containers, by CDI
    VOLUMES = "volumes"  # it has volumes, and mounts of other kinds
    SNAPSHOTS = "snapshots"  # it takes snapshots of volumes, restores and moves them
    NETWORK = "network"  # it takes network objects
    WEB_FUNCTIONS = "web-functions"  # it runs functions that take HTTP requests
    CELLS = "cells"  # it lists its cells
    POLICIES = "policies"  # it isolates namespaces, and knows the egress `mesh` and `none`
    EDGE = "edge"  # it serves routes
    PREVIOUS_LOGS = "previous-logs"  # it keeps the logs of the run before the last one
    METRICS = "metrics"  # it sends its metrics to the server that asks for them


class Ulimit(msgspec.Struct, frozen=True):
    """What each process is held to of one kind; `UNLIMITED` is no limit."""

    name: str
    soft: int
    hard: int

    def __post_init__(self) -> None:
        if self.name not in ULIMIT_NAMES:
            raise errors.Invalid(
                f"{self.name[:20]!r} is no ulimit that can be set; there are {', '.join(ULIMIT_NAMES)}",
                field="ulimits",
            )
        if not 0 <= self.soft <= self.hard <= UNLIMITED:
            raise errors.Invalid(
                f"the soft limit of {self.name} cannot be above the hard one", field="ulimits"
            )
        if self.name == "nofile" and self.hard > MAX_OPEN_FILES:
            raise errors.Invalid(f"nofile is at most {MAX_OPEN_FILES}", field="ulimits")

    def __str__(self) -> str:
        soft, hard = ("unlimited" if each == UNLIMITED else str(each) for each in (self.soft, self.hard))
        return f"{self.name}={soft}" if soft == hard else f"{self.name}={soft}:{hard}"

    @classmethod
    def parse(cls, text: str) -> Ulimit:
        """`nofile=4096`, or with a soft and a hard limit `nofile=1024:4096`; `unlimited` is none."""
        form = _ULIMIT.fullmatch(text)
        if form is None:
            raise errors.Invalid(
                f"{text[:40]!r} is no ulimit; write NAME=LIMIT or NAME=SOFT:HARD, as in nofile=1024:4096",
                field="ulimits",
            )
        return cls(form[1], _limit(form[2]), _limit(form[3] or form[2]))


class HostAlias(msgspec.Struct, frozen=True):
    """A name that leads to an address, as a line of /etc/hosts has it."""

    name: str
    address: str

    def __post_init__(self) -> None:
        if not _LOOKUP_NAME.fullmatch(self.name):
            raise errors.Invalid(f"{self.name[:40]!r} is no host name", field="extra_hosts")
        try:
            ipaddress.ip_address(self.address)
        except ValueError:
            raise errors.Invalid(f"{self.address[:40]!r} is no IP address", field="extra_hosts") from None
        if "%" in self.address:
            raise errors.Invalid("an address of extra_hosts has no zone", field="extra_hosts")

    def __str__(self) -> str:
        return f"{self.name}:{self.address}"

    @classmethod
    def parse(cls, text: str) -> HostAlias:
        """`db:10.0.0.7`, `db:2001:db8::7`."""
        name, colon, address = text.partition(":")
        if not colon:
            raise errors.Invalid(
                f"{text[:40]!r} is no extra host; write NAME:ADDRESS, as in db:10.0.0.7", field="extra_hosts"
            )
        return cls(name, address)


class ContainerOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a container is run. Defaults are not stored."""

    user: str = ""  # USER[:GROUP], names or numbers; empty: the image's
    entrypoint: tuple[str, ...] = ()  # replaces the image's, and its command with it
    stop_signal: str = ""  # empty: the image's, or SIGTERM
    stop_grace_s: float | None = None  # between the stop signal and SIGKILL; None: the node's setting
    read_only: bool = False  # the root file system
    shm: Megabytes = Megabytes(0)  # size of /dev/shm; 0: the usual 64
    ulimits: tuple[Ulimit, ...] = ()
    init: bool = False  # process 1 is an init that reaps, and passes signals on to the program
    host_name: str = ""  # empty: made of the instance's name
    extra_hosts: tuple[HostAlias, ...] = ()
    dns: tuple[str, ...] = ()  # IPv4 addresses of name servers; empty: the node's

    def __post_init__(self) -> None:
        ids.check_display_text(self.user, "user")
        if len(self.entrypoint) > MAX_ENTRYPOINT or any("\0" in word for word in self.entrypoint):
            raise errors.Invalid(
                f"entrypoint must be at most {MAX_ENTRYPOINT} words without NUL bytes", field="entrypoint"
            )
        if self.entrypoint and not self.entrypoint[0]:
            raise errors.Invalid("entrypoint begins with the program to run", field="entrypoint")
        if self.stop_signal and not _SIGNAL.fullmatch(self.stop_signal):
            raise errors.Invalid(
                "stop_signal must be a name such as SIGTERM, or a number", field="stop_signal"
            )
        if self.stop_grace_s is not None and not 0 <= self.stop_grace_s <= MAX_STOP_GRACE_S:
            raise errors.Invalid(
                f"stop_grace_s must be 0 to {MAX_STOP_GRACE_S} seconds", field="stop_grace_s"
            )
        if not 0 <= self.shm <= MAX_AMOUNT:
            raise errors.Invalid(f"shm must be 0 to {MAX_AMOUNT} MB", field="shm")
        if len({limit.name for limit in self.ulimits}) < len(self.ulimits):
            raise errors.Invalid("ulimits has a name twice", field="ulimits")
        if self.host_name and not _HOST_NAME.fullmatch(self.host_name):
            raise errors.Invalid("hostname must be 1 to 63 letters, digits or '-'", field="hostname")
        if len(self.extra_hosts) > MAX_EXTRA_HOSTS:
            raise errors.Invalid(f"at most {MAX_EXTRA_HOSTS} extra hosts", field="extra_hosts")
        if len(self.dns) > MAX_DNS_SERVERS:
            raise errors.Invalid(f"at most {MAX_DNS_SERVERS} name servers", field="dns")
        for server in self.dns:
            _check_dns(server)


NO_OPTIONS: Final = ContainerOptions()


def _limit(text: str) -> int:
    return UNLIMITED if text in ("-1", "unlimited") else int(text)


def _check_dns(server: str) -> None:
    try:
        address = ipaddress.IPv4Address(server)
    except ValueError:
        address = None
    if address is None or address.is_loopback or address.is_unspecified:
        raise errors.Invalid(
            f"{server[:40]!r} is no name server for containers: it must be an IPv4 address, and not one of "
            "loopback, which is each container's own",
            field="dns",
        )
