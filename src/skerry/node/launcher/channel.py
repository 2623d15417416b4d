"""One end of a connection to the launcher or to an init, on the event loop.

Requests are numbered and may be answered in any order; a reply without a waiter is dropped with its
descriptors. Other messages go to a handler. `skerry.node.launcher.child.messages` defines the packets,
`skerry.node.launcher.client` their meaning.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import socket
from collections.abc import Callable, Sequence

from skerry.model import errors
from skerry.node.launcher.child import messages
from skerry.node.launcher.child.messages import LauncherMessage, MessageBody


class ChannelClosed(Exception):
    """The other end is gone, or this one was closed."""


class LauncherChannel:
    """Sends requests, and receives replies and notifications; owns the socket and needs a running loop."""

    def __init__(
        self,
        end: socket.socket,
        *,
        on_notification: Callable[[LauncherMessage], None],
        on_end: Callable[[], None],
    ) -> None:
        self._end = end
        self._on_notification = on_notification
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        # From a random number: an init may still reply to requests of an agent that died.
        self._numbers = itertools.count(secrets.randbits(48))
        self._waiting: dict[int, asyncio.Future[LauncherMessage]] = {}
        self._sending = asyncio.Lock()
        self.is_open = True
        self._loop.add_reader(end, self._read)

    async def request(self, body: MessageBody, descriptors: Sequence[int] = ()) -> LauncherMessage:
        """Send a request and wait for its reply, which the caller must close.

        `descriptors` stay the caller's. Raises `ChannelClosed`, `messages.MessageTooLarge`, Internal.
        """
        number = next(self._numbers)
        packet = messages.encode({"id": number, **body})
        reply: asyncio.Future[LauncherMessage] = self._loop.create_future()
        self._waiting[number] = reply
        try:
            await self._send(packet, list(descriptors))
            return await reply
        except asyncio.CancelledError:
            if reply.done() and not reply.cancelled() and reply.exception() is None:
                reply.result().close()  # it arrived at the moment of the cancellation
            raise
        finally:
            del self._waiting[number]

    def notify(self, body: MessageBody, descriptors: Sequence[int] = ()) -> bool:
        """Send without a reply; False if it could not be sent. `descriptors` stay the caller's."""
        try:
            messages.send(self._end, messages.encode(body), list(descriptors))
        except OSError:
            return False
        return True

    def read_all(self) -> None:
        """Read what has arrived by now without waiting for the loop."""
        while self.is_open and self._read():
            pass

    def close(self) -> None:
        if not self.is_open:
            return
        self.is_open = False
        self._loop.remove_reader(self._end)
        self._end.close()
        for reply in self._waiting.values():
            if not reply.done():
                reply.set_exception(ChannelClosed())

    async def _send(self, packet: bytes, descriptors: list[int]) -> None:
        async with self._sending:
            while self.is_open:
                try:
                    messages.send(self._end, packet, descriptors)
                    return
                except BlockingIOError:
                    await self._writable()
                except (BrokenPipeError, ConnectionResetError):
                    self._over()
                except OSError as error:
                    raise errors.Internal("a request could not be sent", detail=str(error)) from error
        raise ChannelClosed

    async def _writable(self) -> None:
        is_writable = asyncio.Event()
        self._loop.add_writer(self._end, is_writable.set)
        try:
            await is_writable.wait()
        finally:
            if self.is_open:
                self._loop.remove_writer(self._end)

    def _over(self) -> None:
        self.close()
        self._on_end()

    def _read(self) -> bool:
        try:
            message = messages.receive(self._end)
        except BlockingIOError:
            return False
        except messages.MalformedMessage:
            return True
        except OSError:
            message = None
        if message is None:
            self._over()
            return False
        if "id" not in message.body:
            self._on_notification(message)
            return True
        reply = self._waiting.get(message.body["id"])
        if reply is None or reply.done():
            message.close()
        else:
            reply.set_result(message)
        return True
