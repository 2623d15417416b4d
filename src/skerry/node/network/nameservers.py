"""Which name servers containers ask: the text of their /etc/resolv.conf.

Those of the settings, else the machine's own. A server on the machine's loopback cannot be reached from a
container, nor one that has only an IPv6 address; where systemd-resolved listens on loopback, the servers
behind it are in a file of its own. Search domains and options are kept.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path

from skerry.model import errors

PLACES = (Path("/etc/resolv.conf"), Path("/run/systemd/resolve/resolv.conf"))
_MOST_SERVERS = 3  # the C library reads no more
NONE_REACHABLE = (
    "containers can look up no names: this machine has no name server that they can reach; name some with "
    "the setting network.dns"
)


@dataclass(frozen=True, slots=True)
class ResolverConfig:
    """How to look names up."""

    servers: tuple[str, ...] = ()
    search: tuple[str, ...] = ()
    options: tuple[str, ...] = ()

    def __str__(self) -> str:
        """As /etc/resolv.conf has it."""
        lines = [f"nameserver {server}" for server in self.servers] or [f"# {NONE_REACHABLE}"]
        lines += [f"search {' '.join(self.search)}"] if self.search else []
        lines += [f"options {' '.join(self.options)}"] if self.options else []
        return "\n".join([*lines, ""])


def parse(text: str) -> ResolverConfig:
    """What a resolv.conf says; what is no known line of one is passed over, as the C library does it."""
    servers: list[str] = []
    search: tuple[str, ...] = ()
    options: list[str] = []
    for line in text.splitlines():
        word, *rest = line.split() or [""]
        match word:
            case "nameserver" if rest:
                servers.append(rest[0])
            case "search" | "domain" if rest:
                search = tuple(rest)  # the last one counts
            case "options":
                options += rest
    return ResolverConfig(tuple(servers), search, tuple(options))


def choose(wanted: Sequence[str], texts: Sequence[str]) -> ResolverConfig:
    """`wanted` are the settings' servers, `texts` what files of the machine say, the first being its own."""
    found = [parse(text) for text in texts]
    own = found[0] if found else ResolverConfig()
    candidates = [tuple(wanted)] if wanted else [each.servers for each in found]
    reachable = [tuple(server for server in servers if _is_reachable(server)) for servers in candidates]
    servers = next((some for some in reachable if some), ())
    return ResolverConfig(servers[:_MOST_SERVERS], own.search, own.options)


def read(wanted: Sequence[str], places: Sequence[Path] = PLACES) -> ResolverConfig:
    """As this machine is now."""
    texts = []
    for place in places:
        try:
            texts.append(place.read_text(errors="replace"))
        except OSError:
            texts.append("")
    return choose(wanted, texts)


def check(wanted: Sequence[str]) -> None:
    """Raise Invalid unless containers can reach all servers of the settings."""
    for server in wanted:
        if not _is_reachable(server):
            raise errors.Invalid(
                f"{server[:60]!r} is no name server for containers: it must be an IPv4 address, and not one "
                "of loopback, which is each container's own",
                field="network.dns",
            )


def _is_reachable(server: str) -> bool:
    try:
        address = ipaddress.ip_address(server)
    except ValueError:
        return False
    return isinstance(address, IPv4Address) and not (address.is_loopback or address.is_unspecified)
