"""The mesh interface with WireGuard: the kernel's, else that of `wireguard-go`.

Made when there are peers, adopted when an earlier agent left it, removed with the last peer. Its routes
belong to it and go with it. Everything blocks.
"""

from __future__ import annotations

import socket
from collections.abc import Collection, Sequence
from contextlib import suppress
from ipaddress import IPv4Address
from pathlib import Path
from typing import Final, Protocol

import structlog

from skerry.kit.networks import Network
from skerry.model import errors
from skerry.model.ids import NodeId
from skerry.model.ipv6_addresses import CLOUD_PREFIX, ipv6_of
from skerry.model.mesh import probe_address
from skerry.node.network import host_routes
from skerry.node.network.commands import NetworkCommands
from skerry.node.network.mesh import plans
from skerry.node.network.mesh.plans import PeerConfig, PeerStatus
from skerry.node.network.mesh.programs import MeshPrograms

log = structlog.get_logger(__name__)

_SYSCTL: Final = Path("/proc/sys/net")
_LINKS: Final = Path("/sys/class/net")
_ROUTE_PROTOCOL: Final = 201  # of our routes, for people who look at them


class MeshInterface(Protocol):
    """An interface to peers, encrypted or not."""

    def ensure(self) -> bool:
        """Make it unless it is there and works; true if it was made."""
        ...

    def configure(self, private_key: str, port: int, peers: Sequence[PeerConfig]) -> None:
        """Set exactly these peers. Endpoints of those that it has stay."""
        ...

    def retry(self, peer: PeerConfig, endpoint: str) -> None:
        """Begin anew with a peer, at another endpoint."""
        ...

    def status(self) -> dict[str, PeerStatus]:
        """Its peers by public key."""
        ...

    def port(self) -> int:
        """That it listens on; 0 if it does not exist."""
        ...

    def remove(self) -> None: ...


class LinkSetup:
    """What both kinds of interface have: addresses, size and routes."""

    def __init__(self, commands: NetworkCommands, name: str, node: NodeId, mtu: int) -> None:
        self.name = name
        self._commands = commands
        self._node = node
        self._mtu = mtu

    @property
    def exists(self) -> bool:
        try:
            self._commands.namespace.run(lambda: socket.if_nametoindex(self.name))
        except OSError:
            return False
        return True

    def bring_up(self) -> None:
        """Set its size and its probe address."""
        has_ipv6 = self._commands.namespace.run(self._open_ipv6)
        probe = [f"address replace {probe_address(self._node)}/128 dev {self.name}"] if has_ipv6 else []
        self._commands.ip(
            [
                f"link set dev {self.name} addrgenmode none",
                f"link set dev {self.name} mtu {self._mtu} up",
                *probe,
            ]
        )

    def _open_ipv6(self) -> bool:
        """Allow IPv6 on it; false where the kernel has none."""
        if not self._ipv6.exists():
            return False
        (self._ipv6 / "disable_ipv6").write_text("0")
        (self._ipv6 / "accept_ra").write_text("0")
        return True

    @property
    def _ipv6(self) -> Path:
        return _SYSCTL / f"ipv6/conf/{self.name}"

    def set_probe_routes(self, nodes: Collection[NodeId]) -> None:
        """Reach the probe addresses of `nodes`."""
        if self._commands.namespace.run(self._ipv6.exists):
            self._commands.ip(
                [
                    f"route replace {probe_address(node)}/128 dev {self.name} proto {_ROUTE_PROTOCOL}"
                    for node in nodes
                ]
            )

    def routed(self) -> frozenset[Network]:
        """The networks of the cloud that are routed to it."""
        routes, routes6 = self._commands.namespace.run(lambda: (host_routes.read(), host_routes.read_ipv6()))
        found = {each.network for each in routes if each.interface == self.name}
        found6 = {each.network for each in routes6 if each.interface == self.name}
        return frozenset((*found, *(each for each in found6 if each.subnet_of(CLOUD_PREFIX))))

    def set_routes(self, peers: Sequence[PeerConfig], source: IPv4Address | None, *, has_hops: bool) -> None:
        """Reach exactly the subnets of `peers`, from `source` of this node; with `has_hops`, by the probe
        address of each."""
        stale = sorted(map(str, self.routed() - plans.routes(peers)))
        hints = {4: "", 6: ""} if source is None else {4: f" src {source}", 6: f" src {ipv6_of(source)}"}
        self._commands.ip([f"route del {network} dev {self.name}" for network in stale], ignore_errors=True)
        self._commands.ip(
            [
                f"route replace {network}{f' via inet6 {probe_address(peer.node)}' if has_hops else ''} "
                f"dev {self.name} proto {_ROUTE_PROTOCOL}{hints[network.version]}"
                f"{' onlink' if has_hops else ''}"
                for peer in peers
                for network in peer.networks
            ]
        )

    def delete(self) -> None:
        if self.exists:
            self._commands.ip([f"link delete dev {self.name}"])


class WireGuardInterface:
    """A `MeshInterface` that encrypts."""

    def __init__(self, programs: MeshPrograms, commands: NetworkCommands, link: LinkSetup) -> None:
        self._programs = programs
        self._commands = commands
        self._link = link
        self._is_ready = False  # in this process

    def ensure(self) -> bool:
        if self._link.exists:
            if self._is_ready:
                return False
            try:
                self._dump()
                self._link.bring_up()
                self._is_ready = True
                return True
            except errors.Unavailable as error:  # nobody answers for it
                log.warning("mesh.interface_broken", interface=self._link.name, error=error.message)
                self._link.delete()
        self._is_ready = False
        self._make()
        self._link.bring_up()
        self._is_ready = True
        return True

    def _make(self) -> None:
        try:
            self._commands.ip([f"link add dev {self._link.name} type wireguard"])
        except errors.Unavailable as error:
            if not self._programs.wireguard_go:
                raise errors.Unavailable(
                    "the mesh needs WireGuard, which this kernel does not have; install wireguard-go"
                ) from error
            self._programs.start_wireguard_go(self._link.name)
            log.info("mesh.userspace", interface=self._link.name)

    def configure(self, private_key: str, port: int, peers: Sequence[PeerConfig]) -> None:
        known = self.status().keys()
        text = plans.write_wireguard(private_key, port, peers, known)
        self._programs.run_wg("syncconf", self._link.name, "/dev/stdin", text=text)
        self._link.set_probe_routes({peer.node for peer in peers})

    def retry(self, peer: PeerConfig, endpoint: str) -> None:
        # A peer that is added anew begins a handshake at once; one with a session waits for its time-out.
        name = ("peer", peer.public_key)
        self._programs.run_wg(
            "set", self._link.name, *name, "remove",
            *name, "endpoint", endpoint, "persistent-keepalive", str(plans.KEEPALIVE_S),
            "allowed-ips", ",".join(peer.allowed),
        )  # fmt: skip

    def status(self) -> dict[str, PeerStatus]:
        try:
            return self._dump()[1]
        except errors.Unavailable:
            self._is_ready = False  # perhaps nobody answers for it any more: `ensure` finds out
            raise

    def port(self) -> int:
        try:
            return self._dump()[0] if self._link.exists else 0
        except errors.Unavailable:
            return 0

    def _dump(self) -> tuple[int, dict[str, PeerStatus]]:
        return plans.read_dump(self._programs.run_wg("show", self._link.name, "dump"))

    def remove(self) -> None:
        with self._programs.ending_wireguard_go(self._link.name):
            self._link.delete()


def default_mtu(overhead: int, least: int) -> int:
    """What fits the smallest interface of this machine that packets may leave by."""
    routes = {each.interface for each in host_routes.read() if each.network.prefixlen == 0}
    sizes = []
    for name in routes:
        with suppress(OSError, ValueError):
            sizes.append(int((_LINKS / name / "mtu").read_text()))
    return max(least, min(sizes, default=1500) - overhead)
