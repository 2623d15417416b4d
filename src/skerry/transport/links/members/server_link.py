"""The end of a link that was dialled: accepts other members, and serves their requests.

`skerry.transport.links.members.server` owns these; `skerry.functions.continuum.member_api.MemberService` does
the work. A call has a task from its start to its answer, and ends with its link. What can be answered at once
is, where it comes in. Before its hello, which must match its certificate, a peer gets no answers.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Final, TypeVar

import msgspec
import structlog

from skerry.functions.continuum.member_api import ForwardedCall, MemberService
from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.model.calls import CallFailure, CallReport, CallResult
from skerry.model.ids import NodeId
from skerry.transport.admission import ConnectionSlot
from skerry.transport.links.members import messages
from skerry.transport.links.members.framing import MalformedFrame, decode_request, encode_frame
from skerry.transport.links.members.link import MemberLink
from skerry.transport.links.members.link_identity import (
    LinkAccess,
    LinkIdentity,
    check_access,
    identity_from_certificate,
)
from skerry.transport.links.members.messages import RequestMessage
from skerry.transport.links.members.streamed_response import StreamedResponse

log = structlog.get_logger(__name__)

_CHUNK_BYTES: Final = 256 * 1024
_CALL_S: Final = 0.0001  # what the least of calls takes after it was read
_TOO_MUCH: Final = "too many requests at once on one link; try again in a moment"
_ENDED: Final = "the call was ended there before it was done"
_FAULT: Final = "by a fault of the neighbour; its log has the reason"


class MemberLinkLimits(msgspec.Struct, frozen=True):
    """What one neighbour may use."""

    calls: int = 1024  # under way at once on one link
    params_bytes: int = 256 * 1024 * 1024  # of all those
    fetches: int = 4  # of those; each has the whole archive in memory
    hello_timeout_s: float = 10.0
    start_timeout_s: float = 5.0  # a worker waits no longer than this for the caller's start
    stall_s: float = 10.0  # a peer that reads nothing for so long is disconnected
    keep_alive_s: float = 0.4  # while a long message comes in, a keep-alive is sent so often


class ServerLinkDeps(msgspec.Struct, frozen=True):
    """What is the same for all links that were dialled."""

    here: NodeId
    serves: MemberService
    clock: Clock
    access: LinkAccess
    max_bytes: int  # of a message
    limits: MemberLinkLimits
    connected: Callable[[ServerLink], None]  # a neighbour has sent its hello
    disconnected: Callable[[ServerLink], None]


A = TypeVar(
    "A",
    messages.InvokeFunction,
    messages.FetchCode,
    messages.PollCall,
    messages.StoreCode,
    messages.StoreResult,
)


class _Call:
    """The work for one number, and the start that it may wait for."""

    __slots__ = ("go", "may_have_run", "response", "size", "task")

    def __init__(self, size: int) -> None:
        self.size = size  # of the request
        self.task: asyncio.Task[None] | None = None  # once it has begun
        self.go: asyncio.Future[None] | None = None
        self.may_have_run = False
        self.response: StreamedResponse | None = None  # of a web function


class ServerLink(MemberLink[RequestMessage]):
    """A link from one neighbour."""

    def __init__(self, server: ServerLinkDeps, slot: ConnectionSlot) -> None:
        super().__init__(decode_request, stall_s=server.limits.stall_s)
        self._deps = server
        self._slot = slot
        self._serves = server.serves
        self._limits = server.limits
        self._identity: LinkIdentity | None = None
        self.node: NodeId | None = None  # after its hello
        self._address = ""
        self._calls: dict[int, _Call] = {}
        self._idle: asyncio.Future[None] | None = None  # while a stop waits for the calls to end
        self._params_bytes = 0
        self._fetches = 0
        self._hello_timer: asyncio.TimerHandle | None = None
        self._keep_alive_at = 0.0
        self.is_stopping = False  # takes nothing more

    # What the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._address = str((transport.get_extra_info("peername") or ("gone",))[0])
        try:
            self._identity = identity_from_certificate(transport)
        except errors.Unauthenticated as error:
            self.fail("refused", error.message)
        else:
            self._hello_timer = self._loop.call_later(self._limits.hello_timeout_s, self._wait_no_more)
            self.check_access()

    def _handle(self, data: bytes) -> None:
        if self._identity is None:
            return  # refused, and not yet closed
        super()._handle(data)
        if self._frames.is_in_message and self.node is not None:
            now = self._deps.clock.monotonic()
            if now - self._keep_alive_at >= self._limits.keep_alive_s:
                self._keep_alive_at = now
                self.send(messages.KeepAlive())

    def check_access(self) -> None:
        """End the link if its peer may not have one, or not any more."""
        if self._identity is None:
            return  # refused already, or nothing is known of it yet
        try:
            check_access(self._identity, self.node, self._deps.access)
        except errors.SkerryError as error:
            self.fail("refused", error.message)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._hello_timer is not None:
            self._hello_timer.cancel()
        if self.node is not None:
            self._deps.disconnected(self)
        for number in list(self._calls):
            self._cancel(number)
        self._report_closed()

    # Messages

    @property
    def peer(self) -> str:
        if self._identity is None:
            return self._address
        return f"{self._identity.role} {self._identity.name} ({self._address})"

    def _take(self, message: RequestMessage) -> None:
        if isinstance(message, messages.LinkHello):
            self._accept_hello(message)
        elif self.node is None:
            raise MalformedFrame(f"{type(message).__name__} before a hello")
        elif isinstance(message, messages.InvokeFunction):
            self._start(message, self._invoke, len(message.call.request.params))
        elif isinstance(message, messages.StartCall):
            call = self._calls.get(message.number)
            if call is not None and call.go is not None and not call.go.done():
                call.go.set_result(None)
        elif isinstance(message, messages.PingMessage):
            self._pong(message, self.node)
        elif isinstance(message, messages.CancelCall):
            self._cancel(message.number)
        elif isinstance(message, (messages.GrantBytes, messages.AbandonResponse)):
            self._note_reader(message)
        elif isinstance(message, messages.FetchCode):
            self._start(message, self._fetch)
        elif isinstance(message, messages.PollCall):
            self._start(message, self._poll)
        elif isinstance(message, messages.ListCode):
            self._list_code(message)
        elif isinstance(message, messages.ReadCalls):
            self._send_list(messages.CallsReply(message.number, self._serves.calls()))
        elif isinstance(message, messages.StoreCode):
            self._start(message, self._store_code)
        else:
            self._start(message, self._store_result, len(message.copy.body))

    def _accept_hello(self, hello: messages.LinkHello) -> None:
        assert self._identity is not None
        if self.node is not None:
            raise MalformedFrame("a second hello")
        if not self._identity.may_be(hello.node):
            self.fail("refused", f"it says that it is {hello.node}, and its certificate does not")
            return
        if self._hello_timer is not None:
            self._hello_timer.cancel()
        self.node = hello.node
        self.check_access()
        if self._is_over:
            self.node = None  # it never came
            return
        self._slot.recognize()
        self._slot.occupy()  # a link is needed as long as it is there
        self.complete_handshake(hello.max_bytes, self._deps.max_bytes)
        self.send(messages.LinkWelcome(self._deps.here, self._deps.max_bytes))
        self._deps.connected(self)

    def _pong(self, ping: messages.PingMessage, node: NodeId) -> None:
        if ping.load is None:
            self.send(messages.PongMessage(ping.number))
        else:
            self._serves.load_reported(node, ping.load)
            self.send(messages.PongMessage(ping.number, self._serves.load()))

    def _wait_no_more(self) -> None:
        self.fail("refused", f"it sent nothing for {self._limits.hello_timeout_s:g} s")

    # What is done for it

    def _start(
        self, request: A, work: Callable[[A, _Call], Awaitable[bytearray]], params_bytes: int = 0
    ) -> None:
        number = request.number
        if number in self._calls:
            raise MalformedFrame(f"number {number} a second time")
        if self.is_stopping:
            self.send(messages.LinkRefusal(number, errors.Unavailable.slug, "the neighbour is stopping"))
        elif (
            len(self._calls) >= self._limits.calls
            or self._params_bytes + params_bytes > self._limits.params_bytes
        ):
            self.send(messages.LinkRefusal(number, errors.Overloaded.slug, _TOO_MUCH))
        else:
            call = self._calls[number] = _Call(params_bytes)
            self._params_bytes += params_bytes
            self._input.begin_call(partial(self._begin, request, call, work), _CALL_S)

    def _begin(self, request: A, call: _Call, work: Callable[[A, _Call], Awaitable[bytearray]]) -> bool:
        """True if the call is still wanted."""
        number = request.number
        if self._calls.get(number) is not call:
            return False
        call.task = self._loop.create_task(self._perform(request, call, work))
        # Not in the task: one that is cancelled before its first step never runs.
        call.task.add_done_callback(lambda task: self._ended(number, is_cancelled=task.cancelled()))
        return True

    def _cancel(self, number: int) -> None:
        call = self._calls.get(number)
        if call is None:
            return
        if call.task is None:
            self._ended(number, is_cancelled=True)
        else:
            call.task.cancel()

    def _ended(self, number: int, *, is_cancelled: bool) -> None:
        call = self._calls.pop(number)
        self._params_bytes -= call.size
        if is_cancelled:  # another request may have done that
            self.send(messages.LinkRefusal(number, errors.Unavailable.slug, _ENDED, call.may_have_run))
        if not self._calls and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)
        self._report_closed()

    async def _perform(
        self,
        request: A,
        call: _Call,
        work: Callable[[A, _Call], Awaitable[bytearray]],
    ) -> None:
        """Do the work and send its answer, or the error."""
        try:
            frame = await work(request, call)
        except errors.SkerryError as error:
            if error.detail:
                log.info("neighbour.call_refused", peer=self.peer, kind=error.slug, detail=error.detail)
            frame = encode_frame(messages.LinkRefusal(request.number, error.slug, error.message))
        except Exception as error:
            log.error("neighbour.call_broke", peer=self.peer, error=repr(error), exc_info=error)
            frame = encode_frame(
                messages.LinkRefusal(
                    request.number, errors.Internal.slug, _FAULT, may_have_run=call.may_have_run
                )
            )
        self.send_frame(frame)

    async def _invoke(self, request: messages.InvokeFunction, call: _Call) -> bytearray:
        number, far = request.number, request.call
        streamed = None
        if far.request.is_web:
            streamed = call.response = StreamedResponse(self, number)
            far = msgspec.structs.replace(far, request=streamed.request_of(far.request))
        try:
            report = await self._run(number, far, call, at_once=request.at_once)
            if streamed is not None:
                await streamed.finish()
        finally:
            if streamed is not None:
                await streamed.close()
        frame = encode_frame(messages.CallDone(number, report))
        if len(frame) > self._max_sent:
            frame = encode_frame(
                messages.CallDone(number, _without_result(report, len(frame), self._max_sent))
            )
        if self._writable is not None:
            await self.writable()
        return frame

    def _note_reader(self, message: messages.GrantBytes | messages.AbandonResponse) -> None:
        """What the reader of a response has taken, or that it has left."""
        call = self._calls.get(message.number)
        if call is None or call.response is None:
            return  # it has ended
        if isinstance(message, messages.GrantBytes):
            call.response.grant(message.count)
        else:
            call.response.abandon()

    async def _run(self, number: int, far: ForwardedCall, call: _Call, *, at_once: bool) -> CallReport:
        if at_once and self._serves.has_warm(far.request.function):
            call.may_have_run = True
            return await self._serves.invoke(far, begins=None)
        return await self._serves.invoke(far, begins=lambda: self._confirm_start(number, call))

    async def _confirm_start(self, number: int, call: _Call) -> None:
        """There is a worker: send `CallReady`, and run the call only if `StartCall` comes in time."""
        call.go = self._loop.create_future()
        self.send(messages.CallReady(number))
        try:
            async with asyncio.timeout(self._limits.start_timeout_s):
                await call.go
        except TimeoutError:
            raise errors.TimedOut("the caller did not start the call in time") from None
        call.may_have_run = True

    def _list_code(self, request: messages.ListCode) -> None:
        self._send_list(messages.CodeListReply(request.number, self._serves.list_code(request.known)))

    def _send_list(self, reply: messages.CodeListReply | messages.CallsReply) -> None:
        frame = encode_frame(reply)
        if len(frame) > self._max_sent:
            raise MalformedFrame(f"{type(reply).__name__} is longer than the peer accepts")
        self.send_frame(frame)

    async def _store_code(self, request: messages.StoreCode, _: _Call) -> bytearray:
        with self._transferring():
            await self._serves.store_code(request.digest, request.source)
        return encode_frame(messages.StoreReply(request.number))

    async def _store_result(self, request: messages.StoreResult, _: _Call) -> bytearray:
        await self._serves.store_result(request.copy)
        return encode_frame(messages.StoreReply(request.number))

    @contextlib.contextmanager
    def _transferring(self) -> Iterator[None]:
        """Limit the code transfers of one neighbour at a time."""
        if self._fetches >= self._limits.fetches:
            raise errors.Overloaded(_TOO_MUCH)
        self._fetches += 1
        try:
            yield
        finally:
            self._fetches -= 1

    async def _fetch(self, request: messages.FetchCode, _: _Call) -> bytearray:
        with self._transferring():
            code = memoryview(await self._serves.code(request.digest))
            while len(code) > _CHUNK_BYTES:
                await self.writable()
                self.send(messages.CodeChunk(request.number, bytes(code[:_CHUNK_BYTES]), is_last=False))
                code = code[_CHUNK_BYTES:]
            await self.writable()
            return encode_frame(messages.CodeChunk(request.number, bytes(code), is_last=True))

    async def _poll(self, request: messages.PollCall, _: _Call) -> bytearray:
        frame = encode_frame(messages.PollReply(request.number, await self._serves.poll(request.id)))
        if len(frame) > self._max_sent:
            raise errors.TooLarge(
                f"the result takes {len(frame)} bytes, and the peer accepts {self._max_sent}; ask here"
            )
        await self.writable()
        return frame

    # Its end

    async def stop(self, within_s: float) -> None:
        """What runs may end within this time, and then ends with the link."""
        if self._calls:
            self._idle = self._loop.create_future()
            await asyncio.wait([self._idle], timeout=within_s)
        self.finish()

    def _report_closed(self) -> None:
        if self._is_lost and not self._calls and not self.closed.done():
            self.closed.set_result(None)


def _without_result(report: CallReport, size: int, most: int) -> CallReport:
    """The report of a call that was run and whose result is too long for the caller."""
    answer = CallResult(
        report.answer.duration_s,
        failure=CallFailure.RESULT,
        error=f"the result and output of {size} bytes are more than the {most} that the node takes which "
        "passed the call on; return less, or give that node the same functions.max_result_bytes",
    )
    return msgspec.structs.replace(report, answer=answer)
