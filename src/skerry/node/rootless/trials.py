"""What this machine allows inside the user namespace of a node, by trying it.

Called once at the start, inside the namespace and before there are threads. A trial leaves nothing behind.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final

from skerry.kit.namespace_marker import NamespaceMarker
from skerry.node.cgroups import mounts
from skerry.node.cgroups.detection import MOUNTINFO
from skerry.node.kernel import mount_flags, syscalls
from skerry.node.rootless import delegation
from skerry.node.rootless.decisions import Observations

_SYSTEM: Final = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
_TUN: Final = "/dev/net/tun"
_FUSE: Final = "/dev/fuse"
_FIRST_PORT: Final = Path("/proc/sys/net/ipv4/ip_unprivileged_port_start")
_WITHIN_S: Final = 10.0
_LAYERS: Final = ("lower", "upper", "work", "merged")


def observe(folder: Path, marker: NamespaceMarker) -> Observations:
    """Try everything; `folder` is the data folder."""
    overlay = _with_layers(folder, _overlay_failure)
    cgroup = delegation.find(
        mounts.parse(MOUNTINFO.read_text()).unified, Path("/proc/self/cgroup").read_text()
    )
    return Observations(
        user_ids=marker.user_ids,
        id_reasons=marker.reasons,
        proc=proc_failure(),
        overlay=overlay,
        fuse=_with_layers(folder, _fuse_failure) if overlay else "",
        tun=_open_failure(_TUN),
        pasta=shutil.which("pasta", path=_SYSTEM) is not None,
        slirp4netns=shutil.which("slirp4netns", path=_SYSTEM) is not None,
        cgroup="" if cgroup is None else str(cgroup.folder),
        controllers=frozenset() if cgroup is None else cgroup.controllers,
        first_port=int(_FIRST_PORT.read_text()),
    )


def proc_failure() -> str:
    """Why a process in a new pid namespace cannot mount /proc; empty if it can."""
    pid, pidfd = syscalls.clone(syscalls.CLONE_NEWPID | syscalls.CLONE_NEWNS)
    if pid == 0:
        code = 0
        try:
            syscalls.set_mount("/", 0, recursive=True, private=True)
            syscalls.mount("proc", "/proc", "proc")
        except OSError as error:
            code = error.errno or 255
        finally:
            os._exit(code)
    os.close(pidfd)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    return "" if code == 0 else os.strerror(code) if code > 0 else signal.Signals(-code).name


def _overlay_failure(layers: Path) -> str:
    lower, upper, work, merged = (str(layers / name) for name in _LAYERS)
    options = f"lowerdir={lower},upperdir={upper},workdir={work},userxattr"
    try:
        syscalls.mount("skerry-trial", merged, "overlay", 0, options)
    except OSError as error:
        return error.strerror or str(error)
    return _use(merged)


def _fuse_failure(layers: Path) -> str:
    if shutil.which("fuse-overlayfs", path=_SYSTEM) is None:
        return "it is not installed"
    if failure := _open_failure(_FUSE):
        return f"{_FUSE}: {failure}"
    lower, upper, work, merged = (str(layers / name) for name in _LAYERS)
    done = subprocess.run(
        ("fuse-overlayfs", "-o", f"lowerdir={lower},upperdir={upper},workdir={work}", merged),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env={"PATH": _SYSTEM, "LC_ALL": "C"},
        timeout=_WITHIN_S,
        check=False,
    )
    if done.returncode:
        return " ".join(done.stderr.decode(errors="replace").split())[:200] or f"exit {done.returncode}"
    return _use(merged)


def _use(merged: str) -> str:
    """Remove a file of the lower layer, which takes a whiteout, and unmount."""
    try:
        os.unlink(f"{merged}/file")
        return "" if os.listdir(merged) == [] else "a removed file is still there"
    except OSError as error:
        return error.strerror or str(error)
    finally:
        syscalls.unmount(merged, mount_flags.MNT_DETACH)


def _with_layers(folder: Path, failure: Callable[[Path], str]) -> str:
    layers = folder / f".trial-{secrets.token_hex(6)}"
    layers.mkdir(mode=0o700)
    try:
        for name in _LAYERS:
            (layers / name).mkdir()
        (layers / "lower" / "file").touch()
        return failure(layers)
    finally:
        shutil.rmtree(layers)


def _open_failure(device: str) -> str:
    try:
        os.close(os.open(device, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return error.strerror or str(error)
    return ""
