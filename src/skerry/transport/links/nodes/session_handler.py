"""The server's side of a node session, over any transport.

A node of this cloud connects by gRPC (`skerry.transport.links.nodes.service`), a borrowed node by the
contract tunnel (`skerry.wire.rear`). The messages are the same: `skerry.control.sessions.node_session`. Here
are the limits: the rate of messages is bounded, and a node that does not read is disconnected when its
session is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache
from typing import Final, Protocol

from skerry.control.sessions.node_session import NodeSession, NodeSessions
from skerry.kit.clock import Clock
from skerry.kit.rate_limit import TokenBucket
from skerry.kit.tasks import race
from skerry.model import errors
from skerry.model.node_messages import SessionHeartbeat
from skerry.transport.links.nodes import messages, network_messages, secret_messages
from skerry.transport.links.nodes.heartbeats import HeartbeatPace, OverdueTimer
from skerry.transport.proto import nodes_pb2 as pb

# A call that ends here before it does there is cut off, and with it whatever the node has not read yet: after
# the last message the node gets this long to end the call.
CLOSE_GRACE_S: Final = 5.0
_MESSAGES_PER_S: Final = 100.0


# Whoever reads the bytes of a message calls the function, as long as the context lasts, and sends its result:
# None if the message is to go the usual way.
Answering = Callable[[bytes, Callable[[], bytes | None]], AbstractContextManager[None]]


class NodeMessageStream(Protocol):
    """Whole messages, in order. None: the node has finished."""

    async def recv_message(self) -> pb.FromNode | None: ...

    async def send_message(self, message: pb.ToNode) -> None: ...


def _never(request: bytes, answer: Callable[[], bytes | None]) -> AbstractContextManager[None]:
    """Default of transports without."""
    return nullcontext()


async def handle_session(
    stream: NodeMessageStream,
    sessions: NodeSessions,
    session: NodeSession,
    clock: Clock,
    *,
    check: Callable[[], None],
    answering: Answering = _never,
) -> None:
    """Send the welcome, and exchange messages until either side has finished; raises why it ends early.
    `check` is called for every message of the node, and raises if the node is refused. `answering` is for
    heartbeats, if the transport can answer them where it reads them."""
    await stream.send_message(messages.encode_welcome(session.config))
    handler = _SessionHandler(stream, sessions, session, clock, check)
    with handler.heartbeats(), answering(messages.HEARTBEAT_OF_NODE, handler.answer_heartbeat):
        await race(  # errors are sent to the node
            handler.listen(),
            handler.send_messages(),
            handler.send_heartbeats(),
            _disconnect(session),
        )


class _SessionHandler:
    """One session: what it has received and sent."""

    def __init__(
        self,
        stream: NodeMessageStream,
        sessions: NodeSessions,
        session: NodeSession,
        clock: Clock,
        check: Callable[[], None],
    ) -> None:
        self._stream = stream
        self._sessions = sessions
        self._session = session
        self._clock = clock
        self._check = check
        self._loop = asyncio.get_running_loop()
        self._sending = asyncio.Lock()  # one message at a time
        self._rate = TokenBucket.full(_MESSAGES_PER_S, at=clock.monotonic())
        config = session.config
        self._pace = HeartbeatPace(config.report_s, config.silence_s, self._loop.time())
        self._is_heartbeat_due = asyncio.Event()

    @contextmanager
    def heartbeats(self) -> Iterator[None]:
        """Send them, also to a node of which nothing is read."""
        timer = OverdueTimer.of(self._loop)
        timer.add(self._pace, self._is_heartbeat_due.set)
        try:
            yield
        finally:
            timer.remove(self._pace)

    def answer_heartbeat(self) -> bytes | None:
        """The answer to a heartbeat of the node, from where it is read; None: it goes the usual way."""
        rate = self._rate.filled(self._clock.monotonic()).take()
        if rate is None or self._sending.locked():
            return None
        try:
            self._check()
        except errors.SkerryError:
            return None  # and is raised there
        self._rate = rate
        self._sessions.received(self._session)
        now = self._loop.time()
        if not self._pace.is_due_in_answer(now):
            return b""
        self._pace.sent(now)
        return _encoded_heartbeat(self._pace.take_new_interval(self._sessions.report_s))

    async def listen(self) -> None:
        """Handle messages of the node until there are no more."""
        sessions, session = self._sessions, self._session
        while (message := await self._stream.recv_message()) is not None:
            self._check()
            sessions.received(session)
            match message.WhichOneof("message"):
                case "heartbeat":
                    if self._pace.is_due_in_answer(self._loop.time()):
                        self._is_heartbeat_due.set()
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
                        "a message must hold a hello, reports, claims, volumes, network objects, a request "
                        "for secrets or a heartbeat"
                    )
            await self._wait_for_turn()

    async def send_messages(self) -> None:
        """Send what the node is to know, to the goodbye, after which it is for the node to hang up."""
        async for message in self._session.messages():
            for part in messages.encode_server_message(message):
                await self._send(part)
        await asyncio.sleep(CLOSE_GRACE_S)

    async def send_heartbeats(self) -> None:
        """Send heartbeats when they are due, whatever the store is doing."""
        while True:
            await self._is_heartbeat_due.wait()
            self._is_heartbeat_due.clear()
            heartbeat = SessionHeartbeat(self._pace.take_new_interval(self._sessions.report_s))
            for part in messages.encode_server_message(heartbeat):
                await self._send(part)

    async def _send(self, part: pb.ToNode) -> None:
        async with self._sending:
            await self._stream.send_message(part)
        self._pace.sent(self._loop.time())

    async def _wait_for_turn(self) -> None:
        """Wait until one more message may be taken; a node that sends more is slowed down by flow control."""
        while True:
            now = self._clock.monotonic()
            self._rate = self._rate.filled(now)
            if (taken := self._rate.take()) is not None:
                self._rate = taken
                return
            await asyncio.sleep(max(0.0, self._rate.next_at() - now))


@lru_cache(64)
def _encoded_heartbeat(report_s: float) -> bytes:
    [message] = messages.encode_server_message(SessionHeartbeat(report_s))
    return message.SerializeToString()


async def _disconnect(session: NodeSession) -> None:
    """End soon after the session has, though the node may not read its goodbye."""
    await session.ended()
    await asyncio.sleep(CLOSE_GRACE_S)
