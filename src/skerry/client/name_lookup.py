"""Asks the name server of the node on this machine, as its containers do.

dnslib and psutil are imported only when a name is looked up, so that `--help` stays fast.
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Final, NamedTuple

from skerry.client.errors import InvalidTarget, ServerUnreachable
from skerry.kit.folder_keys import folder_key

PORT: Final = 53
_TIMEOUT_S: Final = 5.0


class FoundRecord(NamedTuple):
    name: str
    type: str
    ttl_s: int
    value: str


class LookupResult(NamedTuple):
    """An answer: `status` is NOERROR, NXDOMAIN, SERVFAIL or another code of DNS."""

    server: str
    status: str
    records: tuple[FoundRecord, ...]


def server_of(folder: Path) -> str:
    """The address of the name server of the node with this data folder. Raises ServerUnreachable."""
    import psutil

    addresses = psutil.net_if_addrs().get(f"sk-{folder_key(folder)}", [])
    found = [each.address for each in addresses if each.family is socket.AF_INET]
    if not found:
        raise ServerUnreachable(
            f"The node of {folder} has no name server on this machine: it does not run, or has no subnet "
            "yet; name another one with --server."
        )
    return found[0]


def look_up(name: str, type: str, server: str, *, port: int = PORT) -> LookupResult:
    """Raises ServerUnreachable, and InvalidTarget if there is no such name or type at all."""
    import dnslib
    from dnslib.bimap import BimapError
    from dnslib.label import DNSLabelError

    try:
        question = dnslib.DNSRecord.question(name, type.upper())
        question.add_ar(dnslib.EDNS0(udp_len=1232))
        question.pack()
    except (dnslib.DNSError, BimapError, DNSLabelError, UnicodeError) as error:
        raise InvalidTarget(f"{name!r} of type {type!r} cannot be looked up: {error}") from error
    try:
        answer = dnslib.DNSRecord.parse(question.send(server, port, timeout=_TIMEOUT_S))
        if answer.header.tc:
            answer = dnslib.DNSRecord.parse(question.send(server, port, tcp=True, timeout=_TIMEOUT_S))
    except OSError as error:
        raise ServerUnreachable(f"The name server {server} does not answer: {error}.") from error
    except dnslib.DNSError as error:
        raise ServerUnreachable(f"The name server {server} sent no valid answer: {error}.") from error
    return LookupResult(
        server,
        str(dnslib.RCODE.get(answer.header.rcode)),
        tuple(
            FoundRecord(str(each.rname), str(dnslib.QTYPE.get(each.rtype)), each.ttl, str(each.rdata))
            for each in answer.rr
        ),
    )
