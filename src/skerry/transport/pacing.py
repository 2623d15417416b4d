"""Pacing of input: how much of one connection is handled before the others, and how many empty frames it may
send.

Every protocol that reads from outside hands what it receives to a `PacedInput`: HTTP and WebSockets
(`skerry.transport.http.connection`), HTTP/2 (`skerry.transport.grpc.connections`), links
(`skerry.transport.links.members.link`). A kernel buffer holds tens of thousands of tiny frames, and a
protocol library handles all that it is given; so input is given to it in pieces, whose size follows what the
last ones cost. A connection that has more than its share is not read from until the rest is handled, a bit in
every turn of the loop, after the others.

`FrameBudget` counts the frames that carry nothing. A peer that sends too many of them floods; its protocol
decides what to do. Nothing here knows a protocol.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from time import thread_time
from typing import Final
from weakref import WeakKeyDictionary, ref

import structlog

log = structlog.get_logger(__name__)

SHARE_S: Final = 0.0002  # for one connection at a time
TURN_S: Final = 0.0003  # for all connections that have more than their share, in one turn of the loop
CALL_S: Final = 0.001  # what a small call takes after its input was handled
# Between two turns while a connection has much input left: the loop must not be busy all the time.
_GAP_S: Final = 0.001
# Pieces grow while they are cheap and shrink when they are not. The largest bounds what the first of a flood
# costs; the smallest holds a few frames of any protocol.
_FIRST_PIECE: Final = 128
_AT_ONCE: Final = 256  # bytes of a usual request
_LARGEST_PIECE: Final = 4096
_SMALLEST_PIECE: Final = 64
# A read of so many bytes is a long one, and ends the connection's turn: an event loop reads on and on as long
# as there is more.
_LONG_READ: Final = 64 * 1024


class PacedInput:
    """What came in on one connection, on its way to `handle`.

    Stands in for the transport where reading is paused and resumed: the reader's own reasons to pause hold
    back what was received already, too.
    """

    __slots__ = (
        "_at_once",
        "_call_s",
        "_calls",
        "_handle",
        "_is_paused_by_reader",
        "_is_queued",
        "_is_reading",
        "_is_stopped",
        "_loop",
        "_pacer",
        "_piece",
        "_rest",
        "_transport",
    )

    def __init__(
        self,
        transport: asyncio.Transport,
        handle: Callable[[bytes], None],
        loop: asyncio.AbstractEventLoop,
        *,
        at_once: int = _AT_ONCE,
    ) -> None:
        """A read of up to `at_once` bytes is handled as it comes, and not timed: the usual request."""
        self._at_once = at_once
        self._transport = transport
        self._handle = handle
        self._loop = loop
        self._pacer = pacer_of(loop)
        self._piece = _FIRST_PIECE
        self._rest = memoryview(b"")  # received and not handled
        self._calls: deque[tuple[Callable[[], bool], float]] = deque()  # that wait, and what they take
        self._call_s = 0.0  # what the call takes that the piece in hand has begun
        self._is_paused_by_reader = False
        self._is_queued = False
        self._is_reading = True
        self._is_stopped = False

    def feed(self, data: bytes) -> None:
        """Handle `data` now as far as it is within the connection's share, and the rest later."""
        if self._is_stopped:
            return
        if self._rest or self._is_paused_by_reader or self._is_queued:
            # A transport may hand over what it had when it was paused.
            self._rest = memoryview(bytes(self._rest) + data)
            return
        if len(data) <= self._at_once:
            self._call_s = 0.0
            self._handle(data)
        else:
            self._rest = memoryview(data)
            if self._pacer.has_time:
                self._pacer.spend(self._handle_share())
        if self._calls or (self._rest and not self._is_paused_by_reader) or len(data) >= _LONG_READ:
            self._queue()

    def put_back(self, data: bytes) -> None:
        """`data` was handled too early: it comes before what is left, and in its turn."""
        self._rest = memoryview(data + bytes(self._rest))
        if not self._is_paused_by_reader:
            self._queue()

    def begin_call(self, begin: Callable[[], bool], cost_s: float = CALL_S) -> None:
        """Start a call that the present chunk has brought: the first at once, the others in later turns.

        Calls are work that is done after the input which brings them, and a piece can bring many. `begin`
        returns whether there was a call to start: one that was cancelled meanwhile costs nothing, so nothing
        should be allocated for one that waits.
        """
        if self._call_s:
            self._calls.append((begin, cost_s))
        elif begin():
            self._call_s = cost_s

    def stop(self) -> None:
        """Handle and read nothing more."""
        self._is_stopped = True
        self._rest = memoryview(b"")
        self._update_reading()

    def pause_reading(self) -> None:
        self._is_paused_by_reader = True
        self._update_reading()

    def resume_reading(self) -> None:
        self._is_paused_by_reader = False
        if self._has_more:
            self._queue()
        self._update_reading()

    def turn(self) -> tuple[float, bool]:
        """Handle one share; returns its time, and whether there is more."""
        spent_s = self._handle_share()
        self._is_queued = self._has_more
        self._update_reading()
        return spent_s, self._is_queued

    def fail(self, error: Exception) -> None:
        """`handle` has raised: as everywhere in asyncio, that ends the connection."""
        log.error("input.failed", exc_info=error)
        self._is_queued = False
        self.stop()
        self._transport.abort()

    @property
    def has_long_rest(self) -> bool:
        """True if there is more to handle than anything but a flood, or a large upload, leaves."""
        return len(self._rest) >= _LONG_READ

    @property
    def is_behind(self) -> bool:
        """True if something was received that is not handled, or brought calls that have not begun."""
        return bool(self._calls) or bool(self._rest)

    @property
    def _has_more(self) -> bool:
        return bool(self._calls) or (bool(self._rest) and not self._is_paused_by_reader)

    def _handle_share(self) -> float:
        spent_s = 0.0
        while self._calls and spent_s < SHARE_S:  # before there are more of them
            begin, cost_s = self._calls.popleft()
            if begin():
                spent_s += cost_s
        # What others do on the machine meanwhile is not this connection's fault; cutting a piece is part of
        # its price, and most of that of a cheap one.
        at = thread_time()
        while self._rest and not self._is_paused_by_reader and spent_s < SHARE_S:
            before, size = at, self._piece
            piece, self._rest = bytes(self._rest[:size]), self._rest[size:]
            self._call_s = 0.0
            self._handle(piece)
            at = thread_time()
            self._adapt(at - before, len(piece))
            spent_s += at - before + self._call_s  # and what the call takes that it began
        return spent_s

    def _update_reading(self) -> None:
        is_reading = not (self._is_paused_by_reader or self._is_queued or self._is_stopped or self._rest)
        if is_reading != self._is_reading and not self._transport.is_closing():
            self._is_reading = is_reading
            if is_reading:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _adapt(self, took_s: float, size: int) -> None:
        """The next piece, after one of `size` bytes that took so long."""
        if took_s > SHARE_S:
            self._piece = max(self._piece // 2, _SMALLEST_PIECE)
        elif took_s < SHARE_S / 4 and size >= self._piece:
            self._piece = min(self._piece * 2, _LARGEST_PIECE)

    def _queue(self) -> None:
        if not self._is_queued and not self._is_stopped:
            self._is_queued = True
            self._pacer.add(self)
        self._update_reading()


class InputPacer:
    """The inputs of one event loop that have more to handle than their share."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = ref(loop)  # which is the key by which this is found
        self._inputs: deque[PacedInput] = deque()
        self._spent_s = 0.0  # in this turn of the loop
        self._is_renewing = False

    @property
    def has_time(self) -> bool:
        """True as long as long reads may be handled as they come: each could be within its own share, and
        all of them together too much for one turn of the loop."""
        return self._spent_s < TURN_S

    def spend(self, seconds: float) -> None:
        self._spent_s += seconds
        if not self._is_renewing:
            self._is_renewing = True
            self._schedule(self._renew)

    def add(self, paced: PacedInput) -> None:
        if not self._inputs:
            self._schedule(self._turn)
        self._inputs.append(paced)

    def _turn(self) -> None:
        is_long = False
        # Taken out only when it is done with, so that `add` knows that a turn is due.
        for _ in range(len(self._inputs)):
            paced = self._inputs[0]
            try:
                took_s, has_more = paced.turn()
            except Exception as error:  # noqa: BLE001 - one connection's fault is not that of the others
                paced.fail(error)
                took_s, has_more = 0.0, False
            self.spend(took_s)
            is_long = is_long or paced.has_long_rest
            self._inputs.popleft()
            if has_more:
                self._inputs.append(paced)
            if not self.has_time:
                break
        if self._inputs:
            self._schedule(self._turn, _GAP_S if is_long else 0.0)

    def _renew(self) -> None:
        """A new turn of the loop has begun."""
        self._is_renewing = False
        self._spent_s = 0.0

    def _schedule(self, act: Callable[[], None], delay_s: float = 0.0) -> None:
        loop = self._loop()
        assert loop is not None, "it is running"
        if delay_s:
            loop.call_later(delay_s, act)
        else:
            loop.call_soon(act)


_pacers: WeakKeyDictionary[asyncio.AbstractEventLoop, InputPacer] = WeakKeyDictionary()


def pacer_of(loop: asyncio.AbstractEventLoop) -> InputPacer:
    """That of everything which reads from outside in `loop`."""
    pacer = _pacers.get(loop)
    if pacer is None:
        pacer = _pacers[loop] = InputPacer(loop)
    return pacer


class FrameBudget:
    """Frames that carry nothing: so many at once, so many each second, and more for what the peer is sent.

    Pings, resets, window updates and the like are rare, or answers to something.
    """

    __slots__ = ("_at", "_burst", "_left", "_per_s")

    def __init__(self, burst: float, per_s: float, *, now: float) -> None:
        self._burst = burst
        self._per_s = per_s
        self._left = burst
        self._at = now

    def spend(self, now: float, cost: float = 1) -> bool:
        """One such frame has come, which counts for `cost`; False if it is one too many."""
        self._left = min(self._burst, self._left + (now - self._at) * self._per_s) - cost
        self._at = now
        return self._left >= 0

    def earn(self, frames: float) -> None:
        """The peer was sent something that it may answer with so many frames."""
        self._left = min(self._burst, self._left + frames)
