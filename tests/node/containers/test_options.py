"""Options of containers as they run: a real runtime, real cells, mounts and addresses."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from skerry.model import errors
from skerry.model.cells import own_name
from skerry.model.container_options import HostAlias, Ulimit
from skerry.model.resources import Megabytes, Millicores, Resources
from skerry.node.containers import init_programs
from tests.node.containers.real import Agent, Ground, needs_runc, printed, spec
from tests.support.waiting import eventually

pytestmark = [needs_runc, pytest.mark.root]

needs_init = pytest.mark.skipif(
    init_programs.find() is None, reason="there is no init program: see system-packages.txt"
)


async def output(agent: Agent, script: str, **more: Any) -> str:
    """What a container that runs `script` prints, to its end."""
    containers = agent.containers
    await containers.create(spec("web", "sh", "-c", script, **more))
    await containers.start("web")
    assert (await containers.wait("web")).code == 0
    return printed(containers, "web").decode()


async def test_shared_memory_has_the_size_that_is_asked_for(agent: Agent) -> None:
    said = await output(agent, "cat /proc/mounts", shm=Megabytes(96))
    [line] = [line for line in said.splitlines() if " /dev/shm " in line]
    assert f"size={96 * 1024}k" in line


async def test_ulimits_hold_beside_the_usual_ones(agent: Agent) -> None:
    said = await output(
        agent,
        "cat /proc/self/limits",
        ulimits=(Ulimit("nofile", 2048, 4096), Ulimit("memlock", 65536, 65536)),
    )
    limits = {line[:25].strip(): line[25:].split()[:2] for line in said.splitlines()}
    assert limits["Max open files"] == ["2048", "4096"]
    assert limits["Max locked memory"] == ["65536", "65536"]
    assert limits["Max core file size"] == ["0", "0"]


async def test_extra_hosts_and_name_servers_are_in_its_files(agent: Agent) -> None:
    said = await output(
        agent,
        "cat /etc/hosts /etc/resolv.conf",
        extra_hosts=(HostAlias("db.example.org", "192.0.2.7"), HostAlias("six", "2001:db8::1")),
        dns=("192.0.2.53",),
    )
    assert "192.0.2.7\tdb.example.org\n2001:db8::1\tsix\n" in said
    assert [line for line in said.splitlines() if line.startswith("nameserver")] == ["nameserver 192.0.2.53"]


@needs_init
async def test_an_init_is_process_1_and_reaps_what_the_program_leaves(agent: Agent) -> None:
    # The inner shell ends first; its child is then an orphan, and a zombie if nobody waits for it.
    script = "sh -c 'sleep 0.1 & echo $! > /tmp/orphan'; echo begun; exec sleep 1000"
    containers = agent.containers
    for name, has_init in (("plain", False), ("reaped", True)):
        await containers.create(spec(name, "sh", "-c", script, init=has_init))
        await containers.start(name)
    await eventually(lambda: printed(containers, "plain") == printed(containers, "reaped") == b"begun\n")

    def children(name: str) -> list[str]:
        """The states of those that its process 1 has."""
        first = containers.get(name).pid
        pids = Path(f"/proc/{first}/task/{first}/children").read_text().split()
        return [Path(f"/proc/{pid}/stat").read_text().split()[2] for pid in pids]

    main = Path(f"/proc/{containers.get('reaped').pid}/cmdline").read_bytes().split(b"\0")
    assert main[:2] == [b"/dev/init", b"--"]
    await eventually(lambda: children("plain") == ["Z"])  # its orphan, for as long as it runs
    await eventually(lambda: children("reaped") == ["S"])  # the program alone


@needs_init
async def test_the_stop_signal_reaches_the_program_behind_an_init(agent: Agent) -> None:
    containers = agent.containers
    script = "trap 'echo bye; exit 3' INT; echo begun; while :; do sleep 0.05; done"
    await containers.create(
        spec("web", "sh", "-c", script, init=True, stop_signal="SIGINT", stop_grace_s=30.0, read_only=True)
    )
    await containers.start("web")
    await eventually(lambda: printed(containers, "web") == b"begun\n")
    stopped = await containers.stop("web")
    assert stopped.exit is not None
    assert stopped.exit.code == 3
    assert printed(containers, "web") == b"begun\nbye\n"


async def test_a_node_without_an_init_program_says_what_to_install(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(init_programs, "find", lambda paths=(): None)
    await agent.containers.create(spec("web", init=True))
    with pytest.raises(errors.FailedPrecondition, match="install catatonit"):
        await agent.containers.start("web")


@pytest.mark.parametrize(
    ("name", "cpu", "limit", "quota", "weight"),
    [
        ("i-plain", 500, None, 500, 50),
        ("i-burst", 500, 2000, 2000, 50),
        ("i-free", 500, 0, None, 50),
        ("i-idle", 0, None, None, 1),
        ("i-capped", 0, 300, 300, 1),
        ("made-by-hand", 500, None, 500, None),
    ],
)
async def test_cpu_is_a_share_and_the_limit_a_quota(
    agent: Agent,
    ground: Ground,
    name: str,
    cpu: int,
    limit: int | None,
    quota: int | None,
    weight: int | None,
) -> None:
    await agent.containers.create(
        spec(
            name,
            resources=Resources(Millicores(cpu)),
            cpu_limit=None if limit is None else Millicores(limit),
        )
    )
    await agent.containers.start(name)
    limits = ground.groups.read_limits(own_name(name))
    assert (limits.cpu_quota, limits.cpu_weight) == (quota, weight)


async def test_on_a_busy_processor_each_gets_its_share(agent: Agent, ground: Ground) -> None:
    """Both are held to the same processor, and neither has a quota."""
    containers, spin = agent.containers, ("sh", "-c", "while :; do :; done")
    amounts = {"i-large": 750, "i-small": 250}
    processor = min(os.sched_getaffinity(0))
    for name, cpu in amounts.items():
        await containers.create(
            spec(name, *spin, resources=Resources(Millicores(cpu)), cpu_limit=Millicores(0))
        )
        await containers.start(name)
        view = containers.get(name)
        assert view.pid is not None
        os.sched_setaffinity(view.pid, {processor})
    before = {name: ground.groups.usage(own_name(name)).cpu_ns for name in amounts}

    def used(name: str) -> int:
        return ground.groups.usage(own_name(name)).cpu_ns - before[name]

    await eventually(lambda: used("i-small") > 200_000_000)
    await asyncio.gather(*(containers.stop(name, grace_s=0.0) for name in amounts))
    assert used("i-large") > 2 * used("i-small")
