"""A node and the real control plane, over real gRPC: from the wish to the container, and back."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from skerry.control.events.log import EventLog
from skerry.kit.backoff import Backoff
from skerry.kit.clock import SystemClock
from skerry.kit.tasks import cancel_and_wait
from skerry.model import errors
from skerry.model.ids import DEFAULT_NAMESPACE, Namespace
from skerry.model.network import Egress
from skerry.model.node_messages import NodeHello
from skerry.model.nodes import NodeFacts
from skerry.model.resources import Gigabytes, Resources
from skerry.model.settings import EventSettings
from skerry.model.streams import LogStreamRequest, TunnelChannel, TunnelFrame
from skerry.model.workloads import Instance, InstanceSpec, RestartMode, RestartPolicy
from skerry.node.agent.agent import NodeAgent
from skerry.node.agent.instances.container_specs import container_name
from skerry.node.agent.instances.tunnel_handler import TunnelHandler
from skerry.node.agent.server_addresses import ServerAddressCache
from skerry.node.agent.session import AgentHooks
from skerry.store.local.memory import MemoryStore
from tests.node.agent.instances.ground import Ground
from tests.node.logs.keeping import Ring
from tests.support.controls import ROOM, Control, control_on
from tests.support.waiting import eventually
from tests.transport.conftest import authority
from tests.transport.links.nodes.conftest import Listening

__all__ = ["authority"]

WEB = InstanceSpec(name="web", uri="web:1")


class Cloud:
    """One server and one node, either of which may be away for a while."""

    def __init__(self, control: Control, ground: Ground, authority: object, folder: Path) -> None:
        self.control = control
        self._file = folder / "servers.json"
        self.ground = ground
        self._authority = authority
        self._listening: Listening
        self._session: asyncio.Future[None]

    async def serve(self) -> None:
        self._listening = Listening(self.control.sessions, self._authority)  # type: ignore[arg-type]
        await self._listening.start()

    def connect(self) -> None:
        session = NodeAgent(
            ServerAddressCache("joined:1", self._file),
            lambda _: self._listening.dialler("n1"),
            self.ground.instances,
            TunnelHandler(self.ground.instances, self.ground.containers),
            AgentHooks(lambda: NodeHello("edge", NodeFacts("amd64", "linux"), ROOM)),
            SystemClock(),
            backoff=Backoff(first_s=0.01, cap_s=0.05),
        )
        self._session = asyncio.ensure_future(session.run())

    async def disconnect(self) -> None:
        await cancel_and_wait([self._session])

    async def close(self) -> None:
        await self.disconnect()
        await self._listening.stop()

    async def create(self, spec: InstanceSpec = WEB) -> str:
        instance, _ = await self.control.instances.create(spec, actor="test")
        return instance.id

    def seen(self, id: str) -> Instance:
        return self.control.instances.get(id)

    async def until(self, id: str, status: str) -> Instance:
        def is_there() -> bool:
            return self.seen(id).observed.status == status

        await eventually(is_there, what=f"{id} is {status}")
        return self.seen(id)


@pytest.fixture
async def cloud(tmp_path: Path, authority: object) -> AsyncIterator[Cloud]:
    clock = SystemClock()
    store = MemoryStore(clock)
    ground = Ground(tmp_path)
    await ground.open()
    events = EventLog(store, clock, EventSettings())
    async with control_on(store, events, clock, leads=True, egress=("shop=internet",)) as control:
        cloud = Cloud(control, ground, authority, tmp_path)
        await cloud.serve()
        cloud.connect()
        yield cloud
        await cloud.close()
    await store.close()
    await ground.leave()


async def test_a_wish_becomes_a_container_and_its_address_is_known(cloud: Cloud) -> None:
    id = await cloud.create()
    seen = await cloud.until(id, "RUNNING")
    view = cloud.ground.view(id)
    assert view is not None
    assert (seen.ip, seen.node) == (view.address, "n1")


async def test_the_egress_of_a_namespace_is_that_of_its_containers_and_of_no_others(cloud: Cloud) -> None:
    held = {}
    for namespace in (DEFAULT_NAMESPACE, Namespace("shop")):
        instance, _ = await cloud.control.instances.create(WEB, namespace=namespace, actor="test")
        await cloud.until(instance.id, "RUNNING")
        name = container_name(instance.id)
        held[namespace] = cloud.ground.machine.attached[name].policy.egress
    assert held == {"default": Egress.ALL, "shop": Egress.INTERNET}


async def test_stopped_started_and_destroyed_it_leaves_nothing(cloud: Cloud) -> None:
    id = await cloud.create()
    await cloud.until(id, "RUNNING")
    await cloud.control.instances.stop(id, actor="test")
    await cloud.until(id, "STOPPED")
    assert cloud.ground.view(id) is not None
    await cloud.control.instances.start(id, actor="test")
    await cloud.until(id, "RUNNING")
    await cloud.control.instances.destroy(id, actor="test")
    await cloud.ground.until_gone(id)
    assert (cloud.ground.records(), cloud.ground.machine.held()) == ([], [])
    with pytest.raises(errors.NotFound):
        cloud.seen(id)


async def test_crashes_and_ends_are_known_for_what_they_are(cloud: Cloud) -> None:
    id = await cloud.create(
        InstanceSpec(name="job", uri="web:1", restart=RestartPolicy(RestartMode.ON_FAILURE))
    )
    await cloud.until(id, "RUNNING")
    cloud.ground.process(id).exit(signal=9, oom=True)
    await eventually(lambda: cloud.seen(id).restarts == 1)
    await cloud.until(id, "RUNNING")
    cloud.ground.process(id).exit(code=0)
    seen = await cloud.until(id, "TERMINATED")
    assert (seen.observed.exit_code, seen.restarts) == (0, 1)
    assert cloud.ground.view(id) is not None  # what it wrote can still be read


async def test_what_happened_while_the_server_was_away_is_told_in_order_when_it_is_back(cloud: Cloud) -> None:
    id = await cloud.create(InstanceSpec(name="web", uri="web:1", restart=RestartPolicy(budget=1)))
    await cloud.until(id, "RUNNING")
    await cloud.disconnect()
    cloud.ground.process(id).exit(code=3)
    await eventually(lambda: cloud.ground.copy(id).history.restarts == 1)
    await cloud.ground.until("RUNNING", id)
    cloud.ground.process(id).exit(code=4)
    await cloud.ground.until("FAILED", id)
    assert cloud.seen(id).observed.status == "RUNNING"
    cloud.connect()
    seen = await cloud.until(id, "FAILED")
    assert (seen.observed.exit_code, seen.restarts) == (4, 1)
    kinds = [reported.event.kind for reported in await cloud.control.instances.events(id)]
    crashes = [kind for kind in kinds if kind in ("instance.crashed", "instance.failed")]
    assert crashes == ["instance.crashed", "instance.crashed", "instance.failed"]


async def test_an_agent_that_was_killed_goes_on_where_it_was(cloud: Cloud) -> None:
    id = await cloud.create()
    await cloud.until(id, "RUNNING")
    pid = cloud.ground.process(id).state.pid
    await cloud.disconnect()
    await cloud.ground.leave()
    await cloud.ground.open()
    cloud.connect()
    other = await cloud.create(
        InstanceSpec(name="other", uri="web:1", resources=Resources(disk=Gigabytes(1)))
    )
    await cloud.until(other, "RUNNING")
    assert cloud.ground.process(id).state.pid == pid
    assert cloud.seen(id).observed.status == "RUNNING"


async def test_output_comes_through_a_tunnel_to_its_last_byte(cloud: Cloud) -> None:
    id = await cloud.create()
    seen = await cloud.until(id, "RUNNING")
    folder = cloud.ground.machine.folder / "logs"
    folder.mkdir()
    text = os.urandom(300_000).hex().encode()
    with Ring(folder, max_bytes=10_000_000) as ring:
        for at in range(0, len(text), 10_000):
            ring.write(text[at : at + 10_000], 1 + at)
    got = b""
    assert seen.node is not None
    async with cloud.control.sessions.open_tunnel(seen.node, seen.id, LogStreamRequest()) as tunnel:
        while (packed := await tunnel.receive()) is not None:
            frame = TunnelFrame.unpack(packed)
            assert frame.channel is TunnelChannel.OUTPUT
            got += frame.data
    assert got == text
