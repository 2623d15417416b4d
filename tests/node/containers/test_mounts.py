"""Mounts of containers as they run: volumes, tmpfs and paths of the node, with a real runtime."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from skerry.model import errors
from skerry.model.ids import DEFAULT_NAMESPACE, VolumeId
from skerry.model.mounts import Mount, MountKind
from skerry.model.node_messages import VolumeUpdate
from skerry.model.resources import Gigabytes
from skerry.model.volumes import VolumeOrder
from skerry.model.workloads import UserNamespaceMode
from tests.node.containers.real import Agent, Ground, make_image, needs_runc, printed, spec

pytestmark = [needs_runc, pytest.mark.root]

DB = VolumeId("01db")
OTHER = VolumeId("01other")
DATA = Mount(MountKind.VOLUME, "/var/lib/db", "db", volume=DB)


def order(id: VolumeId = DB, name: str = "db") -> VolumeOrder:
    return VolumeOrder(id, name, DEFAULT_NAMESPACE, Gigabytes(1), 1)


@pytest.fixture
async def stocked(agent: Agent) -> Agent:
    """With two volumes."""
    agent.volumes.apply(VolumeUpdate((order(), order(OTHER, "other"))))
    for id in (DB, OTHER):
        await agent.volumes.ready(id)
    return agent


async def output(agent: Agent, script: str, name: str = "web", *, code: int = 0, **more: Any) -> str:
    """What a container that runs `script` prints, to its end; it is removed then."""
    containers = agent.containers
    await containers.create(spec(name, "sh", "-c", script, **more))
    await containers.start(name)
    assert (await containers.wait(name)).code == code
    said = printed(containers, name).decode()
    await containers.remove(name)
    return said


async def test_what_is_written_to_a_volume_is_there_for_the_next_container_whatever_its_ids(
    stocked: Agent,
) -> None:
    await output(stocked, "echo 1 > /var/lib/db/row; chown 1000:1000 /var/lib/db/row", mounts=(DATA,))
    said = await output(
        stocked,
        "cat /var/lib/db/row; stat -c %u:%g /var/lib/db/row; grep /var/lib/db /proc/mounts",
        "next",
        mounts=(DATA,),
    )
    row, owner, mounted = said.splitlines()
    assert (row, owner) == ("1", "1000:1000")
    assert {"rw", "nosuid", "nodev"} <= set(mounted.split()[3].split(","))
    as_node = await output(
        stocked,
        "stat -c %u:%g /var/lib/db/row",
        "raw",
        mounts=(DATA,),
        userns=UserNamespaceMode.HOST,
    )
    assert as_node.strip() == "1000:1000"


async def test_an_empty_volume_is_given_to_the_user_of_the_container(stocked: Agent) -> None:
    said = await output(stocked, "id -u; touch /var/lib/db/mine && echo done", mounts=(DATA,), user="guest")
    assert said.split() == ["1000", "done"]
    other = await output(stocked, "stat -c %u /var/lib/db", "root", mounts=(DATA,))
    assert other.strip() == "1000"


async def test_a_full_volume_stops_its_own_writer_and_nobody_else(stocked: Agent) -> None:
    before = stocked.volumes.store.disk_bytes()
    said = await output(
        stocked,
        "dd if=/dev/zero of=/var/lib/db/big bs=1M count=64 2>/dev/null || echo full; "
        "echo fine > /srv/ok && cat /srv/ok; echo root > /file && cat /file",
        mounts=(DATA, Mount(MountKind.VOLUME, "/srv", "other", volume=OTHER)),
    )
    assert said.split() == ["full", "fine", "root"]
    # Its blocks were reserved before: the disk of the node is not fuller by it.
    assert stocked.volumes.store.disk_bytes() <= before + 64 * 1024


async def test_read_only_mounts_refuse_writes_also_below_a_read_only_root(stocked: Agent) -> None:
    said = await output(
        stocked,
        "echo x > /var/lib/db/no || echo refused; echo x > /scratch/yes && cat /scratch/yes; "
        "grep /scratch /proc/mounts",
        mounts=(
            Mount(MountKind.VOLUME, "/var/lib/db", "db", read_only=True, volume=DB),
            Mount(MountKind.TMPFS, "/scratch", size=4),
        ),
        read_only=True,
    )
    refused, written, mounted = said.splitlines()
    assert (refused, written) == ("refused", "x")
    assert {"nosuid", "nodev", "noexec", "size=4096k"} <= set(mounted.split()[3].split(","))


async def test_a_path_of_the_node_is_mounted_if_an_admin_named_it_and_belongs_to_the_container(
    agent: Agent, tmp_path: Path
) -> None:
    (tmp_path / "www").mkdir()
    (tmp_path / "www" / "page").write_text("hello")
    host = Mount(MountKind.HOST, "/www", str(tmp_path / "www"), is_granted=True)
    said = await output(agent, "cat /www/page; echo back > /www/note; stat -c %u /www/page", mounts=(host,))
    assert said == "hello0\n"
    assert (tmp_path / "www" / "note").read_text() == "back\n"
    assert (tmp_path / "www" / "note").stat().st_uid == 0
    await agent.containers.create(spec("bad", mounts=(Mount(MountKind.HOST, "/www", str(tmp_path / "www")),)))
    with pytest.raises(errors.Forbidden):
        await agent.containers.start("bad")
    missing = Mount(MountKind.HOST, "/www", str(tmp_path / "none"), is_granted=True)
    await agent.containers.create(spec("none", mounts=(missing,)))
    with pytest.raises(errors.FailedPrecondition, match="create it there"):
        await agent.containers.start("none")
    for name in ("bad", "none"):
        await agent.containers.remove(name)


async def test_a_link_in_the_image_does_not_lead_a_mount_out_of_the_root(
    ground: Ground, tmp_path: Path
) -> None:
    """The path of a mount is resolved inside the root of the container."""
    outside = tmp_path / "outside"
    outside.mkdir()
    linked = make_image(tmp_path / "linked")
    (linked / "data").symlink_to(outside)
    ground.image = linked
    async with ground.agent() as agent:
        agent.volumes.apply(VolumeUpdate((order(),)))
        await agent.volumes.ready(DB)
        mount = Mount(MountKind.VOLUME, "/data", "db", volume=DB)
        said = await output(agent, "echo x > /data/row; ls /data", "linked", mounts=(mount,))
        assert said.split() == ["row"]
        with agent.volumes.store.mounted(DB) as mounted:
            assert os.listdir(f"/proc/self/fd/{mounted}") == ["row"]
    assert os.listdir(outside) == []


async def test_a_link_of_the_image_leads_no_volume_over_its_devices(ground: Ground, tmp_path: Path) -> None:
    """The runtime would create device nodes in it, and mask files with its `null`."""
    linked = make_image(tmp_path / "linked")
    (linked / "data").symlink_to("/dev")
    ground.image = linked
    async with ground.agent() as agent:
        agent.volumes.apply(VolumeUpdate((order(),)))
        await agent.volumes.ready(DB)
        mount = Mount(MountKind.VOLUME, "/data", "db", volume=DB)
        await agent.containers.create(spec("linked", mounts=(mount,)))
        with pytest.raises(errors.FailedPrecondition, match="nothing can be mounted at /dev"):
            await agent.containers.start("linked")
        with agent.volumes.store.mounted(DB) as mounted:
            assert os.listdir(f"/proc/self/fd/{mounted}") == []
        await agent.containers.remove("linked")


async def test_an_exclusive_volume_has_one_container_at_a_time(stocked: Agent) -> None:
    own = Mount(MountKind.VOLUME, "/data", "db", volume=DB, is_exclusive=True)
    containers = stocked.containers
    for name in ("first", "second"):
        await containers.create(spec(name, mounts=(own,)))
    await containers.start("first")
    with pytest.raises(errors.Unavailable, match="still used by another container"):
        await containers.start("second")
    await containers.stop("first", grace_s=0.1)
    await containers.start("second")
    for name in ("first", "second"):
        await containers.remove(name, force=True)


async def test_a_container_whose_volume_is_not_here_does_not_start_and_gets_no_empty_one(
    agent: Agent,
) -> None:
    await agent.containers.create(spec("web", mounts=(DATA,)))
    with pytest.raises(errors.Unavailable, match="not on this node"):
        await agent.containers.start("web")
    await agent.containers.remove("web")
    assert agent.volumes.store.ids() == []


async def test_containers_and_their_data_go_on_under_the_next_agent(ground: Ground) -> None:
    script = "i=0; while true; do i=$((i+1)); echo $i > /var/lib/db/count; sleep 0.05; done"
    async with ground.agent() as first:
        first.volumes.apply(VolumeUpdate((order(),)))
        await first.volumes.ready(DB)
        await first.containers.create(spec("web", "sh", "-c", script, mounts=(DATA,)))
        await first.containers.start("web")
    async with ground.agent() as second:
        assert second.volumes.store.is_used(DB)
        with second.volumes.store.mounted(DB) as mounted:
            assert int(Path(f"/proc/self/fd/{mounted}/count").read_text() or 1) > 0
        await second.containers.remove("web", force=True)
        said = await output(second, "test -s /var/lib/db/count && echo kept", "next", mounts=(DATA,))
        assert said == "kept\n"
