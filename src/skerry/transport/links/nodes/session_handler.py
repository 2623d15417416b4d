"""The server's side of a node's conversation, whatever carries its messages.

A node of this cloud comes by gRPC (`skerry.transport.links.nodes.service`), a cell that was borrowed from a
neighbour by the contract tunnel (`skerry.wire.rear`). The messages mean the same:
`skerry.control.sessions.node_session`. Here are its bounds: messages are taken at a bearable pace, and one
that does not read is let go when its session is over.
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
from skerry.transport.links.nodes import messages
from skerry.transport.proto import nodes_pb2 as pb

# A call that ends here before it does there is cut off, and with it whatever the node has not read yet: after
# its last word the node gets this long to hang up.
CLOSE_GRACE_S: Final = 5.0
_MESSAGES_PER_S: Final = 100.0


class NodeMessageStream(Protocol):
    """Whole messages, in order. None: the node says no more."""

    async def recv_message(self) -> pb.FromNode | None: ...

    async def send_message(self, message: pb.ToNode) -> None: ...


async def handle_session(
    line: NodeMessageStream,
    sessions: NodeSessions,
    session: NodeSession,
    clock: Clock,
    *,
    check: Callable[[], None],
) -> None:
    """Welcome the node, and talk with it until either has no more to say; raises why it ends early. `check`
    raises, at a word of the node, if it is not to be heard any more."""
    await line.send_message(messages.encode_welcome(session.config))
    sending = asyncio.Lock()  # a message goes out whole
    await race(  # what goes wrong is for the node to know
        _listen(line, sessions, session, clock, check),
        _send_messages(line, session, sending),
        _beat(line, session.config.report_s, sending),
        _let_go(session),
    )


async def _listen(
    line: NodeMessageStream,
    sessions: NodeSessions,
    session: NodeSession,
    clock: Clock,
    check: Callable[[], None],
) -> None:
    """Take what the node says, until it says no more."""
    pace = TokenBucket.full(_MESSAGES_PER_S, at=clock.monotonic())
    while (message := await line.recv_message()) is not None:
        check()
        sessions.heard(session)
        match message.WhichOneof("message"):
            case "heartbeat":
                pass
            case "reports":
                with sessions.busy_with(session):
                    await sessions.reported(session, messages.decode_reports(message.reports))
                sessions.heard(session)  # it could not speak while we were busy with its word
            case "claims":
                with sessions.busy_with(session):
                    await sessions.claimed(session, messages.decode_claims(message.claims))
                sessions.heard(session)
            case "hello":
                with sessions.busy_with(session):
                    await sessions.changed(session, messages.decode_hello(message.hello))
                sessions.heard(session)
            case _:
                raise errors.Invalid("a message must hold a hello, reports, claims or a heartbeat")
        pace = await _pause(pace, clock)


async def _pause(pace: TokenBucket, clock: Clock) -> TokenBucket:
    """Wait until one more message may be taken; whoever sends more is held up by flow control."""
    while True:
        now = clock.monotonic()
        pace = pace.filled(now)
        if (taken := pace.take()) is not None:
            return taken
        await asyncio.sleep(max(0.0, pace.next_at() - now))


async def _send_messages(line: NodeMessageStream, session: NodeSession, sending: asyncio.Lock) -> None:
    """Send what the node is to know, to the goodbye, after which it is for the node to hang up."""
    async for message in session.messages():
        for part in messages.encode_server_message(message):
            async with sending:
                await line.send_message(part)
    await asyncio.sleep(CLOSE_GRACE_S)


async def _beat(line: NodeMessageStream, every_s: float, sending: asyncio.Lock) -> None:
    """Show the node that there is somebody, whatever the store is doing."""
    while True:
        await asyncio.sleep(every_s)
        async with sending:
            await line.send_message(messages.HEARTBEAT)


async def _let_go(session: NodeSession) -> None:
    """End soon after the session has, though the node may not read its goodbye."""
    await session.ended()
    await asyncio.sleep(CLOSE_GRACE_S)
