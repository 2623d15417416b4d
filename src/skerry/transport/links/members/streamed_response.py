"""The response of a web function on its way over a link, at the end that runs the call.

`server_link` has one for each such call. The other end grants bytes as its reader takes them, so a slow
client of another member delays the worker here and takes no memory on the way.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from skerry.kit import tasks
from skerry.kit.response_stream import WINDOW, ResponseStream
from skerry.model.calls import CallRequest
from skerry.model.web_calls import WebCallRequest, WebResponseHead
from skerry.transport.links.members import messages

_PART_BYTES: Final = 64 * 1024


class ResponseLink(Protocol):
    """The link that it goes over."""

    def send(self, message: messages.LinkMessage) -> None: ...

    async def writable(self) -> None: ...


class StreamedResponse:
    """From the worker to the link; `close` it in any case."""

    def __init__(self, link: ResponseLink, number: int) -> None:
        self._link = link
        self._number = number
        self._stream: ResponseStream[WebResponseHead] = ResponseStream()
        self._credit = WINDOW
        self._granted = asyncio.Event()
        self._sending = asyncio.ensure_future(self._send())

    def request_of(self, request: CallRequest) -> WebCallRequest:
        """The call of another member, with the response that it gets here."""
        return WebCallRequest(
            function=request.function,
            params=request.params,
            qos_class=request.qos_class,
            max_response_s=request.max_response_s,
            can_offload=request.can_offload,
            response=self._stream,
        )

    def grant(self, count: int) -> None:
        """The reader has taken so many bytes."""
        self._credit += count
        self._granted.set()

    def abandon(self) -> None:
        """The reader has left; whatever it was to get is dropped."""
        self._stream.abandon()
        self._sending.cancel()

    async def finish(self) -> None:
        """The call is over: send the rest of its response."""
        self._stream.end()
        await asyncio.wait([self._sending])

    async def close(self) -> None:
        """Send nothing more."""
        self._stream.end()
        await tasks.cancel_and_wait([self._sending])

    async def _send(self) -> None:
        head = await self._stream.wait_head()
        if head is None:
            return
        self._link.send(messages.ResponseHead(self._number, head))
        while data := await self._stream.read():
            view = memoryview(data)
            for begin in range(0, len(view), _PART_BYTES):
                part = bytes(view[begin : begin + _PART_BYTES])
                while self._credit < len(part):
                    self._granted.clear()
                    await self._granted.wait()
                self._credit -= len(part)
                await self._link.writable()
                self._link.send(messages.ResponsePart(self._number, part))
