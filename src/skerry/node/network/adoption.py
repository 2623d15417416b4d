"""Which attachments that an earlier agent left go on: the decision only.

The earlier agent may have been killed between any two steps, so the records, the namespaces and the links
need not agree. An attachment goes on if its record is of this boot and its namespace is whole. Everything
else that is called like ours is removed: nobody was told of it, or it was about to go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from ipaddress import IPv4Address, IPv4Network

from skerry.model import errors
from skerry.node.network.attachments import Attachment, AttachmentRecord
from skerry.node.network.subnets import Subnet


def choose(
    found: Iterable[AttachmentRecord], boot: str, subnet: Subnet, is_whole: Callable[[IPv4Address], bool]
) -> list[Attachment]:
    """Those that go on. Raises Refused if one of them has an address of another subnet."""
    kept = [
        record.attachment
        for record in found
        if record.boot == boot and is_whole(IPv4Address(record.attachment.address))
    ]
    foreign = [
        each
        for each in kept
        if not subnet.has(IPv4Address(each.address))
        or (each.prefix, each.gateway) != (subnet.prefix, str(subnet.gateway))
    ]
    if foreign:
        names = ", ".join(sorted(each.owner for each in foreign)[:5])
        raise errors.Refused(
            f"the setting network.subnet cannot become {subnet} while containers have other addresses: "
            f"{names}; set it back, stop them, and then change it"
        )
    return kept


def subnet_of(found: Iterable[AttachmentRecord], boot: str) -> str | None:
    """The subnet that attachments of this boot have addresses of, if there are any."""
    for record in found:
        if record.boot == boot:
            attachment = record.attachment
            return str(IPv4Network((attachment.gateway, attachment.prefix), strict=False))
    return None
