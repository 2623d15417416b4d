"""Interfaces of the node's connection to the control plane, independent of the transport.

`skerry.transport.links.nodes.client` implements them over gRPC; the daemon passes it to
`skerry.node.agent.agent`, which imports no transport. A broken connection raises `Unavailable` from every
pending call; the agent dials again and sends a new hello.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from skerry.model.network_objects import NetworkObject
from skerry.model.node_messages import (
    NetworkUpdate,
    NodeHello,
    NodeMessage,
    ServerMessage,
    SessionConfig,
)
from skerry.model.streams import TunnelStream


class ControlConnection(Protocol):
    """One connection. Methods may run concurrently; messages are sent whole."""

    async def hello(self, hello: NodeHello) -> SessionConfig:
        """Send the hello, first and once; returns the session config. Raises the error of the control
        plane."""
        ...

    def messages(self) -> AsyncIterator[ServerMessage]:
        """Messages after the welcome, in order; to be called once. Ends when the control plane closes the
        session."""
        ...

    async def send(self, message: NodeMessage) -> None:
        """Send a changed hello; reports, which are done when an acknowledgement has their sequence number or
        a higher one; claims; or a heartbeat, if nothing was sent for `report_s`."""
        ...

    def tunnel(self, id: str) -> AbstractAsyncContextManager[TunnelStream]:
        """Open the tunnel of a `TunnelRequest`; leaving the context closes it.

        Raises `NotFound` if the request has been cancelled.
        """
        ...


class ControlDialer(Protocol):
    """Dials the control plane."""

    def dial(self) -> AbstractAsyncContextManager[ControlConnection]:
        """A new connection; leaving the context closes it, with its tunnels."""
        ...


class NetworkFeed(Protocol):
    """Takes network objects of a session, and has reports for it: `skerry.node.agent.network_state`, and for
    guests `skerry.node.guests.network_feed`."""

    def apply(self, update: NetworkUpdate) -> None:
        """Take what a server sent. Raises Invalid."""
        ...

    def begin_session(self) -> None:
        """Report everything again."""
        ...

    def end_session(self) -> None:
        """The server sends nothing more."""
        ...

    async def next_reports(self, most: int) -> tuple[NetworkObject, ...]:
        """What was not sent in this session, as soon as there is something."""
        ...
