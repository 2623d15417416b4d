"""The user namespace of a node that an ordinary user starts: find it or create it, enter it, end it.

    namespace.json     in the data folder: which process holds the namespace
    namespace.lock     taken while it is found or created

`enter` moves this process into the namespace, before it has threads; from then on it has all capabilities
there, and user 0 there is its user on the machine. The network stays that of the machine: listeners and
sessions of the agent are where those of any other process are. The network namespace of the containers
belongs to the holder (`network_namespace`).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

import skerry
from skerry.kit import files, namespace_marker
from skerry.kit.namespace_marker import NamespaceMarker
from skerry.node import host
from skerry.node.kernel import syscalls
from skerry.node.kernel.processes import start_time_of
from skerry.node.rootless import id_maps
from skerry.node.rootless.holder_process import NEW_NAMESPACE, READY
from skerry.node.rootless.id_maps import IdMap

RECORD: Final = "namespace.json"
LOCK: Final = "namespace.lock"
_SYSTEM: Final = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
_STEP_S: Final = 20.0
_END_S: Final = 5.0
_REFUSED: Final = (
    "there can be no user namespace ({}); allow it (user.max_user_namespaces, "
    "kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns, or the seccomp profile "
    "of a container)"
)
_PROGRAM: Final = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from skerry.node.rootless.holder_process import main; main(*sys.argv[2:4])"
)


class NamespaceRefused(Exception):
    """There can be no user namespace; the reason is a plain sentence."""


class HolderRecord(msgspec.Struct, frozen=True):
    """The process that holds a namespace."""

    pid: int
    start_time: int  # pids are reused
    boot: str
    namespace: str  # as in /proc/PID/ns/user


def enter(folder: Path, machine: Path = Path("/etc")) -> NamespaceMarker:
    """Enter the namespace of the data folder `folder`; it is created if there is none. `machine` has the
    files subuid and subgid. Raises NamespaceRefused."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _lock(folder):
        try:
            pidfd = _running(folder) or _start(folder, machine)
            with _closing(pidfd):
                here = os.getcwd()
                syscalls.enter_namespace(pidfd, syscalls.CLONE_NEWUSER | syscalls.CLONE_NEWNS)
                os.chdir(here)
        except OSError as error:
            step = getattr(error, "step", "create it")
            raise NamespaceRefused(_REFUSED.format(f"{step}: {error.strerror}")) from error
    marker = namespace_marker.read()
    if marker is None:
        raise NamespaceRefused(f"the process that {folder / RECORD} names holds no namespace; end it")
    return marker


def end_orphans(folder: Path) -> int:
    """Kill what is left in a namespace whose holder was killed: nobody can enter all of it again. Returns the
    number of processes. Not while an agent may run there."""
    record = _record(folder)
    if record is None or is_held(folder):
        return 0
    ended = 0
    deadline = time.monotonic() + _END_S
    while (pids := _inside(record.namespace)) and time.monotonic() < deadline:
        for pid in pids:
            with contextlib.suppress(OSError), _closing(os.pidfd_open(pid)) as pidfd:
                # The pidfd pins the pid only from here on.
                if os.readlink(f"/proc/{pid}/ns/user") == record.namespace:
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                    select.select([pidfd], [], [], _END_S)
                    ended += 1
    return ended


def is_held(folder: Path) -> bool:
    """True while the holder of this data folder runs."""
    pidfd = _running(folder)
    if pidfd is None:
        return False
    os.close(pidfd)
    return True


def network_namespace(marker: NamespaceMarker) -> int:
    """A descriptor of the network namespace of the containers. Raises OSError if the holder was killed."""
    return os.open(f"/proc/{marker.holder}/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def end_if_unused(folder: Path, marker: NamespaceMarker) -> bool:
    """Called inside, when the agent has stopped: end the holder if this process is alone with it. Cells and
    containers that run keep it; the next agent finds it."""
    if others_inside(marker):
        return False
    pidfd = _running(folder)
    if pidfd is None:
        return True
    with _closing(pidfd):
        signal.pidfd_send_signal(pidfd, signal.SIGTERM)
        select.select([pidfd], [], [], _END_S)
    (folder / RECORD).unlink(missing_ok=True)
    return True


def others_inside(marker: NamespaceMarker) -> list[int]:
    """Pids of other processes in our namespace, or in one below it, beside the holder."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdecimal() or int(name) in (os.getpid(), marker.holder):
            continue
        # The link of a process outside cannot be read: that takes the right to trace it.
        with contextlib.suppress(OSError):
            os.readlink(f"/proc/{name}/ns/user")
            if not _has_ended(int(name)):
                found.append(int(name))
    return found


def _inside(namespace: str) -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{name}/ns/user") == namespace and not _has_ended(int(name)):
                    found.append(int(name))
    return found


def _has_ended(pid: int) -> bool:
    """True for a process that only waits for its parent; it still has its user namespace."""
    return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] in b"ZX"


def _record(folder: Path) -> HolderRecord | None:
    """None if there is none of this boot."""
    try:
        record = msgspec.json.decode((folder / RECORD).read_bytes(), type=HolderRecord)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None
    return record if record.boot == host.boot_id() else None


def _running(folder: Path) -> int | None:
    """A pidfd of the recorded holder; None if it is gone."""
    record = _record(folder)
    if record is None:
        return None
    try:
        pidfd = os.pidfd_open(record.pid)
    except OSError:
        return None
    with contextlib.suppress(OSError):
        # The pidfd pins the pid only from here on. It is readable once the process has ended, reaped or not.
        if start_time_of(record.pid) == record.start_time and not select.select([pidfd], [], [], 0)[0]:
            return pidfd
    os.close(pidfd)
    return None


def _start(folder: Path, machine: Path) -> int:
    """Create a namespace; a pidfd of its holder."""
    uid, gid = os.getuid(), os.getgid()
    users, groups, reasons = plan_ids(uid, gid, machine)
    if users.size > 1:
        try:
            return _create(folder, users, groups, reasons)
        except _MappingRefused as error:
            reasons = (f"cells have one user: {error}",)
    return _create(folder, id_maps.single(uid), id_maps.single(gid), reasons)


class _MappingRefused(Exception):
    """The ids could not be mapped; the namespace is of no use."""


def _create(folder: Path, users: IdMap, groups: IdMap, reasons: tuple[str, ...]) -> int:
    process, channel = _spawn(folder, users, groups, reasons)
    pidfd = os.pidfd_open(process.pid)
    try:
        with channel:
            reply = _receive(channel)
            if reply == NEW_NAMESPACE.decode():
                _map(process.pid, users, groups)
                channel.sendall(b".")
                reply = _receive(channel)
            if reply != READY.decode():
                raise NamespaceRefused(_REFUSED.format(reply or "its process ended"))
        namespace = os.readlink(f"/proc/{process.pid}/ns/user")
        record = HolderRecord(process.pid, start_time_of(process.pid), host.boot_id(), namespace)
        files.write_atomically(folder / RECORD, msgspec.json.encode(record), files.PRIVATE)
    except BaseException:
        process.kill()
        process.wait()
        os.close(pidfd)
        raise
    process.returncode = 0  # it outlives this process, and nobody waits for it here
    return pidfd


def plan_ids(uid: int, gid: int, machine: Path) -> tuple[IdMap, IdMap, tuple[str, ...]]:
    """The ids to map, and why there are no more."""
    user = _name(uid)
    users = id_maps.parse_ranges(_text(machine / "subuid"), user, uid)
    groups = id_maps.parse_ranges(_text(machine / "subgid"), user, uid)
    lacking = [name for name in ("newuidmap", "newgidmap") if shutil.which(name, path=_SYSTEM) is None]
    if lacking:
        reason = f"cells have one user: {' and '.join(lacking)} not found; install the package uidmap"
    elif not users or not groups:
        file = machine / ("subgid" if users else "subuid")
        reason = f"cells have one user: {file} assigns no ids to {user}; root adds them with usermod"
    else:
        return id_maps.with_ranges(uid, users), id_maps.with_ranges(gid, groups), ()
    return id_maps.single(uid), id_maps.single(gid), (reason,)


def _spawn(
    folder: Path, users: IdMap, groups: IdMap, reasons: tuple[str, ...]
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    marker = NamespaceMarker(
        0, str(folder), os.getuid(), os.getgid(), users.size, groups.size, str(Path.home()), reasons
    )
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            (
                *(sys.executable, "-I", "-S", "-X", "utf8", "-c", _PROGRAM),
                *(str(Path(skerry.__file__).parent.parent), str(theirs.fileno())),
                msgspec.json.encode(marker).decode(),
            ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
            cwd="/",
            env={},
        )
    ours.settimeout(_STEP_S)
    return process, ours


def _map(pid: int, users: IdMap, groups: IdMap) -> None:
    if users.size == 1:
        # Without a helper the kernel maps a group only to those who have given up setgroups.
        Path(f"/proc/{pid}/setgroups").write_text("deny")
        Path(f"/proc/{pid}/gid_map").write_text(groups.text)
        Path(f"/proc/{pid}/uid_map").write_text(users.text)
        return
    for program, ids in (("newuidmap", users), ("newgidmap", groups)):
        done = subprocess.run(
            (program, str(pid), *ids.arguments),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env={"PATH": _SYSTEM, "LC_ALL": "C"},
            timeout=_STEP_S,
            check=False,
        )
        if done.returncode:
            said = " ".join(done.stderr.decode(errors="replace").split())
            raise _MappingRefused(f"{program} failed: {said[:200] or done.returncode}")


def _receive(channel: socket.socket) -> str:
    try:
        return channel.recv(4096).decode(errors="replace")
    except ConnectionResetError:
        return ""


def _text(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


@contextlib.contextmanager
def _closing(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _lock(folder: Path) -> Iterator[None]:
    with open(folder / LOCK, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
