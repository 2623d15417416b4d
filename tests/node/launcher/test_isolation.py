"""What a default cell keeps from what runs in it."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import structs

from skerry.model import errors
from skerry.model.cells import Sandbox
from skerry.node.launcher.child.cell_root import HostView
from skerry.node.launcher.client import LauncherClient
from skerry.node.launcher.specs import InitSpec
from tests.node.launcher.ground import UID, Ground, LaunchedCell, Ran, launching, needs_root

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


async def test_it_sees_only_the_processes_of_its_cell(cell: LaunchedCell, sandbox: Sandbox) -> None:
    ran = await cell.run("cd /proc; echo [0-9]*; echo $$", sandbox=sandbox)
    seen, own = ran.out.splitlines()
    assert set(seen.split()) == {"1", own}


async def test_it_cannot_signal_what_is_outside(cell: LaunchedCell, sandbox: Sandbox) -> None:
    ran = await cell.run(f"kill -0 {os.getpid()}", sandbox=sandbox)
    assert ran.exited.code == 1
    assert "No such process" in ran.err


async def test_it_cannot_end_its_init(cell: LaunchedCell, sandbox: Sandbox) -> None:
    await cell.run("kill -9 1; kill -15 1; kill -11 1; kill -1 1; kill -19 1", sandbox=sandbox)
    assert (await cell.run("echo still here")).out == "still here\n"


async def test_it_cannot_look_into_its_init(cell: LaunchedCell, sandbox: Sandbox) -> None:
    for path in ("environ", "maps", "mem", "fd/3", "root/etc/passwd"):
        assert refused(await cell.run(f"cat /proc/1/{path}", sandbox=sandbox)), path
    for link in ("root", "cwd"):
        assert refused(await cell.run(f"ls /proc/1/{link}/", sandbox=sandbox)), link


async def test_the_init_has_none_of_the_agents_environment(cell: LaunchedCell) -> None:
    assert Path(f"/proc/{cell.init.pid}/environ").read_bytes() == b""


async def test_it_cannot_mount_or_unmount(cell: LaunchedCell, sandbox: Sandbox) -> None:
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
        assert (await cell.run(attempt, sandbox=sandbox)).exited.code != 0, attempt


async def test_it_is_told_nothing_of_the_cgroups_of_the_host(
    ground: Ground, cell: LaunchedCell, sandbox: Sandbox
) -> None:
    ran = await cell.run("cat /proc/self/cgroup /proc/1/cgroup /proc/self/mountinfo", sandbox=sandbox)
    assert ran.exited.code == 0
    assert ground.root not in ran.out
    for attempt in (
        "mkdir /tmp/c && mount -t cgroup2 none /tmp/c",
        "mkdir /tmp/m && mount -t cgroup -o memory none /tmp/m",
        "unshare -C true",
        "nsenter -t 1 -C true",
    ):
        assert (await cell.run(attempt, sandbox=sandbox)).exited.code != 0, attempt


async def test_it_shares_no_namespace_with_the_host_but_user_network_and_time(
    cell: LaunchedCell, sandbox: Sandbox
) -> None:
    _, started = await cell.start("sleep 600", sandbox=sandbox)
    started.close()
    kinds = ("cgroup", "ipc", "mnt", "net", "pid", "time", "user", "uts")
    shared = {
        kind
        for kind in kinds
        if os.readlink(f"/proc/{started.pid}/ns/{kind}") == os.readlink(f"/proc/self/ns/{kind}")
    }
    assert shared == {"net", "time", "user"}


async def test_it_cannot_write_to_the_host(cell: LaunchedCell, sandbox: Sandbox) -> None:
    for place in ("/", "/etc", "/usr", "/var", "/dev", "/run", "/sys", "/opt", "/sys/fs/cgroup"):
        ran = await cell.run(f"echo x > {place}/skt-probe", sandbox=sandbox)
        assert ran.exited.code != 0, place
        assert not Path(place, "skt-probe").exists()


async def test_it_cannot_change_the_kernels_settings(cell: LaunchedCell, sandbox: Sandbox) -> None:
    for path in ("/proc/sys/kernel/hostname", "/proc/sys/vm/overcommit_memory", "/proc/sysrq-trigger"):
        assert (await cell.run(f"cat {path} > /tmp/x; cat /tmp/x > {path}", sandbox=sandbox)).exited.code, (
            path
        )
        ran = await cell.run(f"echo h > {path}", sandbox=sandbox)
        assert ran.exited.code != 0, path


async def test_it_cannot_load_modules_or_read_the_kernels_log(cell: LaunchedCell, sandbox: Sandbox) -> None:
    for attempt in ("modprobe loop || insmod /lib/modules/x.ko", "dmesg", "cat /proc/kmsg", "cat /dev/kmsg"):
        ran = await cell.run(attempt, sandbox=sandbox)
        assert ran.out == "", attempt


async def test_what_the_kernel_tells_of_the_host_is_masked(cell: LaunchedCell, sandbox: Sandbox) -> None:
    for path in ("keys", "kcore", "timer_list", "kmsg"):
        assert (await cell.run(f"cat /proc/{path}", sandbox=sandbox)).out == "", path
    assert (await cell.run("ls -A /sys/fs/cgroup /sys/firmware", sandbox=sandbox)).out.split() == [
        "/sys/firmware:",
        "/sys/fs/cgroup:",
    ]


# Not dangerous enough for any list of dangerous calls: mbind, move_pages and statmount; and one that is ours.
UNLISTED = {"x86_64": (237, 279, 457, 39), "aarch64": (235, 239, 457, 172)}


async def test_it_makes_no_system_call_that_is_not_in_the_list(cell: LaunchedCell, sandbox: Sandbox) -> None:
    program = (
        "import ctypes\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        f"for number in {UNLISTED[os.uname().machine]}:\n"
        "    ctypes.set_errno(0)\n"
        "    libc.syscall(number, 0, 0, 0, 0, 0, 0)\n"
        "    print(ctypes.get_errno())\n"
    )
    ran = await cell.run("", sandbox=structs.replace(sandbox, arguments=("/usr/bin/python3", "-c", program)))
    assert ran.out.split() == [str(errno.EPERM)] * 3 + ["0"], ran.err


async def test_its_devices_are_few_and_harmless(cell: LaunchedCell, sandbox: Sandbox) -> None:
    ran = await cell.run("ls /dev; head -c 3 /dev/zero | wc -c; : > /dev/null", sandbox=sandbox)
    assert " ".join(ran.out.split()) == (
        "fd full null ptmx pts random shm stderr stdin stdout tty urandom zero 3"
    )
    assert (await cell.run("mknod /tmp/sda b 8 0", sandbox=sandbox)).exited.code != 0


async def test_of_the_hosts_folders_it_sees_usr_and_a_few_files_of_etc(
    cell: LaunchedCell, sandbox: Sandbox, secrets: Path
) -> None:
    for folder in (
        secrets.parent,
        "/srv",
        "/var/lib",
        "/var/log",
        "/mnt",
        "/media",
        "/boot",
        "/home",
        "/run",
    ):
        assert (await cell.run(f"ls -A {folder}", sandbox=sandbox)).out == "", folder
    assert refused(await cell.run(f"cat {secrets}/key", sandbox=sandbox))
    assert set((await cell.run("ls -A /", sandbox=sandbox)).out.split()) <= {
        *("bin", "dev", "etc", "home", "lib", "lib32", "lib64", "libx32", "proc", "root", "run", "sbin"),
        *("sys", "tmp", "usr", "var"),
    }
    for path in ("/etc/shadow", "/etc/gshadow", "/etc/ssh", "/etc/ssl/private", "/etc/sudoers", "/etc/fstab"):
        assert refused(await cell.run(f"ls -d {path}", sandbox=sandbox)), path
    hosts = Path("/etc/passwd").read_text().splitlines()
    names = (await cell.run("cut -d: -f1 /etc/passwd", sandbox=sandbox)).out.split()
    assert names == ["root", "nobody"] != [line.partition(":")[0] for line in hosts]
    assert (await cell.run("ls /usr/bin/env && getent hosts localhost", sandbox=sandbox)).exited.code == 0


async def test_it_sees_no_socket_of_the_host(cell: LaunchedCell, sandbox: Sandbox) -> None:
    for folder in ("/run", "/var/lib", "/srv", "/opt"):
        path = Path(folder, f"skt-{os.getpid()}.sock")
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(path))
            try:
                listening.listen()
                path.chmod(0o777)
                assert refused(await cell.run(f"ls {path}", sandbox=sandbox)), path
            finally:
                path.unlink()


async def test_its_mount_table_shows_its_own_root_alone(cell: LaunchedCell, sandbox: Sandbox) -> None:
    ran = await cell.run("cut -d' ' -f5 /proc/self/mountinfo; cut -d' ' -f2 /proc/1/mounts", sandbox=sandbox)
    points = set(ran.out.split())
    assert {"/", "/usr", "/dev", "/proc", "/sys", "/tmp"} <= points
    for point in points - {"/"}:
        top = point.split("/")[1]
        assert top in {"usr", "dev", "proc", "sys", "tmp"} or point.startswith(("/etc/", "/lib", "/var/tmp"))
    ran = await cell.run("cat /proc/self/mountinfo", sandbox=sandbox)
    inside = {line.split()[2] for line in ran.out.splitlines()}
    table = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    visible = {os.stat(path).st_dev for path in ("/usr", "/etc/ssl/certs", "/etc/alternatives", "/lib")}
    for _, _, device, _, point, *_ in table:
        if os.path.ismount(point) and os.stat(point).st_dev not in visible and not point.startswith("/sys"):
            assert device not in inside, point


async def test_what_the_host_mounts_later_does_not_appear_in_it(
    ground: Ground, launcher: LauncherClient, tmp_path: Path
) -> None:
    cell = ground.cell()
    with tempfile.TemporaryDirectory(dir="/usr/local", prefix="skt-") as name:
        await cell.open(launcher)
        subprocess.run(["mount", "-t", "tmpfs", "none", name], check=True)
        try:
            Path(name, "late").touch()
            late = ground.cell("late")
            await late.open(launcher)
            for each in (cell, late):
                assert (await each.run(f"ls -A {name}")).out == ""
        finally:
            subprocess.run(["umount", name], check=True)


# On a machine whose resolver's file is ours; the cell is a process that has entered the root.
RESOLVERS = """
import os, subprocess, sys
from skerry.node.launcher.child.cell_root import CellRoot, HostView
host = os.path.realpath("/etc/resolv.conf")
subprocess.run(["mount", "--bind", sys.argv[1], host], check=True)
root = CellRoot(HostView())
if os.fork() == 0:
    root.enter()
    with open("/etc/resolv.conf") as file:
        print(file.read(), end="", flush=True)
    os._exit(0)
os.wait()
with open(host, "w") as file:
    file.write("nameserver 192.0.2.99\\n")
root.refresh()
root.enter()
with open("/etc/resolv.conf") as file:
    print(file.read(), end="")
"""


def test_names_are_looked_up_where_the_host_looks_them_up_now(tmp_path: Path) -> None:
    resolver = tmp_path / "resolv.conf"
    resolver.write_text("nameserver 192.0.2.1\n# longer than the one that comes\n")
    command = ("unshare", "--mount", "--propagation", "private", sys.executable, "-c", RESOLVERS, resolver)
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stdout == ("nameserver 192.0.2.1\n# longer than the one that comes\nnameserver 192.0.2.99\n")


async def test_an_admin_may_show_more_and_what_is_hidden_stays_hidden(
    ground: Ground, sandbox: Sandbox, secrets: Path
) -> None:
    inside, link = secrets / "inside", secrets.with_name(secrets.name + "-link")
    inside.mkdir()
    (inside / "key").write_text("deeper")
    link.symlink_to(secrets)
    try:
        view = HostView((str(link), "/no/such/path"), hidden=(str(link / "inside"), str(secrets / "nothing")))
        async with launching(view) as launcher:
            cell = ground.cell()
            await cell.open(launcher)
            for folder in (secrets, link):
                assert (await cell.run(f"cat {folder}/key", sandbox=sandbox)).out == "secret"
                assert (await cell.run(f"ls -A {folder}/inside", sandbox=sandbox)).out == ""
                assert refused(await cell.run(f"cat {folder}/inside/key", sandbox=sandbox))
                assert (await cell.run(f"echo x > {folder}/new", sandbox=sandbox)).exited.code != 0
            assert set((await cell.run("ls -A /opt", sandbox=sandbox)).out.split()) == {
                secrets.name,
                link.name,
            }
    finally:
        (inside / "key").unlink()
        inside.rmdir()
        link.unlink()


async def test_a_hidden_file_cannot_be_read(ground: Ground, sandbox: Sandbox, secrets: Path) -> None:
    async with launching(HostView((str(secrets),), hidden=(str(secrets / "key"),))) as launcher:
        cell = ground.cell()
        await cell.open(launcher)
        assert (await cell.run(f"cat {secrets}/key", sandbox=sandbox)).out == ""


async def test_a_program_that_is_not_in_its_root_is_refused_with_what_to_do(
    cell: LaunchedCell, secrets: Path
) -> None:
    with pytest.raises(
        errors.FailedPrecondition, match=r"/program\): No such file.*has /usr .*node\.cell_paths"
    ):
        await cell.start("", sandbox=Sandbox(arguments=(f"{secrets}/program",)))


async def test_cells_share_no_files(ground: Ground, launcher: LauncherClient) -> None:
    one, two = ground.cell("one"), ground.cell("two")
    await one.open(launcher)
    await two.open(launcher)
    for folder in ("/tmp", "/var/tmp", "/dev/shm"):
        ran = await one.run(f"echo mine > {folder}/f && chmod 666 {folder}/f && cat {folder}/f")
        assert ran.out == "mine\n"
        assert (await one.run(f"cat {folder}/f")).out == "mine\n", "another executable of the cell sees it"
        assert refused(await two.run(f"cat {folder}/f"))
        assert not Path(folder, "f").exists()


async def test_private_folders_are_bounded(ground: Ground, launcher: LauncherClient) -> None:
    cell = ground.cell()
    await cell.open(launcher, InitSpec("cell", tmp_mb=1))
    ran = await cell.run("head -c 3000000 /dev/zero > /tmp/f; wc -c < /tmp/f; rm /tmp/f")
    assert int(ran.out) == 1024 * 1024


async def test_it_has_a_host_name_of_its_own(
    ground: Ground, launcher: LauncherClient, sandbox: Sandbox
) -> None:
    cell = ground.cell()
    await cell.open(launcher, InitSpec("web"))
    assert (await cell.run("hostname", sandbox=sandbox)).out == "web\n"
    assert (await cell.run("hostname other", sandbox=sandbox)).exited.code != 0
    assert socket.gethostname() != "web"


async def test_its_network_is_the_hosts_unless_asked_for_its_own(
    ground: Ground, launcher: LauncherClient
) -> None:
    shared, own = ground.cell("shared"), ground.cell("own")
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


async def test_every_namespace_but_the_network_is_its_own(cell: LaunchedCell) -> None:
    for kind in ("pid", "mnt", "ipc", "uts"):
        ran = await cell.run(f"readlink /proc/self/ns/{kind}")
        assert ran.out.startswith(f"{kind}:[")
        assert ran.out.strip() != os.readlink(f"/proc/self/ns/{kind}")


async def test_the_hosts_mounts_are_as_they_were(ground: Ground, launcher: LauncherClient) -> None:
    def mounts(process: object) -> list[str]:
        """Without what other tests mount meanwhile: below folders of temporary files, and for containers."""
        lines = Path(f"/proc/{process}/mountinfo").read_text().splitlines()
        others = (tempfile.gettempdir() + "/", "/run/skerry", "/usr/local/skt-")
        return [line for line in lines if not line.split()[4].startswith(others)]

    before = mounts("self")
    cell = ground.cell()
    await cell.open(launcher, InitSpec("cell", isolates_network=True))
    assert (await cell.run("touch /tmp/x; mount -t tmpfs none /mnt")).exited.code != 0
    assert mounts("self") == before
    assert mounts(launcher.pid) == before


async def test_a_cell_without_isolation_sees_the_host_as_its_user_would(
    ground: Ground, launcher: LauncherClient
) -> None:
    cell = ground.cell()
    await cell.open(launcher, InitSpec("cell", isolates_processes=False))
    ran = await cell.run("readlink /proc/self/ns/pid; id -u; grep -E 'CapEff|Seccomp:' /proc/self/status")
    namespace, uid, *status = ran.out.splitlines()
    assert namespace == os.readlink("/proc/self/ns/pid")
    assert int(uid) == UID
    assert [line.split()[1] for line in status] == ["0" * 16, "2"]
