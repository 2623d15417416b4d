"""One end of a conversation with the launcher or with an init, on the event loop.

Requests are answered in any order and known by their numbers; an answer that nobody waits for is dropped with
its descriptors. What comes unasked goes to a handler. The packets are `skerry.node.launcher.child.messages`;
what they mean is `skerry.node.launcher.client`.
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
    """Asks, and hears what is told unasked; owns the socket and needs a running loop."""

    def __init__(
        self, end: socket.socket, *, on_told: Callable[[LauncherMessage], None], on_end: Callable[[], None]
    ) -> None:
        self._end = end
        self._on_told = on_told
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        # From a place nobody can guess: an init may still answer the requests of an agent that died.
        self._numbers = itertools.count(secrets.randbits(48))
        self._waiting: dict[int, asyncio.Future[LauncherMessage]] = {}
        self._sending = asyncio.Lock()
        self.is_open = True
        self._loop.add_reader(end, self._hear)

    async def ask(self, body: MessageBody, descriptors: Sequence[int] = ()) -> LauncherMessage:
        """Send a request and wait for its answer, which the caller must close.

        `descriptors` stay the caller's. Raises `ChannelClosed`, `messages.MessageTooLarge`, Internal.
        """
        number = next(self._numbers)
        packet = messages.encode({"id": number, **body})
        answer: asyncio.Future[LauncherMessage] = self._loop.create_future()
        self._waiting[number] = answer
        try:
            await self._send(packet, list(descriptors))
            return await answer
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                answer.result().close()  # it came in the moment that we were told to give up
            raise
        finally:
            del self._waiting[number]

    def tell(self, body: MessageBody, descriptors: Sequence[int] = ()) -> bool:
        """Send without an answer; False if it could not be sent. `descriptors` stay the caller's."""
        try:
            messages.send(self._end, messages.encode(body), list(descriptors))
        except OSError:
            return False
        return True

    def read_all(self) -> None:
        """Hear what has arrived by now without waiting for the loop to say so."""
        while self.is_open and self._hear():
            pass

    def close(self) -> None:
        if not self.is_open:
            return
        self.is_open = False
        self._loop.remove_reader(self._end)
        self._end.close()
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(ChannelClosed())

    async def _send(self, packet: bytes, descriptors: list[int]) -> None:
        async with self._sending:
            while self.is_open:
                try:
                    messages.send(self._end, packet, descriptors)
                    return
                except BlockingIOError:
                    await self._room()
                except (BrokenPipeError, ConnectionResetError):
                    self._over()
                except OSError as error:
                    raise errors.Internal("a request could not be sent", detail=str(error)) from error
        raise ChannelClosed

    async def _room(self) -> None:
        has_room = asyncio.Event()
        self._loop.add_writer(self._end, has_room.set)
        try:
            await has_room.wait()
        finally:
            if self.is_open:
                self._loop.remove_writer(self._end)

    def _over(self) -> None:
        self.close()
        self._on_end()

    def _hear(self) -> bool:
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
            self._on_told(message)
            return True
        answer = self._waiting.get(message.body["id"])
        if answer is None or answer.done():
            message.close()
        else:
            answer.set_result(message)
        return True
