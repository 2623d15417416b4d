"""Containers as they run: a real runtime, real cells, mounts and addresses."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from skerry.model import errors
from skerry.model.cells import OutputChannel, own_name
from skerry.model.containers import ContainerState, NetworkMode
from skerry.model.ports import PortMapping
from skerry.model.resources import Megabytes, Millicores, Resources
from skerry.node.containers.containers import Containers
from skerry.node.logs.readers import LogRecord
from tests.node.cells.real import is_alive
from tests.node.containers.real import Agent, Ground, needs_runc, printed, spec
from tests.node.network import machines
from tests.support.waiting import eventually

pytestmark = [needs_runc, pytest.mark.root]


async def begun(containers: Containers, name: str, *arguments: str, **more: object) -> None:
    await containers.create(spec(name, *arguments, **more))
    await containers.start(name)


async def test_a_container_runs_says_something_and_ends_with_its_code(agent: Agent) -> None:
    containers = agent.containers
    await containers.create(spec("web", "sh", "-c", "echo here; echo there >&2; exit 7"))
    view = await containers.start("web")
    assert view.address == "10.98.0.2"
    ended = await containers.wait("web")
    assert (ended.code, ended.signal, ended.oom) == (7, None, False)
    assert printed(containers, "web") == b"here\n"
    assert printed(containers, "web", OutputChannel.STDERR) == b"there\n"
    assert agent.network.attachments() == {}


async def test_it_is_in_its_cell_its_root_and_its_network(agent: Agent, ground: Ground) -> None:
    containers = agent.containers
    await begun(containers, "web", resources=Resources(Millicores(500), Megabytes(64)), pids=40)
    view = containers.get("web")
    assert f"{ground.root}/@web/" in Path(f"/proc/{view.pid}/cgroup").read_text()
    assert Path(f"/proc/{view.pid}/cwd/bin/busybox").exists()
    assert not Path(f"/proc/{view.pid}/cwd/usr").exists()
    assert os.readlink(f"/proc/{view.pid}/ns/net") != os.readlink("/proc/self/ns/net")
    stats = await containers.stats("web")
    assert stats.usage.memory_bytes > 0
    assert stats.usage.pids >= 2
    limits = ground.groups.read_limits(own_name(view.spec.name))
    assert (limits.cpu_quota, limits.memory, limits.pids) == (500, 64, 40)


async def test_a_small_cpu_quota_is_off_while_the_runtime_works_and_on_when_the_program_begins(
    ground: Ground,
) -> None:
    name, cell = "tiny", own_name("tiny")
    prepared: list[tuple[int | None, int]] = []

    def failpoint(step: str) -> None:
        if step == "cells.start.prepared":  # the program is next, and waits for the runtime's word
            limits, usage = ground.groups.read_limits(cell), ground.groups.usage(cell)
            prepared.append((limits.cpu_quota, usage.throttled_ns))

    async with ground.agent(failpoint) as agent:
        await begun(
            agent.containers, name, "echo", "begun", resources=Resources(Millicores(10), Megabytes(64))
        )
        assert prepared == [(10, 0)]  # held, and nothing was held up by it so far
        assert (await agent.containers.wait(name)).code == 0
        assert printed(agent.containers, name) == b"begun\n"
        await agent.containers.start(name)  # again, in the same cell
        assert [quota for quota, _ in prepared] == [10, 10]
        await agent.containers.remove(name, force=True)
    assert ground.leftovers() == []


async def test_without_a_cpu_quota_one_call_of_the_runtime_starts_it(ground: Ground) -> None:
    steps: list[str] = []
    async with ground.agent(steps.append) as agent:
        await begun(agent.containers, "web", "true")
        assert "cells.start.prepared" not in steps
        await agent.containers.remove("web", force=True)


async def test_its_published_port_leads_to_it_and_is_free_when_it_has_ended(agent: Agent) -> None:
    containers = agent.containers
    ports = (PortMapping(8080, 80),)
    serve = "while :; do echo hello | nc -l -p 80; done"
    await begun(containers, "web", "sh", "-c", serve, ports=ports)

    async def requested() -> bytes:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", 8080)
        except OSError:
            return b""
        said = await reader.read(100)
        writer.close()
        return said

    await eventually(lambda: _is(requested, b"hello\n"))
    await containers.create(spec("other", ports=ports))
    with pytest.raises(errors.SkerryError, match=r"8080.*web"):
        await containers.start("other")
    await containers.stop("web", grace_s=0)
    assert (await containers.start("other")).state is ContainerState.RUNNING


async def _is(fetch: object, wanted: bytes) -> bool:
    return await fetch() == wanted  # type: ignore[operator]


async def test_without_a_network_it_has_only_a_loopback(agent: Agent) -> None:
    containers = agent.containers
    await begun(containers, "web", "ls", "/sys/class/net", network=NetworkMode.NONE)
    assert (await containers.wait("web")).code == 0
    assert printed(containers, "web") == b"lo\n"
    assert containers.get("web").address == ""


async def test_a_signal_a_kill_for_memory_and_a_code_are_told_apart(agent: Agent) -> None:
    containers = agent.containers
    hungry = "x=0123456789abcdef; while :; do x=$x$x; done"
    await begun(containers, "hungry", "sh", "-c", hungry, resources=Resources(memory=Megabytes(32)))
    await begun(containers, "killed")
    ended = await containers.wait("hungry")
    assert (ended.oom, ended.signal) == (True, signal.SIGKILL)
    pid = containers.get("killed").pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    ended = await containers.wait("killed")
    assert (ended.signal, ended.oom) == (signal.SIGKILL, False)


async def test_a_stop_lets_it_end_by_itself_if_it_listens(agent: Agent) -> None:
    containers = agent.containers
    script = "trap 'echo bye; exit 3' USR1; echo up; while :; do sleep 0.01; done"
    await begun(containers, "web", "sh", "-c", script, stop_signal="SIGUSR1")
    await eventually(lambda: printed(containers, "web") == b"up\n")
    view = await containers.stop("web", grace_s=30)
    assert view.exit is not None
    assert view.exit.code == 3
    assert printed(containers, "web") == b"up\nbye\n"


async def test_what_does_not_listen_is_killed_with_all_its_children(agent: Agent, ground: Ground) -> None:
    containers = agent.containers
    await begun(containers, "web", "sh", "-c", "sleep 1000 & sleep 1000 & wait")
    pid = containers.get("web").pid
    assert pid is not None
    await eventually(lambda: len(ground.groups.pids(agent.cells.list()[0].cell.name)) == 4)
    view = await containers.stop("web", grace_s=0.05)
    assert view.exit is not None
    assert view.exit.signal == signal.SIGKILL
    assert not is_alive(pid)
    assert len(ground.groups.pids(agent.cells.list()[0].cell.name)) == 1, "only the init of the cell"
    assert [path for path in ground.mounts() if "rootfs" in path.parts] == []


async def test_what_it_wrote_is_there_at_the_next_start_and_the_image_is_as_it_was(
    agent: Agent, ground: Ground
) -> None:
    containers = agent.containers
    await begun(containers, "web", "sh", "-c", "cat /note; echo hello > /note; rm /etc/group")
    await containers.wait("web")
    assert printed(containers, "web") == b""
    await containers.start("web")
    await containers.wait("web")
    assert printed(containers, "web") == b"hello\n"
    assert (await containers.stats("web")).disk_bytes > 0
    assert not (ground.image / "note").exists()
    assert (ground.image / "etc/group").exists()


async def test_a_command_that_is_not_there_is_a_plain_error_and_leaves_nothing(
    agent: Agent, ground: Ground
) -> None:
    containers = agent.containers
    await containers.create(spec("web", "nonsense"))
    with pytest.raises(errors.SkerryError, match=r'"nonsense": executable file not found'):
        await containers.start("web")
    assert containers.get("web").state is ContainerState.CREATED
    assert agent.network.attachments() == {}
    assert [path for path in ground.mounts() if "rootfs" in path.parts] == []
    assert [
        *ground.folder.glob("containers/boot/bundles/*"),
        *ground.folder.glob("containers/boot/runtime/*"),
    ] == []


async def test_a_user_of_the_image_and_a_host_name(agent: Agent) -> None:
    containers = agent.containers
    script = "id -u; cat /etc/hostname /etc/resolv.conf; cat /proc/sys/kernel/hostname"
    await begun(containers, "web", "sh", "-c", script, user="guest", host_name="front")
    assert (await containers.wait("web")).code == 0
    said = printed(containers, "web").split(b"\n")
    assert said[:2] == [b"1000", b"front"]
    assert b"nameserver 10.98.0.1" in said
    assert said[-2] == b"front"
    await containers.create(spec("other", user="nobody-knows"))
    with pytest.raises(errors.Invalid, match="nobody-knows"):
        await containers.start("other")


async def test_little_room_is_enough_to_start_in(agent: Agent) -> None:
    containers = agent.containers
    await begun(containers, "web", "echo", "hi", resources=Resources(memory=Megabytes(16)), pids=16)
    assert (await containers.wait("web")).code == 0


async def test_output_is_followed_until_the_end(agent: Agent) -> None:
    containers = agent.containers
    await begun(containers, "web", "sh", "-c", "echo one; sleep 0.1; echo two")
    said = b""
    async for item in containers.logs("web", OutputChannel.STDOUT).follow():
        assert isinstance(item, LogRecord)
        said += item.data
    assert said == b"one\ntwo\n"


async def test_the_run_before_the_last_one_can_still_be_read_and_no_older_one(
    ground: Ground, agent: Agent
) -> None:
    containers = agent.containers
    with pytest.raises(errors.NotFound, match="web"):
        containers.logs("web", OutputChannel.STDOUT, previous=True)
    await begun(containers, "web", "sh", "-c", "n=$(cat /n || echo 0); echo $((n + 1)) | tee /n; exit 3")
    await containers.wait("web")
    with pytest.raises(errors.NotFound, match="previous run"):
        containers.logs("web", OutputChannel.STDOUT, previous=True)
    for last in (b"2\n", b"3\n"):
        before = printed(containers, "web")
        await containers.start("web")
        await containers.wait("web")
        items = containers.logs("web", OutputChannel.STDOUT, previous=True).read()
        assert b"".join(item.data for item in items if isinstance(item, LogRecord)) == before
        assert printed(containers, "web") == last


async def test_one_that_has_ended_costs_no_process_and_starts_again(
    ground: Ground, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skerry.node.containers.maintenance._IDLE_INIT_S", 0.0)
    containers, cell = agent.containers, own_name("web")
    await begun(containers, "web", "sh", "-c", "echo here; exit 7")
    await containers.wait("web")
    ended = containers.get("web")
    assert len(ground.groups.pids(cell)) == 1
    await containers._maintenance.check()
    assert ground.groups.pids(cell) == []
    assert (containers.get("web"), printed(containers, "web")) == (ended, b"here\n")
    await containers.start("web")
    assert (await containers.wait("web")).code == 7
    assert printed(containers, "web") == b"here\n"


async def test_containers_live_on_without_the_agent(ground: Ground) -> None:
    script = "trap 'echo after; exit 5' TERM; echo before; while :; do sleep 0.01; done"
    async with ground.agent() as first:
        await begun(first.containers, "stays", "sh", "-c", script, ports=(PortMapping(8080, 80),))
        await begun(first.containers, "ends", "sh", "-c", script)
        await eventually(lambda: printed(first.containers, "ends") == b"before\n")
        await eventually(lambda: printed(first.containers, "stays") == b"before\n")
        before = {view.spec.name: view for view in first.containers.list()}
    pid = before["ends"].pid
    assert pid is not None
    os.kill(pid, signal.SIGTERM)
    await eventually(lambda: not is_alive(pid))
    async with ground.agent() as second:
        containers = second.containers
        assert containers.get("stays") == before["stays"]
        assert second.images._claims.keys() == {"stays", "ends"}
        view = containers.get("ends")
        assert view.exit is not None
        assert (view.state, view.exit.code) == (ContainerState.EXITED, 5)
        assert printed(containers, "ends") == b"before\nafter\n"
        assert second.network.attachments().keys() == {"stays"}
        assert "8080" in machines.run("nft", "list", "ruleset")
        waiting = asyncio.create_task(containers.wait("stays"))
        await containers.stop("stays")
        assert (await waiting).code == 5
        assert printed(containers, "stays") == b"before\nafter\n"
        await containers.remove("stays")
        await containers.remove("ends")


async def test_after_a_reboot_a_container_is_listed_and_starts_anew(ground: Ground) -> None:
    script = "cat /note; echo hello > /note; exec sleep 1000"
    async with ground.agent() as first:
        await begun(first.containers, "web", "sh", "-c", script, ports=(PortMapping(8080, 80),))
        await begun(first.containers, "done", "sh", "-c", "exit 4")
        await first.containers.create(spec("made"))
        await first.containers.wait("done")
        await eventually(lambda: (ground.folder / "containers/all/web/layer/upper/note").exists())
    await ground.reboot()
    async with ground.agent() as second:
        containers = second.containers
        views = {view.spec.name: view for view in containers.list()}
        assert views["made"].state is ContainerState.CREATED
        assert views["done"].exit is not None
        assert views["done"].exit.code == 4
        assert (views["web"].state, views["web"].exit) == (ContainerState.EXITED, None)
        assert "restarted" in views["web"].reason
        assert printed(containers, "web") == b""
        assert second.network.attachments() == {}
        view = await containers.start("web")
        assert (view.state, view.address) == (ContainerState.RUNNING, "10.98.0.2")
        assert "was lost" in view.reason
        await eventually(lambda: (ground.folder / "containers/all/web/layer/upper/note").exists())
        assert printed(containers, "web") == b"", "what it wrote before the reboot is gone"
        await containers.stop("web", grace_s=0)
        await containers.remove("web")
        await containers.remove("done")
        await containers.remove("made")
