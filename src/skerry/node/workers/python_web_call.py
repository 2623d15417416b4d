"""One HTTP request in a Python worker: its request object, and the response as it is sent to the agent.

Standard library only; `python_web` calls handlers with it, `python_worker` connects it to the socket. A
response may be ahead of its reader by a window (`worker_frames`): then its sender waits, a thread or a
coroutine.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, unquote

from skerry.node.workers import worker_frames

if TYPE_CHECKING:
    import asyncio

_Pairs = list[tuple[str, str]]
_SMALL: Final = worker_frames.WEB_PART  # a small response is sent together with the end of its call


class ClientGone(ConnectionError):
    """Nobody reads the response any more."""


class MultiMapping(Mapping[str, str]):
    """Names with one or more values each; a name alone gives its first value."""

    def __init__(self, pairs: _Pairs, *, any_case: bool = False) -> None:
        self._pairs = pairs
        self._any_case = any_case
        self._first: dict[str, str] = {}
        for name, value in pairs:
            self._first.setdefault(self._key(name), value)

    def _key(self, name: str) -> str:
        return name.lower() if self._any_case else name

    def __getitem__(self, name: str) -> str:
        return self._first[self._key(name)]

    def __iter__(self) -> Iterator[str]:
        return iter(self._first)

    def __len__(self) -> int:
        return len(self._first)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._key(name) in self._first

    def all(self, name: str) -> list[str]:
        """All values of a name."""
        key = self._key(name)
        return [value for each, value in self._pairs if self._key(each) == key]

    def pairs(self) -> list[tuple[str, str]]:
        """All, in their order."""
        return list(self._pairs)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._pairs!r})"


class Request:
    """An HTTP request, as a handler gets it."""

    def __init__(self, head: Mapping[str, Any], body: bytes, context: dict[str, Any]) -> None:
        self.method: str = head["method"]
        self.raw_path: str = head["path"]
        self.path = unquote(self.raw_path, errors="replace")
        self.query_string: str = head["query"]
        self.query = MultiMapping(parse_qsl(self.query_string, keep_blank_values=True))
        self.headers = MultiMapping([(name, value) for name, value in head["headers"]], any_case=True)
        self.body = body
        self.client: str = head["client"]
        self.scheme: str = head["scheme"]
        self.root_path: str = head["root_path"]
        self.caller: str = head["caller"]
        self.context = context

    @property
    def text(self) -> str:
        """The body as UTF-8."""
        return self.body.decode("utf-8", "replace")

    def json(self) -> Any:
        """The body as JSON; raises ValueError."""
        return json.loads(self.body)

    def __repr__(self) -> str:
        return f"<Request {self.method} {self.raw_path}>"


def decode_request(payload: bytes, context: dict[str, Any]) -> Request:
    (length,) = worker_frames.LENGTH.unpack_from(payload)
    begin = worker_frames.LENGTH.size
    head = json.loads(payload[begin : begin + length])
    return Request(head, payload[begin + length :], context)


class ResponseSender:
    """The response of one call. `grant` and `cancel` come from the thread that reads the socket."""

    def __init__(self, number: int, send: Callable[[bytes], None]) -> None:
        self._number = number
        self._send = send
        self._credit = worker_frames.WINDOW
        self._changed = threading.Condition()
        self._waiter: tuple[asyncio.AbstractEventLoop, asyncio.Future[None]] | None = None
        self._pending = b""  # frames that are sent with the next one
        self.is_cancelled = False
        self.has_begun = False

    def grant(self, count: int) -> None:
        """So many more bytes may be sent."""
        with self._changed:
            self._credit += count
            self._wake()

    def cancel(self) -> None:
        """Nobody reads any more."""
        with self._changed:
            self.is_cancelled = True
            self._wake()

    def _wake(self) -> None:
        self._changed.notify_all()
        if self._waiter is not None:
            (loop, waiter), self._waiter = self._waiter, None
            loop.call_soon_threadsafe(lambda: None if waiter.done() else waiter.set_result(None))

    def begin(self, status: int, headers: _Pairs, *, at_once: bool = False) -> None:
        """Send status and headers: now, or with the first part of the body."""
        self.has_begun = True
        head = json.dumps({"status": status, "headers": headers}).encode()
        self._pending = worker_frames.pack(worker_frames.WEB_HEAD, self._number, head)
        if at_once:
            self._flush()

    def finish_with(self, body: bytes) -> None:
        """The whole body, which is sent with the end of the call if it is small."""
        if len(body) > _SMALL:
            self.part(body)
        elif body:
            self._pending += worker_frames.pack(worker_frames.WEB_BODY, self._number, body)

    def take_pending(self) -> bytes:
        """What is still to be sent, before the end of the call."""
        pending, self._pending = self._pending, b""
        return pending

    def part(self, data: bytes) -> None:
        """Send a part of the body; waits for its reader. Raises ClientGone."""
        for piece in _pieces(data):
            with self._changed:
                while not self._takes(len(piece)):
                    self._flush()
                    self._changed.wait()
            self._send_piece(piece)

    async def part_async(self, data: bytes) -> None:
        """The same in a coroutine, which lets others run meanwhile."""
        import asyncio

        loop = asyncio.get_running_loop()
        for piece in _pieces(data):
            while True:
                with self._changed:
                    if self._takes(len(piece)):
                        break
                    waiter = loop.create_future()
                    self._waiter = loop, waiter
                self._flush()
                await waiter
            self._send_piece(piece)

    def _takes(self, count: int) -> bool:
        """Count a piece, if it may be sent now."""
        if self.is_cancelled:
            raise ClientGone("the client has disconnected")
        if self._credit < count:
            return False
        self._credit -= count
        return True

    def _send_piece(self, piece: bytes) -> None:
        pending, self._pending = self._pending, b""
        self._send(pending + worker_frames.pack(worker_frames.WEB_BODY, self._number, piece))

    def _flush(self) -> None:
        if self._pending:
            pending, self._pending = self._pending, b""
            self._send(pending)


def _pieces(data: bytes) -> Iterator[bytes]:
    most = worker_frames.WEB_PART
    if len(data) <= most:
        if data:
            yield data
        return
    view = memoryview(data)
    for begin in range(0, len(view), most):
        yield bytes(view[begin : begin + most])
