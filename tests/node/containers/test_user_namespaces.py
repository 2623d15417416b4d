"""Containers in user namespaces: who their root is on the node, what of the node that root cannot have, and
what it leaves behind."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from skerry.model import errors
from skerry.model.containers import ContainerView, NetworkMode
from skerry.model.workloads import UserNamespaceMode
from skerry.node import user_namespaces
from skerry.node.user_namespaces import IDS
from tests.node.containers.real import Agent, Ground, needs_runc, printed, spec
from tests.support.waiting import eventually

pytestmark = [needs_runc, pytest.mark.root]


async def begun(agent: Agent, name: str, *arguments: str, **more: object) -> ContainerView:
    await agent.containers.create(spec(name, *arguments, **more))
    return await agent.containers.start(name)


def ids_on_the_node(view: ContainerView) -> tuple[int, int]:
    """The user and the group that the node knows the container's main process by."""
    lines = Path(f"/proc/{view.pid}/status").read_text().splitlines()
    user, group = (
        next(line.split()[1] for line in lines if line.startswith(key)) for key in ("Uid:", "Gid:")
    )
    return int(user), int(group)


def ids_mapped(view: ContainerView) -> range:
    first, on_node, count = map(int, Path(f"/proc/{view.pid}/uid_map").read_text().split())
    assert first == 0
    return range(on_node, on_node + count)


async def said(agent: Agent, name: str, *arguments: str, **more: object) -> bytes:
    """What a container that ends by itself has printed."""
    await begun(agent, name, *arguments, **more)
    await agent.containers.wait(name)
    return printed(agent.containers, name)


async def ran_in(agent: Agent, name: str, *arguments: str) -> bytes:
    """What a command in a running container has printed."""
    reading, writing = os.pipe()
    with open("/dev/null") as nothing:
        stdio = (nothing.fileno(), writing, writing)
        session = await agent.containers.exec(name, arguments, stdio=stdio)
    os.close(writing)
    with open(reading, "rb") as output:
        data = await asyncio.to_thread(output.read)
    await session.exit_code()
    return data


@pytest.mark.parametrize("network", list(NetworkMode))
async def test_root_in_a_container_is_an_ordinary_user_of_the_node(
    agent: Agent, network: NetworkMode
) -> None:
    view = await begun(agent, "web", network=network)
    user, group = ids_on_the_node(view)
    mapped = ids_mapped(view)
    assert (user, group) == (mapped[0], mapped[0])
    assert mapped[0] > 2**30
    assert len(mapped) == IDS
    assert await ran_in(agent, "web", "id", "-u") == b"0\n"


async def test_no_two_containers_have_an_id_in_common(agent: Agent) -> None:
    ranges = [
        ids_mapped(await begun(agent, name, network=network))
        for name, network in (
            ("one", NetworkMode.BRIDGE),
            ("other", NetworkMode.BRIDGE),
            ("alone", NetworkMode.NONE),
        )
    ]
    ranges.sort(key=lambda ids: ids.start)
    assert all(lower.stop <= higher.start for lower, higher in itertools.pairwise(ranges))


async def test_what_it_writes_is_owned_on_disk_as_it_would_be_without(agent: Agent, ground: Ground) -> None:
    write = "echo new > /new; echo more >> /etc/passwd; echo x > /tmp/x; rm -r /unrunnable"
    assert await said(agent, "web", "sh", "-c", f"{write}; busybox stat -c %u /new /etc/passwd") == b"0\n0\n"
    upper = ground.folder / "containers/all/web/layer/upper"
    owners = {path.relative_to(upper): path.lstat().st_uid for path in upper.rglob("*")}
    assert set(owners.values()) == {0}
    assert {Path("new"), Path("etc/passwd"), Path("tmp/x"), Path("unrunnable")} <= owners.keys()


async def test_it_finds_what_it_wrote_under_other_ids_at_its_next_start(agent: Agent) -> None:
    write = "test -e /mine || { echo kept > /mine; chmod 600 /mine; busybox chown 7:8 /mine; }"
    first = ids_mapped(await begun(agent, "web", "sh", "-c", f"{write}; echo done; sleep 1000"))
    await eventually(lambda: printed(agent.containers, "web") == b"done\n")
    await agent.containers.stop("web", grace_s=0)
    second = ids_mapped(await agent.containers.start("web"))
    assert first != second
    assert await ran_in(agent, "web", "sh", "-c", "cat /mine; busybox stat -c %u:%g /mine") == b"kept\n7:8\n"


# Mounts a folder of the node into a container, as no part of Skerry does.
MOUNTER = """
import ctypes, os, sys
from skerry.node.kernel import thread_syscalls as syscalls
folder = syscalls.clone_mount(sys.argv[2])
namespace = os.open(f"/proc/{sys.argv[1]}/ns/mnt", os.O_RDONLY)
assert ctypes.CDLL(None).setns(namespace, 0) == 0
syscalls.attach(folder, "/tmp")
"""


@pytest.mark.parametrize("mode", list(UserNamespaceMode))
async def test_its_root_cannot_read_what_only_the_nodes_root_may(
    agent: Agent, tmp_path: Path, mode: UserNamespaceMode
) -> None:
    secret = tmp_path / "shared" / "secret"
    secret.parent.mkdir(mode=0o755)
    secret.write_text("of the node")
    secret.chmod(0o600)
    view = await begun(agent, "web", userns=mode)
    mounter = (sys.executable, "-c", MOUNTER, str(view.pid), str(secret.parent))
    await asyncio.to_thread(subprocess.run, mounter, check=True)
    read = await ran_in(agent, "web", "cat", "/tmp/secret")
    # What the wall is worth: without it, the same container reads the file.
    assert (read == b"of the node") is (mode is UserNamespaceMode.HOST)
    assert (b"Permission denied" in read) is (mode is UserNamespaceMode.PRIVATE)


async def test_what_opens_its_output_again_can_write_to_it(agent: Agent) -> None:
    assert await said(agent, "web", "sh", "-c", "echo again > /dev/stdout") == b"again\n"
    assert await said(agent, "user", "sh", "-c", "echo again > /dev/stdout", user="guest") == b"again\n"
    await begun(agent, "home")
    assert await ran_in(agent, "home", "sh", "-c", "echo again > /dev/stdout") == b"again\n"


async def test_it_has_a_view_of_its_own_network_and_groups(agent: Agent) -> None:
    await begun(agent, "web")
    assert await ran_in(agent, "web", "ls", "/sys/class/net") == b"eth0\nlo\n"
    assert await ran_in(agent, "web", "cat", "/proc/sys/net/ipv4/ping_group_range") == b"0\t65535\n"


async def test_nobody_else_on_the_node_gets_to_its_files(agent: Agent, ground: Ground) -> None:
    await begun(agent, "web")
    (folder,) = [path for path in ground.ranges() if Path(path / "owner").read_text().endswith(" 10.98.0.2")]
    status = folder.stat()
    assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (0, int(folder.name), 0o710)
    # Not even its root is left there once it runs.
    assert [path.name for path in (folder / "root").rglob("*")] == ["rootfs"]


async def test_a_user_that_no_range_has_is_refused_with_what_to_do(agent: Agent) -> None:
    await agent.containers.create(spec("web", user="70000"))
    with pytest.raises(errors.Invalid, match=r"users and groups 0 to 65535, and 70000.*userns host"):
        await agent.containers.start("web")


async def test_a_container_with_the_nodes_users_is_root_of_the_node(agent: Agent) -> None:
    view = await begun(agent, "web", userns=UserNamespaceMode.HOST)
    assert ids_on_the_node(view) == (0, 0)
    assert os.readlink(f"/proc/{view.pid}/ns/user") == os.readlink("/proc/self/ns/user")
    assert await ran_in(agent, "web", "id", "-u") == b"0\n"


async def test_where_the_machine_makes_none_a_container_runs_without_and_a_guest_does_not(
    ground: Ground,
) -> None:
    async with ground.agent(has_userns=False) as agent:
        assert ids_on_the_node(await begun(agent, "web")) == (0, 0)
        guest, image = spec("guest", is_isolated=True), agent.containers.get("web").image
        with pytest.raises(errors.FailedPrecondition, match="no user namespaces for guests"):
            await agent.containers.create(guest, image=image)
        await agent.containers.remove("web", force=True)
    # Nor does one that was made while the machine could.
    async with ground.agent() as agent:
        await agent.containers.create(guest, image=image)
        assert ids_on_the_node(await agent.containers.start("guest"))[0] > 2**30
        await agent.containers.stop("guest", grace_s=0)
    async with ground.agent(has_userns=False) as agent:
        with pytest.raises(errors.FailedPrecondition, match="no user namespaces for guests"):
            await agent.containers.start("guest")
        await agent.containers.remove("guest")


async def test_what_an_older_skerry_left_goes_on_and_gets_its_ids_at_the_next_start(ground: Ground) -> None:
    keep = "test -e /mine || echo kept > /mine; sleep 1000"
    async with ground.agent(has_userns=False) as agent:
        before = await begun(agent, "web", "sh", "-c", keep)
        assert ids_on_the_node(before) == (0, 0)
    async with ground.agent() as agent:
        view = agent.containers.get("web")
        assert view.pid == before.pid
        assert await ran_in(agent, "web", "cat", "/mine") == b"kept\n"
        await agent.containers.stop("web", grace_s=0)
        view = await agent.containers.start("web")
        assert ids_on_the_node(view)[0] == ids_mapped(view)[0] > 2**30
        assert await ran_in(agent, "web", "busybox", "stat", "-c", "%u", "/mine") == b"0\n"
        await agent.containers.remove("web", force=True)


async def test_the_next_agent_knows_whose_ids_are_whose(ground: Ground) -> None:
    async with ground.agent() as agent:
        before = {
            name: ids_mapped(await begun(agent, name, network=network))
            for name, network in (("web", NetworkMode.BRIDGE), ("alone", NetworkMode.NONE))
        }
    async with ground.agent() as agent:
        # Commands get pipes that the container's own root can open.
        for name in before:
            assert await ran_in(agent, name, "sh", "-c", "echo again > /dev/stdout") == b"again\n"
        claimed = {int(path.name) for path in ground.ranges()}
        assert {ids[0] for ids in before.values()} <= claimed
        for name in before:
            await agent.containers.remove(name, force=True)


def test_where_no_folder_can_be_made_it_says_so_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = user_namespaces.UserNamespaces("one", folder=tmp_path)

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(user_namespaces.os, "chown", refuse)
        with pytest.raises(errors.Unavailable, match="No space left on device"):
            users.make("web")
    assert users.get("web") is None
    assert list(tmp_path.iterdir()) == []


def test_a_range_is_claimed_once_on_the_whole_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_namespaces, "_RANGES", 2)
    one, other = (user_namespaces.UserNamespaces(scope, folder=tmp_path) for scope in ("one", "other"))
    try:
        first = one.make("web")
        second = other.make("web")
        assert abs(first.first_id - second.first_id) == IDS
        with pytest.raises(errors.ResourcesExhausted, match="all 2 id ranges"):
            one.make("more")
        other.remove("web")
        assert one.make("more").first_id == second.first_id
    finally:
        one.keep_only(())
        other.keep_only(())
    assert list(tmp_path.iterdir()) == []
