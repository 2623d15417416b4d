"""Functions that bring an image, as they run: real containers, cells, addresses and connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from skerry.kit.clock import SystemClock
from skerry.model.calls import LoadFailed, WorkerGone
from skerry.model.cells import Cell, Limits
from skerry.model.containers import NetworkMode
from skerry.model.functions import Function
from skerry.model.ids import CellName, FunctionName
from skerry.model.room import Megabytes, Millicores
from skerry.model.settings import FunctionSettings
from skerry.node.workers.images import ImageWorkers
from skerry.node.workers.logs import FunctionLogs
from tests.node.containers.conftest import agent, busybox, ground  # noqa: F401 - fixtures
from tests.node.containers.real import Agent, Ground, needs_root, needs_runc
from tests.support import imagery
from tests.support.waiting import eventually

pytestmark = [needs_root, needs_runc, pytest.mark.root]

INSIDE = CellName("functions")
SUMS = FunctionName("sums")
# One request for each connection, by a shell; a call whose parameters say so ends the container.
ANSWER = r"""#!/bin/sh
while read -r line; do
  line=${line%$(printf '\r')}
  [ -z "$line" ] && break
  case "$line" in Content-Length:*) length=${line#*: } ;; esac
done
[ -n "$length" ] || exit 0  # somebody only looked whether this listens
case "$(head -c "$length")" in *'"die"'*) touch /tmp/die; sleep 100 ;; esac
said='{"Success":true,"Result":"{\"name\":\"'$NAME'\"}","Output":"printed"}'
printf 'HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s' ${#said} "$said"
"""
SERVE = "echo up; nc -ll -p 8080 -e /bin/answer & while [ ! -e /tmp/die ]; do sleep 0.02; done; exit 7"


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image that answers as the contract says, in a folder; no registry has it."""
    layer = imagery.layer(imagery.file("bin/answer", ANSWER, mode=0o755))
    made = imagery.busybox(layer, command=("sh", "-c", SERVE))
    return f"oci:{imagery.write_layout(made, tmp_path_factory.mktemp('image') / 'layout')}"


@pytest.fixture
async def workers(agent: Agent, tmp_path: Path) -> AsyncIterator[ImageWorkers]:  # noqa: F811 - the fixture
    await agent.cells.allocate(Cell(INSIDE, Limits(memory=Megabytes(256))))
    workers = await open_workers(agent, tmp_path)
    yield workers
    await workers.close()
    await agent.cells.free(INSIDE)


async def open_workers(agent: Agent, folder: Path) -> ImageWorkers:  # noqa: F811 - the fixture's value
    logs = FunctionLogs(folder / "printed", 1 << 20)
    return await ImageWorkers.open(
        agent.containers,
        agent.images,
        FunctionSettings(image_start_s=20.0),
        SystemClock(),
        logs,
        inside=INSIDE,
    )


def a_function(image: str, network: NetworkMode = NetworkMode.BRIDGE) -> Function:
    return Function(
        SUMS,
        "custom",
        Megabytes(32),
        0.0,
        cpu=Millicores(500),
        image=image,
        environment=("NAME=ann",),
        network=network,
    )


@pytest.mark.parametrize("network", list(NetworkMode))
async def test_an_image_is_called_in_its_cell_and_leaves_nothing_but_its_output(
    workers: ImageWorkers,
    agent: Agent,  # noqa: F811 - the fixture
    ground: Ground,  # noqa: F811 - the fixture
    image: str,
    tmp_path: Path,
    network: NetworkMode,
) -> None:
    worker = await workers.spawn(a_function(image, network), None)
    [view] = agent.containers.list()
    answers = await asyncio.gather(
        *(worker.call(b"{}", wants_output=True, within_s=20) for _ in range(3)),
    )
    assert [(each.result, each.output) for each in answers] == [(b'{"name":"ann"}', "printed")] * 3
    assert worker.init_s > 0
    assert f"{ground.root}/functions/{worker.id}/" in Path(f"/proc/{view.pid}/cgroup").read_text()
    limits = ground.groups.read_limits(CellName(f"functions/{worker.id}"))
    assert (limits.memory, limits.cpu_quota) == (32, 500)
    with pytest.raises(WorkerGone, match="with exit code 7"):
        await worker.call(b'{"do": "die"}', wants_output=False, within_s=20)
    assert not worker.is_alive
    await worker.close()
    assert agent.containers.list() == []
    assert [view.cell.name for view in agent.cells.list()] == [INSIDE]
    logs = FunctionLogs(tmp_path / "printed", 1 << 20)
    assert [line.text async for line in logs.read(SUMS)] == ["up"]


async def test_what_cannot_be_had_is_undone_and_what_an_earlier_agent_left_is_removed(
    workers: ImageWorkers,
    agent: Agent,  # noqa: F811 - the fixture
    image: str,
    tmp_path: Path,
) -> None:
    with pytest.raises(LoadFailed, match="nowhere"):
        await workers.spawn(a_function("oci:/nowhere"), None)
    ends = imagery.write_layout(imagery.busybox(command=("sh", "-c", "echo no; exit 5")), tmp_path / "ends")
    with pytest.raises(LoadFailed, match="with exit code 5") as failed:
        await workers.spawn(a_function(f"oci:{ends}"), None)
    assert failed.value.output == "no\n"
    spawning = asyncio.ensure_future(workers.spawn(a_function(image), None))
    await eventually(agent.containers.list)
    spawning.cancel()
    with pytest.raises(asyncio.CancelledError):
        await spawning
    assert agent.containers.list() == []
    left = await workers.spawn(a_function(image), None)
    await open_workers(agent, tmp_path / "next")
    assert agent.containers.list() == []
    assert not left.is_alive
