"""What a default cell keeps from what runs in it."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from skerry.model import errors
from skerry.model.cells import Sandbox
from skerry.node.launching import InitSpec, Launcher
from tests.node.launcher.ground import UID, Ground, Ran, Room, needs_root

pytestmark = needs_root

ROOT = Sandbox(uid=0, gid=0, root_capabilities=True)


@pytest.fixture(params=["a user", "root"])
def sandbox(request: pytest.FixtureRequest) -> Sandbox:
    return ROOT if request.param == "root" else Sandbox()


@pytest.fixture
def secrets() -> Iterator[Path]:
    """A folder that everybody may read, and that is not in /tmp, where no cell would see it anyway."""
    folder = Path(f"/opt/skt-{os.getpid()}-secrets")
    folder.mkdir()
    (folder / "key").write_text("secret")
    yield folder
    (folder / "key").unlink()
    folder.rmdir()


def refused(ran: Ran) -> bool:
    return ran.exited.code != 0 and ran.out == ""


async def test_it_sees_only_the_processes_of_its_cell(room: Room, sandbox: Sandbox) -> None:
    ran = await room.run("cd /proc; echo [0-9]*; echo $$", sandbox=sandbox)
    seen, own = ran.out.splitlines()
    assert set(seen.split()) == {"1", own}


async def test_it_cannot_signal_what_is_outside(room: Room, sandbox: Sandbox) -> None:
    ran = await room.run(f"kill -0 {os.getpid()}", sandbox=sandbox)
    assert ran.exited.code == 1
    assert "No such process" in ran.err


async def test_it_cannot_end_its_init(room: Room, sandbox: Sandbox) -> None:
    await room.run("kill -9 1; kill -15 1; kill -11 1; kill -1 1; kill -19 1", sandbox=sandbox)
    assert (await room.run("echo still here")).out == "still here\n"


async def test_it_cannot_look_into_its_init(room: Room, sandbox: Sandbox) -> None:
    for path in ("environ", "maps", "mem", "fd/3", "root/etc/passwd"):
        assert refused(await room.run(f"cat /proc/1/{path}", sandbox=sandbox)), path
    for link in ("root", "cwd"):
        assert refused(await room.run(f"ls /proc/1/{link}/", sandbox=sandbox)), link


async def test_the_init_has_none_of_the_agents_environment(room: Room) -> None:
    assert Path(f"/proc/{room.init.pid}/environ").read_bytes() == b""


async def test_it_cannot_mount_or_unmount(room: Room, sandbox: Sandbox) -> None:
    for attempt in (
        "mount -t tmpfs none /tmp",
        "mount --bind / /tmp",
        "mount -o remount,rw /",
        "umount /proc/sys",
        "umount -l /tmp",
        "unshare -m true",
        "unshare -Ur true",
        "nsenter -t 1 -m true",
    ):
        assert (await room.run(attempt, sandbox=sandbox)).exited.code != 0, attempt


async def test_it_cannot_write_to_the_host(room: Room, sandbox: Sandbox) -> None:
    for place in ("/", "/etc", "/usr", "/var", "/dev", "/run", "/sys", "/opt", "/sys/fs/cgroup"):
        ran = await room.run(f"echo x > {place}/skt-probe", sandbox=sandbox)
        assert ran.exited.code != 0, place
        assert not Path(place, "skt-probe").exists()


async def test_it_cannot_change_the_kernels_settings(room: Room, sandbox: Sandbox) -> None:
    for path in ("/proc/sys/kernel/hostname", "/proc/sys/vm/overcommit_memory", "/proc/sysrq-trigger"):
        assert (await room.run(f"cat {path} > /tmp/x; cat /tmp/x > {path}", sandbox=sandbox)).exited.code, (
            path
        )
        ran = await room.run(f"echo h > {path}", sandbox=sandbox)
        assert ran.exited.code != 0, path


async def test_it_cannot_load_modules_or_read_the_kernels_log(room: Room, sandbox: Sandbox) -> None:
    for attempt in ("modprobe loop || insmod /lib/modules/x.ko", "dmesg", "cat /proc/kmsg", "cat /dev/kmsg"):
        ran = await room.run(attempt, sandbox=sandbox)
        assert ran.out == "", attempt


async def test_what_the_kernel_tells_of_the_host_is_masked(room: Room, sandbox: Sandbox) -> None:
    for path in ("keys", "kcore", "timer_list", "kmsg"):
        assert (await room.run(f"cat /proc/{path}", sandbox=sandbox)).out == "", path
    assert (await room.run("ls -A /sys/fs/cgroup /sys/firmware", sandbox=sandbox)).out.split() == [
        "/sys/firmware:",
        "/sys/fs/cgroup:",
    ]


async def test_its_devices_are_few_and_harmless(room: Room, sandbox: Sandbox) -> None:
    ran = await room.run("ls /dev; head -c 3 /dev/zero | wc -c; : > /dev/null", sandbox=sandbox)
    assert " ".join(ran.out.split()) == (
        "fd full null ptmx pts random shm stderr stdin stdout tty urandom zero 3"
    )
    assert (await room.run("mknod /tmp/sda b 8 0", sandbox=sandbox)).exited.code != 0


async def test_hidden_paths_are_empty(
    ground: Ground, launcher: Launcher, sandbox: Sandbox, secrets: Path, tmp_path: Path
) -> None:
    room = ground.room()
    inside = secrets / "inside"
    inside.mkdir()
    await room.open(launcher, InitSpec("cell", hidden=(str(secrets), str(inside), str(tmp_path))))
    inside.rmdir()
    ran = await room.run(f"ls -A {secrets}; cat {secrets}/key; echo x > {secrets}/new", sandbox=sandbox)
    assert ran.out == ""
    assert ran.exited.code != 0
    assert (secrets / "key").read_text() == "secret"
    assert (await room.run(f"ls -A {tmp_path}", sandbox=sandbox)).exited.code != 0


async def test_a_hidden_file_cannot_be_read(
    ground: Ground, launcher: Launcher, sandbox: Sandbox, secrets: Path
) -> None:
    room = ground.room()
    await room.open(launcher, InitSpec("cell", hidden=(str(secrets / "key"),)))
    assert (await room.run(f"cat {secrets}/key", sandbox=sandbox)).out == ""


async def test_a_hidden_path_that_is_not_there_is_a_failure_not_a_hole(
    ground: Ground, launcher: Launcher
) -> None:
    room = ground.room()
    with pytest.raises(errors.Internal, match="hide /no/such/path: No such file"):
        await room.open(launcher, InitSpec("cell", hidden=("/no/such/path",)))
    assert await room.groups.emptied(room.name, within_s=10)


async def test_cells_share_no_files(ground: Ground, launcher: Launcher) -> None:
    one, two = ground.room("one"), ground.room("two")
    await one.open(launcher)
    await two.open(launcher)
    for folder in ("/tmp", "/var/tmp", "/dev/shm"):
        ran = await one.run(f"echo mine > {folder}/f && chmod 666 {folder}/f && cat {folder}/f")
        assert ran.out == "mine\n"
        assert (await one.run(f"cat {folder}/f")).out == "mine\n", "another executable of the cell sees it"
        assert refused(await two.run(f"cat {folder}/f"))
        assert not Path(folder, "f").exists()


async def test_private_folders_are_bounded(ground: Ground, launcher: Launcher) -> None:
    room = ground.room()
    await room.open(launcher, InitSpec("cell", tmp_mb=1))
    ran = await room.run("head -c 3000000 /dev/zero > /tmp/f; wc -c < /tmp/f; rm /tmp/f")
    assert int(ran.out) == 1024 * 1024


async def test_it_has_a_host_name_of_its_own(ground: Ground, launcher: Launcher, sandbox: Sandbox) -> None:
    room = ground.room()
    await room.open(launcher, InitSpec("web"))
    assert (await room.run("hostname", sandbox=sandbox)).out == "web\n"
    assert (await room.run("hostname other", sandbox=sandbox)).exited.code != 0
    assert socket.gethostname() != "web"


async def test_its_network_is_the_hosts_unless_asked_for_its_own(ground: Ground, launcher: Launcher) -> None:
    shared, own = ground.room("shared"), ground.room("own")
    await shared.open(launcher)
    await own.open(launcher, InitSpec("cell", isolates_network=True))
    hosts = os.readlink("/proc/self/ns/net")
    assert (await shared.run("readlink /proc/self/ns/net")).out.strip() == hosts
    ran = await own.run("readlink /proc/self/ns/net; ls /sys/class/net; cat /sys/class/net/lo/flags")
    namespace, *interfaces, flags = ran.out.split()
    assert namespace != hosts
    assert interfaces == ["lo"]
    assert int(flags, 16) & 1, "loopback is up"
    assert (await own.run("ls -A /run")).out == "", "services of the host listen there"


async def test_every_namespace_but_the_network_is_its_own(room: Room) -> None:
    for kind in ("pid", "mnt", "ipc", "uts"):
        ran = await room.run(f"readlink /proc/self/ns/{kind}")
        assert ran.out.startswith(f"{kind}:[")
        assert ran.out.strip() != os.readlink(f"/proc/self/ns/{kind}")


async def test_the_hosts_mounts_are_as_they_were(ground: Ground, launcher: Launcher) -> None:
    def mounts(process: object) -> list[str]:
        """Without what other tests mount meanwhile, each below its own folder of temporary files."""
        lines = Path(f"/proc/{process}/mountinfo").read_text().splitlines()
        return [line for line in lines if not line.split()[4].startswith(tempfile.gettempdir() + "/")]

    before = mounts("self")
    room = ground.room()
    await room.open(launcher, InitSpec("cell", isolates_network=True))
    assert (await room.run("touch /tmp/x; mount -t tmpfs none /mnt")).exited.code != 0
    assert mounts("self") == before
    assert mounts(launcher.pid) == before


async def test_a_cell_without_isolation_sees_the_host_as_its_user_would(
    ground: Ground, launcher: Launcher
) -> None:
    room = ground.room()
    await room.open(launcher, InitSpec("cell", isolates_processes=False))
    ran = await room.run("readlink /proc/self/ns/pid; id -u; grep -E 'CapEff|Seccomp:' /proc/self/status")
    namespace, uid, *status = ran.out.splitlines()
    assert namespace == os.readlink("/proc/self/ns/pid")
    assert int(uid) == UID
    assert [line.split()[1] for line in status] == ["0" * 16, "2"]
