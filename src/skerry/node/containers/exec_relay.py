"""A program in a container and somebody far away, until the program has ended.

What carries the words is the caller's: `skerry.wire.own.containers` over a call,
`skerry.node.agent.instances` over a tunnel. Whatever cannot be passed on holds up the other side: the
program, if the client does not read; the client, if the program does not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from skerry.kit.tasks import cancel_and_wait, race, run_to_completion
from skerry.model.cells import OutputChannel
from skerry.node.containers.ports import ExecHandle
from skerry.node.containers.stdio import StdioStreams

_MOST_AFTER_END: Final = 1024 * 1024  # more than a pipe or a terminal holds


async def relay_stdio(
    program: ExecHandle,
    streams: StdioStreams,
    *,
    send: Callable[[OutputChannel, bytes], Awaitable[None]],
    listen: Callable[[], Coroutine[Any, Any, None]],
) -> int:
    """The exit code of `program`, once everything that it wrote has been sent.

    `listen` does what the client says until it says no more. If anything goes wrong, or we are cancelled, the
    program is killed.
    """
    ended = asyncio.ensure_future(program.exit_code())
    listening = asyncio.ensure_future(listen())
    showing = [asyncio.ensure_future(_pass_on(streams, each, send, ended)) for each in streams.outputs]
    pending: set[asyncio.Future[Any]] = {ended, listening, *showing}
    try:
        while pending - {listening}:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # what went wrong ends it all
        return ended.result()
    except BaseException:
        await run_to_completion(program.kill())
        raise
    finally:
        await cancel_and_wait([ended, listening, *showing])


async def _pass_on(
    streams: StdioStreams,
    stream: OutputChannel,
    send: Callable[[OutputChannel, bytes], Awaitable[None]],
    ended: asyncio.Future[int],
) -> None:
    """Send what is written to `stream`, to its end, or to what is there when the program has ended.

    What the program left running may hold the stream open, or write to it, for ever.
    """
    left = _MOST_AFTER_END
    while left > 0 and (data := await _next(streams, stream, ended)):
        if ended.done():
            left -= len(data)
        await send(stream, data)


async def _next(streams: StdioStreams, stream: OutputChannel, ended: asyncio.Future[int]) -> bytes:
    """Some of what is written to `stream`; nothing if that is all that will be waited for."""
    while (data := streams.take(stream)) is None:
        if ended.done():
            return b""
        await race(streams.readable(stream), asyncio.shield(ended))
    return data
