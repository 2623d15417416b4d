"""Functions that bring an image, as they run: real containers, cells, addresses and connections."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from skerry.kit.clock import SystemClock
from skerry.model.calls import CodeLoadError, WorkerExited
from skerry.model.cells import Cell, CellLimits, CellOwner, own_name
from skerry.model.containers import ContainerSpec, NetworkMode
from skerry.model.functions import Function
from skerry.model.ids import CellName, FunctionName
from skerry.model.images import ImageAccess
from skerry.model.resources import Megabytes, Millicores
from skerry.model.settings import FunctionSettings
from skerry.node.workers.container_workers import PORT, ContainerWorkers
from skerry.node.workers.function_logs import FunctionLogs
from tests.node.containers.conftest import agent, busybox, ground  # noqa: F401 - fixtures
from tests.node.containers.real import Agent, Ground, needs_runc
from tests.node.network import machines
from tests.node.network.machines import Call
from tests.support import imagery
from tests.support.waiting import eventually

pytestmark = [needs_runc, pytest.mark.root]

INSIDE = "functions"
POOL = own_name(INSIDE)
SUMS = FunctionName("sums")
METADATA = "169.254.169.254"
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
    created = imagery.busybox(layer, command=("sh", "-c", SERVE))
    return f"oci:{imagery.write_layout(created, tmp_path_factory.mktemp('image') / 'layout')}"


@pytest.fixture
async def workers(agent: Agent, tmp_path: Path) -> AsyncIterator[ContainerWorkers]:  # noqa: F811 - the fixture
    await agent.cells.allocate(Cell(POOL, CellLimits(memory=Megabytes(256)), owner=CellOwner.FUNCTIONS))
    workers = await open_workers(agent, tmp_path)
    yield workers
    await workers.close()
    await agent.cells.free(POOL, owner=CellOwner.FUNCTIONS)


async def open_workers(agent: Agent, folder: Path) -> ContainerWorkers:  # noqa: F811 - the fixture's value
    logs = FunctionLogs(folder / "printed", 1 << 20)
    return await ContainerWorkers(
        agent.containers,
        agent.images,
        FunctionSettings(image_start_s=20.0),
        SystemClock(),
        logs,
        inside=INSIDE,
        folder=folder / "functions",
    ).open()


def a_function(image: str, network: NetworkMode = NetworkMode.BRIDGE) -> Function:
    return Function(
        SUMS,
        "custom",
        Megabytes(32),
        0.0,
        cpu=Millicores(500),
        image=image,
        image_access=ImageAccess.ALL,
        environment=("NAME=ann",),
        network=network,
    )


@pytest.mark.parametrize("network", list(NetworkMode))
async def test_an_image_is_called_in_its_cell_and_leaves_nothing_but_its_output(
    workers: ContainerWorkers,
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
    assert f"{ground.root}/{POOL}/{worker.id}/" in Path(f"/proc/{view.pid}/cgroup").read_text()
    limits = ground.groups.read_limits(CellName(f"{POOL}/{worker.id}"))
    assert (limits.memory, limits.cpu_quota) == (32, 500)
    # Its root is nobody on the node, like that of every container.
    first, on_node, _ = Path(f"/proc/{view.pid}/uid_map").read_text().split()
    assert (int(first), int(on_node) > 2**30) == (0, True)
    assert f"Uid:\t{on_node}\t" in Path(f"/proc/{view.pid}/status").read_text()
    stats = await agent.containers.stats(view.spec.name)
    assert stats.disk_limit_bytes == 1024**3
    assert stats.disk_limit_kind in ("quota", "filesystem")
    with pytest.raises(WorkerExited, match="with exit code 7"):
        await worker.call(b'{"do": "die"}', wants_output=False, within_s=20)
    assert not worker.is_alive
    await worker.close()
    assert agent.containers.list() == []
    assert [view.cell.name for view in agent.cells.list()] == [POOL]
    logs = FunctionLogs(tmp_path / "printed", 1 << 20)
    assert [line.text async for line in logs.read(SUMS)] == ["up"]


async def test_a_repaired_image_under_the_same_name_is_pulled_when_its_function_is_registered_again(
    workers: ContainerWorkers, tmp_path: Path
) -> None:
    layer = imagery.layer(imagery.file("bin/answer", ANSWER, mode=0o755))
    broken = imagery.busybox(layer, command=("sh", "-c", "exit 3"))
    repaired = imagery.busybox(layer, command=("sh", "-c", SERVE))
    place = tmp_path / "layout"
    now = SystemClock().now()
    function = msgspec.structs.replace(a_function(f"oci:{place}"), updated_at=now)
    imagery.write_layout(broken, place)
    with pytest.raises(CodeLoadError, match="exit code 3"):
        await workers.spawn(function, None)
    shutil.rmtree(place)
    imagery.write_layout(repaired, place)
    with pytest.raises(CodeLoadError, match="exit code 3"):  # as it was registered
        await workers.spawn(function, None)
    again = msgspec.structs.replace(function, updated_at=now + 1)
    worker = await workers.spawn(again, None)
    assert (await worker.call(b"{}", wants_output=False, within_s=20)).result == b'{"name":"ann"}'
    await worker.close()
    shutil.rmtree(place)  # nothing can be looked up any more, and what is here will do
    worker = await workers.spawn(msgspec.structs.replace(function, updated_at=now + 2), None)
    await worker.close()


async def test_a_repaired_image_is_pulled_after_a_restart_and_whatever_the_clocks_say_and_only_once(
    workers: ContainerWorkers,
    agent: Agent,  # noqa: F811 - the fixture
    tmp_path: Path,
) -> None:
    layer = imagery.layer(imagery.file("bin/answer", ANSWER, mode=0o755))
    broken = imagery.busybox(layer, command=("sh", "-c", "exit 3"))
    repaired = imagery.busybox(layer, command=("sh", "-c", SERVE))
    place = tmp_path / "layout"
    long_ago = msgspec.structs.replace(a_function(f"oci:{place}"), updated_at=1.0)
    imagery.write_layout(broken, place)
    with pytest.raises(CodeLoadError, match="exit code 3"):
        await workers.spawn(long_ago, None)
    shutil.rmtree(place)
    imagery.write_layout(repaired, place)
    # It is registered again by a server whose clock is far behind, and the agent restarts before it hears.
    again = msgspec.structs.replace(long_ago, version=2, updated_at=0.5)
    restarted = await open_workers(agent, tmp_path)
    await (await restarted.spawn(again, None)).close()
    # What came since is no business of this registration, also after the next restart.
    shutil.rmtree(place)
    imagery.write_layout(broken, place)
    restarted = await open_workers(agent, tmp_path)
    await (await restarted.spawn(again, None)).close()


async def test_an_update_that_fails_leaves_the_function_with_the_image_that_it_had(
    workers: ContainerWorkers,
    agent: Agent,  # noqa: F811 - the fixture
    tmp_path: Path,
) -> None:
    layer = imagery.layer(imagery.file("bin/answer", ANSWER, mode=0o755))
    place = tmp_path / "layout"
    imagery.write_layout(imagery.busybox(layer, command=("sh", "-c", SERVE)), place)
    function = a_function(f"oci:{place}")
    await (await workers.spawn(function, None)).close()
    images = agent.images.list()
    shutil.rmtree(place)
    imagery.write_layout(imagery.busybox(layer, command=("sh", "-c", "exit 3")), place)
    with pytest.raises(CodeLoadError, match="exit code 3"):
        async with workers.provisional(function.name, function.image):
            await workers.spawn(msgspec.structs.replace(function, version=2), None)
    assert agent.images.list() == images
    await (await workers.spawn(function, None)).close()


async def test_only_the_agent_reaches_the_port_of_an_image_and_no_metadata_is_reached_from_it(
    workers: ContainerWorkers,
    agent: Agent,  # noqa: F811 - the fixture
    ground: Ground,  # noqa: F811 - the fixture
    image: str,
) -> None:
    requested, other = await asyncio.gather(*(workers.spawn(a_function(image), None) for _ in range(2)))
    spec = ContainerSpec("web", ground.reference, entrypoint=("sleep", "600"))
    await agent.containers.create(spec)
    await agent.containers.start("web")
    at = agent.network.attachments()
    calls: list[Call] = [
        (f"the port from {name}", at[name].namespace, at[requested.id].address, PORT)
        for name in (other.id, "web")
    ]
    machines.run("ip", "address", "add", f"{METADATA}/32", "dev", "lo")
    with machines.listen("/proc/thread-self/ns/net", METADATA, 80):
        calls += [(f"metadata from {name}", each.namespace, METADATA, 80) for name, each in at.items()]
        assert await machines.reachable(calls) == []
    answer = await requested.call(b"{}", wants_output=False, within_s=20)
    assert answer.result == b'{"name":"ann"}'
    for worker in (requested, other):
        await worker.close()


async def test_what_cannot_be_had_is_undone_and_what_an_earlier_agent_left_is_removed(
    workers: ContainerWorkers,
    agent: Agent,  # noqa: F811 - the fixture
    image: str,
    tmp_path: Path,
) -> None:
    with pytest.raises(CodeLoadError, match="nowhere"):
        await workers.spawn(a_function("oci:/nowhere"), None)
    ends = imagery.write_layout(imagery.busybox(command=("sh", "-c", "echo no; exit 5")), tmp_path / "ends")
    with pytest.raises(CodeLoadError, match="with exit code 5") as failed:
        await workers.spawn(a_function(f"oci:{ends}"), None)
    assert failed.value.output == "no\n"
    deaf = imagery.write_layout(imagery.busybox(command=("sleep", "600")), tmp_path / "deaf")
    spawning = asyncio.ensure_future(workers.spawn(a_function(f"oci:{deaf}"), None))
    await eventually(agent.containers.list)
    spawning.cancel()
    with pytest.raises(asyncio.CancelledError):
        await spawning
    assert agent.containers.list() == []
    leftovers = await workers.spawn(a_function(image), None)
    await open_workers(agent, tmp_path / "next")
    assert agent.containers.list() == []
    assert not leftovers.is_alive
