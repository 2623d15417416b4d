"""Runs tasks about volumes on nodes, over tunnels, and relays the data of one node to another.

A relay has a few frames of each tunnel in memory: the slower node holds up the other. Whoever calls this
decides what to do about an error, and calls again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager

import msgspec

from skerry.control.sessions.tunnels import NodeTunnels
from skerry.control.snapshots.decisions import NodeTask
from skerry.kit.tasks import failure_of, race
from skerry.model import errors
from skerry.model.ids import InstanceId
from skerry.model.streams import TunnelStream
from skerry.model.volume_tasks import TaskChannel, TaskFrame, TaskProgress, TaskResult

OnProgress = Callable[[TaskProgress], Awaitable[None]]
_BROKEN = "the node ended its task early"


class NodeTaskRunner:
    """Runs tasks."""

    def __init__(self, tunnels: NodeTunnels) -> None:
        self._tunnels = tunnels

    async def run(self, task: NodeTask, on_progress: OnProgress) -> TaskResult:
        """Run one task to its end. Raises what went wrong at the node, and `Unavailable` if it is away."""
        with _outdated():
            async with self._open(task) as tunnel:
                # It is not ended here: a node that fails then might hang up before its failure is read.
                while (packed := await tunnel.receive()) is not None:
                    if (result := await _read(packed, on_progress)) is not None:
                        return result
        raise errors.Unavailable(_BROKEN)

    async def transfer(self, send: NodeTask, receive: NodeTask, on_progress: OnProgress) -> TaskResult:
        """Run both at once, of which the first sends what the second receives; returns the receiver's
        result."""
        async with self._open(receive) as receiver, self._open(send) as sender:
            return await race(
                _relay_back(receiver, sender, on_progress), failure_of(_relay(sender, receiver))
            )

    def _open(self, task: NodeTask) -> AbstractAsyncContextManager[TunnelStream]:
        # A tunnel has the id of an instance; that of the operation is in no use as one.
        return self._tunnels.open_tunnel(task.node, InstanceId(task.task.operation), task.task)


@contextmanager
def _outdated() -> Iterator[None]:
    """A conflict at a node is no conflict here, after which the same would be tried at once."""
    try:
        yield
    except errors.Conflict as error:
        raise errors.FailedPrecondition(error.message, detail=error.detail) from error


async def _relay(sender: TunnelStream, receiver: TunnelStream) -> None:
    """Pass what comes from the sender on to the receiver, whose progress and result count."""
    while (packed := await sender.receive()) is not None:
        channel = TaskFrame.unpack(packed[:1]).channel
        if channel is TaskChannel.RESULT:
            return
        if channel is not TaskChannel.PROGRESS:
            await receiver.send(packed)
    raise errors.Unavailable(_BROKEN)


async def _relay_back(receiver: TunnelStream, sender: TunnelStream, on_progress: OnProgress) -> TaskResult:
    while (packed := await receiver.receive()) is not None:
        if packed[:1] == bytes([TaskChannel.WANTED]):
            await sender.send(packed)
        elif (result := await _read(packed, on_progress)) is not None:
            return result
    raise errors.Unavailable(_BROKEN)


async def _read(packed: bytes, on_progress: OnProgress) -> TaskResult | None:
    """The result in a frame, or None after its progress was noted."""
    frame = TaskFrame.unpack(packed)
    match frame.channel:
        case TaskChannel.PROGRESS:
            await on_progress(TaskProgress.of(frame))
            return None
        case TaskChannel.RESULT:
            try:
                return msgspec.json.decode(frame.data, type=TaskResult)
            except msgspec.DecodeError as error:
                raise errors.Unavailable("the node sent a result that cannot be read") from error
        case _:
            raise errors.Unavailable(f"the node sent {frame.channel.name}, which is not expected")
