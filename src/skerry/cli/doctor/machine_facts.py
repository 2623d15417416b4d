"""Gathers facts about this machine. Each function is independent of the others, and bounded in time.

Works without root, with what is visible then. Server code is imported inside the functions: `skerry doctor
--help` needs none of it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import resource
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from skerry.cli.doctor import machine_checks
from skerry.cli.doctor.facts import (
    CgroupFacts,
    ClockFacts,
    ContextFacts,
    DiskFacts,
    KernelFacts,
    Leftover,
    LeftoverFacts,
    PortFacts,
    ProgramFacts,
    RuntimeFacts,
    SkerryFacts,
)
from skerry.client import contexts, discovery
from skerry.client.errors import ClientError
from skerry.kit.folder_keys import folder_key

if TYPE_CHECKING:
    from skerry.model.settings import Settings

_COMMAND_S: Final = 3.0
_SYSTEM: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_VERSION: Final = re.compile(r"(\S+) version (\S+)")
_LINK: Final = re.compile(r"(?:s[kw]-([0-9a-f]{8})|s([0-9a-f]{8})[0-9a-f]{6})")
_TABLE: Final = re.compile(r"skerry_([0-9a-f]{8})(?:_\w+)?")
_NET: Final = Path("/sys/class/net")
_TIMEX_BYTES: Final = 256  # more than struct timex on any architecture
_TIMEX_STATUS: Final = 40  # its offset there, in bytes, where long has 64 bits
_STA_UNSYNC: Final = 0x40


def skerry(folder: Path) -> SkerryFacts:
    """The Skerry of the data folder."""
    try:
        ready = discovery.read_ready(folder)
    except ClientError as error:
        is_private = folder.exists() and not os.access(folder, os.R_OK | os.X_OK)
        return SkerryFacts(str(folder), error.message, is_private=is_private)
    return SkerryFacts(str(folder), role=ready.role, pid=ready.pid)


def cgroups(settings: Settings) -> CgroupFacts:
    from skerry.model import errors
    from skerry.node.cgroups import detection, mounts
    from skerry.node.cgroups.files import KernelCgroupFiles

    mounted = mounts.parse(detection.MOUNTINFO.read_text())
    try:
        backend = detection.choose(
            mounted, settings.node.cgroup_root, KernelCgroupFiles(), os.uname().release
        )
    except errors.SkerryError as error:
        return CgroupFacts(failure=error.message)
    return CgroupFacts(kind=backend.kind)


def kernel() -> KernelFacts:
    names = {line.split()[-1] for line in Path("/proc/filesystems").read_text().splitlines()}
    if "overlay" not in names and _has_module("overlay"):
        names.add("overlay")
    return KernelFacts(
        release=os.uname().release,
        machine=os.uname().machine,
        file_systems=frozenset(names),
        max_user_namespaces=_number(Path("/proc/sys/user/max_user_namespaces")),
        has_seccomp=Path("/proc/sys/kernel/seccomp/actions_avail").exists(),
        has_loop_devices=Path("/dev/loop-control").exists(),
        has_tun=Path("/dev/net/tun").exists(),
        has_wireguard=Path("/sys/module/wireguard").exists() or _has_module("wireguard"),
        descriptors=resource.getrlimit(resource.RLIMIT_NOFILE)[1],
    )


def _has_module(name: str) -> bool:
    """Whether a module can be loaded, or is built in."""
    folder = Path("/lib/modules") / os.uname().release
    for listing in ("modules.dep", "modules.builtin"):
        try:
            if re.search(rf"/{name}\.ko", (folder / listing).read_text()):
                return True
        except OSError:
            continue
    return False


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def programs() -> ProgramFacts:
    from skerry.node.containers import runtime_advisories

    names = [name for name, _, _ in (*machine_checks.PROGRAMS, *machine_checks.OPTIONAL_PROGRAMS)]
    paths = {name: _which(name) for name in (*names, "wireguard-go")}
    runtimes = []
    for name in machine_checks.RUNTIMES:
        if path := _which(name):
            found = _VERSION.search(_run(path, "--version"))
            version = found[2] if found else "of an unknown version"
            runtimes.append(RuntimeFacts(name, version, runtime_advisories.warning(name, version)))
    return ProgramFacts(paths, tuple(runtimes))


def _which(name: str) -> str:
    return shutil.which(name) or shutil.which(name, path=_SYSTEM) or ""


def _run(*command: str) -> str:
    """The output of a command; empty if it fails."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_COMMAND_S, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout if done.returncode == 0 else ""


def ports(settings: Settings, folder: Path) -> list[PortFacts]:
    """The addresses that this Skerry listens on, or would."""
    from skerry.transport import addresses

    wanted = {"http.listen": settings.http.listen, "grpc.listen": addresses.grpc_listen(settings)}
    if settings.market.plain_listen:
        wanted["market.plain_listen"] = settings.market.plain_listen
    pid = 0
    try:
        ready = discovery.read_ready(folder)
        if ready.role == "node":
            return []  # it opens connections, and listens nowhere
        pid = ready.pid
        # As it was started, whatever the settings are now.
        wanted |= {"http.listen": ready.http.partition("://")[2], "grpc.listen": ready.grpc}
    except ClientError:
        pass  # it does not run, or is another user's
    return [_port(setting, address, pid) for setting, address in wanted.items() if not address.endswith(":0")]


def _port(setting: str, address: str, own_pid: int) -> PortFacts:
    from skerry.model import errors
    from skerry.transport import addresses

    try:
        addresses.bind(address, setting).close()
    except errors.AlreadyExists:
        pid, holder = _holder(address)
        is_own = own_pid != 0 and pid in (own_pid, 0)
        return PortFacts(setting, address, "is in use by another program", holder, is_own=is_own)
    except errors.SkerryError as error:
        return PortFacts(setting, address, f"cannot be used: {error.message}")
    return PortFacts(setting, address)


def _holder(address: str) -> tuple[int, str]:
    """The process that has the port: its pid, 0 if only root may know, and its name."""
    import psutil

    port = int(address.rpartition(":")[2])
    found = find_listener(port) or _find_socket(port, is_listening=False)
    if found is None or not found.pid:
        return 0, ""
    try:
        return found.pid, f"{psutil.Process(found.pid).name()} (pid {found.pid})"
    except psutil.Error:
        return found.pid, f"pid {found.pid}"


class Listener(NamedTuple):
    """A socket that accepts connections; the pid is 0 if only root may know it."""

    address: str
    port: int
    pid: int


def find_listener(port: int) -> Listener | None:
    return _find_socket(port, is_listening=True)


def _find_socket(port: int, *, is_listening: bool) -> Listener | None:
    """A socket with this port: one that listens, or a connection from it."""
    import psutil

    try:
        for each in psutil.net_connections(kind="tcp"):
            if (each.status == psutil.CONN_LISTEN) == is_listening and each.laddr and each.laddr.port == port:
                return Listener(each.laddr.ip, port, each.pid or 0)
    except (psutil.Error, OSError):
        pass  # this user may not know
    return None


def disk(folder: Path) -> DiskFacts:
    from skerry.kit import disk_monitor

    place = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    status = os.statvfs(place)
    return DiskFacts(
        folder=str(folder),
        total_bytes=status.f_blocks * status.f_frsize,
        free_bytes=status.f_bavail * status.f_frsize,
        total_inodes=status.f_files,
        free_inodes=status.f_favail,
        is_read_only=bool(status.f_flag & os.ST_RDONLY),
        needed_bytes=disk_monitor.START_BYTES,
    )


def clock() -> ClockFacts:
    """Whether the kernel's clock is disciplined; `adjtimex` with no mode only reads, without root."""
    timedatectl = bool(_which("timedatectl"))
    buffer = ctypes.create_string_buffer(_TIMEX_BYTES)
    if ctypes.sizeof(ctypes.c_long) != 8 or ctypes.CDLL(None, use_errno=True).adjtimex(buffer) < 0:
        return ClockFacts(None, timedatectl)
    status = ctypes.c_int.from_buffer(buffer, _TIMEX_STATUS).value
    return ClockFacts(not status & _STA_UNSYNC, timedatectl)


def context_file() -> ContextFacts:
    path = discovery.contexts_file()
    try:
        file = contexts.read(path)
    except ClientError as error:
        return ContextFacts(str(path), 0, "", error.message)
    return ContextFacts(
        str(path), len(file.contexts), file.current, is_open_to_others=contexts.is_open_to_others(path)
    )


def leftovers(settings: Settings, folder: Path) -> LeftoverFacts:
    """What Skerrys have made in the kernel, and which of them run."""
    found = [*_links(), *_tables(), *_cgroups(settings.node.cgroup_root), *_folders()]
    running = frozenset(map(folder_key, _running_folders()))
    return LeftoverFacts(tuple(found), running, folder_key(folder), is_complete=os.geteuid() == 0)


def _links() -> Iterator[Leftover]:
    for name in sorted(os.listdir(_NET)) if _NET.exists() else ():
        if match := _LINK.fullmatch(name):
            yield Leftover("link", name, match[1] or match[2])


def _tables() -> Iterator[Leftover]:
    import json

    nft = _which("nft")
    if not nft or os.geteuid() != 0:
        return
    text = _run(nft, "-j", "list", "tables")
    for entry in json.loads(text)["nftables"] if text else ():
        table = entry.get("table", {})
        if match := _TABLE.fullmatch(table.get("name", "")):
            yield Leftover("table", match[0], match[1], family=table["family"])


def _cgroups(root: str) -> Iterator[Leftover]:
    from skerry.node.cgroups import detection, mounts

    mounted = mounts.parse(detection.MOUNTINFO.read_text())
    name = re.compile(rf"{re.escape(root)}-([0-9a-f]{{8}})")
    for top in dict.fromkeys((*([mounted.unified] if mounted.unified else []), *mounted.every_v1)):
        for entry in os.scandir(top):
            if match := name.fullmatch(entry.name):
                yield Leftover("cgroup", entry.path, match[1], has_processes=_has_processes(Path(entry.path)))


def _has_processes(group: Path) -> bool:
    for path in (group, *group.rglob("*/")):
        try:
            if (path / "cgroup.procs").read_bytes():
                return True
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP):
                raise
    return False


def _folders() -> Iterator[Leftover]:
    """Memory of secrets, and sockets of routes."""
    from skerry.node.secrets.memory_folder import FOLDER

    for parent in (FOLDER, Path("/run/skerry-routes")):
        try:
            names = sorted(os.listdir(parent))
        except OSError:
            continue  # there is none, or it is root's
        for name in names:
            if re.fullmatch(r"[0-9a-f]{8}", name):
                yield Leftover("folder", str(parent / name), name)


def _running_folders() -> set[Path]:
    """Data folders that are locked by a process that we may look into."""
    found: set[Path] = set()
    for line in Path("/proc/locks").read_text().splitlines():
        fields = line.split()
        if len(fields) > 5 and "FLOCK" in fields and fields[-4].isdigit():
            found |= _locked_folders(fields[-4], int(fields[-3].rpartition(":")[2]))
    return found


def _locked_folders(pid: str, inode: int) -> set[Path]:
    found: set[Path] = set()
    try:
        with os.scandir(f"/proc/{pid}/fd") as entries:
            for entry in entries:
                path = os.readlink(entry.path)
                if path.endswith("/lock") and os.stat(entry.path).st_ino == inode:
                    found.add(Path(path).parent)
    except OSError:
        return found  # it has ended, or is another user's
    return found
