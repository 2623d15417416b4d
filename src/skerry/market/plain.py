"""Buyers without credentials, identified by their address.

They are served by one listener, `market.plain_listen`, and have names with a prefix of their own, so that
they cannot be taken for other buyers. They are on no allowlist: their limits are settings of their own
(`skerry.market.provider.ledger.unknown_buyer_rules` decides by them). Pure.
"""

from __future__ import annotations

import ipaddress
from typing import Final

from skerry.kit.networks import Network
from skerry.model import errors
from skerry.model.ids import CloudId
from skerry.model.market import check_cloud
from skerry.model.market_settings import MarketSettings

PREFIX: Final = "plain."


def is_plain(buyer: CloudId) -> bool:
    """Whether this is the name of such a buyer."""
    return buyer.startswith(PREFIX)


def buyer_at(address: str) -> CloudId:
    """The buyer that calls from an address: a name has no colons."""
    return check_cloud(PREFIX + address.replace(":", "-"), "address")


def networks_of(settings: MarketSettings) -> tuple[Network, ...]:
    """The networks of buyers without credentials; `Invalid` if it is none, all, or not a network."""
    if not settings.plain_addresses:
        raise errors.Invalid(
            "market.plain_listen is for named addresses only; name them in market.plain_addresses",
            field="market.plain_addresses",
        )
    return tuple(_network(text) for text in settings.plain_addresses)


def _network(text: str) -> Network:
    try:
        found = ipaddress.ip_network(text)
    except ValueError:
        raise errors.Invalid(
            f"market.plain_addresses: {text[:80]!r} is no address and no network; one looks like 192.0.2.7, "
            "or 192.0.2.0/24",
            field="market.plain_addresses",
        ) from None
    if found.prefixlen == 0:
        raise errors.Invalid(
            f"market.plain_addresses: {text[:80]} is every address; name the buyers' addresses or networks",
            field="market.plain_addresses",
        )
    return found
