"""The end of a link that dialled: sends many requests at once, and notices when the peer does not answer.

`skerry.transport.links.members.link_pool` dials and decides which link is used; `pending_requests` decides
what an answer or its absence means. While a request is pending, the link must receive a byte now and then,
for which it sends pings; otherwise it is closed after the timeout. Nothing here starts a task: input is
handled where it comes in, and wakes its waiter.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import msgspec

from skerry.functions.asynchronous.results import AsyncCallResult
from skerry.functions.continuum.member_api import (
    BeforeStart,
    CallNotStarted,
    CodeList,
    ContinuumMember,
    CopyRefused,
    ForwardedCall,
    FunctionCalls,
    MemberLoad,
    ResultCopy,
)
from skerry.kit import tls
from skerry.kit.clock import Clock
from skerry.kit.response_stream import ResponseStream
from skerry.model import errors
from skerry.model.calls import CallReport
from skerry.model.ids import Digest, NodeId
from skerry.model.web_calls import WebCallRequest, WebResponseHead
from skerry.transport.links.members import messages
from skerry.transport.links.members.framing import MalformedFrame, decode_reply, encode_frame
from skerry.transport.links.members.link import MemberLink
from skerry.transport.links.members.link_identity import (
    LinkAccess,
    LinkIdentity,
    check_access,
    identity_from_certificate,
)
from skerry.transport.links.members.messages import ReplyMessage
from skerry.transport.links.members.pending_requests import (
    LinkCall,
    LinkCallsReading,
    LinkCodeListing,
    LinkFetch,
    LinkPing,
    LinkPoll,
    LinkRequest,
    LinkStore,
)

T = TypeVar("T")

_MAX_MISSED: Final = 4  # per timeout, at whether anything came
_ROUND_TRIPS: Final = 4  # remembered


class ClientLinkDeps(msgspec.Struct, frozen=True):
    """What is the same for all links of a process."""

    here: NodeId
    clock: Clock
    access: LinkAccess
    timeout_s: float
    max_bytes: int  # of a message
    max_code_bytes: int


class ClientLink(MemberLink[ReplyMessage]):
    """A connection to one member. `handshake` is done once the member has let us in."""

    def __init__(
        self, member: ContinuumMember, deps: ClientLinkDeps, on_lost: Callable[[ClientLink], None]
    ) -> None:
        super().__init__(decode_reply, stall_s=deps.timeout_s)
        self.member = member
        self.handshake: asyncio.Future[None] = self._loop.create_future()
        self._deps = deps
        self._on_lost = on_lost
        self._identity: LinkIdentity | None = None
        self._waiting: dict[int, LinkRequest[object]] = {}
        self._number = 0
        self._missed_checks = 0
        self._check: asyncio.TimerHandle | None = None
        self._round_trips: deque[float] = deque(maxlen=_ROUND_TRIPS)
        self._is_retired = False
        self._reason = ""
        self._version = 0  # of the member

    # Requests

    async def invoke(
        self, call: ForwardedCall, *, at_once: bool, begins: BeforeStart | None = None
    ) -> CallReport:
        """Raises `CallNotStarted` or `CallOutcomeUnknown`, and what `begins` raises."""
        number = self._next()
        response = None
        if call.request.is_web:
            call, response = self._stream_of(call, number)
        frame = encode_frame(messages.InvokeFunction(number, call, at_once))
        if len(frame) > self._max_sent:
            raise CallNotStarted(
                f"{self.peer} takes calls of at most {self._max_sent} bytes", kind=errors.TooLarge.slug
            )
        try:
            await self._may_send()
        except errors.Unavailable as error:
            raise CallNotStarted(error.message) from None
        # The neighbour keeps the deadline itself, and its answer has to come back.
        within_s = None if call.deadline_s is None else call.deadline_s + self._deps.timeout_s
        answer = self._loop.create_future()
        if begins is None:
            return await self._request(
                LinkCall(answer, number, self.send, at_once=at_once, response=response),
                number,
                frame,
                within_s,
            )
        request = LinkCall(
            answer,
            number,
            self.send,
            at_once=False,
            ready=self._loop.create_future(),
            response=response,
        )
        return await self._request(request, number, frame, within_s, lambda: self._begin(request, begins))

    def _stream_of(
        self, call: ForwardedCall, number: int
    ) -> tuple[ForwardedCall, ResponseStream[WebResponseHead]]:
        """A call of a web function as it is sent, and the response that stays here."""
        if self._version < messages.WEB_SINCE:
            raise CallNotStarted(
                f"{self.peer} is of a version that runs no web functions for others; upgrade it",
                kind=errors.Unavailable.slug,
            )
        request = call.request
        assert isinstance(request, WebCallRequest), "a call of a web function has a place for its response"
        request.response.attach(
            lambda count: self.send(messages.GrantBytes(number, count)),
            lambda: self.send(messages.AbandonResponse(number)),
        )
        return msgspec.structs.replace(call, request=request.for_member()), request.response

    async def _begin(self, call: LinkCall, begins: BeforeStart) -> None:
        """Once the neighbour is ready, record that the call runs, and then start it."""
        either: list[asyncio.Future[Any]] = [call.answer]
        if call.ready is not None:
            either.append(call.ready)
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not call.answer.done():
            await begins()
            call.start()

    async def ping(self, mine: MemberLoad) -> tuple[MemberLoad, float]:
        """How the member is, and the shortest of the last few round trips: longer ones had to queue."""
        number = self._next()
        frame = encode_frame(messages.PingMessage(number, mine))
        await self._may_send()
        request = LinkPing(self._loop.create_future(), self._deps.clock.monotonic)
        load, took_s = await self._request(request, number, frame, self._deps.timeout_s)
        self._round_trips.append(took_s)
        return load, min(self._round_trips)

    async def fetch(self, digest: Digest) -> bytes:
        number = self._next()
        await self._may_send()
        request = LinkFetch(self._loop.create_future(), digest, self._deps.max_code_bytes)
        # The timeout of each chunk: a disk may be slower than a plain answer.
        within_s = _MAX_MISSED * self._deps.timeout_s
        return await self._request(
            request, number, encode_frame(messages.FetchCode(number, digest)), within_s
        )

    async def poll(self, id: str) -> AsyncCallResult | None:
        number = self._next()
        await self._may_send()
        request = LinkPoll(self._loop.create_future())
        return await self._request(
            request, number, encode_frame(messages.PollCall(number, id)), self._deps.timeout_s
        )

    async def store_code(self, digest: Digest, source: NodeId) -> None:
        """Without a timeout of its own: the caller has one."""
        self._check_supports_copies()
        number = self._next()
        await self._may_send()
        request = LinkStore(self._loop.create_future())
        await self._request(request, number, encode_frame(messages.StoreCode(number, digest, source)), None)

    async def list_code(self, known: str) -> CodeList:
        self._check_supports_copies()
        number = self._next()
        await self._may_send()
        request = LinkCodeListing(self._loop.create_future())
        frame = encode_frame(messages.ListCode(number, known))
        return await self._request(request, number, frame, self._deps.timeout_s)

    async def read_calls(self) -> tuple[FunctionCalls, ...]:
        if self._version < messages.CALLS_SINCE:
            raise errors.Unavailable("it is of a version that does not tell its calls; upgrade it")
        number = self._next()
        await self._may_send()
        request = LinkCallsReading(self._loop.create_future())
        frame = encode_frame(messages.ReadCalls(number))
        return await self._request(request, number, frame, self._deps.timeout_s)

    async def store_result(self, copy: ResultCopy) -> None:
        self._check_supports_copies()
        number = self._next()
        frame = encode_frame(messages.StoreResult(number, copy))
        if len(frame) > self._max_sent:
            raise CopyRefused(f"{self.peer} takes messages of at most {self._max_sent} bytes")
        await self._may_send()
        request = LinkStore(self._loop.create_future())
        await self._request(request, number, frame, _MAX_MISSED * self._deps.timeout_s)

    def _check_supports_copies(self) -> None:
        if self._version < messages.COPIES_SINCE:
            raise errors.Unavailable(f"{self.peer} is of a version that keeps no copies; upgrade it")

    def retire(self) -> None:
        """Take no more requests; the link ends when none is pending."""
        self._is_retired = True
        if not self._waiting:
            self.abort()

    def check_access(self) -> None:
        """End the link if its member was revoked; for one that has left there is `retire`."""
        if self._identity is None:
            return  # nothing is known of it yet
        try:
            check_access(self._identity, None, self._deps.access)
        except errors.Unauthenticated as error:
            self.fail("revoked", error.message)

    @property
    def takes_more(self) -> bool:
        return not self._is_over and not self._is_retired

    def _next(self) -> int:
        self._number += 1
        return self._number

    async def _may_send(self) -> None:
        """Wait until the member takes more, for as long as it may be silent. Raises `Unavailable`."""
        if self._writable is not None:
            try:
                async with asyncio.timeout(self._deps.timeout_s):
                    await self.writable()
            except TimeoutError:
                raise errors.Unavailable(f"{self.peer} does not take what it was sent before") from None
        if self._is_over:
            raise errors.Unavailable(f"the link to {self.peer} has ended")

    async def _request(
        self,
        request: LinkRequest[T],
        number: int,
        frame: bytearray,
        within_s: float | None,
        before_answer: Callable[[], Awaitable[None]] | None = None,
    ) -> T:
        """The answer. `before_answer` is awaited before it; what it raises cancels the request."""
        self._waiting[number] = request  # type: ignore[assignment]  # which T is the asker's business
        if self._check is None:
            self._check_later()
        self.send_frame(frame)
        timer = None
        if within_s is not None:
            timer = self._loop.call_later(within_s, self._check_progress, number, within_s, 0)
        try:
            if before_answer is not None:
                await self._add_chunk(request, number, before_answer)
            return await request.answer
        except asyncio.CancelledError:
            self.send(messages.CancelCall(number))
            raise
        finally:
            if timer is not None:
                timer.cancel()
            del self._waiting[number]
            if self._is_retired and not self._waiting:
                self.abort()

    async def _add_chunk(
        self, request: LinkRequest[T], number: int, before_answer: Callable[[], Awaitable[None]]
    ) -> None:
        try:
            await before_answer()
        except Exception:
            self.send(messages.CancelCall(number))
            if request.answer.done():
                request.answer.exception()  # there is no other request for it
            raise

    # What comes

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        try:
            self._identity = identity_from_certificate(transport)
            check_access(self._identity, self.member.node, self._deps.access)
        except errors.SkerryError as error:
            self._reason = error.message
        else:
            if not self._identity.may_be(self.member.node):
                self._reason = f"the certificate there is of node {self._identity.name}"
        if self._reason:
            self.abort()
        else:
            self.send(messages.LinkHello(self._deps.here, self._deps.max_bytes))

    def data_received(self, data: bytes) -> None:
        self._missed_checks = 0
        super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._check is not None:
            self._check.cancel()
        reason = self._reason or (tls.explain(exc) if isinstance(exc, ssl.SSLError) else "it ended")
        if not self.handshake.done():
            self.handshake.set_exception(errors.Unavailable(reason))
        for request in self._waiting.values():
            request.lose(f"the link to {self.peer} was lost: {reason}")
        self._on_lost(self)
        if not self.closed.done():
            self.closed.set_result(None)

    @property
    def peer(self) -> str:
        return f"{self.member.name} ({self.member.address})"

    def fail(self, slug: str, reason: str) -> None:
        self._reason = self._reason or reason
        super().fail(slug, reason)

    def _take(self, message: ReplyMessage) -> None:
        if isinstance(message, messages.KeepAlive):
            return
        if isinstance(message, messages.LinkWelcome):
            self._welcome(message)
            return
        if not self.handshake.done():
            raise MalformedFrame(f"{type(message).__name__} before a welcome")
        request = self._waiting.get(message.number)
        if request is None:
            return  # the answer to a request that was cancelled
        if isinstance(message, messages.LinkRefusal):
            request.refused(message)
        else:
            request.take(message)

    def _welcome(self, welcome: messages.LinkWelcome) -> None:
        if self.handshake.done():
            raise MalformedFrame("a second welcome")
        if welcome.node != self.member.node:
            self._reason = f"node {welcome.node[:40]} answers there"
            self.abort()
            return
        self._version = welcome.version
        self.complete_handshake(welcome.max_bytes, self._deps.max_bytes)
        self.handshake.set_result(None)

    # What does not come

    def _check_later(self) -> None:
        self._check = self._loop.call_later(self._deps.timeout_s / _MAX_MISSED, self._check_alive)

    def _check_alive(self) -> None:
        """Counts checks, not seconds: if this process was paused, input that came meanwhile is read first."""
        self._check = None
        if not self._waiting or self._is_over:
            self._missed_checks = 0
            return
        self._missed_checks += 1
        if self._missed_checks >= _MAX_MISSED:
            self.fail("silent", f"nothing came for {self._deps.timeout_s:g} s")
            return
        if self._missed_checks == _MAX_MISSED // 2:
            self.send(messages.PingMessage(self._next()))
        self._check_later()

    def _check_progress(self, number: int, within_s: float, before: int) -> None:
        request = self._waiting.get(number)
        if request is None:
            return
        if request.progress > before:
            self._loop.call_later(within_s, self._check_progress, number, within_s, request.progress)
            return
        self.send(messages.CancelCall(number))
        request.lose(f"{self.peer} did not answer within {within_s:g} s")
