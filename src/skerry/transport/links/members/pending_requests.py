"""Pending requests of the end that dialled: which messages answer them, and what a lost link means. A request
gets every message with its number until it is done. Which failures of a call prove that it was not run is
decided only here:

    before                                              the link ends or nothing comes in time
    `InvokeFunction` was sent                           not started
    `CallReady`, and it was not to start at once        not started
    `CallReady`, and it was to start at once            may have run
    `StartCall`, while the caller notes that it runs    not started
    `CallReady` was answered with `StartCall`           may have run

A `LinkRefusal` says which, at any time.
"""

from __future__ import annotations

import asyncio
import hashlib
from abc import abstractmethod
from collections.abc import Callable
from typing import Generic, TypeVar

from skerry.functions.asynchronous.results import AsyncCallResult
from skerry.functions.continuum.member_api import (
    CallNotStarted,
    CallOutcomeUnknown,
    CodeList,
    CopyRefused,
    FunctionCalls,
    MemberLoad,
)
from skerry.kit.response_stream import ResponseStream, StreamOverrun
from skerry.model import errors
from skerry.model.calls import CallReport
from skerry.model.ids import Digest
from skerry.model.web_calls import WebResponseHead
from skerry.transport.links.members.framing import MalformedFrame
from skerry.transport.links.members.messages import (
    CallDone,
    CallReady,
    CallsReply,
    CodeChunk,
    CodeListReply,
    LinkMessage,
    LinkRefusal,
    PollReply,
    PongMessage,
    ReplyMessage,
    ResponseHead,
    ResponsePart,
    StartCall,
    StoreReply,
)

T = TypeVar("T")


class LinkRequest(Generic[T]):
    """A request to a neighbour. `answer` is done when it is."""

    __slots__ = ("answer",)

    def __init__(self, answer: asyncio.Future[T]) -> None:
        self.answer = answer

    @abstractmethod
    def take(self, message: ReplyMessage) -> None:
        """An answer has come, or a part of it. Raises `MalformedFrame` for what answers something else."""

    @property
    def progress(self) -> int:
        """Grows while the answer is on its way."""
        return 0

    def refused(self, refused: LinkRefusal) -> None:
        self.fail(errors.Unavailable(f"the neighbour says: {refused.message}", detail=refused.kind))

    def lose(self, reason: str) -> None:
        """No answer will come."""
        self.fail(errors.Unavailable(reason))

    def finish(self, result: T) -> None:
        if not self.answer.done():
            self.answer.set_result(result)

    def fail(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


class LinkCall(LinkRequest[CallReport]):
    """A call that the neighbour is to run."""

    __slots__ = ("_number", "_response", "_send", "may_have_run", "ready")

    def __init__(
        self,
        answer: asyncio.Future[CallReport],
        number: int,
        send: Callable[[LinkMessage], None],
        *,
        at_once: bool,
        ready: asyncio.Future[None] | None = None,
        response: ResponseStream[WebResponseHead] | None = None,
    ) -> None:
        """`ready` is done when the neighbour is, which then waits for `start`; without `ready` that is sent
        at once. `response` gets that of a web function, part by part."""
        super().__init__(answer)
        self._response = response
        self._number = number
        self._send = send
        self.may_have_run = at_once
        self.ready = ready

    def take(self, message: ReplyMessage) -> None:
        if type(message) is CallDone:
            self.finish(message.report)
        elif type(message) is CallReady:
            if self.ready is None:
                self.start()
            elif not self.ready.done():
                self.may_have_run = False
                self.ready.set_result(None)
        elif self._response is not None and type(message) in (ResponseHead, ResponsePart):
            self._take_response(self._response, message)
        else:
            raise MalformedFrame(f"{type(message).__name__} for a call")

    def _take_response(self, response: ResponseStream[WebResponseHead], message: ReplyMessage) -> None:
        try:
            if type(message) is ResponseHead:
                response.begin(message.head)
            elif type(message) is ResponsePart:
                response.write(message.data)
        except StreamOverrun as error:
            raise MalformedFrame(str(error)) from None

    def start(self) -> None:
        """Start the call; not if its caller has left meanwhile."""
        self.may_have_run = not self.answer.done()
        if self.may_have_run:
            self._send(StartCall(self._number))

    def refused(self, refused: LinkRefusal) -> None:
        if refused.may_have_run:
            self.fail(CallOutcomeUnknown(refused.message))
        else:
            self.fail(CallNotStarted(refused.message, kind=refused.kind))

    def lose(self, reason: str) -> None:
        self.fail(CallOutcomeUnknown(reason) if self.may_have_run else CallNotStarted(reason))


class LinkPing(LinkRequest[tuple[MemberLoad, float]]):
    """A round trip, timed to the arrival of the answer, whatever other tasks run then."""

    __slots__ = ("_monotonic", "_sent_at")

    def __init__(
        self, answer: asyncio.Future[tuple[MemberLoad, float]], monotonic: Callable[[], float]
    ) -> None:
        super().__init__(answer)
        self._monotonic = monotonic
        self._sent_at = monotonic()

    def take(self, message: ReplyMessage) -> None:
        if type(message) is not PongMessage or message.load is None:
            raise MalformedFrame(f"{type(message).__name__} for a ping")
        self.finish((message.load, self._monotonic() - self._sent_at))


class LinkFetch(LinkRequest[bytes]):
    """Content by its digest, gathered piece by piece; nothing is believed that has another."""

    __slots__ = ("_digest", "_hash", "_max_bytes", "_parts", "_size")

    def __init__(self, answer: asyncio.Future[bytes], digest: Digest, max_bytes: int) -> None:
        super().__init__(answer)
        self._digest = digest
        self._hash = hashlib.sha256()
        self._max_bytes = max_bytes
        self._parts: list[bytes] = []
        self._size = 0

    @property
    def progress(self) -> int:
        return len(self._parts)

    def take(self, message: ReplyMessage) -> None:
        if type(message) is not CodeChunk:
            raise MalformedFrame(f"{type(message).__name__} for a fetch")
        self._size += len(message.data)
        if self._size > self._max_bytes:
            raise MalformedFrame(f"more than {self._max_bytes} bytes of code")
        self._hash.update(message.data)
        self._parts.append(message.data)
        if not message.is_last:
            return
        if f"sha256:{self._hash.hexdigest()}" == self._digest:
            self.finish(b"".join(self._parts))
        else:
            self.fail(errors.Unavailable(f"the neighbour sent something else than {self._digest}"))

    def refused(self, refused: LinkRefusal) -> None:
        if refused.kind == errors.NotFound.slug:
            self.fail(errors.NotFound(f"the neighbour has no code {self._digest}"))
        else:
            super().refused(refused)


class LinkPoll(LinkRequest[AsyncCallResult | None]):
    """How far an async call is."""

    __slots__ = ()

    def take(self, message: ReplyMessage) -> None:
        if type(message) is not PollReply:
            raise MalformedFrame(f"{type(message).__name__} for a poll")
        self.finish(message.polled)


class LinkStore(LinkRequest[None]):
    """A copy for the neighbour to store."""

    __slots__ = ()

    def take(self, message: ReplyMessage) -> None:
        if type(message) is not StoreReply:
            raise MalformedFrame(f"{type(message).__name__} for a copy")
        self.finish(None)

    def refused(self, refused: LinkRefusal) -> None:
        self.fail(CopyRefused(refused.message, detail=refused.kind))


class LinkCodeListing(LinkRequest[CodeList]):
    """The list of the neighbour's code."""

    __slots__ = ()

    def take(self, message: ReplyMessage) -> None:
        if type(message) is not CodeListReply:
            raise MalformedFrame(f"{type(message).__name__} for a list of code")
        self.finish(message.listed)


class LinkCallsReading(LinkRequest[tuple[FunctionCalls, ...]]):
    """The neighbour's counters of calls."""

    __slots__ = ()

    def take(self, message: ReplyMessage) -> None:
        if type(message) is not CallsReply:
            raise MalformedFrame(f"{type(message).__name__} for counters of calls")
        self.finish(message.counted)
