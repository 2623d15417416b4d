"""Work that is never left behind: what has begun ends before its caller goes on, cancelled or not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call `function`, which waits for a disk, in a thread.

    What it works on may be closed or removed right after, also after a cancel. What it returns is lost then:
    it must not be something that has to be given back.
    """
    return await run_uninterrupted(asyncio.to_thread(function, *args, **kwargs))


async def run_uninterrupted(steps: Coroutine[Any, Any, T]) -> T:
    """Await `steps`; if the caller is cancelled, they are done to their end before that shows."""
    work = asyncio.ensure_future(steps)
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await wait_uninterrupted(work)
        raise


async def wait_uninterrupted(work: asyncio.Future[T]) -> None:
    """Wait until `work` is done, however often that is cancelled; its failure is no longer anybody's."""
    while not work.done():
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError:
            continue
    if not work.cancelled():
        work.exception()
