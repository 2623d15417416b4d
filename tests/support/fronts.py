"""Fronts that run as tasks of the test's own loop, and connections that are sure to be at one."""

from __future__ import annotations

import asyncio
import itertools
import socket

from skerry.transport.http import front_process
from skerry.transport.http.front_metrics import FRONT_METRICS
from skerry.transport.http.front_pool import FrontPool
from tests.support.waiting import PATIENCE_S
from tests.transport.http.talking import Wire

_pids = itertools.count(-1, -1)  # of no process


class TaskFront:
    """A front in this process; `kill` ends it as the end of its process would."""

    def __init__(self, serving: asyncio.Task[None]) -> None:
        self.pid = next(_pids)
        self._serving = serving

    async def wait(self) -> int:
        await asyncio.wait({self._serving})
        return 0

    def kill(self) -> None:
        self._serving.cancel()


def task_fronts(count: int = 1, *, keep_alive_s: float = 60.0) -> FrontPool:
    async def start(link: socket.socket, descriptors: socket.socket) -> TaskFront:
        ends = link.dup(), descriptors.dup()
        for each in ends:
            each.setblocking(False)
        return TaskFront(asyncio.ensure_future(_serve(*ends, keep_alive_s)))

    return FrontPool(count, keep_alive_s=keep_alive_s, start=start)


async def _serve(link: socket.socket, descriptors: socket.socket, keep_alive_s: float) -> None:
    try:
        await front_process.serve(link, descriptors, keep_alive_s)
    finally:
        asyncio.get_running_loop().remove_reader(descriptors)
        descriptors.close()


async def assign(wire: Wire, call: bytes) -> None:
    """Repeat `call` on `wire` until its connection is at a front."""
    assigned = FRONT_METRICS.assigned
    async with asyncio.timeout(PATIENCE_S):
        while FRONT_METRICS.assigned == assigned:
            await wire.send(call)
            await wire.answer()
            await asyncio.sleep(0)
