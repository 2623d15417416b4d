"""Names and addresses of this machine, from the system.

For the server's certificate, the Host check and invitations (`skerry.transport.addresses`). Without loopback
and link-local addresses, and those of Skerry's own interfaces: no other machine can dial them.
"""

from __future__ import annotations

import ipaddress
import socket
import threading
from collections.abc import Iterable
from typing import Final

import msgspec
import psutil
from msgspec.structs import replace

from skerry.node.network.subnets import BRIDGE_PREFIX, MESH_PREFIX

_MOST_ADDRESSES: Final = 64  # a certificate with thousands of names would be useless
_RESOLVE_S: Final = 1.0
_ELSEWHERE: Final = (
    ("192.0.2.1", socket.AF_INET),
    ("2001:db8::1", socket.AF_INET6),
)  # reserved for documentation


class HostIdentity(msgspec.Struct, frozen=True):
    """A machine as others may call it."""

    name: str  # short host name
    full_name: str  # with its domain; the same as `name` if it has none
    addresses: tuple[str, ...] = ()  # of the default route first, then IPv4, then IPv6

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((self.full_name, self.name)))


def read() -> HostIdentity:
    """This machine now, as it knows itself."""
    host_name = socket.gethostname().lower()
    return HostIdentity(host_name.partition(".")[0], host_name, read_addresses())


def resolve() -> HostIdentity:
    """This machine now, with its domain from the resolver, which gets a second at most."""
    found = read()
    return found if "." in found.full_name else replace(found, full_name=_canonical_name(found.name))


def read_addresses() -> tuple[str, ...]:
    """The addresses of this machine now."""
    found = [
        each.address.partition("%")[0]
        for interface, entries in psutil.net_if_addrs().items()
        if not interface.startswith((BRIDGE_PREFIX, MESH_PREFIX))
        for each in entries
        if each.family in (socket.AF_INET, socket.AF_INET6)
    ]
    return choose(found, first=[source_address(*target) for target in _ELSEWHERE])


def choose(found: Iterable[str], first: Iterable[str] = ()) -> tuple[str, ...]:
    """Those of `found` that another machine could dial, each once, in a stable order; `first` before
    others."""
    preferred = list(first)
    dialable = {
        address
        for address in map(ipaddress.ip_address, found)
        if not (address.is_loopback or address.is_link_local or address.is_unspecified)
    }
    ordered = sorted(dialable, key=lambda one: (str(one) not in preferred, one.version, int(one)))
    return tuple(map(str, ordered[:_MOST_ADDRESSES]))


def source_address(target: str, family: socket.AddressFamily) -> str:
    """The source address of packets to other networks; empty if there is no route. Nothing is sent."""
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((target, 9))
            return str(probe.getsockname()[0])
        except OSError:
            return ""


def _canonical_name(host_name: str) -> str:
    """The name with its domain from the resolver; the name alone if it does not answer in time."""
    answer = [host_name]

    def resolve() -> None:
        try:
            found = socket.getaddrinfo(host_name, None, type=socket.SOCK_STREAM, flags=socket.AI_CANONNAME)
        except (OSError, UnicodeError):
            return
        full = found[0][3].lower().removesuffix(".")
        if full.partition(".")[0] == host_name:  # an alias of another machine is no name of this one
            answer[0] = full

    # A resolver without a network takes many seconds; this thread may outlive the wait, which does no harm.
    resolver = threading.Thread(target=resolve, name="full-host-name", daemon=True)
    resolver.start()
    resolver.join(_RESOLVE_S)
    return answer[0]
