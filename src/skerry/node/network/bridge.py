"""Network namespaces with their links, and the bridge that connects them.

The namespace of a container has a loopback and `eth0`, one end of a veth pair, with its address and the
default route through the bridge. The other end is a port of the bridge. Where the node has user namespaces it
belongs to one of its own: a runtime can mount /sys, and run execs, only in a container that owns its network.
Everything here blocks and is called in threads, one at a time (`skerry.node.network.namespace_pool`). Owners
are not known here.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from ipaddress import IPv4Address
from pathlib import Path

from skerry.kit import files
from skerry.model import errors
from skerry.node.kernel import namespaces
from skerry.node.network.commands import NetworkCommands
from skerry.node.network.subnets import BridgeSubnets, KernelNames, NodeSubnet, mac_of
from skerry.node.user_namespaces import UserNamespace, UserNamespaces

_SYSCTL = Path("/proc/sys/net")
_LLDP = 0x0E  # the last byte of the group's MAC address

# In a container's namespace, before it has eth0. IPv6 is enabled on its loopback only: programs may use ::1,
# and
# only traffic that we route, filter or publish gets in or out.
_INSIDE = (
    ("ipv6/conf/default/disable_ipv6", "1"),
    ("ipv6/conf/default/accept_ra", "0"),
    ("ipv4/conf/all/accept_redirects", "0"),
    ("ipv4/conf/default/accept_redirects", "0"),
    # As in other engines: any user in it may listen on port 80, and ping.
    ("ipv4/ip_unprivileged_port_start", "0"),
    ("ipv4/ping_group_range", "0 2147483647"),
)


class Bridge:
    """The bridge of one Skerry and the namespaces on it, mounted in `folder`."""

    def __init__(
        self,
        programs: NetworkCommands,
        names: KernelNames,
        subnets: BridgeSubnets,
        folder: Path,
        failpoint: Callable[[str], None],
        users: UserNamespaces | None = None,
    ) -> None:
        self._programs = programs
        self._names = names
        self._subnets = subnets
        self._folder = files.private_folder(folder)
        self._failpoint = failpoint
        self._users = users

    def users(self, address: IPv4Address) -> UserNamespace | None:
        """The user namespace that owns the network namespace of `address`; None if that is the node's own."""
        return None if self._users is None else self._users.get(str(address))

    def namespace_path(self, address: IPv4Address) -> Path:
        """The file that the namespace of `address` is mounted on."""
        return self._folder / str(address)

    def make(self, addresses: Sequence[IPv4Address]) -> None:
        """Create a complete namespace for each, or none."""
        try:
            namespaces.in_own_thread(lambda: self._make_insides(addresses))
            self.join(addresses)
            self._failpoint("make.joined")
        except BaseException:
            self.remove(addresses)
            raise

    def _make_insides(self, addresses: Sequence[IPv4Address]) -> None:
        for address in addresses:
            path, subnet = self.namespace_path(address), self._subnets.of(address)
            path.touch(mode=0o600)
            self._failpoint("make.file")
            self._enter_new(address, path)
            self._failpoint("make.kept")
            for key, value in _INSIDE:
                _set(key, value)
            self._programs.ip(
                [
                    "link set lo up",
                    # Our process is in the node's namespace; only this thread has left it.
                    f"link add eth0 address {mac_of(address)} type veth "
                    f"peer name {self._names.link(address)} netns {os.getpid()}",
                    f"address add {address}/{subnet.prefix} broadcast + dev eth0",
                    "link set eth0 up",
                    f"route add default via {subnet.gateway} dev eth0",
                ]
            )
            self._failpoint("make.linked")

    def _enter_new(self, address: IPv4Address, path: Path) -> None:
        """Move the calling thread to a new network namespace, which is mounted on `path`."""
        if self._users is None:
            namespaces.enter_new_namespace()
            namespaces.bind_namespace(path)
            return
        self._users.make(str(address), network=path)
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            namespaces.enter_namespace(descriptor)
        finally:
            os.close(descriptor)

    def join(self, addresses: Sequence[IPv4Address]) -> None:
        """Attach the links of `addresses` to the bridge."""
        links = [self._names.link(address) for address in addresses]
        self._programs.ip(
            [
                command
                for link in links
                for command in (
                    f"link set dev {link} addrgenmode none",
                    f"link set dev {link} master {self._names.bridge} up",
                    # Where the machine filters bridged packets too, the bridge itself returns a packet from a
                    # container to a
                    # published port of its own.
                    f"link set dev {link} type bridge_slave hairpin on",
                )
            ]
        )

    def forward_lldp(self, addresses: Sequence[IPv4Address]) -> None:
        """Let no frame of these links bypass the rules of bridges: LLDP frames do, and the bridge learns
        addresses from them, unless they are forwarded."""
        self._programs.ip(
            [
                f"link set dev {self._names.link(address)} type bridge_slave group_fwd_mask {1 << _LLDP:#x}"
                for address in addresses
            ]
        )

    def remove(self, addresses: Sequence[IPv4Address]) -> None:
        """Remove namespaces with their links, complete or not."""
        self._remove_links([self._names.link(address) for address in addresses])
        self._failpoint("remove.links")
        for address in addresses:
            namespaces.remove_mount_file(self.namespace_path(address))
            if self._users is not None:
                self._users.remove(str(address))
        self._failpoint("remove.places")

    def is_whole(self, address: IPv4Address) -> bool:
        """True if the namespace is mounted and has its link."""
        return namespaces.is_mounted(self.namespace_path(address)) and _exists(self._names.link(address))

    def sweep(self, adopted: Sequence[IPv4Address]) -> int:
        """Remove what has our names and does not belong to `adopted`; returns how much there was."""
        links = {self._names.link(address) for address in adopted}
        stray = [name for name in _link_names() if self._names.is_link(name) and name not in links]
        self._remove_links(stray)
        paths = {self.namespace_path(address) for address in adopted}
        unknown = [path for path in self._folder.iterdir() if path not in paths]
        for path in unknown:
            namespaces.remove_mount_file(path)
        if self._users is not None:
            self._users.keep_only(map(str, adopted))
        return len(stray) + len(unknown)

    def _remove_links(self, links: Sequence[str]) -> None:
        """In one command: the kernel takes as long for one as for fifty."""
        here = set(_link_names())
        links = [link for link in links if link in here]
        if not links:
            return
        group = self._names.doomed_group
        self._programs.ip(
            [*(f"link set dev {link} group {group}" for link in links), f"link delete group {group}"],
            ignore_errors=True,  # a link that disappeared meanwhile is no failure
        )
        if remaining := sorted(set(_link_names()).intersection(links)):
            raise errors.Unavailable(f"links cannot be removed: {', '.join(remaining)}")

    def build_bridge(self, *, is_new: bool) -> None:
        """Create the bridge with an address of every subnet, and enable forwarding."""
        name, subnets = self._names.bridge, self._subnets.all
        if is_new:
            self.remove_bridge()
        commands = []
        if not _exists(name):
            commands.append(
                f"link add {name} address {mac_of(subnets[0].gateway)} type bridge "
                "stp_state 0 forward_delay 0 mcast_snooping 0"
            )
        commands += [
            *(f"address replace {each.gateway}/{each.prefix} broadcast + dev {name}" for each in subnets),
            f"link set dev {name} addrgenmode none",
            f"link set dev {name} up",
        ]
        self._programs.ip(commands)
        self._subnets.bridge_mac = namespaces.mac_of_link(name)
        _set(f"ipv6/conf/{name}/disable_ipv6", "1")
        # A connection to a published port of 127.0.0.1 goes through the bridge. The chain `guard` of our
        # rules keeps
        # containers from using this in the other direction.
        _set(f"ipv4/conf/{name}/route_localnet", "1")
        if (_SYSCTL / "ipv4/ip_forward").read_text().strip() == "0":
            _set("ipv4/ip_forward", "1")

    def drop_subnets(self, subnets: Sequence[NodeSubnet]) -> None:
        """Remove the addresses of `subnets` from the bridge."""
        name = self._names.bridge
        self._programs.ip([f"address del {each.gateway}/{each.prefix} dev {name}" for each in subnets])

    def remove_bridge(self) -> None:
        if _exists(self._names.bridge):
            self._programs.ip([f"link delete dev {self._names.bridge}"])


def _link_names() -> list[str]:
    return [name for _, name in socket.if_nameindex()]


def _exists(link: str) -> bool:
    try:
        socket.if_nametoindex(link)
    except OSError:
        return False
    return True


def _set(key: str, value: str) -> None:
    """Set a sysctl in the calling thread's network namespace. A kernel without IPv6 lacks those for it."""
    path = _SYSCTL / key
    if key.startswith("ipv6/") and not path.exists():
        return
    path.write_text(value)
