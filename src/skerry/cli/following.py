"""Output of an executable to our own standard output and error: byte for byte, in time, across a restart.

Used by `skerry cell logs` and `skerry cell run`. A connection that breaks is taken up again where it ended:
executables go on while the node's agent is away. Writing never blocks the loop, so that a signal is heard
also while a pager holds our output up.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, TypeVar

import click

from skerry.cli import client, dialling

if TYPE_CHECKING:
    from skerry.wire.proto.cells_grpc import CellServiceStub
    from skerry.wire.proto.cells_pb2 import LogsRequest

T = TypeVar("T")

_PATIENCE_S: Final = 30.0  # with an agent that is away
_TRY_EVERY_S: Final = 0.25
_AT_ONCE: Final = 4096  # what a pipe that is ready takes without blocking


class ReaderGone(Exception):
    """Nobody reads our output any more. No OSError, because those are the connection's."""


class Sink:
    """A descriptor of ours that is written to as it takes it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    async def write(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                await self._ready()
                view = view[os.write(self._descriptor, view[:_AT_ONCE]) :]
        except BrokenPipeError:
            raise ReaderGone from None
        except OSError as error:
            raise click.ClickException(f"The output cannot be written: {error.strerror}") from None

    async def _ready(self) -> None:
        loop = asyncio.get_running_loop()
        ready = loop.create_future()
        try:
            loop.add_writer(self._descriptor, _tell, ready)
        except PermissionError:
            return  # a file or the like: always ready, and cannot be waited for
        try:
            await ready
        finally:
            loop.remove_writer(self._descriptor)


def _tell(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


class Copy:
    """The output that `request` asks for, on its way to our own; `request` moves on as it goes."""

    def __init__(self, request: LogsRequest) -> None:
        self.request = request
        self.lost = 0  # pieces that were overwritten before they could be read
        self._out, self._err = Sink(1), Sink(2)

    async def run(self, stub: CellServiceStub) -> None:
        """To the end; again, after a break, to go on."""
        from skerry.wire.proto.cells_pb2 import CHANNEL_STDERR

        async with stub.Logs.open() as stream:
            await stream.send_message(self.request, end=True)
            async for item in stream:
                if item.lost:
                    self.lost += item.lost
                    await self._err.write(f"[{item.lost} pieces of output are lost here]\n".encode())
                if item.channel == CHANNEL_STDERR:
                    await self._err.write(item.data)
                    self.request.stderr_after = item.position
                else:
                    await self._out.write(item.data)
                    self.request.stdout_after = item.position


async def patiently(door: dialling.Door, work: Callable[[], Awaitable[T]]) -> T:
    """`work`, again while nobody answers; who stays away for too long is given up."""
    loop = asyncio.get_running_loop()
    away_since = None
    while True:
        began = loop.time()
        try:
            with dialling.plain_words(door):
                return await work()
        except (client.NoServer, dialling.NodeSaidNo) as error:
            if isinstance(error, dialling.NodeSaidNo) and error.status != "UNAVAILABLE":
                raise
            ended = loop.time()
            if away_since is None or ended - began > _PATIENCE_S:
                away_since = ended  # it was there until now
            if ended - away_since > _PATIENCE_S:
                raise
        await asyncio.sleep(_TRY_EVERY_S)
