"""Name servers of containers: the text of their /etc/resolv.conf, and the resolvers of the machine.

A container has the node's own name server (`skerry.node.network.dns`), which asks the servers of the
settings, else the machine's own. One without it has those themselves: but a server on the machine's
loopback cannot be reached from a container, nor one with only an IPv6 address; where systemd-resolved listens
on loopback, its upstream servers are in a file of its own. Search domains and options are kept.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Sequence
from ipaddress import IPv4Address
from pathlib import Path

import msgspec

from skerry.model import errors

PATHS = (Path("/etc/resolv.conf"), Path("/run/systemd/resolve/resolv.conf"))
_MOST_SERVERS = 3  # the C library's limit
NONE_REACHABLE = (
    "containers cannot resolve names: this machine has no name server that they can reach; set some with "
    "the setting network.dns"
)


class ResolverConfig(msgspec.Struct, frozen=True):
    """The content of a resolv.conf."""

    servers: tuple[str, ...] = ()
    search: tuple[str, ...] = ()
    options: tuple[str, ...] = ()

    def __str__(self) -> str:
        """As in /etc/resolv.conf."""
        lines = [f"nameserver {server}" for server in self.servers] or [f"# {NONE_REACHABLE}"]
        lines += [f"search {' '.join(self.search)}"] if self.search else []
        lines += [f"options {' '.join(self.options)}"] if self.options else []
        return "\n".join([*lines, ""])


def parse(text: str) -> ResolverConfig:
    """Parse a resolv.conf; unknown lines are skipped, as in the C library."""
    servers: list[str] = []
    search: tuple[str, ...] = ()
    options: list[str] = []
    for line in text.splitlines():
        key, *values = line.split() or [""]
        match key:
            case "nameserver" if values:
                servers.append(values[0])
            case "search" | "domain" if values:
                search = tuple(values)  # the last one counts
            case "options":
                options += values
    return ResolverConfig(tuple(servers), search, tuple(options))


def choose(configured: Sequence[str], texts: Sequence[str]) -> ResolverConfig:
    """`configured` are the servers of the settings, `texts` the files of the machine, its own first."""
    found = [parse(text) for text in texts]
    own = found[0] if found else ResolverConfig()
    candidates = [tuple(configured)] if configured else [each.servers for each in found]
    reachable = [tuple(server for server in servers if _is_reachable(server)) for servers in candidates]
    servers = next((some for some in reachable if some), ())
    return ResolverConfig(servers[:_MOST_SERVERS], own.search, own.options)


def read(configured: Sequence[str], paths: Sequence[Path] = PATHS) -> ResolverConfig:
    """Read the files of this machine."""
    return choose(configured, [_text(path) for path in paths])


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def of_node(gateway: str, search: Sequence[str], paths: Sequence[Path] = PATHS) -> ResolverConfig:
    """For a container that asks the node: `search` before the machine's own domains, and its options."""
    own = parse(_text(paths[0]))
    return ResolverConfig((gateway,), tuple(dict.fromkeys([*search, *own.search])), own.options)


class MachineResolvers:
    """The resolvers that the node itself asks: also those on its loopback, and with IPv6 addresses."""

    def __init__(self, configured: Sequence[str], path: Path = PATHS[0]) -> None:
        self._configured = tuple(configured)
        self._path = path
        self._version: tuple[int, ...] = ()
        self._servers: tuple[str, ...] = ()

    def servers(self) -> tuple[str, ...]:
        """As the file is now."""
        if self._configured:
            return self._configured
        try:
            found = os.stat(self._path)
            version = (found.st_mtime_ns, found.st_ino, found.st_size)
            if version != self._version:
                servers = parse(self._path.read_text(errors="replace")).servers
                self._servers = tuple(each for each in servers if _is_address(each))[:_MOST_SERVERS]
                self._version = version
        except OSError:
            self._servers, self._version = (), ()
        return self._servers


def check(configured: Sequence[str]) -> None:
    """Raise Invalid unless containers can reach all servers of the settings."""
    for server in configured:
        if not _is_reachable(server):
            raise errors.Invalid(
                f"{server[:60]!r} is not a name server for containers: it must be an IPv4 address, and not "
                "on loopback, which is each container's own",
                field="network.dns",
            )


def _is_address(server: str) -> bool:
    try:
        return not ipaddress.ip_address(server).is_unspecified
    except ValueError:
        return False


def _is_reachable(server: str) -> bool:
    try:
        address = ipaddress.ip_address(server)
    except ValueError:
        return False
    return isinstance(address, IPv4Address) and not (address.is_loopback or address.is_unspecified)
