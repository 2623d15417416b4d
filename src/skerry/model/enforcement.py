"""What a node can enforce: how it isolates cells, which limits bind by what, and what containers have.

Decided once at the start of a node (`skerry.node.rootless.decisions`), by what its machine has allowed. A
node that runs as root on its machine enforces everything. Shown by `status`, `describe` and `doctor`, and
used by the scheduler.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec


class Isolation(enum.StrEnum):
    """What separates cells from this user's other processes."""

    ROOT = "root"  # namespaces, a uid per cell, capabilities dropped: as root of the machine
    USER_NAMESPACE = "user-namespace"  # the same inside a user namespace of an ordinary user
    NONE = "none"  # child processes with resource limits: nothing separates them
    UNAVAILABLE = "unavailable"  # this node runs nothing


ISOLATION_LABEL: Final = "isolation"  # that each node has, unless it has another of that name


class LimitMeans(enum.StrEnum):
    """What makes a limit bind."""

    CGROUP = "cgroup"  # the kernel, for all processes of a cell together
    FILE_SYSTEM = "file-system"  # a file system of that size
    WATCHED = "watched"  # measured repeatedly; what exceeds it is killed a moment later
    RLIMIT = "rlimit"  # the kernel, for each process by itself
    PRIORITY = "priority"  # a share by niceness, and no upper limit
    NONE = "none"


class ContainerNetwork(enum.StrEnum):
    """How containers reach others and are reached."""

    BRIDGE = "bridge"  # of the machine, with its firewall
    PASTA = "pasta"  # a bridge inside the user namespace, connected by a program of this user
    SLIRP4NETNS = "slirp4netns"  # likewise
    LOOPBACK = "loopback"  # a bridge inside the user namespace, connected to nothing
    NONE = "none"


_CONNECTED: Final = (ContainerNetwork.BRIDGE, ContainerNetwork.PASTA, ContainerNetwork.SLIRP4NETNS)


class RootFilesystem(enum.StrEnum):
    """How the layers of an image become the root of a container."""

    OVERLAY = "overlay"
    FUSE_OVERLAYFS = "fuse-overlayfs"
    COPY = "copy"
    NONE = "none"


class NodeAbility(enum.StrEnum):
    """What an instance may need of its node that not every user may do there."""

    DISK_LIMITS = "disk-limits"
    VOLUMES = "volumes"  # and mounts of other kinds
    DEVICES = "devices"
    HOST_ROOT = "host-root"  # root in the container is the node's root
    GUESTS = "guests"  # what others than the users of this cloud have written


class Limits(msgspec.Struct, frozen=True):
    """What makes each kind of limit bind."""

    cpu: LimitMeans = LimitMeans.NONE
    memory: LimitMeans = LimitMeans.NONE
    processes: LimitMeans = LimitMeans.NONE
    disk: LimitMeans = LimitMeans.NONE

    def __str__(self) -> str:
        return ", ".join(f"{field} {getattr(self, field)}" for field in self.__struct_fields__)


class NodeEnforcement(msgspec.Struct, frozen=True):
    """What a node can enforce, and in `reasons` why not more: plain sentences that say what to do."""

    isolation: Isolation
    limits: Limits = Limits()
    network: ContainerNetwork = ContainerNetwork.NONE
    filesystem: RootFilesystem = RootFilesystem.NONE
    user_ids: int = 0  # that cells and containers may have; 1: all are the user of the node
    first_port: int = 0  # the lowest that this node can publish
    has_mesh_links: bool = False  # encrypted links to the other nodes of the mesh
    reasons: tuple[str, ...] = ()

    @property
    def is_weaker(self) -> bool:
        """True if it enforces less than a node that runs as root."""
        return self.isolation is not Isolation.ROOT

    @property
    def separates_users(self) -> bool:
        """True if no two cells have the same user on the machine."""
        return self.isolation is Isolation.ROOT or self.user_ids > 1

    @property
    def accepts_guests(self) -> bool:
        """True if it may run what others than its user have written: the market, and leased cells. Without
        root all containers have the same users on the machine."""
        return self.isolation is Isolation.ROOT

    def allows(self, ability: NodeAbility) -> bool:
        """True if an instance that needs it may be there."""
        if ability is NodeAbility.DISK_LIMITS:
            return self.limits.disk is not LimitMeans.NONE
        if ability is NodeAbility.GUESTS:
            return self.accepts_guests
        return self.isolation is Isolation.ROOT

    def summary(self) -> str:
        """One line for `status`."""
        if self.isolation is Isolation.UNAVAILABLE:
            return "nothing can run here"
        return f"isolation {self.isolation}; limits: {self.limits}; network {self.network}"

    def with_network(self, network: ContainerNetwork) -> NodeEnforcement:
        """The same with the network that containers got in the end."""
        return msgspec.structs.replace(self, network=network, has_mesh_links=network in _CONNECTED)

    def with_watched_limits(self, reason: str) -> NodeEnforcement:
        """The same where what runs has no cgroups, though there could be some."""
        limits = Limits(LimitMeans.PRIORITY, LimitMeans.WATCHED, LimitMeans.WATCHED)
        return msgspec.structs.replace(self, limits=limits, reasons=(*self.reasons, reason))


AS_ROOT: Final = NodeEnforcement(
    Isolation.ROOT,
    Limits(LimitMeans.CGROUP, LimitMeans.CGROUP, LimitMeans.CGROUP, LimitMeans.FILE_SYSTEM),
    ContainerNetwork.BRIDGE,
    RootFilesystem.OVERLAY,
    user_ids=1 << 32,
    has_mesh_links=True,
)
