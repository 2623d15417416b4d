"""The names of a server, for its certificates and the Host check."""

from __future__ import annotations

import msgspec


class ServerNames(msgspec.Struct, frozen=True):
    """What a server is called."""

    name: str  # short host name
    own: frozenset[str]  # names for other machines; empty while the listeners are on loopback
    hosts: frozenset[str]  # every name and address in the listeners' certificate
