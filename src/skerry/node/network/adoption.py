"""Which attachments that an earlier agent left go on: the decision only.

The earlier agent may have been killed between any two steps, so the records, the namespaces and the links
need not agree. An attachment goes on if its record is of this boot and its namespace is whole. Everything
else that is called like ours is removed: nobody was told of it, or it was about to go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from ipaddress import IPv4Address, IPv4Network

from skerry.node.network.attachments import Attachment, AttachmentRecord


def choose(
    found: Iterable[AttachmentRecord], boot: str, is_whole: Callable[[IPv4Address], bool]
) -> list[Attachment]:
    """Those that go on."""
    return [
        record.attachment
        for record in found
        if record.boot == boot and is_whole(IPv4Address(record.attachment.address))
    ]


def networks_of(attachments: Iterable[Attachment]) -> list[IPv4Network]:
    """The subnets that they have addresses of, each once, that of the first one first."""
    networks = (IPv4Network((each.gateway, each.prefix), strict=False) for each in attachments)
    return list(dict.fromkeys(networks))
