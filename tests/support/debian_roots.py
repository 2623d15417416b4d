"""A clean Debian, made by debootstrap once a day for all runs, and booted with its own systemd.

The root is unpacked into memory. systemd is process 1 of namespaces of its own (processes, mounts, network,
cgroups), on the kernel of this machine; nothing of it is left when its process is killed.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from scripts import dist

from tests.support.waiting import PATIENCE_S, eventually_sync

_PREFIX = "skerry-debian-root-"
_SUITE = "bookworm"
_ADDED = ("systemd", "systemd-sysv", "dbus")
_BUILD_S = 900.0
_BOOT = """
set -e
mount --make-rprivate /
mount -t proc proc "$R/proc"
mount -t sysfs -o ro sysfs "$R/sys"
mount -t tmpfs -o mode=755 tmpfs "$R/dev"
for d in null zero full random urandom tty; do
    mknod -m 666 "$R/dev/$d" c $(stat -c '0x%t 0x%T' "/dev/$d")
done
mkdir "$R/dev/pts" "$R/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts "$R/dev/pts"
ln -s pts/ptmx "$R/dev/ptmx"
mount -t tmpfs -o mode=755 tmpfs "$R/run"
GROUPS
ip link set lo up
cd "$R"
pivot_root . mnt
umount -l /mnt
exec env -i container=skerry-test PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --system
"""


def cached_root() -> Path:
    """An archive of a root of today, with the packages that Skerry needs downloaded and not installed."""
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        pytest.skip("a Debian root needs root, and debootstrap")
    folder = Path(tempfile.gettempdir())
    made = folder / f"{_PREFIX}{datetime.now(UTC):%Y%m%d}.tar"
    with (folder / f"{_PREFIX}lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            for old in folder.glob(f"{_PREFIX}*.tar"):
                old.unlink()
            _make_root(made)
    return made


def _make_root(archive: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=f"{_PREFIX}new-") as place:
        root = Path(place) / "root"
        done = subprocess.run(
            ["debootstrap", "--variant=minbase", f"--include={','.join(_ADDED)}", _SUITE, str(root)],
            capture_output=True,
            text=True,
            timeout=_BUILD_S,
        )
        if done.returncode:
            pytest.skip(f"debootstrap cannot make a root here: {done.stdout[-300:]}")
        (root / "etc/dpkg/dpkg.cfg.d/unsafe").write_text("force-unsafe-io\n")
        needed = [name for name in dist.dependencies() if "(" not in name]
        command = ["apt-get", "-qq", "install", "-y", "--no-install-recommends", "--download-only"]
        in_root(root, *command, "python3", *needed)
        new = archive.with_suffix(".new")
        subprocess.run(["tar", "-C", str(root), "-cf", str(new), "."], check=True)
        new.rename(archive)


def in_root(root: Path, *command: str) -> str:
    """The output of a command in a root that is not booted; with this machine's network."""
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(
        ["chroot", str(root), *command], env=environment, capture_output=True, text=True, timeout=_BUILD_S
    )
    assert done.returncode == 0, f"{command}: {done.stdout[-2000:]} {done.stderr[-2000:]}"
    return done.stdout


@contextmanager
def clean_root(place: Path) -> Iterator[Path]:
    """A root of its own, in memory."""
    archive = cached_root()
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755,size=4g", "root", str(place)], check=True)
    try:
        subprocess.run(["tar", "-C", str(place), "-xf", str(archive)], check=True)
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


class BootedRoot:
    """A root whose systemd runs."""

    def __init__(self, root: Path, init: int) -> None:
        self.root = root
        self._enter = ["nsenter", "-t", str(init), "-m", "-p", "-u", "-i", "-n", "-C"]

    def run(self, *command: str, stdin: str = "", is_checked: bool = True) -> str:
        """The output of a command on this machine, errors included."""
        done = subprocess.run(
            [*self._enter, "env", "-i", "PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", *command],
            input=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=4 * PATIENCE_S,
        )
        assert not is_checked or done.returncode == 0, f"{command}: {done.stdout[-3000:]}"
        return done.stdout.strip()

    def start(self, *command: str) -> subprocess.Popen[str]:
        return subprocess.Popen([*self._enter, *command], stdout=subprocess.PIPE, text=True)

    def shown(self, name: str, unit: str = "skerry.service") -> str:
        """A property of a unit."""
        return self.run("systemctl", "show", "--property", name, "--value", unit)

    def files(self) -> set[str]:
        """Every path, but for those of the kernel, of systemd's own, and of Python's caches."""
        excluded = "/proc /sys /dev /tmp /run/systemd /var/log /var/lib/systemd /var/cache /run/log /run/user"
        pruned = " -o ".join(f"-path {path}" for path in excluded.split())
        found = self.run("sh", "-c", f"find / \\( {pruned} -o -name __pycache__ \\) -prune -o -print")
        return set(found.splitlines())


@contextmanager
def booted(root: Path, name: str) -> Iterator[BootedRoot]:
    """Boot `root` in cgroups called `name`."""
    groups = _hierarchies()
    lines = [f"mount -t tmpfs -o mode=755 tmpfs $R{'/sys/fs/cgroup'}"] if len(groups) > 1 else []
    for place, kind, options in groups:
        _make_group(place / name)
        lines.append(f"mkdir -p $R{place} 2>/dev/null || true")
        lines.append(f"mount -t {kind} {f'-o {options} ' if options else ''}cgroup $R{place}")
    entering = "".join(f"echo 0 > {place / name}/cgroup.procs\n" for place, *_ in groups)
    inner = _BOOT.replace("GROUPS", "\n".join(lines))
    script = f'{entering}exec unshare --cgroup --uts --ipc --net sh -c "$INNER"'
    process = subprocess.Popen(
        ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-ec", script],
        env={"PATH": os.environ["PATH"], "R": str(root), "INNER": inner},
        stdin=subprocess.DEVNULL,
    )
    try:
        init = eventually_sync(lambda: _child_of(process.pid))
        machine = BootedRoot(root, init)
        states = ("running", "degraded")
        eventually_sync(
            lambda: (
                process.poll() is None
                and machine.run("systemctl", "is-system-running", is_checked=False) in states
            )
        )
        yield machine
    finally:
        process.kill()
        process.wait()
        for place, *_ in groups:
            eventually_sync(lambda place=place: _remove_group(place / name))


def _child_of(pid: int) -> int:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    if not text or Path(f"/proc/{text[0]}/comm").read_text().strip() != "systemd":
        return 0
    return int(text[0])


def _hierarchies() -> list[tuple[Path, str, str]]:
    """Where cgroups are mounted, their file system, and the controllers."""
    found = {}
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, place, kind, options, *_ = line.split()
        if kind in ("cgroup", "cgroup2") and place.startswith("/sys/fs/cgroup"):
            own = [
                each
                for each in options.split(",")
                if each not in ("rw", "relatime", "nosuid", "nodev", "noexec")
            ]
            if kind == "cgroup" and any(each.startswith("name=") for each in own):
                own.insert(0, "none")
            found[place] = (Path(place), kind, ",".join(own) if kind == "cgroup" else "")
    return list(found.values())


def _make_group(group: Path) -> None:
    group.mkdir(exist_ok=True)
    for name in ("cpuset.cpus", "cpuset.mems"):
        if (group / name).exists() and "cgroup.clone_children" in os.listdir(group):
            (group / name).write_text((group.parent / name).read_text())


def _remove_group(group: Path) -> bool:
    """Whether it is removed, with those below; a process that ends may still be in one."""
    for folder, _, _ in os.walk(group, topdown=False):
        try:
            os.rmdir(folder)
        except FileNotFoundError:
            pass
        except OSError:
            return False
    return True
