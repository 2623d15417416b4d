"""A node of any size that is only played: it joins and is heard as any other, and obeys in words alone.

For markets that sell more than this machine has.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Final

from skerry.kit.clock import SystemClock
from skerry.kit.tasks import cancel_and_wait
from skerry.model import errors
from skerry.model.container_options import NodeFeature
from skerry.model.node_messages import NodeHello, OrderUpdate, ReportBatch, SessionHeartbeat
from skerry.model.nodes import NodeFacts
from skerry.model.orders import InstanceOrder, InstanceReport
from skerry.model.resources import MAX_AMOUNT, Megabytes, Millicores, Resources
from skerry.model.statuses import DesiredStatus, InstanceStatus
from skerry.node.agent.node_identity import NodeIdentity
from skerry.transport.links.nodes.client import GrpcControlConnection, GrpcControlDialer

LARGE: Final = Resources(Millicores(MAX_AMOUNT), Megabytes(MAX_AMOUNT))
_SAYS: Final = {
    DesiredStatus.RUNNING: InstanceStatus.RUNNING,
    DesiredStatus.STOPPED: InstanceStatus.STOPPED,
    DesiredStatus.DESTROYED: InstanceStatus.TERMINATED,
}
_REDIAL_S: Final = 0.05


@asynccontextmanager
async def played_node(
    folder: Path, url: str, token: str, *, resources: Resources = LARGE, name: str = "played"
) -> AsyncIterator[None]:
    """A node of the cloud at `url` from now on, heard of when this begins; it dials again when it must."""
    identity = NodeIdentity(folder, SystemClock())
    place = await identity.join(url, token, name)
    dialer = GrpcControlDialer(place.grpc, identity.context)
    hello = NodeHello(
        name, NodeFacts("amd64", "Debian 12", runs_checks=True, features=tuple(NodeFeature)), resources
    )
    is_heard = asyncio.Event()
    playing = asyncio.ensure_future(_play(dialer, hello, is_heard))
    try:
        await is_heard.wait()
        yield
    finally:
        await cancel_and_wait([playing])


async def _play(dialer: GrpcControlDialer, hello: NodeHello, is_heard: asyncio.Event) -> None:
    while True:
        with suppress(errors.SkerryError):
            async with dialer.dial() as connection:
                terms = await connection.hello(hello)
                beating = asyncio.ensure_future(_beat(connection, terms.report_s))
                try:
                    await _obey(connection, is_heard)
                finally:
                    await cancel_and_wait([beating])
        await asyncio.sleep(_REDIAL_S)


async def _beat(connection: GrpcControlConnection, every_s: float) -> None:
    while True:
        await asyncio.sleep(every_s / 2)
        await connection.send(SessionHeartbeat())


async def _obey(connection: GrpcControlConnection, is_heard: asyncio.Event) -> None:
    numbers = count(1)
    async for message in connection.messages():
        if isinstance(message, OrderUpdate):
            is_heard.set()
            if reports := tuple(_reports(message.orders)):
                await connection.send(ReportBatch(next(numbers), reports))


def _reports(orders: Iterable[InstanceOrder]) -> Iterable[InstanceReport]:
    now = SystemClock().now()
    for order in orders:
        yield InstanceReport(order.instance, order.generation, _SAYS[order.desired], now)
