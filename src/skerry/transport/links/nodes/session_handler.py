"""The server's side of a node session, over any transport.

A node of this cloud connects by gRPC (`skerry.transport.links.nodes.service`), a borrowed node by the
contract tunnel (`skerry.wire.rear`). The messages are the same: `skerry.control.sessions.node_session`. Here
are the limits: the rate of messages is bounded, and a node that does not read is disconnected when its
session is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from skerry.control.sessions.node_session import NodeSession, NodeSessions
from skerry.kit.clock import Clock
from skerry.kit.rate_limit import TokenBucket
from skerry.kit.tasks import race
from skerry.model import errors
from skerry.transport.links.nodes import messages, network_messages, secret_messages
from skerry.transport.proto import nodes_pb2 as pb

# A call that ends here before it does there is cut off, and with it whatever the node has not read yet: after
# the last message the node gets this long to end the call.
CLOSE_GRACE_S: Final = 5.0
_MESSAGES_PER_S: Final = 100.0


class NodeMessageStream(Protocol):
    """Whole messages, in order. None: the node has finished."""

    async def recv_message(self) -> pb.FromNode | None: ...

    async def send_message(self, message: pb.ToNode) -> None: ...


async def handle_session(
    stream: NodeMessageStream,
    sessions: NodeSessions,
    session: NodeSession,
    clock: Clock,
    *,
    check: Callable[[], None],
) -> None:
    """Send the welcome, and exchange messages until either side has finished; raises why it ends early.
    `check` is called for every message of the node, and raises if the node is refused."""
    await stream.send_message(messages.encode_welcome(session.config))
    sending = asyncio.Lock()  # one message at a time
    await race(  # errors are sent to the node
        _listen(stream, sessions, session, clock, check),
        _send_messages(stream, session, sending),
        _send_heartbeats(stream, session.config.report_s, sending),
        _disconnect(session),
    )


async def _listen(
    stream: NodeMessageStream,
    sessions: NodeSessions,
    session: NodeSession,
    clock: Clock,
    check: Callable[[], None],
) -> None:
    """Handle messages of the node until there are no more."""
    pace = TokenBucket.full(_MESSAGES_PER_S, at=clock.monotonic())
    while (message := await stream.recv_message()) is not None:
        check()
        sessions.received(session)
        match message.WhichOneof("message"):
            case "heartbeat":
                pass
            case "reports":
                with sessions.busy_with(session):
                    await sessions.reported(session, messages.decode_reports(message.reports))
                sessions.received(session)  # it could not send while its message was processed
            case "claims":
                with sessions.busy_with(session):
                    await sessions.claimed(session, messages.decode_claims(message.claims))
                sessions.received(session)
            case "volume_reports":
                with sessions.busy_with(session):
                    await sessions.volumes_reported(
                        session, messages.decode_volume_reports(message.volume_reports)
                    )
                sessions.received(session)
            case "secret_request":
                with sessions.busy_with(session):
                    await sessions.secrets_requested(
                        session, secret_messages.decode_request(message.secret_request)
                    )
                sessions.received(session)
            case "network_reports":
                with sessions.busy_with(session):
                    await sessions.network_reported(
                        session, network_messages.decode_reports(message.network_reports)
                    )
                sessions.received(session)
            case "hello":
                with sessions.busy_with(session):
                    await sessions.changed(session, messages.decode_hello(message.hello))
                sessions.received(session)
            case _:
                raise errors.Invalid(
                    "a message must hold a hello, reports, claims, volumes, network objects, a request for "
                    "secrets or a heartbeat"
                )
        pace = await _pause(pace, clock)


async def _pause(pace: TokenBucket, clock: Clock) -> TokenBucket:
    """Wait until one more message may be taken; a node that sends more is slowed down by flow control."""
    while True:
        now = clock.monotonic()
        pace = pace.filled(now)
        if (taken := pace.take()) is not None:
            return taken
        await asyncio.sleep(max(0.0, pace.next_at() - now))


async def _send_messages(stream: NodeMessageStream, session: NodeSession, sending: asyncio.Lock) -> None:
    """Send what the node is to know, to the goodbye, after which it is for the node to hang up."""
    async for message in session.messages():
        for part in messages.encode_server_message(message):
            async with sending:
                await stream.send_message(part)
    await asyncio.sleep(CLOSE_GRACE_S)


async def _send_heartbeats(stream: NodeMessageStream, every_s: float, sending: asyncio.Lock) -> None:
    """Send heartbeats to the node, whatever the store is doing."""
    while True:
        await asyncio.sleep(every_s)
        async with sending:
            await stream.send_message(messages.HEARTBEAT)


async def _disconnect(session: NodeSession) -> None:
    """End soon after the session has, though the node may not read its goodbye."""
    await session.ended()
    await asyncio.sleep(CLOSE_GRACE_S)
