"""The mounts that a runtime begins with, and roots that are mounted for one container alone."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from skerry.model.workloads import UserNamespaceMode
from skerry.node.containers.overlays import mount_points
from skerry.node.containers.runtime_namespace import RuntimeNamespace, superfluous
from skerry.node.kernel import thread_syscalls
from tests.node.containers.real import Agent, Ground, needs_runc, printed, spec


def test_the_system_and_what_is_needed_stay_mounted() -> None:
    points = [
        *("/", "/proc", "/proc/sys/fs/binfmt_misc", "/sys", "/sys/fs/cgroup", "/sys/fs/cgroup/cpu,cpuacct"),
        *("/sys/fs/cgroup/blkio", "/dev", "/dev/pts", "/run", "/usr", "/mnt/disk", "/srv", "/srv/data"),
        *("/srv/data/boot", "/srv/data/boot/network/ns/1", "/var/lib/docker/overlay2/x/merged", "/home"),
    ]
    found = superfluous([Path(each) for each in points], [Path("/srv/data/boot"), Path("/usr/sbin/runc")])
    assert [str(each) for each in found] == [
        *("/home", "/var/lib/docker/overlay2/x/merged", "/srv/data/boot/network/ns/1", "/mnt/disk", "/run"),
        "/sys/fs/cgroup/blkio",
    ]


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[list[Path]]:
    folders = [tmp_path / name for name in ("needed", "other")]
    for folder in folders:
        folder.mkdir()
        thread_syscalls.mount("tmpfs", str(folder), "tmpfs", 0, "")
    yield folders
    for folder in folders:
        thread_syscalls.unmount(str(folder))


@pytest.mark.root
def test_a_runtime_sees_what_is_needed_and_the_machine_keeps_the_rest(mounted: list[Path]) -> None:
    needed, other = mounted
    namespace = RuntimeNamespace.open([needed / "folder"])
    assert namespace is not None
    root = thread_syscalls.clone_mount(str(needed))
    try:
        with namespace.view(root, needed / "rootfs", None) as view:
            assert view.mounts is not None
            listing = subprocess.check_output(
                ["nsenter", f"--mount={view.mounts.namespace}", "cat", "/proc/self/mountinfo"]
            )
            points = mount_points(listing)
            assert needed in points
            assert Path("/proc") in points
            assert other not in points
            path = view.path_of("/proc/self/ns/net")
            assert os.readlink(path) == os.readlink("/proc/self/ns/net")
        with pytest.raises(FileNotFoundError):
            os.readlink(path)
        assert os.path.ismount(other)
    finally:
        os.close(root)
        namespace.close()


@needs_runc
@pytest.mark.root
class TestContainers:
    async def test_have_roots_that_are_mounted_nowhere_else(self, agent: Agent, ground: Ground) -> None:
        containers = agent.containers
        await containers.create(spec("web", "sh", "-c", "cat /proc/self/mounts; sleep 1000"))
        await containers.start("web")
        assert {path.name for path in ground.mounts()}.isdisjoint({"root", "rootfs"})
        pid = containers.get("web").pid
        inside = [line.split()[1:3] for line in Path(f"/proc/{pid}/mounts").read_text().splitlines()]
        assert inside[0] == ["/", "overlay"]
        assert not [place for place, _ in inside if str(ground.folder) in place]

    @pytest.mark.parametrize("has_runtime_mounts", [True, False])
    async def test_run_the_same_where_runtimes_have_all_mounts(
        self, ground: Ground, has_runtime_mounts: bool
    ) -> None:
        async with ground.agent(has_runtime_mounts=has_runtime_mounts) as agent:
            containers = agent.containers
            for userns in UserNamespaceMode:
                name = f"web-{userns}"
                script = "id -u; echo mine > /file; cat /file; hostname"
                await containers.create(spec(name, "sh", "-c", script, host_name="here", userns=userns))
                await containers.start(name)
                assert (await containers.wait(name)).code == 0
                assert printed(containers, name) == b"0\nmine\nhere\n"
                await containers.remove(name)

    async def test_start_again_under_an_init_that_an_earlier_agent_made(self, ground: Ground) -> None:
        async with ground.agent() as first:
            await first.containers.create(spec("web", "sh", "-c", "echo begun; sleep 1000"))
            await first.containers.start("web")
        async with ground.agent() as second:
            containers = second.containers
            await containers.stop("web", grace_s=0)
            await containers.start("web")
            assert [path for path in ground.mounts() if path.name == "rootfs"]
            await containers.stop("web", grace_s=0)
            assert printed(containers, "web") == b"begun\n"
            await containers.remove("web")
