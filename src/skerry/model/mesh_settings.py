"""The settings of the mesh: the part `mesh` of the tree in `skerry.model.settings`."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class MeshSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The mesh between the nodes of a cloud, by which containers of different machines reach each other."""

    encryption: Annotated[
        str,
        Meta(
            pattern="^(wireguard|vxlan|none)$",
            description="Of the servers: `wireguard` encrypts; `vxlan` does not, for a network that you "
            "trust, where all nodes reach each other; `none`: no mesh",
        ),
    ] = "wireguard"
    port: Annotated[
        int,
        Meta(
            ge=0,
            le=65535,
            description="UDP port of this node, which firewalls in front of it should let in; if it is "
            "taken, one of the 15 after it; 0: any",
        ),
    ] = 51825
    endpoints: Annotated[
        tuple[str, ...],
        Meta(
            description="ADDRESS or ADDRESS:PORT where other nodes reach this one, beside what is found out: "
            "a port forwarded by a router, a public address"
        ),
    ] = ()
    relay: Annotated[
        bool, Meta(description="This node forwards packets of nodes that cannot reach each other")
    ] = True
    mtu: Annotated[
        int,
        Meta(
            ge=0,
            le=9000,
            description="Largest packet in the mesh; 0: what fits this machine's interfaces, else at least "
            "1280",
        ),
    ] = 0
    key_days: Annotated[float, Meta(gt=0, description="A node replaces its key after this many days")] = 7.0
