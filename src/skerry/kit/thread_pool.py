"""The threads of an event loop, for what blocks.

No future can carry a `StopIteration`: asyncio's own pool loses one that a function raises, for example by
`next` of something empty, and whoever awaits that function waits for ever. Here it becomes a `RuntimeError`,
as in a generator.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

import uvloop

P = ParamSpec("P")
T = TypeVar("T")


class LoopThreadPool(ThreadPoolExecutor):
    """Like the default pool of a loop, except that no exception is lost."""

    def submit(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        return super().submit(_call, partial(function, *args, **kwargs))


def _call(work: Callable[[], T]) -> T:
    try:
        return work()
    except StopIteration as error:
        raise RuntimeError("a function in a thread raised StopIteration") from error


def new_event_loop() -> asyncio.AbstractEventLoop:
    """The loop of a process, with such threads."""
    loop = uvloop.new_event_loop()
    loop.set_default_executor(LoopThreadPool(thread_name_prefix="asyncio"))
    return loop
