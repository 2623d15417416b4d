"""The end of a link that was dialled: lets neighbours in, and has done for them what they ask.

`skerry.wire.neighbours.serving` owns these; what is done is `skerry.functions.continuum.neighbours.Serves`'.
A call has a task from its arrival to its answer, and ends with its link. What can be answered at once is,
where it comes in. Until a neighbour has said who it is, as its certificate does, it is asked nothing and told
nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec
import structlog

from skerry.functions.continuum.neighbours import Serves
from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.model.calls import Answer, Failure, Report
from skerry.model.ids import NodeId
from skerry.wire.neighbours import messages
from skerry.wire.neighbours.ends import End
from skerry.wire.neighbours.frames import Broken, decode_asked, framed
from skerry.wire.neighbours.identities import Counts, Identity, identity_of
from skerry.wire.neighbours.messages import Asked

log = structlog.get_logger(__name__)

_PIECE_BYTES: Final = 256 * 1024
_TOO_MUCH: Final = "too much at once is asked on one link; ask again in a moment"
_ENDED: Final = "the call was ended there before it was done"
_FAULT: Final = "by a fault of the neighbour; its log has the reason"


@dataclass(frozen=True, slots=True)
class Limits:
    """What one neighbour may use."""

    calls: int = 1024  # under way at once on one link
    params_bytes: int = 256 * 1024 * 1024  # of all those
    fetches: int = 4  # of those; each has the whole archive in memory
    first_word_s: float = 10.0
    go_s: float = 5.0  # a worker waits no longer than this for the caller's word
    stall_s: float = 10.0  # who takes nothing for so long is let go
    beat_s: float = 0.4  # while a long message comes in, a sign of life goes out so often


@dataclass(frozen=True, slots=True)
class House:
    """What is the same for all links that were dialled."""

    here: NodeId
    serves: Serves
    clock: Clock
    counts: Counts
    max_bytes: int  # of a message
    limits: Limits
    came: Callable[[Answering], None]  # a neighbour has said who it is
    left: Callable[[Answering], None]


A = TypeVar("A", messages.Invoke, messages.Fetch, messages.Poll)


class _Call:
    """What runs for one number, and the word that it may wait for."""

    __slots__ = ("go", "may_have_run", "size", "task")

    task: asyncio.Task[None]

    def __init__(self, size: int) -> None:
        self.size = size  # of what it was asked with
        self.go: asyncio.Future[None] | None = None
        self.may_have_run = False


class Answering(End[Asked]):
    """A link from one neighbour."""

    def __init__(self, house: House) -> None:
        super().__init__(decode_asked, stall_s=house.limits.stall_s)
        self._house = house
        self._serves = house.serves
        self._limits = house.limits
        self._identity: Identity | None = None
        self.node: NodeId | None = None  # once it has said who it is
        self._address = ""
        self._calls: dict[int, _Call] = {}
        self._params_bytes = 0
        self._fetches = 0
        self._first_word: asyncio.TimerHandle | None = None
        self._beat_at = 0.0
        self.is_stopping = False  # takes nothing more

    # What the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._address = str((transport.get_extra_info("peername") or ("gone",))[0])
        try:
            self._identity = identity_of(transport, self._house.counts)
        except errors.Unauthenticated as error:
            self.give_up("refused", error.message)
        else:
            self._first_word = self._loop.call_later(self._limits.first_word_s, self._wait_no_more)

    def data_received(self, data: bytes) -> None:
        if self._identity is None:
            return  # refused, and not yet gone
        if not self._house.counts(self._identity.serial):
            self.give_up("refused", "its certificate was revoked")
            return
        super().data_received(data)
        if self._frames.is_amid and self.node is not None:
            now = self._house.clock.monotonic()
            if now - self._beat_at >= self._limits.beat_s:
                self._beat_at = now
                self.send(messages.Beat())

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._first_word is not None:
            self._first_word.cancel()
        if self.node is not None:
            self._house.left(self)
        for call in self._calls.values():
            call.task.cancel()
        self._report_closed()

    # What a neighbour says

    @property
    def peer(self) -> str:
        if self._identity is None:
            return self._address
        return f"{self._identity.role} {self._identity.name} ({self._address})"

    def _take(self, message: Asked) -> None:
        if isinstance(message, messages.Hello):
            self._greet(message)
        elif self.node is None:
            raise Broken(f"{type(message).__name__} before a hello")
        elif isinstance(message, messages.Invoke):
            self._start(message, self._invoke, len(message.call.ask.params))
        elif isinstance(message, messages.Go):
            call = self._calls.get(message.number)
            if call is not None and call.go is not None and not call.go.done():
                call.go.set_result(None)
        elif isinstance(message, messages.Ping):
            self._pong(message, self.node)
        elif isinstance(message, messages.Cancel):
            call = self._calls.get(message.number)
            if call is not None:
                call.task.cancel()
        elif isinstance(message, messages.Fetch):
            self._start(message, self._fetch)
        else:
            self._start(message, self._poll)

    def _greet(self, hello: messages.Hello) -> None:
        assert self._identity is not None
        if self.node is not None:
            raise Broken("a second hello")
        if not self._identity.may_be(hello.node):
            self.give_up("refused", f"it says that it is {hello.node}, and its certificate does not")
            return
        if self._first_word is not None:
            self._first_word.cancel()
        self.node = hello.node
        self.greeted(hello.max_bytes, self._house.max_bytes)
        self.send(messages.Welcome(self._house.here, self._house.max_bytes))
        self._house.came(self)

    def _pong(self, ping: messages.Ping, node: NodeId) -> None:
        if ping.standing is None:
            self.send(messages.Pong(ping.number))
        else:
            self._serves.heard(node, ping.standing)
            self.send(messages.Pong(ping.number, self._serves.standing()))

    def _wait_no_more(self) -> None:
        self.give_up("refused", f"it said nothing for {self._limits.first_word_s:g} s")

    # What is done for it

    def _start(
        self, asked: A, work: Callable[[A, _Call], Awaitable[bytearray]], params_bytes: int = 0
    ) -> None:
        number = asked.number
        if number in self._calls:
            raise Broken(f"number {number} a second time")
        if self.is_stopping:
            self.send(messages.Refused(number, errors.Unavailable.slug, "the neighbour is stopping"))
        elif (
            len(self._calls) >= self._limits.calls
            or self._params_bytes + params_bytes > self._limits.params_bytes
        ):
            self.send(messages.Refused(number, errors.Overloaded.slug, _TOO_MUCH))
        else:
            call = self._calls[number] = _Call(params_bytes)
            self._params_bytes += params_bytes
            call.task = self._loop.create_task(self._perform(asked, call, work))
            # Not in the task: one that is cancelled before its first step never runs.
            call.task.add_done_callback(lambda task: self._ended(number, is_cancelled=task.cancelled()))

    def _ended(self, number: int, *, is_cancelled: bool) -> None:
        call = self._calls.pop(number)
        self._params_bytes -= call.size
        if is_cancelled:  # whoever asked may not have been the one who did that
            self.send(messages.Refused(number, errors.Unavailable.slug, _ENDED, call.may_have_run))
        self._report_closed()

    async def _perform(self, asked: A, call: _Call, work: Callable[[A, _Call], Awaitable[bytearray]]) -> None:
        """Do it and send its answer, or why there is none."""
        try:
            frame = await work(asked, call)
        except errors.SkerryError as error:
            if error.detail:
                log.info("neighbour.call_refused", peer=self.peer, kind=error.slug, detail=error.detail)
            frame = framed(messages.Refused(asked.number, error.slug, error.message))
        except Exception as error:
            log.error("neighbour.call_broke", peer=self.peer, error=repr(error), exc_info=error)
            frame = framed(
                messages.Refused(asked.number, errors.Internal.slug, _FAULT, may_have_run=call.may_have_run)
            )
        self.send_frame(frame)

    async def _invoke(self, asked: messages.Invoke, call: _Call) -> bytearray:
        number, far = asked.number, asked.call
        if asked.at_once and self._serves.has_warm(far.ask.function):
            call.may_have_run = True
            report = await self._serves.invoke(far, begins=None)
        else:
            report = await self._serves.invoke(far, begins=lambda: self._begin(number, call))
        frame = framed(messages.Done(number, report))
        if len(frame) > self._max_sent:
            frame = framed(messages.Done(number, _without_result(report, len(frame), self._max_sent)))
        if self._writable is not None:
            await self.writable()
        return frame

    async def _begin(self, number: int, call: _Call) -> None:
        """There is a worker: ask whether it shall run, which it does not unless the word comes in time."""
        call.go = self._loop.create_future()
        self.send(messages.Ready(number))
        try:
            async with asyncio.timeout(self._limits.go_s):
                await call.go
        except TimeoutError:
            raise errors.TimedOut("whoever asked for the call did not say that it shall run") from None
        call.may_have_run = True

    async def _fetch(self, asked: messages.Fetch, _: _Call) -> bytearray:
        if self._fetches >= self._limits.fetches:
            raise errors.Overloaded(_TOO_MUCH)
        self._fetches += 1
        try:
            code = memoryview(await self._serves.code(asked.digest))
            while len(code) > _PIECE_BYTES:
                await self.writable()
                self.send(messages.Piece(asked.number, bytes(code[:_PIECE_BYTES]), is_last=False))
                code = code[_PIECE_BYTES:]
            await self.writable()
            return framed(messages.Piece(asked.number, bytes(code), is_last=True))
        finally:
            self._fetches -= 1

    async def _poll(self, asked: messages.Poll, _: _Call) -> bytearray:
        frame = framed(messages.Told(asked.number, await self._serves.poll(asked.id)))
        if len(frame) > self._max_sent:
            raise errors.TooLarge(
                f"the result takes {len(frame)} bytes, and whoever asks takes {self._max_sent}; ask here"
            )
        await self.writable()
        return frame

    # Its end

    async def stop(self, within_s: float) -> None:
        """What runs may end within this time, and then ends with the link."""
        if running := [call.task for call in self._calls.values()]:
            await asyncio.wait(running, timeout=within_s)
        self.finish()

    def _report_closed(self) -> None:
        if self._is_lost and not self._calls and not self.closed.done():
            self.closed.set_result(None)


def _without_result(report: Report, size: int, most: int) -> Report:
    """The report of a call that was run and whose result is too long for whoever called."""
    answer = Answer(
        report.answer.duration_s,
        failure=Failure.RESULT,
        error=f"the result and output of {size} bytes are more than the {most} that the node takes which "
        "passed the call on; return less, or give that node the same functions.max_result_bytes",
    )
    return msgspec.structs.replace(report, answer=answer)
