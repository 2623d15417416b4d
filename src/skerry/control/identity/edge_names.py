"""Which names and addresses the certificate of a node's HTTPS listener may have.

Pure decisions for `skerry.control.identity.authenticator`. A node gets its own name (`pi`, `pi.local`,
`pi.node.skerry`), loopback, the address from which it calls the server, and addresses of private networks
that it reports; of these, never one of a server's, and no name that another node's certificate has. Whatever
else it requests must be allowed by an admin (`identity.edge_names`).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Iterable, Mapping

import msgspec

from skerry.model import errors

MAX_HOSTS = 64  # that a node requests
DOMAIN = "node.skerry"
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_DNS_NAME = re.compile(r"(?=.{1,253}\Z)[a-z0-9_]([a-z0-9_-]{0,62})(\.[a-z0-9_][a-z0-9_-]{0,62})*")
_PRIVATE = tuple(
    ipaddress.ip_network(text)
    for text in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7")
)


class EdgeNode(msgspec.Struct, frozen=True):
    """A node that requests a certificate."""

    id: str
    name: str
    address: str  # from which it calls
    allowed: frozenset[str] = frozenset()  # by an admin


class EdgeHosts(msgspec.Struct, frozen=True):
    """What it gets, and why not the rest."""

    granted: frozenset[str]
    refused: tuple[str, ...] = ()  # sentences


def own_names(name: str) -> tuple[str, ...]:
    """The names of a node that need nobody's permission. One with dots could be a name of somebody else's, so
    it counts only below our own domain."""
    plain = name.lower()
    return (f"{plain}.{DOMAIN}",) if "." in plain else (plain, f"{plain}.local", f"{plain}.{DOMAIN}")


def parse_allowed(texts: Iterable[str]) -> Mapping[str, frozenset[str]]:
    """The hosts of each node, by its id or name, of the setting `identity.edge_names`. Raises `Invalid`."""
    found: dict[str, set[str]] = {}
    for text in texts:
        node, equals, host = text.partition("=")
        plain = plain_host(host)
        if not equals or not node.strip() or plain is None:
            raise errors.Invalid(
                f"identity.edge_names: {text[:100]!r} must read NODE=HOST", field="identity.edge_names"
            )
        found.setdefault(node.strip(), set()).add(plain)
    return {node: frozenset(hosts) for node, hosts in found.items()}


def decide_hosts(
    node: EdgeNode, requested: Collection[str], *, of_servers: Collection[str], of_others: Collection[str]
) -> EdgeHosts:
    """What the certificate of `node` has of the `requested` hosts; `of_servers` are those in servers'
    certificates, `of_others` those in certificates of other nodes' listeners. Raises `Invalid`."""
    if len(requested) > MAX_HOSTS:
        raise errors.Invalid(f"a certificate has at most {MAX_HOSTS} names and addresses", field="hosts")
    granted, refused = set(), []
    for text in requested:
        host = plain_host(text)
        if host is None:
            refused.append(f"{text[:100]!r} is no host name and no address")
        elif reason := _refusal(node, host, of_servers, of_others):
            refused.append(reason)
        else:
            granted.add(host)
    return EdgeHosts(frozenset(granted), tuple(refused))


def _refusal(node: EdgeNode, host: str, of_servers: Collection[str], of_others: Collection[str]) -> str:
    """Why the node does not get `host`; empty: it does."""
    if host in _LOOPBACK:
        return ""
    if host in node.allowed:
        return ""
    if host in of_servers:
        return f"{host} is a server's"
    address = _address(host)
    if address is None:
        if host not in own_names(node.name):
            return f"{host} is not the name of this node; an admin allows it with identity.edge_names"
        if host in of_others:
            return f"{host} is in the certificate of another node; give this one another --name"
        return ""
    if host == node.address or any(address in network for network in _PRIVATE):
        return ""
    return (
        f"{host} is neither private nor the address that this node calls from; an admin allows it with "
        "identity.edge_names"
    )


def plain_host(host: str) -> str | None:
    """One spelling per host, or None for what no certificate can name."""
    text = host.strip().lower().removesuffix(".").partition("%")[0]
    address = _address(text)
    if address is None:
        return text if _DNS_NAME.fullmatch(text) else None
    mapped = getattr(address, "ipv4_mapped", None)
    plain = mapped or address
    return None if plain.is_unspecified or plain.is_multicast else str(plain)


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None
