"""Relays stdio between a program in a container and a remote client until the program has ended.

The caller provides the transport: `skerry.wire.own.containers` a gRPC call, `skerry.node.agent.instances` a
tunnel. There is backpressure both ways: a client that does not read blocks the program, and a program that
does not read blocks the client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from skerry.kit.tasks import cancel_and_wait, race, run_to_completion
from skerry.model.cells import OutputChannel
from skerry.node.containers.ports import ExecHandle
from skerry.node.containers.stdio import StdioStreams

_MAX_AFTER_EXIT: Final = 1024 * 1024  # more than the buffer of a pipe or a terminal


async def relay_stdio(
    program: ExecHandle,
    streams: StdioStreams,
    *,
    send: Callable[[OutputChannel, bytes], Awaitable[None]],
    listen: Callable[[], Coroutine[Any, Any, None]],
) -> int:
    """Returns the exit code of `program`, once all of its output has been sent.

    `listen` handles the client's input until it ends. On any error or cancellation the program is killed.
    """
    ended = asyncio.ensure_future(program.exit_code())
    listening = asyncio.ensure_future(listen())
    sending = [asyncio.ensure_future(_send_output(streams, each, send, ended)) for each in streams.outputs]
    pending: set[asyncio.Future[Any]] = {ended, listening, *sending}
    try:
        while pending - {listening}:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # any failure ends the relay
        return ended.result()
    except BaseException:
        await run_to_completion(program.kill())
        raise
    finally:
        await cancel_and_wait([ended, listening, *sending])


async def _send_output(
    streams: StdioStreams,
    stream: OutputChannel,
    send: Callable[[OutputChannel, bytes], Awaitable[None]],
    ended: asyncio.Future[int],
) -> None:
    """Send the output of `stream` up to its end, or what is buffered when the program has ended.

    Background processes of the program may keep the stream open, or write to it, for ever.
    """
    remaining = _MAX_AFTER_EXIT
    while remaining > 0 and (data := await _next(streams, stream, ended)):
        if ended.done():
            remaining -= len(data)
        await send(stream, data)


async def _next(streams: StdioStreams, stream: OutputChannel, ended: asyncio.Future[int]) -> bytes:
    """The next output of `stream`; empty at the end, or when the program has ended and none is buffered."""
    while (data := streams.read_available(stream)) is None:
        if ended.done():
            return b""
        await race(streams.readable(stream), asyncio.shield(ended))
    return data
