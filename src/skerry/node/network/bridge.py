"""Network namespaces with their links, and the bridge that connects them.

The namespace of a container has a loopback and `eth0`, one end of a veth pair, with its addresses and default
routes through the bridge. The other end is a port of the bridge. Where the node has user namespaces it
belongs to one of its own: a runtime can mount /sys, and run execs, only in a container that owns its network.
Everything here blocks and is called in threads (`skerry.node.network.namespace_pool`); each call works in the
network namespace of the bridge. Owners are not known here.
"""

from __future__ import annotations

import errno
import functools
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from ipaddress import IPv4Address
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from skerry.kit import files
from skerry.model import errors
from skerry.model.ipv6_addresses import ipv6_of
from skerry.node.kernel import namespaces
from skerry.node.network import ipv6_forwarding
from skerry.node.network import route_netlink as netlink
from skerry.node.network.commands import NetworkCommands
from skerry.node.network.network_host import ROOT_HOST, NetworkHost
from skerry.node.network.route_netlink import RouteRequest, RouteSocket
from skerry.node.network.subnets import BridgeSubnets, KernelNames, NodeSubnet, mac_of
from skerry.node.user_namespaces import UserNamespace

_SYSCTL = Path("/proc/sys/net")
_LLDP = 0x0E  # the last byte of the group's MAC address
_INSIDE_LINK = "eth0"
_REMOVAL_TRIES = 5
_REMOVAL_RETRY_S = 0.05
# What disappeared meanwhile is no failure of a removal.
_GONE = frozenset({errno.ENODEV, errno.ENOENT, errno.ESRCH, errno.EINVAL})

# In a container's namespace, before it has eth0. Where containers have no IPv6, it is enabled on their
# loopback only: programs may use ::1, and only traffic that we route, filter or publish gets in or out. Where
# they have it, addresses and routes are those that we set, and neighbours are not asked, nor believed.
_INSIDE = (
    ("ipv6/conf/default/accept_ra", "0"),
    ("ipv6/conf/default/addr_gen_mode", "1"),
    ("ipv6/conf/default/accept_redirects", "0"),
    ("ipv4/conf/all/accept_redirects", "0"),
    ("ipv4/conf/default/accept_redirects", "0"),
    # As in other engines: any user in it may listen on port 80, and ping.
    ("ipv4/ip_unprivileged_port_start", "0"),
)
_MAY_PING = "ipv4/ping_group_range"


P = ParamSpec("P")
T = TypeVar("T")


def _at_home(method: Callable[Concatenate[Bridge, P], T]) -> Callable[Concatenate[Bridge, P], T]:
    """Call the method in the network namespace of the bridge."""

    @functools.wraps(method)
    def call(bridge: Bridge, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return bridge.home.run(lambda: method(bridge, *args, **kwargs))

    return call


class Bridge:
    """The bridge of one Skerry and the namespaces on it, mounted in `folder`."""

    def __init__(
        self,
        programs: NetworkCommands,
        names: KernelNames,
        subnets: BridgeSubnets,
        folder: Path,
        failpoint: Callable[[str], None],
        host: NetworkHost = ROOT_HOST,
    ) -> None:
        self._programs = programs
        self.home = programs.namespace
        self._names = names
        self._subnets = subnets
        self._folder = files.private_folder(folder)
        self._failpoint = failpoint
        self._users = host.users
        self._groups = host.groups
        self._removing = threading.Lock()  # of the group of links that are removed

    def users(self, address: IPv4Address) -> UserNamespace | None:
        """The user namespace that owns the network namespace of `address`; None if that is the node's own."""
        return None if self._users is None else self._users.get(str(address))

    def namespace_path(self, address: IPv4Address) -> Path:
        """The file that the namespace of `address` is mounted on."""
        return self._folder / str(address)

    @_at_home
    def make(self, addresses: Sequence[IPv4Address], *, with_users: bool = True) -> None:
        """Create a complete namespace for each, or none; `with_users`: where the node has user namespaces,
        owned by one."""
        try:
            home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
            try:
                namespaces.in_own_thread(lambda: self._make_insides(addresses, home, with_users=with_users))
            finally:
                os.close(home)
            self.join(addresses)
            self._failpoint("make.joined")
        except BaseException:
            self.remove(addresses)
            raise

    def _make_insides(self, addresses: Sequence[IPv4Address], home: int, *, with_users: bool) -> None:
        for address in addresses:
            path, subnet = self.namespace_path(address), self._subnets.of(address)
            path.touch(mode=0o600)
            self._failpoint("make.file")
            self._enter_new(address, path, with_users=with_users)
            self._failpoint("make.kept")
            has_ipv6 = self._subnets.has_ipv6
            for key, value in (("ipv6/conf/default/disable_ipv6", str(int(not has_ipv6))), *_INSIDE):
                _set(key, value)
            users = self.users(address) if with_users else None
            _set(_MAY_PING, f"0 {self._groups - 1}" if users is None else users.range)
            with RouteSocket() as kernel:
                link = self._names.link(address)
                kernel.send(
                    [netlink.set_up("lo"), netlink.add_veth(_INSIDE_LINK, mac_of(address), link, home)]
                )
                kernel.send(_inside(socket.if_nametoindex(_INSIDE_LINK), address, subnet, has_ipv6=has_ipv6))
            self._failpoint("make.linked")

    def _enter_new(self, address: IPv4Address, path: Path, *, with_users: bool) -> None:
        """Move the calling thread to a new network namespace, which is mounted on `path`."""
        if self._users is None or not with_users:
            namespaces.enter_new_namespace()
            namespaces.bind_namespace(path)
            return
        self._users.make(str(address), network=path)
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            namespaces.enter_namespace(descriptor)
        finally:
            os.close(descriptor)

    @_at_home
    def join(self, addresses: Sequence[IPv4Address]) -> None:
        """Attach the links of `addresses` to the bridge."""
        requests = []
        bridge = socket.if_nametoindex(self._names.bridge)
        for address in addresses:
            link = self._names.link(address)
            # Where the machine filters bridged packets too, the bridge itself returns a packet from a
            # container to a published port of its own: hairpin.
            requests += [
                netlink.set_no_addresses(link),
                netlink.join_bridge(link, bridge),
                netlink.set_hairpin(link),
            ]
            if self._subnets.has_ipv6:
                # Fixed, so that no container can claim the address of another.
                requests.append(netlink.replace_neighbour(bridge, ipv6_of(address), mac_of(address)))
        with RouteSocket() as kernel:
            kernel.send(requests)

    @_at_home
    def forward_lldp(self, addresses: Sequence[IPv4Address]) -> None:
        """Let no frame of these links bypass the rules of bridges: LLDP frames do, and the bridge learns
        addresses from them, unless they are forwarded."""
        self._programs.ip(
            [
                f"link set dev {self._names.link(address)} type bridge_slave group_fwd_mask {1 << _LLDP:#x}"
                for address in addresses
            ]
        )

    @_at_home
    def remove(self, addresses: Sequence[IPv4Address]) -> None:
        """Remove namespaces with their links, complete or not."""
        self._remove_links([self._names.link(address) for address in addresses], neighbours=addresses)
        self._failpoint("remove.links")
        for address in addresses:
            namespaces.remove_mount_file(self.namespace_path(address))
            if self._users is not None:
                self._users.remove(str(address))
        self._failpoint("remove.places")

    @_at_home
    def is_whole(self, address: IPv4Address) -> bool:
        """True if the namespace is mounted and has its link."""
        return namespaces.is_mounted(self.namespace_path(address)) and _exists(self._names.link(address))

    @_at_home
    def sweep(self, adopted: Sequence[IPv4Address]) -> int:
        """Remove what has our names and does not belong to `adopted`; returns how much there was."""
        links = {self._names.link(address) for address in adopted}
        stray = [name for name in _link_names() if self._names.is_link(name) and name not in links]
        paths = {self.namespace_path(address) for address in adopted}
        unknown = [path for path in self._folder.iterdir() if path not in paths]
        self._remove_links(stray, neighbours=[each for path in unknown if (each := _address(path.name))])
        for path in unknown:
            namespaces.remove_mount_file(path)
        if self._users is not None:
            self._users.keep_only(map(str, adopted))
        return len(stray) + len(unknown)

    def _remove_links(self, links: Sequence[str], neighbours: Sequence[IPv4Address] = ()) -> None:
        """In one command: the kernel takes as long for one as for fifty. Likewise what `join` made of their
        addresses."""
        remaining = list(links)
        with self._removing:
            for _ in range(_REMOVAL_TRIES):
                self._request_removal(remaining, neighbours)
                remaining = sorted(set(_link_names()).intersection(remaining))
                if not remaining:
                    return
                # The kernel may be about to remove it by itself, with its namespace.
                time.sleep(_REMOVAL_RETRY_S)
        raise errors.Unavailable(f"links cannot be removed: {', '.join(remaining)}")

    def _request_removal(self, links: Sequence[str], neighbours: Sequence[IPv4Address]) -> None:
        here = set(_link_names())
        links = [link for link in links if link in here]
        group, bridge = self._names.doomed_group, self._names.bridge
        requests = [netlink.set_group(link, group) for link in links]
        if links:
            requests.append(netlink.delete_group(group))
        if self._subnets.has_ipv6 and bridge in here:
            index = socket.if_nametoindex(bridge)
            requests += [netlink.delete_neighbour(index, ipv6_of(address)) for address in neighbours]
        if requests:
            with RouteSocket() as kernel:
                kernel.send(requests, ignored=_GONE)

    @_at_home
    def build_bridge(self, *, is_new: bool) -> None:
        """Create the bridge with addresses of every subnet, and enable forwarding."""
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
        _set(f"ipv6/conf/{name}/disable_ipv6", str(int(not self._subnets.has_ipv6)))
        if self._subnets.has_ipv6:
            self._build_ipv6()
        # A connection to a published port of 127.0.0.1 goes through the bridge. The chain `guard` of our
        # rules keeps
        # containers from using this in the other direction.
        _set(f"ipv4/conf/{name}/route_localnet", "1")
        if (_SYSCTL / "ipv4/ip_forward").read_text().strip() == "0":
            _set("ipv4/ip_forward", "1")

    def _build_ipv6(self) -> None:
        name = self._names.bridge
        _set(f"ipv6/conf/{name}/accept_ra", "0")
        # Containers are not asked who has an address: those that have one are known (`join`).
        _set(f"ipv6/neigh/{name}/mcast_solicit", "0")
        self._programs.ip(
            [
                f"address replace {each.gateway6}/{each.network6.prefixlen} dev {name} nodad"
                for each in self._subnets.all
            ]
        )
        ipv6_forwarding.enable()

    @_at_home
    def drop_subnets(self, subnets: Sequence[NodeSubnet]) -> None:
        """Remove the addresses of `subnets` from the bridge."""
        name = self._names.bridge
        self._programs.ip([f"address del {each.gateway}/{each.prefix} dev {name}" for each in subnets])
        if self._subnets.has_ipv6:
            self._programs.ip(
                [f"address del {each.gateway6}/{each.network6.prefixlen} dev {name}" for each in subnets]
            )

    @_at_home
    def remove_bridge(self) -> None:
        if _exists(self._names.bridge):
            self._programs.ip([f"link delete dev {self._names.bridge}"])


def _inside(link: int, address: IPv4Address, subnet: NodeSubnet, *, has_ipv6: bool) -> list[RouteRequest]:
    """Addresses and routes of a container's link. All IPv6 packets go to the node, whose hardware address is
    fixed; rules of the bridge see to that."""
    broadcast = subnet.network.broadcast_address
    requests = [
        netlink.add_address(link, address, subnet.prefix, broadcast),
        netlink.set_up(_INSIDE_LINK),
        netlink.add_default_route(link, subnet.gateway),
    ]
    if has_ipv6:
        requests += [
            netlink.add_address(link, ipv6_of(address), 128),
            netlink.replace_neighbour(link, subnet.gateway6, mac_of(subnet.gateway)),
            netlink.add_default_route(link, subnet.gateway6, is_on_link=True),
        ]
    return requests


def _address(text: str) -> IPv4Address | None:
    try:
        return IPv4Address(text)
    except ValueError:
        return None


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
    try:
        descriptor = os.open(f"{_SYSCTL}/{key}", os.O_WRONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        if key.startswith("ipv6/"):
            return
        raise
    try:
        os.write(descriptor, value.encode())
    finally:
        os.close(descriptor)
