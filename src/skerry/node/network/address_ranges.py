"""The setting `network.allow`: addresses that containers may reach though they are closed otherwise. Pure.

`skerry.model.address_ranges` has those that are closed.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Network

from skerry.model.address_ranges import METADATA, PRIVATE
from skerry.node.network.subnets import parse_network

__all__ = ["METADATA", "PRIVATE", "parse_allowed"]


def parse_allowed(texts: Iterable[str]) -> tuple[IPv4Network, ...]:
    """The setting `network.allow`. Raises Invalid."""
    return tuple(parse_network(text, field="network.allow") for text in texts)
