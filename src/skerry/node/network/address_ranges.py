"""The setting `network.allow`: addresses that containers may reach though they are closed otherwise. Pure.

`skerry.model.address_ranges` has those that are closed.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv6Network

from skerry.kit.networks import Network
from skerry.model import errors
from skerry.node.network.subnets import parse_network

_FIELD = "network.allow"


def parse_allowed(texts: Iterable[str]) -> tuple[Network, ...]:
    """The setting `network.allow`. Raises Invalid."""
    return tuple(_parse_ipv6(text) if ":" in text else parse_network(text, field=_FIELD) for text in texts)


def _parse_ipv6(text: str) -> IPv6Network:
    try:
        return IPv6Network(text)
    except ValueError as error:
        raise errors.Invalid(
            f"{text[:60]!r} is not an IPv6 network: {error}; write one such as fd00:1::/64", field=_FIELD
        ) from None
