"""Containers: an image run in a cell of its own, with its own files, address and ports.

A `ContainerSpec` is what to run, a `ContainerView` its present state. For many on many machines there are
workloads and instances (`skerry.model.workloads`); `skerry.node.containers` creates and runs containers.
"""

from __future__ import annotations

import enum
import re

import msgspec

from skerry.model import cells, errors, ids, ports, secrets, workloads
from skerry.model.cells import CellUsage, ExitStatus
from skerry.model.container_options import HostAlias, Ulimit
from skerry.model.devices import check_device
from skerry.model.images import ImageId
from skerry.model.mounts import Mount
from skerry.model.network import OPEN_ACCESS, Ingress, NetworkAccess
from skerry.model.ports import PortMapping
from skerry.model.resources import MAX_AMOUNT, NO_RESOURCES, Megabytes, Millicores, Resources
from skerry.model.secrets import SecretRef, SecretUse
from skerry.model.workloads import UserNamespaceMode

# How the names of containers begin that are no client's.
INSTANCE_PREFIX = "i-"
FUNCTION_PREFIX = "fn-"
GUEST_PREFIX = "g-"
OWN_PREFIXES = (INSTANCE_PREFIX, FUNCTION_PREFIX, GUEST_PREFIX)

MAX_ARGUMENTS = 1000
_MAX_ARGUMENTS_BYTES = 128 * 1024
_MAX_NAME = 63
_HOST_NAME = re.compile(r"(?!-)[a-zA-Z0-9-]{1,63}(?<!-)")
_NAME = re.compile(r"(?!-)[a-z0-9-]{1,63}(?<!-)")
_SIGNAL = re.compile(r"(?:SIG)?[A-Z0-9+]{2,12}|[1-9][0-9]?")


class NetworkMode(enum.StrEnum):
    """How a container reaches others."""

    BRIDGE = "bridge"  # an address of its own, and the way out through the node
    NONE = "none"  # its own loopback and nothing else


class ContainerSpec(msgspec.Struct, frozen=True):
    """What to run. Empty fields mean the image's value."""

    name: str  # also the name of its cell, and of its host unless another is given
    image: str  # any reference, see `skerry.node.images.references`
    entrypoint: tuple[str, ...] = ()  # replaces the image's, and its command with it
    arguments: tuple[str, ...] = ()  # replace the image's command
    environment: tuple[str, ...] = ()  # KEY=VALUE, over the image's
    user: str = ""
    folder: str = ""
    host_name: str = ""
    stop_signal: str = ""
    stop_grace_s: float | None = None  # None: the node's setting
    resources: Resources = msgspec.field(
        default=NO_RESOURCES, name="room"
    )  # a part that is 0 has no limit of its own
    pids: int = 0  # 0: the node's setting
    network: NetworkMode = NetworkMode.BRIDGE
    ports: tuple[PortMapping, ...] = ()
    read_only: bool = False  # no writable layer: the root cannot be changed
    userns: UserNamespaceMode = UserNamespaceMode.PRIVATE
    inside: str = (
        ""  # the cell that its own is made in; empty: at the top. Of no contract: for this node's own use
    )
    # A guest's: it reaches neither other containers nor the node. As `inside`.
    is_isolated: bool = msgspec.field(default=False, name="is_apart")
    shared_disk: int = 0  # GB that all containers of guests in the same cell have together. As `inside`
    ingress: Ingress = Ingress.ALL  # which sources may connect to its address. As `inside`
    cpu_limit: Millicores | None = None  # None: `resources.cpu`; 0: no limit
    shm: Megabytes = Megabytes(0)  # size of /dev/shm; 0: as usual
    ulimits: tuple[Ulimit, ...] = ()  # beside the usual ones, and instead of those of the same name
    init: bool = False  # process 1 is an init program of the node
    extra_hosts: tuple[HostAlias, ...] = ()
    dns: tuple[str, ...] = ()  # empty: the node's name servers
    secrets: tuple[SecretUse, ...] = ()  # and configs
    namespace: str = ""  # of these
    devices: tuple[str, ...] = ()  # by their CDI names: `nvidia.com/gpu=0`
    mounts: tuple[Mount, ...] = ()

    @property
    def secret_refs(self) -> tuple[SecretRef, ...]:
        """The values that it needs."""
        namespace = ids.Namespace(self.namespace)
        return tuple(dict.fromkeys(use.ref(namespace) for use in self.secrets))

    @property
    def cpu_quota(self) -> Millicores | None:
        """What the kernel holds it to; None: nothing."""
        return (self.resources.cpu if self.cpu_limit is None else self.cpu_limit) or None

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise errors.Invalid(
                f"container name {self.name[:_MAX_NAME]!r} must be 1 to {_MAX_NAME} of a-z, 0-9 and '-', not "
                "beginning or ending with '-'",
                field="name",
            )
        if not 0 < len(self.image) <= 4096 or not self.image.isprintable():
            raise errors.Invalid("image must be a reference, such as `example.org/web:1.2`", field="image")
        for field, words in (("entrypoint", self.entrypoint), ("arguments", self.arguments)):
            if len(words) > MAX_ARGUMENTS or sum(map(len, words)) > _MAX_ARGUMENTS_BYTES:
                raise errors.Invalid(f"{field} is too long; at most {MAX_ARGUMENTS} words", field=field)
            if any("\0" in word for word in words):
                raise errors.Invalid(f"{field} cannot hold a NUL byte", field=field)
        workloads.check_environment(self.environment)
        secrets.check_uses(self.secrets, self.environment)
        ids.check_display_text(self.user, "user")
        if self.folder and (not self.folder.startswith("/") or "\0" in self.folder):
            raise errors.Invalid("folder must be an absolute path", field="folder")
        if self.host_name and not _HOST_NAME.fullmatch(self.host_name):
            raise errors.Invalid("host_name must be 1 to 63 letters, digits or '-'", field="host_name")
        if self.stop_signal and not _SIGNAL.fullmatch(self.stop_signal):
            raise errors.Invalid(
                "stop_signal must be a name such as SIGTERM, or a number", field="stop_signal"
            )
        if self.stop_grace_s is not None and not 0 <= self.stop_grace_s <= 86_400:
            raise errors.Invalid("stop_grace_s must be 0 to 86400 seconds", field="stop_grace_s")
        if not 0 <= self.pids <= MAX_AMOUNT:
            raise errors.Invalid(f"pids must be 0 to {MAX_AMOUNT}", field="pids")
        if self.inside:
            cells.parse_name(self.inside)
        for device in self.devices:
            check_device(device)
        ports.check_all(self.ports)
        if self.ports and self.network is NetworkMode.NONE:
            raise errors.Invalid(
                "a container without a network has no ports; use network bridge", field="ports"
            )
        if self.is_isolated and self.userns is not UserNamespaceMode.PRIVATE:
            raise errors.Invalid(
                "a container with an isolated network always has a user namespace; leave userns out",
                field="userns",
            )
        if self.mounts and self.is_isolated:  # files of the node, and data of others, are not for guests
            raise errors.Invalid(
                "a container with an isolated network cannot have mounts; leave them out", field="volumes"
            )
        if self.ports and self.is_isolated:
            raise errors.Invalid(
                "a container with an isolated network cannot publish ports; leave them out", field="ports"
            )


class ContainerState(enum.StrEnum):
    """Where a container is in its life."""

    CREATED = "created"
    RUNNING = "running"
    EXITED = "exited"
    REMOVING = "removing"  # begun and not finished; another removal continues


class ContainerView(msgspec.Struct, frozen=True):
    """A container as others see it."""

    spec: ContainerSpec
    image: ImageId
    state: ContainerState
    created_at: float
    address: str = ""
    pid: int | None = None
    started_at: float | None = None
    exit: ExitStatus | None = None  # of the last run
    reason: str = ""  # why it is not what one would expect, for people
    access: NetworkAccess = OPEN_ACCESS
    address6: str = ""  # IPv6


class ContainerStats(msgspec.Struct, frozen=True):
    """What a container uses; `disk_bytes` is what it has written to its own layer."""

    usage: CellUsage
    disk_bytes: int
    disk_limit_bytes: int | None
    # `quota`, `filesystem`: the kernel refuses; `measured`: checked from time to time; `none`
    disk_limit_kind: str
