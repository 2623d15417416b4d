"""What the node's session needs of its connection to the control plane, whatever carries it.

`skerry.transport.links.nodes.client` keeps it over gRPC, and the daemon hands it to
`skerry.node.agent.agent`, which may not know of wires. A connection that breaks raises `Unavailable` from
whatever waits on it; who holds it dials anew, and begins with a hello again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from skerry.model.node_messages import NodeHello, NodeMessage, ServerMessage, SessionConfig
from skerry.model.streams import TunnelStream


class ControlConnection(Protocol):
    """One connection. Its methods may be called at the same time; each message goes out whole."""

    async def hello(self, hello: NodeHello) -> SessionConfig:
        """Say who we are; must come first, and once. Raises what the control plane has against it."""
        ...

    def messages(self) -> AsyncIterator[ServerMessage]:
        """What comes down after the welcome, in order; once. Ends if the control plane ends it."""
        ...

    async def send(self, message: NodeMessage) -> None:
        """A hello that is different now; reports, which may be forgotten once an acknowledgement has their
        sequence number or more; claims; or a heartbeat, if nothing else was said for `report_s`."""
        ...

    def tunnel(self, id: str) -> AbstractAsyncContextManager[TunnelStream]:
        """Dial the tunnel that a `TunnelRequest` asked for; leaving the context closes it.

        Raises `NotFound` if nobody waits for it any more.
        """
        ...


class ControlDialer(Protocol):
    """Makes connections to the control plane."""

    def dial(self) -> AbstractAsyncContextManager[ControlConnection]:
        """A new connection; leaving the context closes it, with its tunnels."""
        ...
