"""Decides which attachments of an earlier agent are adopted. Pure.

The earlier agent may have been killed between any two steps, so records, namespaces and links may disagree.
An attachment is adopted if its record is of this boot and its namespace is complete. Everything else with our
names is removed: it was not acknowledged, or was being removed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from ipaddress import IPv4Address, IPv4Network

from skerry.node.network.attachments import Attachment, AttachmentRecord


def choose(
    found: Iterable[AttachmentRecord], boot: str, is_whole: Callable[[IPv4Address], bool]
) -> list[Attachment]:
    """The attachments to adopt."""
    return [
        record.attachment
        for record in found
        if record.boot == boot and is_whole(IPv4Address(record.attachment.address))
    ]


def networks_of(attachments: Iterable[Attachment]) -> list[IPv4Network]:
    """The subnets of their addresses, each once, that of the first one first."""
    networks = (IPv4Network((each.gateway, each.prefix), strict=False) for each in attachments)
    return list(dict.fromkeys(networks))
