"""What workers reach over the network, asked from inside of one, and who reaches them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from skerry.model.settings import FunctionSettings
from skerry.node.workers.process_workers import ProcessWorker
from tests.node.network import machines
from tests.node.workers.ground import SUBNET, Agent, Ground, answered

pytestmark = pytest.mark.root

HERE = "/proc/thread-self/ns/net"
METADATA = "169.254.169.254"
LAN = "172.20.1.1"  # a private address of the machine
GATEWAY = SUBNET.replace("0/24", "1")
# Listens on a port, or dials others and tells which of them answered.
DIALLER = """
import socket
listeners = []
def handle(params):
    if "listen" in params:
        listeners.append(socket.create_server(("0.0.0.0", params["listen"])))
        return None
    answered = []
    for address, port in params["dial"]:
        try:
            socket.create_connection((address, port), timeout=params["within_s"]).close()
            answered.append(address)
        except OSError:
            pass
    return answered
"""


@pytest.fixture
async def ground(tmp_path: Path) -> AsyncIterator[Ground]:
    with machines.machine(tmp_path):
        for address in (METADATA, LAN):
            machines.run("ip", "address", "add", f"{address}/32", "dev", "lo")
        ground = Ground(tmp_path / "data", has_network=True)
        ground.folder.mkdir(mode=0o700)
        yield ground
        leftovers = ground.leftovers()
        await ground.clear()
        assert leftovers == []


async def dialled(worker: ProcessWorker, *paths: tuple[str, int], within_s: float = 0.3) -> list[str]:
    question = {"dial": paths, "within_s": within_s}
    answer = await answered(worker, json.dumps(question).encode())
    assert answer.failure is None, answer.error
    reported: list[str] = json.loads(answer.result)
    return reported


async def spawn(ground: Ground, agent: Agent, name: str) -> tuple[ProcessWorker, str]:
    """A worker that listens on 8080, and its address."""
    worker = await agent.workers.spawn(ground.function(name=name), ground.code(name, main=DIALLER))
    assert (await answered(worker, b'{"listen": 8080}')).failure is None
    assert agent.network is not None
    return worker, agent.network.attachments()[worker._blank.cell].address


async def test_a_worker_reaches_no_metadata_and_no_other_worker_nor_is_it_reached_by_a_container(
    ground: Ground,
) -> None:
    async with ground.agent() as agent:
        one, two = await asyncio.gather(*(spawn(ground, agent, name) for name in ("one", "two")))
        assert agent.network is not None
        web = await agent.network.attach("web")
        with (
            machines.listen(HERE, METADATA, 80),
            machines.listen(HERE, LAN, 443),
            machines.listen(web.namespace, "0.0.0.0", 8080),
        ):
            worker, address = one
            assert await dialled(worker, (METADATA, 80), (two[1], 8080)) == []
            assert machines.cannot_dial(web.namespace, address, 8080)
            around = [(LAN, 443), (web.address, 8080)]
            assert await dialled(worker, *around, within_s=10) == [LAN, web.address]
        await agent.network.detach("web")
        for worker, _ in (one, two):
            await worker.close()


async def test_functions_that_may_reach_the_internet_only_reach_no_private_network(ground: Ground) -> None:
    ground.settings = msgspec.structs.replace(ground.settings, egress="internet")
    async with ground.agent() as agent:
        worker, _ = await spawn(ground, agent, "one")
        with machines.listen(HERE, "0.0.0.0", 443):
            assert await dialled(worker, (LAN, 443), (GATEWAY, 443)) == []
        await worker.close()


def test_functions_may_reach_whatever_the_node_reaches_unless_a_setting_says_otherwise() -> None:
    assert FunctionSettings().egress == "all"
